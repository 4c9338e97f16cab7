// SPDX-License-Identifier: Apache-2.0
// Communicators of NCCL, with a thread that watches what they do on the GPUs: no caller waits for
// what was enqueued, and it must end by its deadline all the same.
#pragma once

#include <tutti/error.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/nccl.h"
#include "group/core/operation.h"
#include "kernels/gpu.h"

namespace tutti::group {

// What collectives need of the GPUs of this process; tests put others in their place.
struct GpuSupport {
  device::GpuRuntime& runtime;
  kernels::GpuKernels& kernels;
  device::Stream (*current_stream)(int gpu);
  const NcclModule* (*nccl)();
  const std::string& (*why_no_nccl)();
};
const GpuSupport& gpu_support();  // InternalError if there are none

// An operation, for errors.
struct Enqueued {
  Description what;
  uint64_t number;
  Timeouts timeouts;
};

class NcclLink {
 public:
  // The other ranks of the group. Safe to use from any thread.
  class Others {
   public:
    virtual ~Others() = default;
    // Throws if they have failed; `during` starts the text.
    virtual void check(const std::string& during) = 0;
    // Tells them.
    virtual void fail(ErrorCode code, const std::string& text) noexcept = 0;
    // What they know this process by: "rank 2 (worker-2:5000)".
    virtual std::string me() const = 0;
  };

  // One GPU for each communicator. `others` may be null.
  NcclLink(const GpuSupport& support, NcclCommunicators communicators, std::vector<int> gpus,
           std::unique_ptr<Others> others);
  // Never waits. What is under way goes on to its end or its deadline, watched by a thread. At exit
  // the threads of all links, those that still exist too, are joined: what is under way then gets
  // two seconds more.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;

  NcclCommunicator& communicator(size_t i = 0);

  // Enqueues what `calls` asks of the communicators on this thread's streams, as one launch. One
  // thread at a time.
  void launch(const Enqueued& operation, const std::function<void()>& calls);

 private:
  struct State;
  class Watches;
  const std::shared_ptr<State> state_;
};

// A check for waits inside NCCL: it throws if a rank has failed or the deadline has passed.
StillWanted still_wanted(const Enqueued& operation, NcclLink::Others* others);

// After an error of NCCL's: gives `check` the time to throw its reason.
void await_reason(const StillWanted& check);

}  // namespace tutti::group
