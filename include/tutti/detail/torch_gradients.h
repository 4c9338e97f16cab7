// SPDX-License-Identifier: Apache-2.0
// The hooks that bring gradients from LibTorch's backward passes to a GradientReducer.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <tutti/detail/expect_alike.h>
#include <tutti/detail/torch_join.h>
#include <tutti/detail/torch_module.h>
#include <tutti/detail/torch_parameters.h>
#include <tutti/gradient_reducer.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::detail {

// The gradients of a model's parameters. Hooks of LibTorch's backward passes call it, from any
// thread; the model's own calls come from one.
class TorchGradients : public std::enable_shared_from_this<TorchGradients> {
 public:
  static std::shared_ptr<TorchGradients> of(const torch::nn::Module& module, const Group& group,
                                            const GradientReducerOptions& options,
                                            bool broadcasts_buffers) {
    const std::vector<NamedTensor> parameters = torch_list(module.named_parameters());
    const std::vector<NamedTensor> buffers = torch_list(module.named_buffers());
    expect_alike(group, "TorchDataParallel", torch_lines(parameters, buffers));
    auto trained = parameters;
    std::erase_if(trained, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
    std::shared_ptr<TorchGradients> self(new TorchGradients(std::move(trained), group, options));
    for (const auto* list : {&parameters, &buffers}) broadcast(self->reducer_.group(), *list, 0);
    if (broadcasts_buffers) self->buffers_ = buffers;
    if (group.size() > 1) TorchMemory::install();
    self->add_hooks();
    return self;
  }

  GradientReducer& reducer() { return reducer_; }

  void begin_forward(bool is_training) {
    if (!torch::GradMode::is_enabled() || reducer_.is_paused()) return;
    add_hooks();
    if (is_training) broadcast(reducer_.group(), buffers_, join_.root());
  }

  // A pass that starts at one of these ends when all nested ones have. A leaf would keep the hook.
  template <class Result>
  void watch(const Result& result) {
    for_each_tensor(result, [this](const torch::Tensor& tensor) {
      if (!tensor.defined() || tensor.is_leaf()) return;
      tensor.register_hook([weak = weak_from_this()](const torch::Tensor&) {
        if (const auto self = weak.lock()) self->reached();
      });
    });
  }

  bool join(bool has_batch) { return join_.join(reducer_, has_batch); }

  void skip(bool is_training) {
    if (reducer_.is_paused()) return;
    if (!join_.take_skipped())
      throw FailedPreconditionError("skip: join(false) comes before, and returns true");
    begin_forward(is_training);
    const auto supplied = parameters_.supply(reducer_.group());
    const TorchStreams streams(parameters_.gpus());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_.has_gradient(i)) {
        if (may_miss_) continue;
        parameters_.set_zero_gradient(i);
      }
      set_ready(i);
    }
    finish();
  }

 private:
  // A backward pass. If it goes without having finished, it ended with an exception.
  struct Pass {
    Pass(std::shared_ptr<TorchGradients> g, bool a) : gradients(std::move(g)), is_of_all(a) {}
    ~Pass() {
      if (!is_over) gradients->abandon();
    }
    const std::shared_ptr<TorchGradients> gradients;
    const bool is_of_all;  // leaves: by backward(), not by grad() or with `inputs`
    const std::shared_ptr<const TorchSupply> supplied =
        gradients->parameters_.supply(gradients->reducer_.group());
    bool is_over = false;
  };

  TorchGradients(std::vector<NamedTensor> parameters, const Group& group,
                 const GradientReducerOptions& options)
      : parameters_(std::move(parameters)),
        may_miss_(options.missing_as_zero),
        reducer_(group, parameters_.for_reducer(), options),
        is_ready_(parameters_.size()) {}

  // Loading a module gives parameters other nodes. One that has been frozen gives none.
  void add_hooks() {
    accumulators_.resize(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      auto node = torch::autograd::impl::grad_accumulator(parameters_[i]);
      if (!node || node == accumulators_[i]) continue;
      parameters_.expect_unchanged(i);
      parameters_.expect_unshared(i, node->post_hooks(), this);
      node->add_post_hook(std::make_unique<TorchHook>(
          weak_from_this(), [this, i](const torch::Tensor& added) { accumulated(i, added); }));
      accumulators_[i] = std::move(node);
    }
  }

  // Called inside a backward pass, which makes gradients from here on.
  void reached() {
    if (!reducer_.is_paused()) return begin_pass();
    if (const auto supplied = parameters_.supply(reducer_.group()))
      torch::autograd::Engine::get_default_engine().queue_callback([supplied] {});
  }

  // Called inside a backward pass, which will call finish() when it ends.
  void begin_pass() {
    std::shared_ptr<Pass> pass;
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.empty())
        throw AbortedError(torch_text("rank ", reducer_.group().rank(), " failed: ", failure_));
      if (!pass_.expired()) return;
      const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
      pass_ = pass = std::make_shared<Pass>(shared_from_this(), !wanted || wanted->empty());
    }
    torch::autograd::Engine::get_default_engine().queue_callback([pass] {
      pass->is_over = true;
      pass->gradients->end_pass(pass->is_of_all);
    });
  }

  void end_pass(bool is_of_all) {
    {
      const std::lock_guard lock(mutex_);
      pass_.reset();
      const bool has_any = std::find(is_ready_.begin(), is_ready_.end(), true) != is_ready_.end();
      if (!has_any && !(is_of_all && parameters_.has_trained())) return;
    }
    finish();
  }

  void abandon() noexcept {
    const std::lock_guard lock(mutex_);
    const auto ready = std::count(is_ready_.begin(), is_ready_.end(), true);
    try {
      failure_ = torch_text("its backward pass ended with an exception, after ", ready, " of ",
                            parameters_.size(), " gradients");
      reducer_.abort(failure_);
    } catch (const std::exception&) {  // the other ranks miss this one at their deadline
    }
  }

  void accumulated(size_t i, const torch::Tensor& added) {
    if (reducer_.is_paused()) return;
    begin_pass();
    if (!parameters_.has_gradient(i)) return;  // the pass had none to give
    parameters_.expect_no_graph(i);
    const TorchStreams streams(parameters_.gpus());
    set_ready(i, added);
  }

  void set_ready(size_t i, const torch::Tensor& added = {}) {
    const Tensor gradient = parameters_.gradient(i, added);
    {
      const std::lock_guard lock(mutex_);
      is_ready_[i] = true;
    }
    reducer_.ready(i, gradient);
  }

  void finish() {
    join_.end_step();
    const std::vector<bool> is_ready =
        std::exchange(is_ready_, std::vector<bool>(parameters_.size()));
    const TorchStreams streams(parameters_.gpus());
    if (!may_miss_) return reducer_.finish();
    std::vector<uint8_t> is_used;
    try {
      for (size_t i = 0; i < parameters_.size(); ++i) {
        is_used.push_back(parameters_.has_gradient(i));
        if (!is_used[i]) parameters_.set_zero_gradient(i);
        if (!is_ready[i]) reducer_.ready(i, parameters_.gradient(i));
      }
    } catch (...) {
      abandon();
      throw;
    }
    reducer_.finish();
    // A parameter that no rank has used keeps no gradient, so that an optimizer leaves it alone.
    reducer_.group().all_reduce(is_used, ReduceOp::MAX);
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (!is_used[i]) parameters_.drop_gradient(i);
  }

  TorchParameters parameters_;
  std::vector<NamedTensor> buffers_;
  const bool may_miss_;  // gradients of parameters
  GradientReducer reducer_;
  // LibTorch itself does not keep them.
  std::vector<decltype(torch::autograd::impl::grad_accumulator({}))> accumulators_;
  TorchJoin join_;
  std::mutex mutex_;
  std::weak_ptr<Pass> pass_;
  std::vector<bool> is_ready_;
  std::string failure_;  // of an earlier pass
};

}  // namespace tutti::detail
