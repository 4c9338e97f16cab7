// SPDX-License-Identifier: Apache-2.0
// The tensors of a module of LibTorch, and those in its results.
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/module.h>
#include <tutti/detail/torch_tensor.h>
#include <tutti/group.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tutti::detail {

// The tensors in what a module's forward() returns.
template <class F>
void for_each_tensor(const torch::Tensor& tensor, const F& f) {
  f(tensor);
}
template <class Other, class F>
void for_each_tensor(const Other&, const F&) {}
template <class T, class F>
void for_each_tensor(const std::vector<T>& list, const F& f) {
  for (const T& element : list) for_each_tensor(element, f);
}
template <class A, class B, class F>
void for_each_tensor(const std::pair<A, B>& pair, const F& f) {
  for_each_tensor(pair.first, f);
  for_each_tensor(pair.second, f);
}
template <class... T, class F>
void for_each_tensor(const std::tuple<T...>& tuple, const F& f) {
  std::apply([&](const T&... element) { (for_each_tensor(element, f), ...); }, tuple);
}

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

// Each once, with memory that has no gaps.
inline std::vector<NamedTensor> torch_list(
    const torch::OrderedDict<std::string, torch::Tensor>& dictionary) {
  std::vector<NamedTensor> list;
  for (const auto& item : dictionary) {
    const torch::Tensor& tensor = item.value();
    const auto is_same = [&](const NamedTensor& known) { return known.tensor.is_same(tensor); };
    if (!tensor.defined() || std::any_of(list.begin(), list.end(), is_same)) continue;
    if (!tensor.is_non_overlapping_and_dense())
      throw InvalidArgumentError(torch_text("TorchDataParallel: \"", item.key(), "\", ",
                                            torch_text(tensor), ", has the strides ",
                                            tensor.strides(), ", which leave gaps in its memory"));
    list.push_back({item.key(), tensor});
  }
  return list;
}

// A line for each tensor, for other ranks to compare.
inline std::vector<std::string> torch_lines(const std::vector<NamedTensor>& parameters,
                                            const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines;
  const auto add = [&](const NamedTensor& named, const char* kind) {
    const torch::Tensor& tensor = named.tensor;
    lines.push_back(
        torch_text(kind, " \"", named.name, "\" ", tensor.scalar_type(), tensor.sizes()));
    // Memory travels as it is, so the elements would come out in another order.
    if (!tensor.is_contiguous()) lines.back() += torch_text(" with strides ", tensor.strides());
  };
  for (const NamedTensor& p : parameters)
    add(p, p.tensor.requires_grad() ? "parameter" : "frozen parameter");
  for (const NamedTensor& b : buffers) add(b, "buffer");
  return lines;
}

// The GPUs that hold any of them.
inline std::vector<std::string> gpus_of(const std::vector<NamedTensor>& list) {
  std::vector<std::string> gpus;
  for (const auto& [name, tensor] : list) {
    if (tensor.is_cpu()) continue;
    const std::string gpu = device_of_torch(tensor);
    if (std::find(gpus.begin(), gpus.end(), gpu) == gpus.end()) gpus.push_back(gpu);
  }
  return gpus;
}

// The memory of each, which has the same layout on all ranks, becomes that of `root`.
inline void broadcast(const Group& group, const std::vector<NamedTensor>& list, int root) {
  const TorchStreams streams(gpus_of(list));
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : list)
    tensors.push_back(from_torch(tensor.detach().as_strided({tensor.numel()}, {1})));
  if (!tensors.empty()) group.broadcast(tensors, root);
}

// Called when a gradient has been accumulated, with what was added, as long as its owner exists.
class TorchHook : public torch::autograd::FunctionPostHook {
 public:
  TorchHook(std::weak_ptr<void> owner, std::function<void(const torch::Tensor&)> f)
      : owner_(std::move(owner)), f_(std::move(f)) {}

  bool is_of_another(const void* owner) const {
    const auto its = owner_.lock();
    return its && its.get() != owner;
  }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    if (const auto owner = owner_.lock()) f_(inputs.at(0));
    return outputs;
  }

 private:
  const std::weak_ptr<void> owner_;
  const std::function<void(const torch::Tensor&)> f_;
};

}  // namespace tutti::detail
