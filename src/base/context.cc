// SPDX-License-Identifier: Apache-2.0
#include "base/context.h"

#include <utility>

namespace tutti::base {

namespace {
thread_local int current_replica = -1;
}  // namespace

ReplicaThread::ReplicaThread(int id) : outer_(std::exchange(current_replica, id)) {}
ReplicaThread::~ReplicaThread() { current_replica = outer_; }

int local_replica_id() { return current_replica; }

}  // namespace tutti::base
