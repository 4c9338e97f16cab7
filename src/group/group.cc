// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/group.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/settings.h"
#include "group/group_impl.h"
#include "job/job.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

constexpr int kMostRanks = 4096;

detail::GroupImpl& impl_of(const std::shared_ptr<detail::GroupImpl>& impl) { return *impl; }

}  // namespace

namespace detail {

Memory read(const Tensor& tensor) {
  if (!tensor) throw InvalidArgumentError("group: the tensor holds nothing");
  const Device& device = TensorAccess::device(tensor);
  if (!device.in_host_memory() && device.gpu() < 0)
    throw InvalidArgumentError(
        fmt::format("group: {} is neither in host memory nor on a GPU", tensor.to_string()));
  return {TensorAccess::data(tensor), tensor.num_elements(), tensor.dtype(), &tensor};
}

Memory write(const Tensor& tensor) {
  Memory memory = read(tensor);
  if (tensor.is_read_only())
    throw InvalidArgumentError(fmt::format("group: {} is read-only", tensor.to_string()));
  return memory;
}

}  // namespace detail

namespace group {

Group join_group(const std::optional<cluster::Membership>& membership, const std::string& purpose) {
  auto [backend, stragglers] = join(membership, purpose);
  return detail::GroupAccess::make(detail::GroupImpl::make(std::move(backend), stragglers));
}

}  // namespace group

void Work::wait() {
  if (!state_) throw FailedPreconditionError("wait: this Work stands for no operation");
  state_->queue->wait(*state_);
}

bool Work::done() const {
  if (!state_) throw FailedPreconditionError("done: this Work stands for no operation");
  return state_->queue->is_done(*state_);
}

Group Group::from_environment() {
  return group::join_group(cluster::membership_from_environment(), "Group::from_environment");
}

std::vector<Group> Group::in_process(int n) {
  if (n < 1 || n > kMostRanks)
    throw InvalidArgumentError(
        fmt::format("in_process: {} ranks, expected 1 to {}", n, kMostRanks));
  std::vector<Group> ranks;
  for (std::unique_ptr<group::Backend>& backend : group::make_in_process(n, base::settings().costs))
    ranks.push_back(detail::GroupAccess::make(detail::GroupImpl::make(std::move(backend))));
  return ranks;
}

int Group::rank() const { return impl_of(impl_).rank(); }
int Group::size() const { return impl_of(impl_).size(); }
int Group::local_rank() const { return impl_of(impl_).local_rank(); }
int Group::local_size() const { return impl_of(impl_).local_size(); }
std::string_view Group::backend() const { return impl_of(impl_).backend().name(); }

Group Group::split(int color, int key) const { return Group(impl_of(impl_).split(color, key)); }

void Group::abort(const std::string& reason) const { impl_of(impl_).abort(reason); }

Tensor Group::empty(const Shape& shape, DType dtype) const {
  detail::Device& device = device::find("/job:localhost/replica:0/task:0/device:CPU:0", "empty");
  size_t bytes;
  if (__builtin_mul_overflow(size_t(shape.num_elements()), size_of(dtype), &bytes) ||
      bytes > size_t(std::numeric_limits<int64_t>::max()))
    throw ResourceExhaustedError(
        fmt::format("empty: {}{} is more than any memory", name(dtype), shape.to_string()));
  impl_of(impl_).expect_own_process("empty");
  const std::shared_ptr<void> memory =
      impl_of(impl_).backend().allocate(std::max<size_t>(bytes, 1));
  return detail::TensorAccess::wrap(memory, memory.get(), shape, dtype, device, false);
}

void Group::run(const detail::GroupCall& call, const Options& options) const {
  impl_of(impl_).run(call, options);
}
Work Group::start(const detail::GroupCall& call, const Options& options) const {
  return impl_of(impl_).start(call, options);
}
void Group::all_reduce(std::span<const Tensor> tensors, ReduceOp op, const Options& options) const {
  impl_of(impl_).all_reduce(tensors, op, options);
}
Work Group::all_reduce_async(std::span<const Tensor> tensors, ReduceOp op,
                             const Options& options) const {
  return impl_of(impl_).start_all_reduce(tensors, op, options);
}

void Group::all_reduce(std::span<const Tensor> tensors, WeightedMean mean,
                       const Options& options) const {
  impl_of(impl_).all_reduce(tensors, mean, options);
}
Work Group::all_reduce_async(std::span<const Tensor> tensors, WeightedMean mean,
                             const Options& options) const {
  return impl_of(impl_).start_all_reduce(tensors, mean, options);
}
void Group::broadcast(std::span<const Tensor> tensors, int root, const Options& options) const {
  impl_of(impl_).broadcast(tensors, root, options);
}

size_t Group::total(const std::vector<int64_t>& counts) {
  return size_t(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

std::vector<int64_t> Group::gather_counts(const detail::Memory& in, const Options& options) const {
  std::vector<int64_t> counts(static_cast<size_t>(size()));
  all_gather(std::span<const int64_t>(&in.count, 1), counts, options);
  return counts;
}

void Group::gather_parts(const detail::Memory& in, const detail::Memory& out,
                         const std::vector<int64_t>& counts, const Options& options) const {
  impl_of(impl_).all_gather_uneven(in, out, counts, options);
}

Tensor Group::all_gather_uneven(const Tensor& in, const Options& options) const {
  const detail::Memory memory = detail::read(in);
  if (in.shape().rank() == 0)
    throw InvalidArgumentError(
        fmt::format("all_gather_uneven: {} is a scalar and has no rows", in.to_string()));
  std::vector<int64_t> extents(in.shape().begin(), in.shape().end());
  const int64_t rows = extents[0];
  extents[0] = 1;
  const int64_t row = Shape(extents).num_elements();
  std::vector<int64_t> counts(static_cast<size_t>(size()));
  all_gather(std::span<const int64_t>(&rows, 1), counts, options);
  extents[0] = int64_t(total(counts));
  const Tensor out = Tensor::empty(Shape(extents), in.dtype(), in.device());
  for (int64_t& count : counts) count *= row;
  gather_parts(memory, detail::write(out), counts, options);
  return out;
}

}  // namespace tutti
