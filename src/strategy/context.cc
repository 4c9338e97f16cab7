// SPDX-License-Identifier: Apache-2.0
#include "strategy/context.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include "base/log.h"

namespace tutti {

namespace strategy {

Context& context() {
  static thread_local Context instance;
  return instance;
}

ContextSwitch::ContextSwitch(Strategy& strategy, ReplicaContext* replica, int local_replica_id,
                             std::string_view device)
    : outer_(std::exchange(
          context(),
          Context{.strategy = &strategy, .replica = replica, .merging = replica == nullptr})),
      replica_thread_(local_replica_id),
      device_(device) {}

ContextSwitch::~ContextSwitch() { context() = std::move(outer_); }

void require_cross_replica(const Strategy& strategy, const char* what) {
  const Context& current = context();
  if (current.replica)
    throw FailedPreconditionError(
        fmt::format("{} belongs to cross-replica context and was called inside a replica function; "
                    "use merge_call to leave it",
                    what));
  if (current.strategy && current.strategy != &strategy)
    throw FailedPreconditionError(fmt::format(
        "{}: this thread is inside another strategy; strategies cannot be mixed", what));
}

}  // namespace strategy

using strategy::context;

bool has_strategy() {
  return context().strategy && context().strategy != &strategy::default_strategy();
}

Strategy& get_strategy() {
  return context().strategy ? *context().strategy : strategy::default_strategy();
}

bool in_cross_replica_context() { return context().strategy && !context().replica; }

ReplicaContext& get_replica_context() {
  if (context().replica) return *context().replica;
  if (context().strategy)
    throw FailedPreconditionError(
        "get_replica_context: this is cross-replica context, which has no replica; call it inside "
        "a function given "
        "to run");
  return strategy::default_replica_context();
}

void experimental_set_strategy(Strategy* strategy) {
  if (context().scopes > 0 || context().replica)
    throw FailedPreconditionError(
        "experimental_set_strategy: not inside a scope or a replica function; leave it first");
  context().strategy = strategy;
}

struct Scope::State {
  Strategy* outer;
  int depth;  // of scopes, with this one
  int device_depth;
};

Scope::Scope(Strategy& strategy) {
  strategy::require_cross_replica(strategy, "scope");
  strategy::Context& current = context();
  state_ =
      std::make_unique<State>(State{current.strategy, current.scopes + 1, device::scope_depth()});
  current.strategy = &strategy;
  ++current.scopes;
}

Scope::Scope(Scope&&) noexcept = default;

void Scope::close() {
  if (!state_) return;
  strategy::Context& current = context();
  const char* open = current.replica                                 ? "a replica function"
                     : current.scopes != state_->depth               ? "a scope of a strategy"
                     : device::scope_depth() != state_->device_depth ? "a DeviceScope"
                                                                     : nullptr;
  if (open)
    throw FailedPreconditionError(fmt::format(
        "scope: cannot be closed while {} that was opened inside it is still open, or from another "
        "thread; close that first",
        open));
  current.strategy = state_->outer;
  --current.scopes;
  state_.reset();
}

Scope::~Scope() {
  try {
    close();
  } catch (const Error& e) {
    if (context().scopes >= state_->depth) {  // else an outer scope has cleared up already
      context().strategy = state_->outer;
      context().scopes = state_->depth - 1;
    }
    try {
      base::log(base::LogLevel::error, e.what());
    } catch (...) {  // a setting that cannot be understood; the next call says so
    }
  }
}

}  // namespace tutti
