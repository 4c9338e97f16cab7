// SPDX-License-Identifier: Apache-2.0
// What the steps of a pipeline do with elements: taking them apart into rows and joining them.
#pragma once

#include <tutti/dataset.h>

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace tutti::detail {

using Tensors = std::vector<Tensor>;

class StateReader;
class StateWriter;

// The CPU on which pipelines work, whatever the scopes of the thread.
Device& host_device();

// The rows of all components, as views that keep the memory alive.
class Rows {
 public:
  // InvalidArgumentError, with `what` at its start, unless all components have the same number of
  // rows.
  Rows(Tensors components, std::string_view what);
  int64_t size() const { return size_; }
  Tensors operator[](int64_t row) const;
  Tensors range(int64_t begin, int64_t end) const;  // these rows, still as rows
  const Tensors& components() const { return components_; }

 private:
  Tensor view(size_t component, int64_t row, const Shape& shape) const;

  Tensors components_;
  std::vector<std::shared_ptr<Tensor>> owners_;
  std::vector<Shape> row_shapes_;
  int64_t size_ = 0;
};

// Joined along a new first axis, in new memory. There is at least one element.
// InvalidArgumentError if they differ in anything but their values.
Tensors stacked(const std::vector<Tensors>& elements);

// Joined along their first axis, in new memory unless there is only one; else as stacked.
Tensors concatenated(const std::vector<Tensors>& parts);

struct Padding {
  std::vector<std::vector<int64_t>> shapes;  // of components; none: the largest of a batch
  Tensors values;                            // scalars; none: 0
};
// stacked, with smaller elements padded.
Tensors padded(const std::vector<Tensors>& elements, const Padding& padding);

// The dtypes of the elements that come together from several pipelines.
class SameTypes {
 public:
  // InvalidArgumentError unless they are those of the first.
  void check(const Tensors& element, const char* operation);
  void check(const std::vector<TensorSpec>& specs, const char* operation);
  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  using Types = std::vector<int>;  // -1: holds nothing
  void check(Types types, const char* operation);
  std::optional<Types> first_;
};

}  // namespace tutti::detail
