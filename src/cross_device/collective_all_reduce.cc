// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/collective_all_reduce.h>
#include <tutti/error.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/time_left.h"
#include "cross_device/fused.h"
#include "cross_device/packing.h"
#include "group/group_impl.h"
#include "observe/timeline.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

using detail::Device;
using detail::GroupAccess;
using detail::TensorAccess;

// The time that a call has, shared by its operations.
class Budget {
 public:
  explicit Budget(const CommunicationOptions& options) : options_(options) {
    options_.bytes_per_pack = 0;  // seen to here
  }
  CommunicationOptions left() const { return base::left_of(options_, began_); }

 private:
  CommunicationOptions options_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// Dense values with as many components each, on their way through the group.
struct Dense {
  std::vector<Tensor> inputs, outputs;
  int gpu = -1;                                   // whose memory all of them are in
  std::optional<Destinations> destinations = {};  // where the output goes in the end
  std::vector<const void*> from = {};
  std::vector<void*> to = {};
  int64_t number = 0;  // among the values of the call
};

Device& host_device() {
  return device::find("/job:localhost/replica:0/task:0/device:CPU:0", "CollectiveAllReduce");
}

// What the replicas give and get: where it is if that is one memory, the host's or that of `gpu`,
// and else by way of the host.
Dense make_dense(ReduceOp op, const PerReplica<Value>& value, const Destinations& destinations,
                 int gpu) {
  Dense dense{.inputs = {}, .outputs = {}};
  for (const Value& v : value)
    dense.inputs.push_back(v.is_sparse() ? v.slices().to_dense() : v.tensor());
  const auto all_on = [&](int where) {
    return std::ranges::all_of(
               dense.inputs,
               [&](const Tensor& t) { return TensorAccess::device(t).gpu() == where; }) &&
           std::ranges::all_of(TensorAccess::devices(destinations),
                               [&](const Device* device) { return device->gpu() == where; });
  };
  std::vector<Device*> outputs = TensorAccess::devices(destinations);
  if (gpu >= 0 && all_on(gpu)) {
    dense.gpu = gpu;
  } else if (!all_on(-1)) {
    dense.destinations = destinations;
    outputs = {&host_device()};
    for (Tensor& input : dense.inputs)
      if (TensorAccess::device(input).gpu() >= 0) input = detail::clone_to(input, host_device());
  }
  for (Device* const device : outputs)
    dense.outputs.push_back(TensorAccess::empty(
        dense.inputs[0].shape(), result_dtype(op, dense.inputs[0].dtype()), *device));
  return dense;
}

Mirrored<Value> result_of(const Dense& dense) {
  std::vector<Value> values;
  if (!dense.destinations) {
    values.assign(dense.outputs.begin(), dense.outputs.end());
  } else {
    for (Device* const device : TensorAccess::devices(*dense.destinations))
      values.emplace_back(detail::clone_to(dense.outputs[0], *device));
  }
  return Mirrored<Value>(std::move(values));
}

// What a rank tells the others of its slices before they travel.
struct SlicesHeader {
  int64_t rows;
  int64_t wide_indices;  // int64, not int32
  int64_t dense_rows;    // of the tensor they are taken from; -1: not known
  int64_t kind;          // stands for the dtype and the shape of a row
  int64_t op;
};
constexpr size_t kHeader = sizeof(SlicesHeader) / sizeof(int64_t);

SlicesHeader header_of(ReduceOp op, const IndexedSlices& slices) {
  const Shape& shape = slices.values.shape();
  auto kind = uint64_t(slices.dtype());
  for (const int64_t extent : shape.extents().subspan(1))
    kind = base::mixed(kind, uint64_t(extent));
  return {.rows = shape[0],
          .wide_indices = slices.indices.dtype() == DType::int64,
          .dense_rows = slices.dense_shape ? (*slices.dense_shape)[0] : -1,
          .kind = int64_t(kind),
          .op = int64_t(op)};
}

int64_t row_size(const Tensor& tensor) {
  int64_t size = 1;
  for (const int64_t extent : tensor.shape().extents().subspan(1)) size *= extent;
  return size;
}

}  // namespace

struct CollectiveAllReduce::State {
  Group group;
  std::vector<Device*> devices;
  CommunicationOptions options;
  std::mutex mutex;  // the operations of one call are not mixed with those of another

