// SPDX-License-Identifier: Apache-2.0
// What the two halves of the module share: the connections, and the transport over them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "group/net/transport.h"

namespace tutti::group::tcp {

// In whatever begins on a connection.
constexpr uint32_t kMark = 0x7475'7474;

class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

inline std::string problem(int error) { return std::generic_category().message(error); }

// One connection per rank; none to this one.
std::unique_ptr<Transport> make_transport(std::vector<File> files, int rank);

}  // namespace tutti::group::tcp
