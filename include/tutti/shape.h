// The extents of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// A list of extents, none of them negative; empty for a scalar. A value type.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);
  explicit Shape(std::vector<int64_t> extents);

  size_t rank() const { return extents_.size(); }
  int64_t operator[](size_t axis) const;  // OutOfRangeError past the rank
  int64_t num_elements() const { return num_elements_; }
  const std::vector<int64_t>& extents() const { return extents_; }
  auto begin() const { return extents_.begin(); }
  auto end() const { return extents_.end(); }

  // The position of `axis`, which counts from the end where it is negative. InvalidArgumentError
  // where there is none.
  size_t axis(int64_t axis) const;

  std::string to_string() const;  // "[3, 2]"
  friend bool operator==(const Shape& a, const Shape& b) { return a.extents_ == b.extents_; }
  friend std::ostream& operator<<(std::ostream& os, const Shape& shape) {
    return os << shape.to_string();
  }

 private:
  std::vector<int64_t> extents_;
  int64_t num_elements_ = 1;
};

}  // namespace tutti

#pragma GCC visibility pop
