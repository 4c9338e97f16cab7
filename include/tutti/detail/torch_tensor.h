// SPDX-License-Identifier: Apache-2.0
// Tensors of LibTorch as Tutti's and back, and its streams.
#pragma once

#include <torch/types.h>
#include <tutti/cuda.h>
#include <tutti/device.h>
#include <tutti/error.h>
#include <tutti/tensor.h>

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// Streams need a LibTorch that was built with CUDA, and CUDA's headers.
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
#include <c10/cuda/CUDAStream.h>
#endif

namespace tutti::detail {

inline constexpr std::pair<DType, torch::ScalarType> kTorchTypes[] = {
    {DType::boolean, torch::kBool},  {DType::int8, torch::kChar},
    {DType::uint8, torch::kByte},    {DType::int16, torch::kShort},
    {DType::int32, torch::kInt},     {DType::int64, torch::kLong},
    {DType::float16, torch::kHalf},  {DType::bfloat16, torch::kBFloat16},
    {DType::float32, torch::kFloat}, {DType::float64, torch::kDouble},
};

template <class... Parts>
std::string torch_text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

inline std::string torch_text(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return torch_text(tensor.scalar_type(), tensor.sizes(), " on ", tensor.device());
}

inline DType dtype_of_torch(const torch::Tensor& tensor) {
  for (const auto& [dtype, type] : kTorchTypes)
    if (type == tensor.scalar_type()) return dtype;
  throw InvalidArgumentError(torch_text("from_torch: Tutti has no type for ", torch_text(tensor)));
}

inline std::string device_of_torch(const torch::Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu:0";
  if (tensor.is_cuda())
    for (const std::string& device : list_logical_devices("GPU"))
      if (cuda_device(device) == tensor.get_device()) return device;
  throw InvalidArgumentError(torch_text("from_torch: Tutti does not reach the memory of ",
                                        torch_text(tensor), "; `tutti info` says what it finds"));
}

// While it lives, Tutti's operations of this thread on these GPUs are enqueued on LibTorch's
// current streams.
class TorchStreams {
 public:
  explicit TorchStreams([[maybe_unused]] const std::vector<std::string>& devices) {
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>) && __has_include(<cuda_runtime_api.h>)
    for (const std::string& device : devices) {
      const auto index = torch::DeviceIndex(cuda_device(device));
      scopes_.push_back(
          std::make_unique<StreamScope>(c10::cuda::getCurrentCUDAStream(index).stream(), device));
    }
#else
    if (!devices.empty())
      throw UnimplementedError(
          "from_torch: the tensor is on a GPU, but this program was compiled without CUDA's "
          "headers, "
          "or with a LibTorch without CUDA");
#endif
  }
  ~TorchStreams() {
    while (!scopes_.empty()) scopes_.pop_back();  // the innermost first
  }
  TorchStreams(const TorchStreams&) = delete;
  TorchStreams& operator=(const TorchStreams&) = delete;

 private:
  std::vector<std::unique_ptr<StreamScope>> scopes_;
};

inline Tensor from_torch(const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != torch::kStrided)
    throw InvalidArgumentError(
        torch_text("from_torch: ", torch_text(tensor), ", expected a tensor with dense memory"));
  if (!tensor.is_contiguous())
    throw InvalidArgumentError(torch_text("from_torch: ", torch_text(tensor), " has the strides ",
                                          tensor.strides(),
                                          "; contiguous() makes a copy that has none"));
  const std::string device = device_of_torch(tensor);
  // What Tutti enqueues next comes behind what LibTorch has enqueued.
  if (tensor.is_cuda()) const TorchStreams in_order({device});
  const std::vector<int64_t> extents = tensor.sizes().vec();
  return Tensor::borrow(tensor.data_ptr(), Shape(extents), dtype_of_torch(tensor), device,
                        std::make_shared<torch::Tensor>(tensor.detach()));
}

inline torch::TensorOptions torch_options(const Tensor& tensor) {
  for (const auto& [dtype, type] : kTorchTypes) {
    if (dtype != tensor.dtype()) continue;
    const torch::TensorOptions options(type);
    if (DeviceSpec::parse(tensor.device()).type != "GPU") return options;
    return options.device(torch::kCUDA, torch::DeviceIndex(cuda_device(tensor.device())));
  }
  throw InvalidArgumentError(torch_text("to_torch: LibTorch has no type for ", tensor.to_string()));
}

inline torch::Tensor to_torch(const Tensor& tensor) {
  const torch::TensorOptions options = torch_options(tensor);
  const std::vector<int64_t> sizes(tensor.shape().begin(), tensor.shape().end());
  if (options.device().is_cuda()) const TorchStreams in_order({tensor.device()});
  return torch::from_blob(
      tensor.data(), sizes, [tensor](void*) {}, options);
}

}  // namespace tutti::detail