  detail::GroupImpl& ranks() { return GroupAccess::impl(group); }

  void check_size(const char* what, size_t components) const {
    if (components != 1 && components != devices.size())
      throw InvalidArgumentError(
          fmt::format("{}: the value has {} components, expected one for each of the {} devices of "
                      "this worker, or one alone",
                      what, components, devices.size()));
  }

  // For values on GPUs the group decides.
  void check_implementation(const CommunicationOptions& options) const {
    if (options.implementation != CommunicationImplementation::NCCL) return;
    if (devices[0]->gpu() >= 0) return;
    if (base::settings().backend == "nccl")
      throw UnavailableError(
          "\"nccl\" reduces between GPUs, and the replicas are not on GPUs; unset "
          "TUTTI_BACKEND=nccl to fall back");
    base::log_once(
        base::LogLevel::warning,
        "\"nccl\" reduces between GPUs, and the replicas are not on GPUs; falling back to the "
        "group's own way");
  }

  // All values with `components` leaves on each rank, in one memory.
  void reduce_dense(ReduceOp op, std::span<Dense> values, size_t components, const Budget& budget,
                    int64_t bytes_per_pack) {
    const int gpu = values.empty() ? -1 : values[0].gpu;
    std::vector<int> owners;
    for (int rank = 0; rank < group.size(); ++rank) owners.insert(owners.end(), components, rank);
    std::vector<group::Piece> pieces;
    std::vector<int64_t> bytes;
    // The gradients of the last layers come first, since they are ready first.
    for (size_t i = values.size(); i-- > 0;) {
      Dense& dense = values[i];
      for (const Tensor& input : dense.inputs) dense.from.push_back(input.const_data());
      for (const Tensor& output : dense.outputs) dense.to.push_back(TensorAccess::data(output));
      pieces.push_back({dense.from, dense.to, dense.inputs[0].num_elements(),
                        dense.inputs[0].dtype(), &dense.inputs[0].shape(), dense.number});
      bytes.push_back(int64_t(dense.inputs[0].num_bytes()));
    }
    auto packs = cross_device::group_by_bytes(bytes, bytes_per_pack);
    if (packs.empty()) packs.emplace_back();
    for (const std::vector<size_t>& pack : packs)
      ranks().all_reduce_leaves(
          {std::span(pieces).subspan(pack.empty() ? 0 : pack.front(), pack.size()), owners, op,
           gpu},
          budget.left());
    if (auto* const span = observe::Span::current()) span->set("packs", int64_t(packs.size()));
  }

  // The slices of all ranks in rank order; `mine` are those of this rank.
  std::vector<IndexedSlices> gather_slices(ReduceOp op, const std::vector<IndexedSlices>& mine,
                                           const Budget& budget) {
    const auto size = size_t(group.size());
    std::vector<SlicesHeader> sent, all(mine.size() * size);
    for (const IndexedSlices& slices : mine) sent.push_back(header_of(op, slices));
    group.all_gather(std::span(&sent[0].rows, mine.size() * kHeader),
                     std::span(&all[0].rows, all.size() * kHeader), budget.left());
    std::vector<IndexedSlices> results;
    for (size_t i = 0; i < mine.size(); ++i) {
      std::vector<int64_t> rows;
      int64_t dense_rows = -1;
      size_t told_by = 0;
      bool wide = false;
      for (size_t r = 0; r < size; ++r) {
        const SlicesHeader& theirs = all[r * mine.size() + i];
        rows.push_back(theirs.rows);
        wide |= theirs.wide_indices != 0;
        if (theirs.op != all[i].op)
          throw InvalidArgumentError(
              fmt::format("reduce: the workers disagree: worker 0 asks for {} of IndexedSlices, "
                          "worker {} for {}",
                          name(ReduceOp(all[i].op)), r, name(ReduceOp(theirs.op))));
        if (theirs.kind != all[i].kind)
          throw InvalidArgumentError(fmt::format(
              "reduce: the IndexedSlices of worker {} differ from those of worker 0 in dtype or in "
              "the shape of a row; here they are {}",
              r, mine[i].values.to_string()));
        if (theirs.dense_rows >= 0 && dense_rows >= 0 && theirs.dense_rows != dense_rows)
          throw InvalidArgumentError(
              fmt::format("reduce: the IndexedSlices of workers {} and {} are of tensors with {} "
                          "and {} rows",
                          told_by, r, dense_rows, theirs.dense_rows));
        if (theirs.dense_rows >= 0 && dense_rows < 0) {
          dense_rows = theirs.dense_rows;
          told_by = r;
        }
      }
      const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      IndexedSlices result{
          .values = gathered(mine[i].values, rows, total, budget),
          .indices = gathered(
              wide && !sent[i].wide_indices ? mine[i].indices.to(DType::int64) : mine[i].indices,
              rows, total, budget)};
      if (dense_rows >= 0) {
        result.dense_shape = result.values.shape().with_extent(0, dense_rows);
        advise(total, dense_rows);
      }
      results.push_back(std::move(result));
    }
    return results;
  }

