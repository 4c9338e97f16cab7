// SPDX-License-Identifier: Apache-2.0
// NCCL: what the module "nccl" does for us, and how tests put another in its place.
#pragma once

#include <tutti/dtype.h>
#include <tutti/reduce_op.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/gpu.h"

namespace tutti::group {

// One rank of a communicator, for one GPU. Everything is enqueued on `stream`, inside a launch. One
// thread at a time. Memory is the GPU's; buffers are the same or apart, as NCCL has it. Errors of
// NCCL become ours, with its text.
class NcclCommunicator {
 public:
  virtual ~NcclCommunicator() = default;  // aborts what is left

  // SUM, PROD, MIN and MAX of types that NCCL has: no 16-bit integers.
  virtual void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                          device::Stream stream) = 0;
  virtual void reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op, int root,
                      device::Stream stream) = 0;
  // `count` elements for each rank.
  virtual void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                              device::Stream stream) = 0;
  virtual void broadcast(void* data, size_t bytes, int root, device::Stream stream) = 0;
  virtual void all_gather(const void* in, void* out, size_t bytes, device::Stream stream) = 0;
  virtual void send(const void* in, size_t bytes, int peer, device::Stream stream) = 0;
  virtual void recv(void* out, size_t bytes, int peer, device::Stream stream) = 0;

  // What went wrong since; empty while nothing has.
  virtual std::string async_error() = 0;
  // Ends what is under way, on the GPU too, and frees all. Waits for no other rank.
  virtual void abort() noexcept = 0;
};

using NcclCommunicators = std::vector<std::unique_ptr<NcclCommunicator>>;
// Asked again and again while something takes its time; what it throws ends the wait.
using StillWanted = std::function<void()>;

// What the module hands out.
struct NcclModule {
  std::string (*version)();    // "2.28.3"
  std::string (*unique_id)();  // any bytes, the same number of them each time
  // This process as `rank` of `size`, with its GPU `gpu`. All ranks call it, with one rank's id.
  std::unique_ptr<NcclCommunicator> (*open)(const std::string& id, int rank, int size, int gpu,
                                            const StillWanted& still_wanted);
  // One for each of several GPUs of this process.
  NcclCommunicators (*open_all)(std::span<const int> gpus, const StillWanted& still_wanted);
  // What `calls` asks of these communicators, as one launch; returns when it is enqueued.
  void (*launch)(std::span<const std::unique_ptr<NcclCommunicator>> communicators,
                 const std::function<void()>& calls, const StillWanted& still_wanted);
  // Waits until the other ranks have all that was sent, and frees all; aborts if that fails.
  void (*close)(NcclCommunicators communicators, const StillWanted& still_wanted) noexcept;
};

// The module, loaded by the first call; null if it cannot be had, and why.
const NcclModule* nccl_module();
const std::string& why_no_nccl();

// With TUTTI_BACKEND=nccl, UnavailableError in a process that has no GPU or no NCCL.
void expect_nccl_if_required();

// For tests: used in place of the module. To be called before the first use.
void set_nccl_module(const NcclModule& module);

}  // namespace tutti::group
