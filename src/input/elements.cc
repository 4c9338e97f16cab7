// SPDX-License-Identifier: Apache-2.0
#include "input/elements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/error.h>

#include <algorithm>
#include <cstring>

#include "input/state.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace detail {

namespace {

std::string type_of(const Tensor& tensor) {
  return fmt::format("{}{}", name(tensor.dtype()), tensor.shape().to_string());
}

// Elements have components of the same dtypes, and of shapes that `alike` accepts.
template <class Alike>
void check_alike(const char* what, const std::vector<Tensors>& elements, const Alike& alike) {
  const Tensors& first = elements.front();
  for (size_t e = 1; e < elements.size(); ++e) {
    const Tensors& other = elements[e];
    if (other.size() != first.size())
      throw InvalidArgumentError(fmt::format("{}: element 0 has {} components, element {} has {}",
                                             what, first.size(), e, other.size()));
    for (size_t i = 0; i < first.size(); ++i)
      if (other[i].dtype() != first[i].dtype() || !alike(first[i].shape(), other[i].shape()))
        throw InvalidArgumentError(
            fmt::format("{}: component {} is {} in element 0 and {} in element {}", what, i,
                        type_of(first[i]), type_of(other[i]), e));
  }
}

void copy_to_host(void* target, const Tensor& tensor) {
  if (tensor.num_bytes() == 0) return;
  Device& device = TensorAccess::device(tensor);
  if (device.in_host_memory())
    std::memcpy(target, tensor.const_data(), tensor.num_bytes());
  else
    device.copy_to_host(target, tensor.const_data(), tensor.num_bytes());
}

// Copies a block of items into the corner of a larger one.
void copy_block(std::byte* to, std::span<const int64_t> to_extents, const std::byte* from,
                std::span<const int64_t> from_extents, size_t item) {
  if (from_extents.size() <= 1) {
    const size_t items = from_extents.empty() ? 1 : size_t(from_extents[0]);
    if (items > 0) std::memcpy(to, from, items * item);
    return;
  }
  const auto step = [&](std::span<const int64_t> extents) {
    return size_t(Shape(extents.subspan(1)).num_elements()) * item;
  };
  const size_t to_step = step(to_extents), from_step = step(from_extents);
  for (size_t i = 0; i < size_t(from_extents[0]); ++i)
    copy_block(to + i * to_step, to_extents.subspan(1), from + i * from_step,
               from_extents.subspan(1), item);
}

// What component `i` of all elements is padded to.
std::vector<int64_t> padded_extents(const std::vector<Tensors>& elements, size_t i,
                                    const std::vector<int64_t>& wanted) {
  const size_t rank = elements[0][i].shape().rank();
  if (wanted.size() != rank)
    throw InvalidArgumentError(fmt::format(
        "padded_batch: component {} is {} and is to be padded to [{}], expected a shape "
        "of the same rank",
        i, type_of(elements[0][i]), fmt::join(wanted, ", ")));
  std::vector<int64_t> extents = wanted;
  for (const Tensors& element : elements)
    for (size_t axis = 0; axis < rank; ++axis) {
      const int64_t extent = element[i].shape()[axis];
      if (wanted[axis] < 0)
        extents[axis] = std::max(extents[axis], extent);
      else if (extent > wanted[axis])
        throw InvalidArgumentError(
            fmt::format("padded_batch: component {} is {}, larger than the padded shape [{}]", i,
                        type_of(element[i]), fmt::join(wanted, ", ")));
    }
  return extents;
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

Tensor Rows::view(size_t component, int64_t row, const Shape& shape) const {
  const Tensor& whole = components_[component];
  const size_t bytes = size_t(row_shapes_[component].num_elements()) * size_of(whole.dtype());
  std::byte* const data = static_cast<std::byte*>(TensorAccess::data(whole));
  return TensorAccess::wrap(owners_[component], data + size_t(row) * bytes, shape, whole.dtype(),
                            TensorAccess::device(whole), whole.is_read_only());
}

Tensors Rows::operator[](int64_t row) const {
  Tensors element;
  element.reserve(components_.size());
  for (size_t i = 0; i < components_.size(); ++i) element.push_back(view(i, row, row_shapes_[i]));
  return element;
}

Tensors Rows::range(int64_t begin, int64_t end) const {
  Tensors rows;
  rows.reserve(components_.size());
  for (size_t i = 0; i < components_.size(); ++i)
    rows.push_back(view(i, begin, components_[i].shape().with_extent(0, end - begin)));
  return rows;
}

Tensors concatenated(const std::vector<Tensors>& parts) {
  if (parts.size() == 1) return parts[0];
  check_alike("rebatch", parts, [](const Shape& a, const Shape& b) {
    return a.rank() == b.rank() && std::equal(a.begin() + 1, a.end(), b.begin() + 1);
  });
  Tensors result;
  for (size_t i = 0; i < parts[0].size(); ++i) {
    int64_t rows = 0;
    for (const Tensors& part : parts) rows += part[i].shape()[0];
    const Tensor joined = TensorAccess::empty(parts[0][i].shape().with_extent(0, rows),
                                              parts[0][i].dtype(), host_device());
    std::byte* at = static_cast<std::byte*>(joined.data());
    for (const Tensors& part : parts) {
      copy_to_host(at, part[i]);
      at += part[i].num_bytes();
    }
    result.push_back(joined);
  }
  return result;
}

Tensors padded(const std::vector<Tensors>& elements, const Padding& padding) {
  const Tensors& first = elements.front();
  check_alike("padded_batch", elements,
              [](const Shape& a, const Shape& b) { return a.rank() == b.rank(); });
  for (const size_t given : {padding.shapes.size(), padding.values.size()})
    if (given > 0 && given != first.size())
      throw InvalidArgumentError(fmt::format(
          "padded_batch: {} padded shapes and {} padding values were given for elements "
          "of {} components",
          padding.shapes.size(), padding.values.size(), first.size()));
  Tensors result;
  for (size_t i = 0; i < first.size(); ++i) {
    const std::vector<int64_t> extents =
        padded_extents(elements, i,
                       padding.shapes.empty() ? std::vector<int64_t>(first[i].shape().rank(), -1)
                                              : padding.shapes[i]);
    std::vector<int64_t> all{int64_t(elements.size())};
    all.insert(all.end(), extents.begin(), extents.end());
    const size_t item = size_of(first[i].dtype());
    const Tensor joined = TensorAccess::empty(Shape(all), first[i].dtype(), host_device());
    std::byte* to = static_cast<std::byte*>(joined.data());
    const Tensor value = padding.values.empty() ? Tensor() : padding.values[i];
    if (value && value.dtype() != first[i].dtype())
      throw InvalidArgumentError(fmt::format("padded_batch: component {} is {} and its padding {}",
                                             i, type_of(first[i]), type_of(value)));
    std::byte one[8] = {};
    if (value) copy_to_host(one, value);
    for (size_t at = 0; at < joined.num_bytes(); at += item) std::memcpy(to + at, one, item);
    const size_t bytes = joined.num_bytes() / elements.size();
    for (const Tensors& element : elements) {
      const Tensor host = TensorAccess::device(element[i]).in_host_memory()
                              ? element[i]
                              : clone_to(element[i], host_device());
      if (host.num_bytes() > 0)
        copy_block(to, extents, static_cast<const std::byte*>(host.const_data()),
                   host.shape().extents(), item);
      to += bytes;
    }
    result.push_back(joined);
  }
  return result;
}

void SameTypes::check(const Tensors& element, const char* operation) {
  Types types;
  for (const Tensor& component : element) types.push_back(component ? int(component.dtype()) : -1);
  check(std::move(types), operation);
}

void SameTypes::check(const std::vector<TensorSpec>& specs, const char* operation) {
  Types types;
  for (const TensorSpec& spec : specs) types.push_back(int(spec.dtype));
  check(std::move(types), operation);
}

void SameTypes::check(Types types, const char* operation) {
  if (!first_) first_ = types;
  if (types == *first_) return;
  const auto text = [](const Types& all) {
    std::vector<std::string_view> names;
    for (const int type : all) names.push_back(type < 0 ? "nothing" : name(DType(type)));
    return fmt::format("[{}]", fmt::join(names, ", "));
  };
  throw InvalidArgumentError(
      fmt::format("{}: got dtypes {} and {}, expected the same in all; convert with Tensor::to",
                  operation, text(*first_), text(types)));
}

void SameTypes::save(StateWriter& state) const {
  state.flag(first_.has_value());
  if (!first_) return;
  state.number(first_->size());
  for (const int type : *first_) state.number(uint64_t(type + 1));
}

void SameTypes::restore(StateReader& state) {
  if (!state.flag()) return;
  first_.emplace(state.count_up_to(~uint64_t{0}, 8, "the number of components of an element"));
  for (int& type : *first_)
    type = int(state.number_up_to(kDTypes.size(), "the type of a component")) - 1;
}

Tensors stacked(const std::vector<Tensors>& elements) {
  const Tensors& first = elements.front();
  check_alike("batch", elements, [](const Shape& a, const Shape& b) { return a == b; });
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
      copy_to_host(row, element[i]);
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
