// SPDX-License-Identifier: Apache-2.0
// Where a run stands, as bytes. They may come from anywhere: whatever is read is checked first, and
// what cannot be right is a DataLossError.
#pragma once

#include <tutti/dataset.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace tutti::detail {

using Tensors = std::vector<Tensor>;

class StateWriter {
 public:
  StateWriter();
  void number(uint64_t value);
  void flag(bool value);
  void text(std::string_view text);
  void element(const Tensors& element);
  // An Error comes back as what it was, any other exception as a std::runtime_error of its text.
  void error(const std::exception_ptr& error);

  std::string finished() &&;

 private:
  void tensor(const Tensor& tensor);
  std::string bytes_;
};

class StateReader {
 public:
  // `state` must outlive the reader.
  explicit StateReader(std::string_view state);
  uint64_t number();
  uint64_t number_up_to(uint64_t limit, std::string_view what);
  // A number of things that take `bytes_each` or more; no more are accepted than can follow.
  uint64_t count_up_to(uint64_t limit, size_t bytes_each, std::string_view what);
  bool flag();
  std::string_view text();
  Tensors element();
  std::exception_ptr error();

  void expect_end() const;
  [[noreturn]] static void fail(std::string_view why);

 private:
  std::string_view take(size_t bytes);
  Tensor tensor();
  std::string_view left_;
};

}  // namespace tutti::detail
