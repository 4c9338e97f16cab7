// SPDX-License-Identifier: Apache-2.0
// Files of tensors. The input is the bytes of a file.
#include <tutti/error.h>
#include <tutti/safetensors.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz.h"

namespace tutti::fuzz {
namespace {

using nlohmann::json;

// Written out once more, so that the library's own table is checked too.
const std::map<std::string, DType> kTypes{
    {"BOOL", DType::boolean}, {"I8", DType::int8},       {"I16", DType::int16},
    {"I32", DType::int32},    {"I64", DType::int64},     {"U8", DType::uint8},
    {"U16", DType::uint16},   {"U32", DType::uint32},    {"U64", DType::uint64},
    {"F16", DType::float16},  {"BF16", DType::bfloat16}, {"F32", DType::float32},
    {"F64", DType::float64}};

// None if the bytes are no such file.
std::optional<TensorFile> parsed(const std::string& bytes) {
  try {
    return parse_safetensors(std::as_bytes(std::span(bytes)), "input");
  } catch (const DataLossError&) {
    return {};
  }
}

std::string_view bytes_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data()), tensor.num_bytes()};
}

bool same(const TensorFile& a, const TensorFile& b) {
  return a.metadata == b.metadata &&
         std::ranges::equal(a.tensors, b.tensors, [](const auto& x, const auto& y) {
           return x.first == y.first && x.second.dtype() == y.second.dtype() &&
                  x.second.shape() == y.second.shape() && bytes_of(x.second) == bytes_of(y.second);
         });
}

void check_rebuilt(const TensorFile& file) {
  std::string bytes = serialize_safetensors(file);
  const auto again = parsed(bytes);
  check(again && same(file, *again), "a file that is written and parsed is the same");
  bytes.back() = char(bytes.back() ^ 1);
  check(!parsed(bytes), "a changed byte is told by the checksum");
}

void check_file(const std::string& bytes) {
  const auto file = parsed(bytes);
  if (!file) return;
  uint64_t header_size;
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  const json header = json::parse(bytes.substr(sizeof header_size, header_size));
  const std::string_view data = std::string_view(bytes).substr(sizeof header_size + header_size);
  size_t tensors = 0, held = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    ++tensors;
    const Tensor& tensor = file->tensors.at(name);
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    check(tensor.dtype() == kTypes.at(entry["dtype"]), "a tensor has the type the header says");
    check(std::ranges::equal(tensor.shape(), entry["shape"].get<std::vector<int64_t>>()),
          "a tensor has the shape the header says");
    check(bytes_of(tensor) == data.substr(begin, end - begin),
          "a tensor has the bytes the header says");
    if (tensor.dtype() == DType::boolean)
      check(std::ranges::all_of(bytes_of(tensor), [](char c) { return c == 0 || c == 1; }),
            "a bool is 0 or 1, which is all that may be read as one");
    held += tensor.num_bytes();
  }
  check(tensors == file->tensors.size(), "there are no tensors that the header does not name");
  check(held == data.size(), "the tensors hold all the data, once");
  check_rebuilt(*file);
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::fuzz;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  check_file(bytes);
  // Once more with a length that fits: hardly a change to a header leaves it right.
  const size_t brace = bytes.rfind('}');
  if (brace == std::string::npos || brace < sizeof(uint64_t)) return 0;
  const uint64_t header_size = brace + 1 - sizeof header_size;
  std::memcpy(bytes.data(), &header_size, sizeof header_size);
  check_file(bytes);
  return 0;
}
