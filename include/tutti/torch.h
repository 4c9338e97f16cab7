// SPDX-License-Identifier: Apache-2.0
// LibTorch models on many workers. Needs LibTorch, so tutti.h leaves it out; a header only, so that
// Tutti depends on no version of it.
//
//   tutti::TorchDataParallel model(net, world);   // all ranks get the parameters of rank 0
//   ...
//   loss(model.forward(x), y).backward();         // now every gradient is the mean over all ranks
//   optimizer.step();
#pragma once

#include <torch/nn/pimpl.h>
#include <tutti/detail/torch_gradients.h>
#include <tutti/gradient_reducer.h>

#include <memory>
#include <utility>

namespace tutti {

// Options of a TorchDataParallel.
struct TorchDataParallelOptions {
  // With missing_as_zero, parameters may go unused in a pass; one that no rank uses keeps its
  // gradient as it is, undefined or not.
  GradientReducerOptions reducer = {};
  // Whether forward() makes the buffers, such as those of BatchNorm, those of rank 0 in every step.
  bool broadcast_buffers = true;
};

// A torch::Tensor as a Tensor and back: the same memory, which lives as long as either. No copy, so
// strided memory is an InvalidArgumentError. On a GPU the memory is good for what the current
// stream of the receiving library does next; see StreamScope.
inline Tensor from_torch(const torch::Tensor& tensor) { return detail::from_torch(tensor); }
inline torch::Tensor to_torch(const Tensor& tensor) { return detail::to_torch(tensor); }

// A model of which every rank holds a copy. After a backward pass the gradient of each parameter is
// the mean over all ranks; gradients travel while the pass still makes the rest. A handle: copies
// stand for the same model. It is used by one thread at a time, as a torch::nn::Module is.
//
// A backward pass that throws on a rank, once it has reached the model, fails on all ranks, with an
// AbortedError that names the rank; so does every later one. A second derivative (create_graph) of
// the parameters, and a sparse gradient, are an InvalidArgumentError that names the parameter:
// no_sync() leaves them alone.
template <class Module>
class TorchDataParallel {
 public:
  using Options = TorchDataParallelOptions;

  // A collective. Parameters and buffers become those of rank 0. InvalidArgumentError on all ranks
  // if their models differ, with the first parameter that does. Parameters that need no gradient
  // now are left out for good.
  TorchDataParallel(std::shared_ptr<Module> module, const Group& group, const Options& options = {})
      : module_(std::move(module)),
        gradients_(detail::TorchGradients::of(*module_, group, options.reducer,
                                              options.broadcast_buffers)) {}
  // Of a module holder, such as torch::nn::Sequential.
  TorchDataParallel(const torch::nn::ModuleHolder<Module>& module, const Group& group,
                    const Options& options = {})
      : TorchDataParallel(module.ptr(), group, options) {}

  // The module that was given, for all that is not collective.
  Module& operator*() const { return *module_; }
  Module* operator->() const { return module_.get(); }
  const std::shared_ptr<Module>& module() const { return module_; }

  // The module's forward(). While it trains, it is a collective if the module has buffers: they
  // become those of rank 0 first. A pass may begin at a tensor that it returns, or at one in a
  // vector, pair or tuple of tensors.
  template <class... Args>
  auto forward(Args&&... args) {
    gradients_->begin_forward(module_->is_training());
    auto result = module_->forward(std::forward<Args>(args)...);
    gradients_->watch(result);
    return result;
  }

  // The mean of the next backward pass is weighted, for ranks with different numbers of examples:
  // the sum of weight * gradient over the sum of the weights. On all ranks or on none.
  void begin(double weight) { gradients_->reducer().begin(weight); }

  // While it lives, gradients of backward passes stay and add up on this rank. Those of the next
  // pass after it travel with what was added up.
  [[nodiscard]] GradientReducer::Pause no_sync() { return gradients_->reducer().no_sync(); }

  // For inputs that end on some ranks before others. A collective, once per step and before its
  // first batch: whether any rank has a batch. A rank that has none calls skip() in place of its
  // passes, and then steps its optimizer as the others do. skip() stands for one forward(): a
  // module with buffers is called once per step, or broadcast_buffers is false.
  //
  //   while (model.join(batch.has_value())) {
  //     optimizer.zero_grad();
  //     if (batch) loss(model.forward(batch->data), batch->target).backward(); else model.skip();
  //     optimizer.step();
  //     batch = next();
  //   }
  //
  // The mean is over the ranks that have a batch; those call begin(), if it is used, after join().
  bool join(bool has_batch) { return gradients_->join(has_batch); }
  void skip() { gradients_->skip(module_->is_training()); }

  // What averages the gradients. They lie in the parameters, not in its gradient(i). Lives as long
  // as any handle.
  GradientReducer& reducer() const { return gradients_->reducer(); }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<detail::TorchGradients> gradients_;
};

template <class Module>
TorchDataParallel(std::shared_ptr<Module>, const Group&) -> TorchDataParallel<Module>;
template <class Module>
TorchDataParallel(std::shared_ptr<Module>, const Group&, const TorchDataParallelOptions&)
    -> TorchDataParallel<Module>;
// A holder is a class of its own that derives from ModuleHolder<Impl>.
template <class Holder>
  requires requires(const Holder& holder) { typename Holder::ContainedType; }
TorchDataParallel(const Holder&, const Group&) -> TorchDataParallel<typename Holder::ContainedType>;
template <class Holder>
  requires requires(const Holder& holder) { typename Holder::ContainedType; }
TorchDataParallel(const Holder&, const Group&, const TorchDataParallelOptions&)
    -> TorchDataParallel<typename Holder::ContainedType>;

}  // namespace tutti
