// SPDX-License-Identifier: Apache-2.0
// How processes of one user on one host find the port that one of them listens at, by a name that
// all of them know.
#pragma once

#include <chrono>
#include <string>

namespace tutti::group {

// A port under a name, for as long as it lives. It leaves no file behind.
class Announcement {
 public:
  Announcement(const std::string& name, int port);
  ~Announcement();
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  int fd_;
};

// Waits for it. What other users announce does not count. DeadlineExceededError after `timeout`.
int find_announced(const std::string& name, std::chrono::nanoseconds timeout);

}  // namespace tutti::group
