// Tensors in files, in the safetensors format, which other tools read and write too.
#pragma once

#include <tutti/tensor.h>

#include <map>
#include <span>
#include <string>

#pragma GCC visibility push(default)

namespace tutti {

// What a safetensors file holds.
struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata = {};
};

// Writes `path` as a whole or not at all: to a temporary name beside it, synchronised to the disk,
// then renamed. With a checksum in the metadata. UnavailableError, naming the file, where the
// system refuses; InvalidArgumentError for names that the format cannot hold.
void write_safetensors(const std::string& path, const TensorFile& file);

// NotFoundError where there is no such file; DataLossError, saying what is wrong, where it is
// damaged or something else.
TensorFile read_safetensors(const std::string& path);

// The same for a file in memory. What is parsed is copied, and nothing in it is trusted; `name` is
// what errors call it.
std::string serialize_safetensors(const TensorFile& file);
TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

}  // namespace tutti

#pragma GCC visibility pop
