// SPDX-License-Identifier: Apache-2.0
// The parameters of a module of LibTorch that are trained, and their gradients as a GradientReducer
// takes them.
#pragma once

#include <tutti/detail/torch_memory.h>
#include <tutti/detail/torch_module.h>
#include <tutti/gradient_reducer.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tutti::detail {

// Not thread-safe, but gradients of different parameters may be looked at by several threads.
class TorchParameters {
 public:
  explicit TorchParameters(std::vector<NamedTensor> list) : list_(std::move(list)) {
    for (const auto& [name, parameter] : list_) {
      likeness_.push_back(torch_text(parameter));
      strides_.push_back(parameter.strides().vec());
      devices_.push_back(device_of_torch(parameter));
      if (parameter.is_cpu())
        sizes_.push_back(size_t(parameter.numel()) * parameter.element_size());
    }
    gpus_ = gpus_of(list_);
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  }

  size_t size() const { return list_.size(); }
  const torch::Tensor& operator[](size_t i) const { return list_[i].tensor; }
  const std::vector<std::string>& gpus() const { return gpus_; }  // that hold any

  std::vector<GradientReducer::Parameter> for_reducer() const {
    std::vector<GradientReducer::Parameter> all;
    for (size_t i = 0; i < size(); ++i)
      all.push_back({list_[i].name, Shape(list_[i].tensor.sizes().vec()),
                     dtype_of_torch(list_[i].tensor),
                     list_[i].tensor.is_cpu() ? std::string() : devices_[i]});
    return all;
  }

  // While it lives, gradients that LibTorch makes on this thread are in memory of the group. Null
  // if the group has one rank, or no parameter is in host memory.
  std::shared_ptr<const TorchSupply> supply(const Group& group) const {
    if (group.size() == 1 || sizes_.empty()) return nullptr;
    auto supply = std::make_shared<const TorchSupply>(TorchSupply{group, sizes_});
    TorchMemory::supply_this_thread(supply);
    return supply;
  }

  // Whether any still needs a gradient.
  bool has_trained() const {
    return std::any_of(list_.begin(), list_.end(),
                       [](const NamedTensor& p) { return p.tensor.requires_grad(); });
  }
  bool has_gradient(size_t i) const { return list_[i].tensor.grad().defined(); }
  // The gradient where it lies, once it is like the parameter, and no other tensor has its memory,
  // which is to hold the mean: two gradients may be views of one tensor. `added`: what a backward
  // pass has accumulated just now and does not use any more; it may have become the gradient.
  Tensor gradient(size_t i, const torch::Tensor& added = {}) {
    const torch::Tensor& parameter = list_[i].tensor;
    torch::Tensor& gradient = parameter.mutable_grad();
    expect_dense(i);
    if (gradient.scalar_type() != parameter.scalar_type() ||
        gradient.sizes() != parameter.sizes() || gradient.strides() != strides_[i] ||
        gradient.device() != parameter.device() || gradient.is_neg() ||
        gradient.storage().use_count() > uses_of_one(gradient, added)) {
      expect_unchanged(i);
      const torch::NoGradGuard no_grad;
      gradient =
          torch::empty_strided(parameter.sizes(), strides_[i], parameter.options()).copy_(gradient);
    }
    return Tensor::borrow(gradient.data_ptr(), Shape(parameter.sizes().vec()),
                          dtype_of_torch(parameter), devices_[i],
                          std::make_shared<torch::Tensor>(gradient));
  }
  void set_zero_gradient(size_t i) {
    const torch::NoGradGuard no_grad;
    list_[i].tensor.mutable_grad() = torch::zeros_like(list_[i].tensor);
  }
  void drop_gradient(size_t i) { list_[i].tensor.mutable_grad() = torch::Tensor(); }

  // InvalidArgumentError if the parameter is no longer what it was like when its model was made.
  void expect_unchanged(size_t i) const {
    const std::string now = torch_text(list_[i].tensor);
    if (now != likeness_[i])
      throw InvalidArgumentError(torch_text("TorchDataParallel: \"", list_[i].name,
                                            "\" has become ", now, " and was ", likeness_[i],
                                            "; change a module before, or make a new model of it"));
  }
  // Called in a backward pass. InvalidArgumentError if the gradient has a graph.
  void expect_no_graph(size_t i) const {
    if (torch::GradMode::is_enabled())
      throw InvalidArgumentError(
          torch_text("TorchDataParallel: the gradient of \"", list_[i].name,
                     "\" was made with create_graph; a derivative of a mean over ranks is not "
                     "supported, so take it while no_sync() lives"));
  }
  // InvalidArgumentError if another model has a hook there, and both would write the mean.
  template <class Hooks>
  void expect_unshared(size_t i, const Hooks& hooks, const void* owner) const {
    for (const auto& hook : hooks)
      if (const auto* its = dynamic_cast<const TorchHook*>(hook.get());
          its && its->is_of_another(owner))
        throw InvalidArgumentError(
            torch_text("TorchDataParallel: \"", list_[i].name,
                       "\" belongs to another TorchDataParallel, too; make one of a module that "
                       "has all parameters, or let the other go first"));
  }

 private:
  // How often its memory is used if no other tensor shares it: by the gradient, by `added` if that
  // has become the gradient, and by the tensor that `added` alone is a view of.
  static size_t uses_of_one(const torch::Tensor& gradient, const torch::Tensor& added) {
    if (!added.defined() || !added.has_storage() || added.is_same(gradient) ||
        !added.is_alias_of(gradient) || added.use_count() > 1)
      return 1;
    return added.is_view() && added._base().use_count() == 1 ? 3 : 2;
  }
  void expect_dense(size_t i) const {
    if (list_[i].tensor.grad().layout() != torch::kStrided)
      throw InvalidArgumentError(torch_text("TorchDataParallel: the gradient of \"", list_[i].name,
                                            "\" is sparse, not dense"));
  }

  std::vector<NamedTensor> list_;
  std::vector<std::string> likeness_, devices_;  // of each
  std::vector<std::vector<int64_t>> strides_;    // of each
  std::vector<size_t> sizes_;                    // in bytes, of those in host memory; sorted
  std::vector<std::string> gpus_;
};

}  // namespace tutti::detail
