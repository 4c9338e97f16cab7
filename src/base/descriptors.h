// SPDX-License-Identifier: Apache-2.0
// The files that this process has open, and how many it may open.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

namespace tutti::base {

// Closes what it holds.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// ResourceExhaustedError if this process may not open `more` files beside the open ones. `what`
// names what needs them, as in "this job of 64 ranks".
void expect_descriptors(int more, const std::string& what);

// Whether `error`, an errno, says that there are no descriptors left, and the error text for it,
// with the remedy.
bool out_of_descriptors(int error);
std::string describe_out_of_descriptors(int error);

}  // namespace tutti::base
