// SPDX-License-Identifier: Apache-2.0
// The extents of a tensor.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// A list of extents, none of them negative; empty for a scalar. A value type.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents)
      : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}
  Shape(const std::vector<int64_t>& extents) : Shape(std::span<const int64_t>(extents)) {}
  explicit Shape(std::span<const int64_t> extents);

  size_t rank() const { return many_ ? many_->size() : rank_; }  // the number of axes
  int64_t operator[](size_t axis) const;                         // OutOfRangeError past the rank
  // The same with another extent along one axis.
  Shape with_extent(size_t axis, int64_t extent) const;
  int64_t num_elements() const { return num_elements_; }  // of a scalar: 1
  // Good as long as this shape is.
  std::span<const int64_t> extents() const { return {many_ ? many_->data() : few_.data(), rank()}; }
  const int64_t* begin() const { return extents().data(); }
  const int64_t* end() const { return begin() + rank(); }

  // The position of `axis`, which counts from the end if it is negative. InvalidArgumentError
  // if there is none.
  size_t axis(int64_t axis) const;

  std::string to_string() const;  // "[3, 2]"
  friend bool operator==(const Shape& a, const Shape& b) {
    return std::ranges::equal(a.extents(), b.extents());
  }
  friend std::ostream& operator<<(std::ostream& os, const Shape& shape) {
    return os << shape.to_string();
  }

 private:
  static constexpr size_t kFew = 4;

  std::array<int64_t, kFew> few_{};  // no memory is asked for
  size_t rank_ = 0;
  std::shared_ptr<const std::vector<int64_t>> many_;  // instead, past kFew axes
  int64_t num_elements_ = 1;
};

}  // namespace tutti

#pragma GCC visibility pop
