// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/detail/expect_alike.h>
#include <tutti/error.h>
#include <tutti/gradient_reducer.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/hash.h"
#include "base/world.h"
#include "device/gpu.h"
#include "group/group_impl.h"
#include "job/job.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

using Parameter = GradientReducer::Parameter;

std::string text_of(const Parameter& parameter) {
  return fmt::format("\"{}\" {}{}", parameter.name, name(parameter.dtype),
                     parameter.shape.to_string());
}

void check(const std::vector<Parameter>& parameters, const GradientReducerOptions& options) {
  for (const Parameter& parameter : parameters)
    if (!is_floating(parameter.dtype))
      throw InvalidArgumentError(fmt::format(
          "GradientReducer: parameter {}; the mean of gradients needs a floating point type",
          text_of(parameter)));
  if (options.bucket_bytes <= 0)
    throw InvalidArgumentError(fmt::format(
        "GradientReducer: bucket_bytes is {}, expected a positive number", options.bucket_bytes));
  options.communication.validate("GradientReducer");
}

// Those of the rank `root`, on all ranks.
std::vector<std::string> lines_of(const Group& group, const std::string& text, int root) {
  auto bytes = int64_t(text.size());
  group.broadcast(std::span(&bytes, 1), root);
  std::vector<uint8_t> buffer(text.begin(), text.end());
  buffer.resize(size_t(bytes));
  group.broadcast(buffer, root);
  std::vector<std::string> lines;
  for (auto at = buffer.begin(); at != buffer.end();) {
    const auto end = std::find(at, buffer.end(), uint8_t{0});
    lines.emplace_back(at, end);
    at = end + 1;
  }
  return lines;
}

}  // namespace

void detail::expect_alike(const Group& group, const std::string& what,
                          const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\0';
  const uint64_t mine = base::checksum(std::as_bytes(std::span(text)));
  std::vector<uint64_t> all(size_t(group.size()));
  group.all_gather(std::span(&mine, 1), all);
  const auto other = std::ranges::find_if(all, [&](uint64_t hash) { return hash != all[0]; });
  if (other == all.end()) return;
  const int rank = int(other - all.begin());
  const std::vector<std::string> first = lines_of(group, text, 0);
  const std::vector<std::string> second = lines_of(group, text, rank);
  const size_t i = size_t(std::ranges::mismatch(first, second).in1 - first.begin());
  const auto line = [&](const std::vector<std::string>& its) {
    return i < its.size() ? its[i] : fmt::format("none ({} in all)", its.size());
  };
  const std::string error =
      fmt::format("{}: ranks hold different models: line {} is {} on rank 0 and {} on rank {}",
                  what, i, line(first), line(second), rank);
  group::report_failure({-1, ErrorCode::invalid_argument, error});
  throw InvalidArgumentError(error);
}

struct GradientReducer::Impl {
  Impl(const Group& g, std::vector<Parameter> p, Options o)
      : group(g), parameters(std::move(p)), options(std::move(o)) {
    std::vector<std::string> lines;
    for (const Parameter& parameter : parameters) lines.push_back(text_of(parameter));
    detail::expect_alike(group, "GradientReducer", lines);
    check(parameters, options);  // what all ranks have, so that none waits for one that throws
    for (const Parameter& parameter : parameters)
      devices.push_back(
          device::find(parameter.device.empty() ? "cpu:0" : parameter.device, "GradientReducer")
              .name());
    std::vector<size_t> reversed(parameters.size());
    std::iota(reversed.rbegin(), reversed.rend(), size_t{0});
    fill_buckets(reversed);
  }

  // Host memory in one piece, so that other ranks map it at once. Not before it is needed: all
  // gradients may lie elsewhere. Needs the mutex.
  const Tensor& own(size_t i) {
    if (gradients.empty()) allocate();
    return gradients[i];
  }
  void allocate() {
    const auto padded = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    size_t bytes = 0;
    const auto bytes_of = [&](const Parameter& parameter) {
      return padded(size_t(parameter.shape.num_elements()) * size_of(parameter.dtype));
    };
    for (const Parameter& parameter : parameters)
      if (parameter.device.empty()) bytes += bytes_of(parameter);
    std::vector<Tensor> own;
    const Tensor all = group.empty({int64_t(bytes)}, DType::uint8);
    auto* at = static_cast<std::byte*>(all.data());
    std::fill_n(at, bytes, std::byte{0});
    const auto owner = std::make_shared<Tensor>(all);
    for (const Parameter& parameter : parameters) {
      if (!parameter.device.empty()) {
        own.push_back(Tensor::zeros(parameter.shape, parameter.dtype, parameter.device));
        continue;
      }
      own.push_back(Tensor::borrow(at, parameter.shape, parameter.dtype, all.device(), owner));
      at += bytes_of(parameter);
    }
    gradients = std::move(own);
  }

