// SPDX-License-Identifier: Apache-2.0
// The collectives of a group on memory of GPUs. If every rank has a GPU of its own, NCCL moves the
// data, and each call returns when its part is enqueued. Else the data goes through host memory, by
// the group's own way and with its bits.
//
// The ranks compare their calls on the host first, whatever moves the data: so they find out which
// rank is missing and what does not match, and launch in the same order.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/nccl_link.h"
#include "group/core/backend.h"

namespace tutti::group {

struct GpuOperation : Enqueued {
  int gpu;
};

// The type that NCCL combines elements in. None if its result would not be ours: the ranks then
// gather all elements, and combine them by our kernel.
std::optional<DType> type_in_nccl(ReduceOp op, DType dtype);

// What ranks tell each other of the GPU that each of them uses.
struct GpuHello {
  char gpu[120];      // the same for all ranks that use it, and NCCL's name for the host
  char trouble[136];  // why it cannot use NCCL
};
// Why NCCL cannot connect them; empty if it can.
std::string why_not_nccl(std::span<const GpuHello> ranks);

// Which of a call's buffers this rank reads and writes.
struct Uses {
  bool in, out;
};
Uses uses_of(const detail::GroupCall& call, int rank);

class GpuCollectives {
 public:
  // `required`: no NCCL is an error.
  GpuCollectives(Backend& backend, const GpuSupport& support, bool required);
  ~GpuCollectives();

  // Arguments have been checked. Collectives come one at a time; a send and a recv may go on beside
  // them.
  void run(const GpuOperation& operation, const detail::GroupCall& call);
  void all_reduce(const GpuOperation& operation, const LeafReduction& reduction);
  void all_gather_uneven(const GpuOperation& operation, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts);

 private:
  class Scratch;
  class Reductions;
  class NcclReduction;
  // Host memory that a GPU reaches well, as much as was needed so far.
  class Pinned {
   public:
    explicit Pinned(device::GpuRuntime& runtime) : runtime_(runtime) {}
    ~Pinned() { clear(); }
    Pinned(const Pinned&) = delete;
    std::byte* get(size_t bytes);

   private:
    void clear() noexcept {
      if (data_) runtime_.deallocate_pinned(data_);
      data_ = nullptr;
    }

    device::GpuRuntime& runtime_;
    void* data_ = nullptr;
    size_t size_ = 0;
  };

  // The way to the others by NCCL; null if there is none. A collective.
  NcclLink* link_for(const GpuOperation& operation, std::span<const Piece> list = {});
  NcclLink* connect(const GpuOperation& operation, const std::vector<int>& gpus);
  std::string why_not_nccl(const GpuOperation& operation);  // on all ranks alike
  std::string unique_id(const GpuOperation& operation);     // rank 0's

  void alone(const GpuOperation& operation, const detail::GroupCall& call);
  void staged(const GpuOperation& operation, const detail::GroupCall& call);
  void staged(const GpuOperation& operation, const LeafReduction& reduction);
  void by_nccl(const GpuOperation& operation, const detail::GroupCall& call, NcclLink& link);
  void exchange_by_nccl(const GpuOperation& operation, const detail::GroupCall& call,
                        NcclLink& link);
  void scatter_by_nccl(const GpuOperation& operation, const detail::GroupCall& call,
                       NcclLink& link);

  // Either may be host memory: CUDA tells it by the address.
  void copy(const GpuOperation& operation, void* to, const void* from, size_t bytes);
  void wait_for_gpu(int gpu);

  Backend& backend_;
  const GpuSupport& support_;
  const bool required_;
  bool through_host_ = false;                                    // for good, on all ranks
  std::map<std::vector<int>, std::unique_ptr<NcclLink>> links_;  // by the GPUs of all ranks
  Pinned for_collectives_, for_sends_, for_recvs_;
};

}  // namespace tutti::group
