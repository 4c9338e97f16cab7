// SPDX-License-Identifier: Apache-2.0
// Gradients that are averaged between ranks while the backward pass still makes the rest.
//
//   GradientReducer reducer(world, {{"weight", {784, 10}}, {"bias", {10}}});
//   for (...) {
//     // The backward pass writes reducer.gradient(i) and says reducer.ready(i), for every i.
//     reducer.finish();   // now each gradient is the mean over all ranks
//   }
//
// Gradients travel in buckets: when all of a bucket are ready, its all_reduce starts in the
// background. The first step fills buckets in the reverse order of the parameters, later ones in
// the order in which the gradients of rank 0 became ready in the first step. A sum is the tree over
// ranks that ReduceOp describes, so the bits do not depend on the buckets.
#pragma once

#include <tutti/group.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// Options of a GradientReducer.
struct GradientReducerOptions {
  // A bucket is full when it has this many bytes, or more.
  int64_t bucket_bytes = 4 << 20;
  // A gradient that is not ready at finish() counts as zero, instead of being an error: for
  // branches of a model that did not run.
  bool missing_as_zero = false;
  // Gradients that have become means, and their parameters. Called by finish(), bucket after
  // bucket, while later ones still travel. What it throws comes out of finish(), and fails all
  // ranks as abort() does.
  struct Bucket {
    // By index, and in the same order the gradients; good until on_bucket returns.
    std::span<const size_t> parameters;
    std::span<const Tensor> gradients;
  };
  std::function<void(const Bucket&)> on_bucket = {};  // on the thread of finish()
  CommunicationOptions communication = {};            // of the sums
};

// One rank's gradients, of a model that all ranks hold. All ranks construct it, and finish as many
// steps. They travel in a group of their own, a copy of the one that is given, so that they never
// wait for the program's other collectives. The first error is the last, as that of a group is. If
// a program has several, all ranks finish them in the same order.
//
// Thread safety: ready() may be called from any thread; the other methods from one at a time, when
// no call of ready() is under way.
class GradientReducer {
 public:
  using Options = GradientReducerOptions;
  // A parameter, and what its gradient is like.
  struct Parameter {
    std::string name;              // what errors call it
    Shape shape;                   // of the gradient, too
    DType dtype = DType::float32;  // one with a fraction
    std::string device = {};       // empty: host memory
  };

  // A collective. InvalidArgumentError on all ranks if their parameters differ, with the first that
  // does.
  GradientReducer(const Group& group, std::vector<Parameter> parameters,
                  const Options& options = {});
  ~GradientReducer();
  GradientReducer(GradientReducer&&) noexcept;
  GradientReducer& operator=(GradientReducer&&) noexcept;

  size_t size() const;         // the number of parameters
  const Group& group() const;  // that of the gradients
  // Where the gradient of parameter `i` is written and its mean is found, unless ready() names
  // other memory: zeros first, always the same memory; in host memory, one that all ranks of the
  // host reach.
  const Tensor& gradient(size_t i) const;

  // The mean of the next finish() is weighted: the sum of weight * gradient over the sum of the
  // weights, in float64 and rounded once. On all ranks or on none. Before any gradient of the step
  // is ready. InvalidArgumentError: negative or not finite; finish() throws it if all are 0.
  void begin(double weight);

  // The gradient is written, and not touched until finish() returns. FailedPreconditionError: it
  // was ready before in this step.
  void ready(size_t i);
  // The same of a gradient in other memory, where its mean is found as well. That of Group::empty
  // is not copied. finish() drops the tensor. InvalidArgumentError: it is not what the parameter's
  // gradient is like.
  void ready(size_t i, const Tensor& gradient);

  // Returns when every gradient is the mean over all ranks. FailedPreconditionError on all ranks if
  // gradients of one are missing, with their names.
  void finish();

  // How long the last finish() waited for the sums: for ranks that came later, and for the exchange
  // that the backward pass did not hide. The rank that comes last waits least, so the smallest of
  // all ranks' is the exchange.
  std::chrono::nanoseconds waited() const;

  // While it lives, ready() and finish() do nothing, so that gradients add up on this rank: for
  // batches that do not fit at once.
  class [[nodiscard]] Pause {
   public:
    Pause(Pause&&) noexcept = default;
    Pause& operator=(Pause&&) noexcept = default;

   private:
    friend class GradientReducer;
    explicit Pause(std::shared_ptr<void> held) : held_(std::move(held)) {}
    std::shared_ptr<void> held_;
  };
  Pause no_sync();         // see Pause
  bool is_paused() const;  // by any Pause

  // Fails the step on all ranks: finish() throws AbortedError "rank 1 failed: REASON". For a
  // backward pass that cannot go on. A rank that has the sums of this step already gets it in the
  // next.
  void abort(const std::string& reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Scales the tensors so that their norm, as that of one vector, is at most `most`; returns what it
// was. In float64, in the order of the list: the same bits on all ranks, if their tensors are the
// same. InvalidArgumentError: `most` is not a positive number, or a tensor has no fractions.
double clip_by_global_norm(std::span<const Tensor> tensors, double most);

}  // namespace tutti

#pragma GCC visibility pop