  // rows[r] rows from rank r, one after another.
  Tensor gathered(const Tensor& mine, std::vector<int64_t> rows, int64_t total,
                  const Budget& budget) {
    const Tensor result =
        TensorAccess::empty(mine.shape().with_extent(0, total), mine.dtype(), *devices[0]);
    for (int64_t& count : rows) count *= row_size(mine);
    ranks().all_gather_uneven(detail::read(mine), detail::write(result), rows, budget.left());
    return result;
  }

  // Rows travel to every rank; a dense sum takes twice the tensor.
  static void advise(int64_t rows, int64_t dense_rows) {
    if (auto* const span = observe::Span::current(); span && rows > 2 * dense_rows)
      span->set("advice",
                fmt::format("{} rows of a tensor of {} travel: sparse_as_dense would be cheaper",
                            rows, dense_rows));
  }
};

CollectiveAllReduce::CollectiveAllReduce(const std::vector<std::string>& devices, Group group,
                                         const CommunicationOptions& options)
    : state_(new State{.group = std::move(group), .devices = {}, .options = options, .mutex = {}}) {
  options.validate("CollectiveAllReduce");
  if (devices.empty()) throw InvalidArgumentError("CollectiveAllReduce: there are no devices");
  for (const std::string& name : devices) {
    Device& device = device::find(name, "CollectiveAllReduce");
    if (std::ranges::find(state_->devices, &device) != state_->devices.end())
      throw InvalidArgumentError(
          fmt::format("CollectiveAllReduce: the device {} is named twice", device.name()));
    if (!device.in_host_memory() && device.gpu() < 0)
      throw InvalidArgumentError(fmt::format(
          "CollectiveAllReduce: {} is neither in host memory nor on a GPU", device.name()));
    state_->devices.push_back(&device);
  }
}

CollectiveAllReduce::~CollectiveAllReduce() = default;

bool CollectiveAllReduce::spans_processes() const { return state_->group.size() > 1; }
CommunicationOptions CollectiveAllReduce::default_options() const { return state_->options; }

Mirrored<Value> CollectiveAllReduce::reduce_implementation(ReduceOp op,
                                                           const PerReplica<Value>& value,
                                                           const Destinations& destinations,
                                                           const CommunicationOptions& options) {
  return std::move(batch_reduce_implementation(op, {{value, destinations}}, options)[0]);
}

