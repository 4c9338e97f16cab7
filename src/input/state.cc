// SPDX-License-Identifier: Apache-2.0
#include "input/state.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "input/elements.h"
#include "tensor/tensor_impl.h"

namespace tutti::detail {

namespace {

constexpr std::string_view kMagic = "tuttids2";  // the last character is the version
constexpr uint64_t kOtherException = ~uint64_t{0};

// Every step can be undone, so bytes that differ in one place never have the same checksum.
uint64_t checksum(std::string_view bytes) {
  uint64_t sum = bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t size = std::min(bytes.size(), sizeof word);
    std::memcpy(&word, bytes.data(), size);
    sum = std::rotl((sum ^ word) * 0x9E3779B97F4A7C15u, 29);
    bytes.remove_prefix(size);
  }
  return sum;
}

}  // namespace

StateWriter::StateWriter() : bytes_(kMagic) {}

void StateWriter::number(uint64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void StateWriter::flag(bool value) { bytes_.push_back(value ? 1 : 0); }

void StateWriter::text(std::string_view text) {
  number(text.size());
  bytes_.append(text);
}

void StateWriter::tensor(const Tensor& tensor) {
  flag(bool(tensor));
  if (!tensor) return;
  number(uint64_t(tensor.dtype()));
  number(tensor.shape().rank());
  for (const int64_t extent : tensor.shape()) number(uint64_t(extent));
  Device& device = TensorAccess::device(tensor);
  text(&device == &host_device() ? "" : device.name());
  const Tensor host = device.in_host_memory() ? tensor : clone_to(tensor, host_device());
  if (host.num_bytes() > 0)
    bytes_.append(static_cast<const char*>(host.const_data()), host.num_bytes());
}

void StateWriter::element(const Tensors& element) {
  number(element.size());
  for (const Tensor& component : element) tensor(component);
}

void StateWriter::error(const std::exception_ptr& error) {
  const auto write = [&](uint64_t code, std::string_view what) {
    number(code);
    text(what);
  };
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    write(uint64_t(e.code()), e.what());
  } catch (const std::exception& e) {
    write(kOtherException, e.what());
  } catch (...) {
    write(kOtherException, "an exception that is no std::exception");
  }
}

std::string StateWriter::finished() && {
  number(checksum(bytes_));
  return std::move(bytes_);
}

void StateReader::fail(std::string_view why) {
  throw DataLossError(fmt::format("make_iterator: the state is damaged: {}", why));
}

StateReader::StateReader(std::string_view state) : left_(state) {
  if (!state.starts_with(kMagic))
    fail(fmt::format("its {} bytes do not start like a state of this version", state.size()));
  uint64_t stored;
  if (state.size() < kMagic.size() + sizeof stored)
    fail(fmt::format("it has only {} bytes", state.size()));
  std::memcpy(&stored, state.data() + state.size() - sizeof stored, sizeof stored);
  left_.remove_suffix(sizeof stored);
  if (const uint64_t actual = checksum(left_); actual != stored)
    fail(fmt::format("the checksum of its {} bytes is {:x}, expected {:x}", state.size(), actual,
                     stored));
  left_.remove_prefix(kMagic.size());
}

std::string_view StateReader::take(size_t bytes) {
  if (bytes > left_.size()) fail(fmt::format("{} bytes are missing", bytes - left_.size()));
  const std::string_view taken = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  return taken;
}

uint64_t StateReader::number() {
  uint64_t value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

uint64_t StateReader::number_up_to(uint64_t limit, std::string_view what) {
  const uint64_t value = number();
  if (value > limit) fail(fmt::format("{} is {}, and may be at most {}", what, value, limit));
  return value;
}

uint64_t StateReader::count_up_to(uint64_t limit, size_t bytes_each, std::string_view what) {
  const uint64_t count = number_up_to(limit, what);
  if (count > left_.size() / bytes_each)
    fail(fmt::format("{} is {}, with {} bytes left", what, count, left_.size()));
  return count;
}

bool StateReader::flag() {
  const char value = take(1)[0];
  if (value != 0 && value != 1) fail(fmt::format("a flag is {}", int(value)));
  return value == 1;
}

std::string_view StateReader::text() { return take(number()); }

Tensor StateReader::tensor() {
  if (!flag()) return {};
  const DType dtype = DType(number_up_to(kDTypes.size() - 1, "the type of a tensor"));
  std::vector<int64_t> extents(count_up_to(left_.size(), sizeof(int64_t), "the rank of a tensor"));
  for (int64_t& extent : extents)
    extent = int64_t(number_up_to(std::numeric_limits<int64_t>::max(), "an extent of a tensor"));
  Shape shape;
  try {
    shape = Shape(std::move(extents));
  } catch (const InvalidArgumentError& e) {
    fail(e.what());
  }
  const int64_t elements = shape.num_elements();
  const std::string_view device_name = text();
  if (uint64_t(elements) > left_.size())
    fail(fmt::format("a tensor has {} elements, with {} bytes left", elements, left_.size()));
  const std::string_view bytes = take(size_t(elements) * size_of(dtype));
  if (dtype == DType::boolean && bytes.find_first_not_of(std::string_view("\0\1", 2)) != bytes.npos)
    fail("a bool is neither 0 nor 1");
  const Tensor host = TensorAccess::empty(shape, dtype, host_device());
  if (!bytes.empty()) std::memcpy(host.data(), bytes.data(), bytes.size());
  if (device_name.empty()) return host;
  try {
    return host.clone_to(device_name);
  } catch (const InvalidArgumentError& e) {
    fail(fmt::format("a tensor cannot go back to its device: {}", e.what()));
  }
}

Tensors StateReader::element() {
  Tensors element(count_up_to(left_.size(), 1, "the number of components of an element"));
  for (Tensor& component : element) component = tensor();
  return element;
}

std::exception_ptr StateReader::error() {
  const uint64_t code = number();
  const std::string what(text());
  if (code == kOtherException) return std::make_exception_ptr(std::runtime_error(what));
  if (code > uint64_t(ErrorCode::internal)) fail(fmt::format("the code of an error is {}", code));
  try {
    throw_error(ErrorCode(code), what);
  } catch (...) {
    return std::current_exception();
  }
}

void StateReader::expect_end() const {
  if (!left_.empty()) fail(fmt::format("{} bytes are left over", left_.size()));
}

}  // namespace tutti::detail
