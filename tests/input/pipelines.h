// SPDX-License-Identifier: Apache-2.0
// What the tests of pipelines share: reading them out, and files to read.
#pragma once

#include <tutti/dataset.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/expect.h"

namespace tutti::testing {

using Ints = std::vector<int64_t>;

// The int64 elements of the first components, one element after the other.
inline Ints values(const Dataset& dataset) {
  Ints all;
  for (const std::vector<Tensor>& element : dataset)
    for (const int64_t value : element[0].to_vector<int64_t>()) all.push_back(value);
  return all;
}

inline std::vector<Ints> batches(const Dataset& dataset) {
  std::vector<Ints> all;
  for (const std::vector<Tensor>& element : dataset) all.push_back(element[0].to_vector<int64_t>());
  return all;
}

inline std::vector<std::string> texts(const Dataset& dataset) {
  std::vector<std::string> all;
  for (const std::vector<Tensor>& element : dataset) all.push_back(text(element[0]));
  return all;
}

inline int64_t value(const std::vector<Tensor>& element) { return element[0].item<int64_t>(); }

inline std::vector<Tensor> squared(const std::vector<Tensor>& element) {
  return {Tensor::scalar(value(element) * value(element))};
}

// 0, 1, 2, ..., each number as often as it says.
inline Dataset repeated_number(const std::vector<Tensor>& element) {
  return Dataset::from_tensors(element).repeat(value(element));
}

// The bytes of a TFRecord file, made bit by bit.
inline std::string tfrecords_of(const std::vector<std::string>& records) {
  const auto checksum = [](std::string_view bytes) {
    uint32_t crc = ~0u;
    for (const char byte : bytes) {
      crc ^= uint8_t(byte);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    crc = ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
    return std::string(reinterpret_cast<const char*>(&crc), sizeof crc);
  };
  std::string file;
  for (const std::string& record : records) {
    const uint64_t size = record.size();
    const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
    file += length + checksum(length) + record + checksum(record);
  }
  return file;
}

// A folder of this test's own, gone after it.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti_input_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tutti::testing
