// SPDX-License-Identifier: Apache-2.0
// Behind a Group: the checks, the order of operations, and the record, above a backend.
#pragma once

#include <tutti/error.h>
#include <tutti/group.h>

#include <memory>
#include <mutex>

#include "base/fork.h"
#include "base/settings.h"
#include "base/world.h"
#include "cluster/membership.h"
#include "device/gpu.h"
#include "gpu/gpu_collectives.h"
#include "group/core/backend.h"
#include "group/record.h"
#include "group/stragglers.h"
#include "group/work_queue.h"

namespace tutti {

namespace detail {

class GroupImpl {
 public:
  // `stragglers`: after how many collectives the ranks compare how long they waited; the same on
  // all ranks.
  explicit GroupImpl(std::unique_ptr<group::Backend> backend,
                     int stragglers = base::settings().stragglers)
      : backend_(std::move(backend)),
        rank_(backend_->rank()),
        size_(backend_->size()),
        in_job_(!backend_->address(rank_).empty()),
        way_(backend_->way()),
        stragglers_(size_ > 1 ? stragglers : 0),
        queue_(std::make_shared<WorkQueue>(in_job_)) {}
  // Leaves. What is still in the queue is cancelled.
  ~GroupImpl();
  // With a deleter that leaves the parent's groups alone in a forked child.
  static std::shared_ptr<GroupImpl> make(std::unique_ptr<group::Backend> backend,
                                         int stragglers = base::settings().stragglers);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const;
  int local_size() const;
  group::Backend& backend() { return *backend_; }
  // FailedPreconditionError in a child that was forked from a process of the job.
  void expect_own_process(std::string_view operation) const {
    if (base::is_forked_child()) [[unlikely]]
      refuse_child(operation);
  }

  void run(const GroupCall& call, const CommunicationOptions& options);
  Work start(const GroupCall& call, const CommunicationOptions& options);
  void all_reduce(std::span<const Tensor> tensors, ReduceOp op,
                  const CommunicationOptions& options);
  Work start_all_reduce(std::span<const Tensor> tensors, ReduceOp op,
                        const CommunicationOptions& options);
  void all_reduce(std::span<const Tensor> tensors, WeightedMean mean,
                  const CommunicationOptions& options);
  Work start_all_reduce(std::span<const Tensor> tensors, WeightedMean mean,
                        const CommunicationOptions& options);
  void broadcast(std::span<const Tensor> tensors, int root, const CommunicationOptions& options);
  // The replicas of this rank are leaves of the tree; see LeafReduction. With `gpu`, on that GPU.
  void all_reduce_leaves(const group::LeafReduction& reduction,
                         const CommunicationOptions& options);
  void all_gather_uneven(const Memory& in, const Memory& out, std::span<const int64_t> counts,
                         const CommunicationOptions& options);
  std::shared_ptr<GroupImpl> split(int color, int key);
  void abort(const std::string& reason);
  // Fails the group, not the job: this rank cannot go on with it.
  void fail(ErrorCode code, const std::string& text);

 private:
  // An operation with what the record and the timeline keep of it.
  struct Step {
    const group::Description& what;
    int64_t bytes;  // what this rank gives or gets, whichever is more
  };
  template <class F>
  void in_order(const Step& step, const F& operation);
  template <class F>
  void collective(const Step& step, const F& operation);
  template <class F>
  void recorded(group::Record& record, const Step& step, const F& operation);
  void compare_stragglers();
  // On the host, or on a GPU if `gpu` or the reduction's GPU is one.
  void perform(const group::Description& what, int gpu, const GroupCall& call,
               group::Timeouts timeouts, const group::Record& record);
  void perform(const group::Description& what, const group::LeafReduction& reduction,
               group::Timeouts timeouts);
  group::GpuCollectives& on_gpus();
  void refuse_child(std::string_view operation) const;
  void tell_of(ErrorCode code, const std::string& text, const group::Description& what);
  [[noreturn]] void explain(const Error& error, const group::Record& record);

  std::unique_ptr<group::Backend> backend_;
  const int rank_, size_;
  const bool in_job_;      // of several processes
  const group::Way& way_;  // of the backend's last collective
  base::Mutex collective_, sending_, receiving_;
  group::Record collectives_, sent_, received_;
  group::Stragglers stragglers_;

  std::once_flag gpus_used_;
  std::unique_ptr<group::GpuCollectives> on_gpus_;

  const std::shared_ptr<WorkQueue> queue_;  // of operations in the background
};

struct GroupAccess {
  static Group make(std::shared_ptr<GroupImpl> impl) { return Group(std::move(impl)); }
  static GroupImpl& impl(const Group& group) { return *group.impl_; }
  static const std::shared_ptr<GroupImpl>& shared(const Group& group) { return group.impl_; }
};

}  // namespace detail

namespace group {

// A new group of all workers of a job, or without one of this process alone; see join.
Group join_group(const std::optional<cluster::Membership>& membership, const std::string& purpose);

}  // namespace group
}  // namespace tutti
