// SPDX-License-Identifier: Apache-2.0
// Which replica the current thread runs, if any. The strategies set it; the layers beneath them
// read it.
#pragma once

namespace tutti::base {

// While it lives, this thread is in the replica function of local replica `id`.
class ReplicaThread {
 public:
  explicit ReplicaThread(int id);
  ~ReplicaThread();
  ReplicaThread(const ReplicaThread&) = delete;
  ReplicaThread& operator=(const ReplicaThread&) = delete;

 private:
  int outer_;
};

// The local id of the replica that this thread runs; -1 outside of replica functions.
int local_replica_id();

}  // namespace tutti::base
