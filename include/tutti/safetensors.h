// SPDX-License-Identifier: Apache-2.0
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
  // By their names; read on the current device, written from any.
  std::map<std::string, Tensor> tensors;
  // Texts of the program's own.
  std::map<std::string, std::string> metadata = {};
};

// Writes `path` as a whole or not at all: to a temporary file beside it (path.tmp.*), synchronised
// to the disk, then renamed. Temporary files of writers that were killed are removed first. The
// metadata gets a checksum; its keys that begin with "tutti." are taken. UnavailableError, naming
// the file, if the system refuses; InvalidArgumentError for names that the format cannot hold.
void write_safetensors(const std::string& path, const TensorFile& file);

// NotFoundError if there is no such file; DataLossError, saying what is wrong, if it is damaged or
// something else. Files of other tools need no checksum; those of Tutti do.
TensorFile read_safetensors(const std::string& path);

// The same for a file in memory. What is parsed is copied, and nothing in it is trusted; `name` is
// what errors call it.
std::string serialize_safetensors(const TensorFile& file);
TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

}  // namespace tutti

#pragma GCC visibility pop
