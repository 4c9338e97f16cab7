#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/error.h>
#include <tutti/shape.h>

namespace tutti {

Shape::Shape(std::initializer_list<int64_t> extents) : Shape(std::vector<int64_t>(extents)) {}

Shape::Shape(std::vector<int64_t> extents) : extents_(std::move(extents)) {
  bool overflow = false;
  for (const int64_t extent : extents_) {
    if (extent < 0)
      throw InvalidArgumentError(fmt::format("shape {}: an extent is negative", to_string()));
    overflow |= __builtin_mul_overflow(num_elements_, extent, &num_elements_);
  }
  // An extent of 0 after one that overflowed still makes the product 0, but no such tensor is of
  // use.
  if (overflow)
    throw InvalidArgumentError(fmt::format("shape {}: more than 2^63 elements", to_string()));
}

int64_t Shape::operator[](size_t axis) const {
  if (axis >= rank())
    throw OutOfRangeError(fmt::format("shape {} has no axis {}", to_string(), axis));
  return extents_[axis];
}

size_t Shape::axis(int64_t axis) const {
  const int64_t n = int64_t(rank());
  if (axis < -n || axis >= n)
    throw InvalidArgumentError(
        fmt::format("axis {} is out of range for shape {}", axis, to_string()));
  return size_t(axis < 0 ? axis + n : axis);
}

std::string Shape::to_string() const { return fmt::format("[{}]", fmt::join(extents_, ", ")); }

}  // namespace tutti
