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
      devices_.push_back(device_of_torch(parameter));
      if (parameter.is_cpu())
        sizes_.push_back(size_t(parameter.numel()) * parameter.element_size());
      else if (std::find(gpus_.begin(), gpus_.end(), devices_.back()) == gpus_.end())
        gpus_.push_back(devices_.back());
    }
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

  bool has_gradient(size_t i) const { return list_[i].tensor.grad().defined(); }
  // The gradient where it lies. Its elements are in the order of the parameter's, and no other
  // tensor has the memory, which is to hold the mean: two gradients may be views of one tensor.
  Tensor gradient(size_t i) {
    const torch::Tensor& parameter = list_[i].tensor;
    torch::Tensor& gradient = parameter.mutable_grad();
    if (gradient.strides() != parameter.strides() || gradient.storage().use_count() > 1) {
      const torch::NoGradGuard no_grad;
      gradient = torch::empty_like(parameter).copy_(gradient);
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
      throw InvalidArgumentError(
          torch_text("TorchDataParallel: \"", list_[i].name, "\" has become ", now, " and was ",
                     likeness_[i], "; change a module before, or make a new model of it"));
  }
  // Called in a backward pass. InvalidArgumentError if the gradient has a graph, or is sparse.
  void expect_plain_gradient(size_t i) const {
    if (torch::GradMode::is_enabled())
      throw InvalidArgumentError(
          torch_text("TorchDataParallel: the gradient of \"", list_[i].name,
                     "\" was made with create_graph; a derivative of a mean over ranks is not "
                     "supported, so take it while no_sync() lives"));
    if (list_[i].tensor.grad().layout() != torch::kStrided)
      throw InvalidArgumentError(torch_text("TorchDataParallel: the gradient of \"", list_[i].name,
                                            "\" is sparse, not dense"));
  }

 private:
  std::vector<NamedTensor> list_;
  std::vector<std::string> likeness_, devices_;  // of each
  std::vector<size_t> sizes_;                    // in bytes, of those in host memory; sorted
  std::vector<std::string> gpus_;
};

}  // namespace tutti::detail
