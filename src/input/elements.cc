#include "input/elements.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <cstring>

#include "tensor/tensor_impl.h"

namespace tutti {

namespace detail {

namespace {

std::string type_of(const Tensor& tensor) {
  return fmt::format("{}{}", name(tensor.dtype()), tensor.shape().to_string());
}

void check_alike(const Tensors& first, const Tensors& other, size_t index) {
  if (other.size() != first.size())
    throw InvalidArgumentError(fmt::format("batch: element 0 has {} components, element {} has {}",
                                           first.size(), index, other.size()));
  for (size_t i = 0; i < first.size(); ++i)
    if (other[i].dtype() != first[i].dtype() || other[i].shape() != first[i].shape())
      throw InvalidArgumentError(
          fmt::format("batch: component {} is {} in element 0 and {} in element {}", i,
                      type_of(first[i]), type_of(other[i]), index));
}

}  // namespace

Device& host_device() {
  static Device& device = device::find("/job:localhost/replica:0/task:0/device:CPU:0", "dataset");
  return device;
}

Rows::Rows(Tensors components, std::string_view what) : components_(std::move(components)) {
  if (components_.empty())
    throw InvalidArgumentError(fmt::format("{}: there are no components", what));
  for (size_t i = 0; i < components_.size(); ++i) {
    const Tensor& component = components_[i];
    if (!component)
      throw InvalidArgumentError(fmt::format("{}: component {} holds nothing", what, i));
    const std::span<const int64_t> extents = component.shape().extents();
    if (extents.empty())
      throw InvalidArgumentError(fmt::format("{}: component {} is a scalar {} and has no rows",
                                             what, i, name(component.dtype())));
    if (i == 0) size_ = extents[0];
    if (extents[0] != size_)
      throw InvalidArgumentError(
          fmt::format("{}: component 0 is {} and component {} is {}, expected as many rows in each",
                      what, type_of(components_[0]), i, type_of(component)));
    owners_.push_back(std::make_shared<Tensor>(component));
    row_shapes_.emplace_back(extents.subspan(1));
  }
}

Tensors Rows::operator[](int64_t row) const {
  Tensors element;
  element.reserve(components_.size());
  for (size_t i = 0; i < components_.size(); ++i) {
    const Tensor& whole = components_[i];
    const size_t bytes = size_t(row_shapes_[i].num_elements()) * size_of(whole.dtype());
    std::byte* const data = static_cast<std::byte*>(TensorAccess::data(whole));
    element.push_back(TensorAccess::wrap(owners_[i], data + size_t(row) * bytes, row_shapes_[i],
                                         whole.dtype(), TensorAccess::device(whole),
                                         whole.is_read_only()));
  }
  return element;
}

Tensors stacked(const std::vector<Tensors>& elements) {
  const Tensors& first = elements.front();
  for (size_t i = 1; i < elements.size(); ++i) check_alike(first, elements[i], i);
  Tensors result;
  result.reserve(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    std::vector<int64_t> extents{int64_t(elements.size())};
    extents.insert(extents.end(), first[i].shape().begin(), first[i].shape().end());
    const Tensor joined =
        TensorAccess::empty(Shape(std::move(extents)), first[i].dtype(), host_device());
    const size_t bytes = first[i].num_bytes();
    std::byte* row = static_cast<std::byte*>(joined.data());
    for (const Tensors& element : elements) {
      if (bytes == 0) break;
      Device& device = TensorAccess::device(element[i]);
      if (device.in_host_memory())
        std::memcpy(row, element[i].const_data(), bytes);
      else
        device.copy_to_host(row, element[i].const_data(), bytes);
      row += bytes;
    }
    result.push_back(joined);
  }
  return result;
}

}  // namespace detail

std::string text(const Tensor& bytes) {
  if (bytes.dtype() != DType::uint8)
    throw InvalidArgumentError(
        fmt::format("text: the tensor is {}, expected uint8", bytes.to_string()));
  const std::vector<uint8_t> values = bytes.to_vector<uint8_t>();
  return {values.begin(), values.end()};
}

Tensor text_tensor(std::string_view text) {
  const Tensor bytes =
      detail::TensorAccess::empty(Shape{int64_t(text.size())}, DType::uint8, detail::host_device());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

}  // namespace tutti