std::vector<Mirrored<Value>> CollectiveAllReduce::batch_reduce_implementation(
    ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
    const CommunicationOptions& options) {
  state_->check_implementation(options);
  for (const auto& [value, destinations] : pairs) state_->check_size("reduce", value.size());
  if (!spans_processes()) return cross_device::fused_reduce(op, pairs);

  const Budget budget(options);
  const std::lock_guard lock(state_->mutex);
  const size_t devices = state_->devices.size();
  // One leaf for each replica, or one for each rank; on the GPU, or on the host. All ranks take
  // them in this order.
  std::array<std::vector<Dense>, 4> dense;
  const auto kind_of = [&](const PerReplica<Value>& value, int gpu) {
    return size_t(value.size() == devices ? 0 : 1) + (gpu < 0 ? 2 : 0);
  };
  std::vector<std::pair<size_t, size_t>> places;  // of each dense value in there
  std::vector<IndexedSlices> sparse;
  for (const auto& [value, destinations] : pairs) {
    if (cross_device::is_sparse(value)) {
      const Destinations here(state_->devices[0]->name());
      sparse.push_back(cross_device::fused_reduce(ReduceOp::SUM, value, here)[0].slices());
      continue;
    }
    Dense next = make_dense(op, value, destinations, state_->devices[0]->gpu());
    const size_t kind = kind_of(value, next.gpu);
    next.number = int64_t(places.size() + sparse.size());
    places.emplace_back(kind, dense[kind].size());
    dense[kind].push_back(std::move(next));
  }
  if (auto* const span = observe::Span::current())
    span->set("algorithm", std::string(state_->group.backend()));
  if (pairs.empty())  // nothing is something to agree on
    state_->reduce_dense(op, {}, devices, budget, options.bytes_per_pack);
  for (size_t kind = 0; kind < dense.size(); ++kind)
    if (!dense[kind].empty())
      state_->reduce_dense(op, dense[kind], kind % 2 == 0 ? devices : 1, budget,
                           options.bytes_per_pack);
  if (!sparse.empty()) sparse = state_->gather_slices(op, sparse, budget);

  std::vector<Mirrored<Value>> results;
  size_t next_dense = 0, next_sparse = 0;
  for (const auto& [value, destinations] : pairs) {
    if (cross_device::is_sparse(value)) {
      const auto replicas = int64_t(value.size()) * state_->group.size();
      results.push_back(cross_device::fused_reduce(op, PerReplica<Value>(sparse[next_sparse++]),
                                                   destinations, replicas));
      continue;
    }
    const auto [kind, place] = places[next_dense++];
    results.push_back(result_of(dense[kind][place]));
  }
  return results;
}

// Every rank's part is its replicas' one after another; the parts are joined as if each were a
// replica.
Mirrored<Tensor> CollectiveAllReduce::gather_implementation(const PerReplica<Tensor>& value,
                                                            const Destinations& destinations,
                                                            size_t axis,
                                                            const CommunicationOptions& options) {
  state_->check_size("gather", value.size());
  if (!spans_processes())
    return CrossDeviceOps::gather_implementation(value, destinations, axis, options);
  const Budget budget(options);
  const std::lock_guard lock(state_->mutex);
  const Destinations here(state_->devices[0]->name());
  const Tensor mine = CrossDeviceOps::gather_implementation(value, here, axis, options)[0];

  const auto size = size_t(state_->group.size());
  std::vector<int64_t> told(mine.shape().begin(), mine.shape().end());
  told.push_back(int64_t(axis));
  std::vector<int64_t> heard(told.size() * size);
  state_->group.all_gather(told, heard, budget.left());
  std::vector<Shape> shapes;
  std::vector<int64_t> counts;
  for (size_t r = 0; r < size; ++r) {
    const std::span<const int64_t> theirs = std::span(heard).subspan(r * told.size(), told.size());
    if (theirs.back() != told.back())
      throw InvalidArgumentError(
          fmt::format("gather: the workers disagree: worker {} gathers along axis {}, worker {} "
                      "along axis {}",
                      state_->group.rank(), axis, r, theirs.back()));
    shapes.emplace_back(theirs.first(told.size() - 1));
    if (!(shapes[r] == mine.shape().with_extent(axis, theirs[axis])))
      throw InvalidArgumentError(fmt::format(
          "gather: workers {} and {} hold shapes {} and {}, which differ in more than "
          "axis {}",
          state_->group.rank(), r, mine.shape().to_string(), shapes[r].to_string(), axis));
    counts.push_back(shapes[r].num_elements());
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor joined = TensorAccess::empty(Shape{total}, mine.dtype(), *state_->devices[0]);
  state_->ranks().all_gather_uneven(detail::read(mine), detail::write(joined), counts,
                                    budget.left());
  std::vector<Tensor> parts;
  auto* data = static_cast<std::byte*>(TensorAccess::data(joined));
  for (size_t r = 0; r < size; ++r) {
    parts.push_back(TensorAccess::wrap(std::make_shared<Tensor>(joined), data, shapes[r],
                                       mine.dtype(), *state_->devices[0], true));
    data += size_t(counts[r]) * size_of(mine.dtype());
  }
  return CrossDeviceOps::gather_implementation(PerReplica<Tensor>(std::move(parts)), destinations,
                                               axis, options);
}

}  // namespace tutti
