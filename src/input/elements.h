// What the steps of a pipeline do with elements: taking them apart into rows and joining them.
#pragma once

#include <tutti/dataset.h>

#include <memory>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace tutti::detail {

using Tensors = std::vector<Tensor>;

// The CPU on which pipelines work, whatever the scopes of the thread.
Device& host_device();

// The rows of all components, as views that keep the memory alive.
class Rows {
 public:
  // InvalidArgumentError, with `what` at its start, unless all components have as many rows.
  Rows(Tensors components, std::string_view what);
  int64_t size() const { return size_; }
  Tensors operator[](int64_t row) const;
  const Tensors& components() const { return components_; }

 private:
  Tensors components_;
  std::vector<std::shared_ptr<Tensor>> owners_;
  std::vector<Shape> row_shapes_;
  int64_t size_ = 0;
};

// Joined along a new first axis, in new memory. There is at least one element.
// InvalidArgumentError where they differ in anything but their values.
Tensors stacked(const std::vector<Tensors>& elements);

}  // namespace tutti::detail
