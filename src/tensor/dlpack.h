// SPDX-License-Identifier: Apache-2.0
// Tensors of other libraries as they lie there, for the layers above that do not take them over.
#pragma once

#include <tutti/tensor.h>

#include "device/device.h"

namespace tutti::detail {

struct DLPackView {
  void* data;
  Shape shape;
  const int64_t* extents;  // the shape, in the other library's memory
  DType dtype;
  Device& device;
  bool read_only;
};

// InvalidArgumentError for what Tensor::from_dlpack refuses. The pointer is not checked.
DLPackView view(const DLManagedTensor* tensor);
DLPackView view(const DLManagedTensorVersioned* tensor);

// The device with the memory of this GPU, or with the host's if it is -1: the current one, else the
// first; null if there is none.
Device* device_of_gpu(int gpu);

}  // namespace tutti::detail