  void fill_buckets(std::span<const size_t> in_order) {
    buckets.clear();
    places.resize(parameters.size());
    size_t bytes = 0;
    for (const size_t i : in_order) {
      // A bucket lies in one memory.
      if (buckets.empty() || bytes >= size_t(options.bucket_bytes) ||
          devices[buckets.back().parameters[0]] != devices[i]) {
        buckets.emplace_back();
        bytes = 0;
      }
      places[i] = {buckets.size() - 1, buckets.back().parameters.size()};
      buckets.back().parameters.push_back(i);
      bytes += size_t(parameters[i].shape.num_elements()) * size_of(parameters[i].dtype);
    }
    restart();
  }

  void restart() {
    for (Bucket& bucket : buckets) {
      bucket.missing = bucket.parameters.size();
      bucket.gradients.assign(bucket.missing, Tensor());
      bucket.before.clear();
    }
    is_ready.assign(parameters.size(), false);
    order.clear();
    works.clear();
    weight.reset();
  }

  void check_index(size_t i) const {
    if (i >= parameters.size())
      throw OutOfRangeError(fmt::format("GradientReducer: there is no parameter {}; there are {}",
                                        i, parameters.size()));
  }

  void check_like_parameter(size_t i, const Tensor& gradient) const {
    const Parameter& parameter = parameters[i];
    if (gradient.shape() != parameter.shape || gradient.dtype() != parameter.dtype ||
        gradient.device() != devices[i])
      throw InvalidArgumentError(fmt::format("ready: the gradient of {} on {} is {}",
                                             text_of(parameter), devices[i], gradient.to_string()));
  }

  // These need the mutex.
  void ready(size_t i, const Tensor& gradient) {
    if (is_ready[i])
      throw FailedPreconditionError(
          fmt::format("ready: the gradient of \"{}\" was ready before in this step; finish() ends "
                      "a step",
                      parameters[i].name));
    make_ready(i, gradient);
  }
  void make_ready(size_t i, const Tensor& gradient) {
    Bucket& bucket = buckets[places[i].bucket];
    bucket.gradients[places[i].index] = gradient;
    is_ready[i] = true;
    order.push_back(i);
    if (!parameters[i].device.empty()) bucket.before.push_back(device::Fence::here());
    --bucket.missing;
    // All ranks start the buckets in the same order.
    while (works.size() < buckets.size() && buckets[works.size()].missing == 0)
      works.push_back(start(buckets[works.size()]));
  }

  struct Bucket {
    std::vector<size_t> parameters = {};
    std::vector<Tensor> gradients = {};
    size_t missing = 0;
    std::vector<device::Fence> before = {};  // what has written those on GPUs
  };
  Work start(Bucket& bucket) {
    for (const device::Fence& fence : bucket.before) fence.wait();
    bucket.before.clear();
    return weight ? group.all_reduce_async(bucket.gradients, WeightedMean{*weight},
                                           options.communication)
                  : group.all_reduce_async(bucket.gradients, ReduceOp::MEAN, options.communication);
  }

  // Needs the mutex.
  void complete() {
    std::vector<size_t> missing;
    for (size_t i = 0; i < parameters.size(); ++i)
      if (!is_ready[i]) missing.push_back(i);
    if (missing.empty()) return;
    if (!options.missing_as_zero) fail(missing);
    for (const size_t i : missing) {
      detail::assign(own(i), Tensor::zeros(parameters[i].shape, parameters[i].dtype, devices[i]));
      make_ready(i, own(i));
    }
  }

  [[noreturn]] void fail(const std::vector<size_t>& missing) {
    constexpr size_t kMost = 8;
    std::vector<std::string> names;
    for (const size_t i : missing)
      if (names.size() < kMost) names.push_back(fmt::format("\"{}\"", parameters[i].name));
    const size_t more = missing.size() - names.size();
    const std::string text = fmt::format(
        "finish: rank {} has no gradient of {}{}; with missing_as_zero such a gradient counts as "
        "zero",
        group.rank(), fmt::join(names, ", "), more ? fmt::format(" and {} more", more) : "");
    detail::GroupAccess::impl(group).fail(ErrorCode::failed_precondition, text);
    throw FailedPreconditionError(text);
  }

  void finish() {
    {
      std::lock_guard lock(mutex);
      if (!failure.empty()) throw AbortedError(failure);
      complete();
    }
    waited = {};
    for (size_t b = 0; b < works.size(); ++b) {
      const auto start = base::Clock::now();
      works[b].wait();
      waited += base::Clock::now() - start;
      if (options.on_bucket) call_hook(buckets[b]);
    }
    agree_on_order();
    restart();
  }

  // The other ranks would go on with a step that this one does not end.
  void call_hook(const Bucket& bucket) {
    try {
      options.on_bucket({bucket.parameters, bucket.gradients});
    } catch (const std::exception& error) {
      abort(error.what());
      throw;
    }
  }

