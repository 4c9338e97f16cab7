// SPDX-License-Identifier: Apache-2.0
// Streams of CUDA, for programs that bring kernels of their own.
//
// Tensors on GPUs are worked on in the order of calls: an operation is enqueued on a stream and
// returns; item, to_vector and copies to the host wait for what they need. By default all threads
// share one stream per GPU, Tutti's own.
//
// A stream is a cudaStream_t, as a void* so that programs without GPUs need no CUDA. If a
// function takes a device, an empty name means "/gpu:0". InvalidArgumentError if the device is
// not a GPU, or not there.
#pragma once

#include <optional>
#include <string_view>

#pragma GCC visibility push(default)

namespace tutti {

// The stream that this thread's operations on `device` are enqueued on: give it to your kernels.
void* cuda_stream(std::string_view device = {});

// The number that CUDA has for the GPU that `device` is on, or is a part of.
int cuda_device(std::string_view device = {});

// Returns when everything is done that this thread has enqueued on `device`.
void synchronize(std::string_view device = {});

// While it lives, this thread's operations on the GPU of `device` are enqueued on `stream`: behind
// what was enqueued before, and what comes after the scope is enqueued behind it. The stream
// belongs to the caller and must outlive the scope. Scopes nest, and must be destroyed by the
// thread that made them, the innermost first.
class StreamScope {
 public:
  explicit StreamScope(void* stream, std::string_view device = {});
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  int gpu_;
  void* stream_;
  std::optional<void*> outer_;
};

}  // namespace tutti

#pragma GCC visibility pop
