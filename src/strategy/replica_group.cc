// SPDX-License-Identifier: Apache-2.0
#include "strategy/replica_group.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include "base/settings.h"
#include "observe/timeline.h"
#include "strategy/context.h"
#include "strategy/workers.h"

namespace tutti::detail {

using strategy::ContextSwitch;

ReplicaGroup::ReplicaGroup(Strategy& strategy, const std::vector<std::string>& devices,
                           int first_id, int num_replicas)
    : strategy_(strategy),
      threads_(int(devices.size())),
      rendezvous_(int(devices.size()), "replica", first_id),
      parts_(devices.size()),
      fences_(devices.size()),
      victims_(devices.size()) {
  for (int i = 0; i < int(devices.size()); ++i)
    contexts_.push_back(
        ReplicaContext(strategy, *this, i, first_id + i, num_replicas, devices[size_t(i)]));
}

void ReplicaGroup::run(const std::function<void(size_t)>& fn) {
  std::lock_guard serial(serial_);
  rendezvous_.reset();
  std::vector<std::exception_ptr> errors(contexts_.size());
  victims_.assign(contexts_.size(), false);
  const device::Fence before = device::Fence::here();
  threads_.run([&](int i) {
    const ContextSwitch inside(strategy_, &contexts_[size_t(i)], i, contexts_[size_t(i)].device());
    try {
      observe::Span span("run");
      span.set("replica", contexts_[size_t(i)].replica_id_in_sync_group());
      before.wait();
      fn(size_t(i));
      rendezvous_.leave(i);
    } catch (const std::exception& e) {
      errors[size_t(i)] = std::current_exception();
      rendezvous_.fail(i, e.what());
    } catch (...) {
      errors[size_t(i)] = std::current_exception();
      rendezvous_.fail(i, "an exception of unknown type");
    }
  });
  device::Fence().wait();
  for (const bool victim : {false, true})
    for (size_t i = 0; i < errors.size(); ++i)
      if (errors[i] && bool(victims_[i]) == victim) {
        give_up(contexts_[i], errors[i]);
        std::rethrow_exception(errors[i]);
      }
}

// The replicas of other workers can no longer be matched.
void ReplicaGroup::give_up(const ReplicaContext& context, const std::exception_ptr& error) {
  std::string why = "an exception of unknown type";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    why = e.what();
  } catch (...) {
  }
  strategy_.extended().workers_->abandon(
      fmt::format("replica {}: {}", context.replica_id_in_sync_group(), why));
}

void ReplicaGroup::meet(ReplicaContext& context, Meeting& part,
                        const CommunicationOptions& options) {
  const auto i = size_t(context.local_replica_id());
  if (&get_replica_context() != &context)
    throw FailedPreconditionError(fmt::format(
        "{}: the context belongs to another replica or to a run that is over", part.what()));
  options.validate(part.what());
  parts_[i] = &part;
  fences_[i] = device::Fence::here();
  observe::Span span(part.what());
  span.set("replica", context.replica_id_in_sync_group());
  bool acted = false;
  try {
    rendezvous_.meet(int(i), part.what(),
                     {.timeout = options.timeout.value_or(base::settings().timeout),
                      .warn_after = base::settings().warn_after},
                     [&] {
                       acted = true;
                       check_agreement();
                       const ContextSwitch outside(strategy_, nullptr, -1, "");
                       for (const device::Fence& fence : fences_) fence.wait();
                       parts_[0]->act(strategy_, parts_);
                       acted_ = device::Fence::here();
                     });
    acted_.wait();
  } catch (...) {
    victims_[i] = !acted;
    // A single replica may meet outside of run(), which would reset the rendezvous; no other
    // replica is inside.
    if (contexts_.size() == 1) rendezvous_.reset();
    throw;
  }
}

void ReplicaGroup::check_agreement() {
  const Meeting& first = *parts_[0];
  for (size_t i = 1; i < parts_.size(); ++i) {
    const Meeting& other = *parts_[i];
    if (typeid(first) == typeid(other) && first.agrees_with(other)) continue;
    const std::string text =
        fmt::format("the replicas disagree: replica {} asks for {}({}), replica {} for {}({})",
                    contexts_[0].replica_id_in_sync_group(), first.what(), first.describe(),
                    contexts_[i].replica_id_in_sync_group(), other.what(), other.describe());
    rendezvous_.abort(ErrorCode::invalid_argument, text);
    throw InvalidArgumentError(text);
  }
}

}  // namespace tutti::detail