  void abort(const std::string& reason) {
    const std::string text = fmt::format("rank {} failed: {}", group.rank(), reason);
    detail::GroupAccess::impl(group).fail(ErrorCode::aborted, text);
    std::lock_guard lock(mutex);
    if (failure.empty()) failure = text;
  }

  // Until nothing of the step works on the gradients any more.
  void settle() {
    for (Work& work : works) {
      try {
        work.wait();
      } catch (const Error&) {  // the first is thrown by finish()
      }
    }
  }

  // The order of rank 0, once it is known.
  void agree_on_order() {
    if (has_order || parameters.empty()) return;
    std::vector<uint64_t> first(order.begin(), order.end());
    group.broadcast(first, 0, options.communication);
    has_order = true;
    fill_buckets(std::vector<size_t>(first.begin(), first.end()));
  }

  const Group group;
  const std::vector<Parameter> parameters;
  const Options options;
  std::vector<std::string> devices;  // of the parameters

  std::mutex mutex;
  std::vector<Tensor> gradients;  // in memory of this reducer's own, once that is needed
  std::vector<Bucket> buckets;
  struct Place {
    size_t bucket, index;
  };
  std::vector<Place> places;  // of the parameters
  std::vector<bool> is_ready;
  std::vector<size_t> order;  // in which gradients became ready
  std::vector<Work> works;    // of the first buckets
  std::optional<double> weight;
  std::string failure;  // this rank's own
  bool has_order = false;
  std::weak_ptr<void> pause;
  std::chrono::nanoseconds waited{};
};

GradientReducer::GradientReducer(const Group& group, std::vector<Parameter> parameters,
                                 const Options& options) {
  impl_ = std::make_unique<Impl>(group.split(0, group.rank()), std::move(parameters), options);
}
GradientReducer::~GradientReducer() = default;
GradientReducer::GradientReducer(GradientReducer&&) noexcept = default;
GradientReducer& GradientReducer::operator=(GradientReducer&&) noexcept = default;

size_t GradientReducer::size() const { return impl_->parameters.size(); }
const Group& GradientReducer::group() const { return impl_->group; }

const Tensor& GradientReducer::gradient(size_t i) const {
  impl_->check_index(i);
  std::lock_guard lock(impl_->mutex);
  return impl_->own(i);
}

void GradientReducer::begin(double weight) {
  if (!(weight >= 0) || std::isinf(weight))
    throw InvalidArgumentError(
        fmt::format("begin: the weight is {}, expected a finite number of 0 or more", weight));
  std::lock_guard lock(impl_->mutex);
  if (!impl_->order.empty())
    throw FailedPreconditionError(
        fmt::format("begin: the gradient of \"{}\" is ready already; finish() ends a step",
                    impl_->parameters[impl_->order[0]].name));
  impl_->weight = weight;
}

void GradientReducer::ready(size_t i) {
  impl_->check_index(i);
  std::lock_guard lock(impl_->mutex);
  if (!is_paused()) impl_->ready(i, impl_->own(i));
}

void GradientReducer::ready(size_t i, const Tensor& gradient) {
  impl_->check_index(i);
  impl_->check_like_parameter(i, gradient);
  std::lock_guard lock(impl_->mutex);
  if (!is_paused()) impl_->ready(i, gradient);
}

void GradientReducer::finish() {
  if (is_paused()) return;
  try {
    impl_->finish();
  } catch (...) {
    impl_->settle();
    impl_->restart();  // the group throws the same error again
    throw;
  }
}

std::chrono::nanoseconds GradientReducer::waited() const { return impl_->waited; }

GradientReducer::Pause GradientReducer::no_sync() {
  std::shared_ptr<void> held = impl_->pause.lock();
  if (!held) impl_->pause = held = std::make_shared<char>();
  return Pause(std::move(held));
}

bool GradientReducer::is_paused() const { return !impl_->pause.expired(); }

void GradientReducer::abort(const std::string& reason) { impl_->abort(reason); }

double clip_by_global_norm(std::span<const Tensor> tensors, double most) {
  if (!(most > 0))
    throw InvalidArgumentError(fmt::format(
        "clip_by_global_norm: the norm may be at most {}, expected a positive number", most));
  double squares = 0;
  for (const Tensor& tensor : tensors) {
    if (!is_floating(tensor.dtype()))
      throw InvalidArgumentError(fmt::format(
          "clip_by_global_norm: {}, expected floating point numbers", tensor.to_string()));
    double sum = 0;
    for (const double value : tensor.to(DType::float64).to_vector<double>()) sum += value * value;
    squares += sum;
  }
  const double norm = std::sqrt(squares);
  if (!(norm > most)) return norm;
  for (const Tensor& tensor : tensors) {
    const Tensor wide = tensor.to(DType::float64);
    detail::scale(wide, most / norm, false);
    detail::assign(tensor, wide.to(tensor.dtype()));
  }
  return norm;
}

}  // namespace tutti
