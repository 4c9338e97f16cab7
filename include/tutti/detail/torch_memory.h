// SPDX-License-Identifier: Apache-2.0
// Memory for the gradients that LibTorch makes, where the other ranks of the host reach it.
#pragma once

#include <c10/core/Allocator.h>
#include <tutti/error.h>
#include <tutti/group.h>
#include <tutti/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::detail {

// What tensors on the CPU get from a group instead of from LibTorch: those of certain sizes.
struct TorchSupply {
  Group group;
  std::vector<size_t> sizes;  // in bytes, sorted

  bool has(size_t bytes) const {
    return bytes && std::binary_search(sizes.begin(), sizes.end(), bytes);
  }
};

// LibTorch's allocator of host memory, with this one in front of it, which is never removed: memory
// may be given back at any time. Safe to use from any thread.
//
// A gradient is made by some function of the backward pass, which asks for memory of its size. If
// that is the group's, the exchange copies nothing; and the group keeps the pages for the next
// pass, where malloc would often return them to the system. Other tensors that happen to have such
// a size get the group's memory, too, and are as well off.
class TorchMemory final : public c10::Allocator {
 public:
  // To be called before other threads use LibTorch.
  static void install() { mine(); }
  // Until `supply` is gone, tensors that this thread makes get memory from it.
  static void supply_this_thread(std::weak_ptr<const TorchSupply> supply) {
    of_thread_.supply = std::move(supply);
  }

  // The first is virtual in old releases of LibTorch, the second in new ones.
  c10::DataPtr allocate(size_t bytes) const { return take(bytes); }
  c10::DataPtr allocate(size_t bytes) { return take(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  // Virtual in new releases.
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }

 private:
  TorchMemory() : behind_(*c10::GetAllocator(c10::DeviceType::CPU)) {}

  static TorchMemory& mine() {
    static TorchMemory& memory = [&]() -> TorchMemory& {
      auto* const made = new TorchMemory;
      // One that a program has set with a priority stays.
      c10::SetAllocator(c10::DeviceType::CPU, made);
      return *made;
    }();
    return memory;
  }

  c10::DataPtr take(size_t bytes) const {
    // Tensors may be made when the thread has no such variable any more.
    const auto supply = is_thread_over_ ? nullptr : of_thread_.supply.lock();
    if (supply && supply->has(bytes)) {
      try {
        const Tensor memory = supply->group.empty({int64_t(bytes)}, DType::uint8);
        TorchMemory& all = mine();
        const std::lock_guard lock(all.mutex_);
        all.taken_.emplace(memory.data(), memory);
        return {memory.data(), memory.data(), &give_back, c10::DeviceType::CPU};
      } catch (const Error&) {  // no room there
      }
    }
    return behind_.allocate(bytes);
  }

  static void give_back(void* data) {
    TorchMemory& all = mine();
    {
      std::unique_lock lock(all.mutex_);
      if (const auto found = all.taken_.find(data); found != all.taken_.end()) {
        const Tensor memory = std::move(found->second);  // ends when it is unlocked
        all.taken_.erase(found);
        lock.unlock();
        return;
      }
    }
    all.behind_.raw_deallocate(data);
  }

  struct OfThread {
    std::weak_ptr<const TorchSupply> supply;
    ~OfThread() { is_thread_over_ = true; }
  };
  static inline thread_local bool is_thread_over_ = false;
  static inline thread_local OfThread of_thread_;

  c10::Allocator& behind_;
  std::mutex mutex_;
  std::unordered_map<void*, Tensor> taken_;
};

}  // namespace tutti::detail
