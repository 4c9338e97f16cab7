// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/error.h>
#include <tutti/shape.h>

namespace tutti {

Shape::Shape(std::span<const int64_t> extents) {
  if (extents.size() > kFew) {
    many_ = std::make_shared<const std::vector<int64_t>>(extents.begin(), extents.end());
  } else {
    std::ranges::copy(extents, few_.begin());
    rank_ = extents.size();
  }
  // Leaves out extents of 0: strides must not overflow even if there is no element.
  int64_t product = 1;
  bool empty = false;
  for (const int64_t extent : extents) {
    if (extent < 0)
      throw InvalidArgumentError(fmt::format("shape {}: an extent is negative", to_string()));
    empty |= extent == 0;
    if (extent != 0 && __builtin_mul_overflow(product, extent, &product))
      throw InvalidArgumentError(fmt::format("shape {}: more than 2^63 elements", to_string()));
  }
  num_elements_ = empty ? 0 : product;
}

int64_t Shape::operator[](size_t axis) const {
  if (axis >= rank())
    throw OutOfRangeError(fmt::format("shape {} has no axis {}", to_string(), axis));
  return extents()[axis];
}

Shape Shape::with_extent(size_t axis, int64_t extent) const {
  std::vector<int64_t> changed(begin(), end());
  changed.at(axis) = extent;
  return Shape(changed);
}

size_t Shape::axis(int64_t axis) const {
  const int64_t n = int64_t(rank());
  if (axis < -n || axis >= n)
    throw InvalidArgumentError(
        fmt::format("axis {} is out of range for shape {}", axis, to_string()));
  return size_t(axis < 0 ? axis + n : axis);
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents(), ", ")); }

}  // namespace tutti
