// SPDX-License-Identifier: Apache-2.0
// An allocator for small objects of one size that come and go by the hundred, as those behind a
// list of tensors do: malloc keeps only a few of a size at hand and is slow beyond.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

#include "base/spin.h"

namespace tutti::base {

// Objects of kBytes each. Objects that are given back are kept for reuse, up to kMost.
template <size_t kBytes>
class NodePool {
 public:
  static void* take() {
    {
      const Lock lock;
      if (Node* const node = state().first) {
        state().first = node->next;
        --state().count;
        return node;
      }
    }
    return ::operator new(kSize);
  }

  static void give_back(void* data) noexcept {
    {
      const Lock lock;
      if (state().count < kMost) {
        state().first = new (data) Node{state().first};
        ++state().count;
        return;
      }
    }
    ::operator delete(data);
  }

 private:
  struct Node {
    Node* next;
  };
  struct State {
    std::atomic_flag busy;
    Node* first = nullptr;
    size_t count = 0;
  };
  // A spin lock, held for a few instructions only.
  struct Lock {
    Lock() {
      while (state().busy.test_and_set(std::memory_order_acquire)) pause();
    }
    ~Lock() { state().busy.clear(std::memory_order_release); }
  };
  static constexpr size_t kMost = 16384;
  static constexpr size_t kSize = kBytes < sizeof(Node) ? sizeof(Node) : kBytes;

  static State& state() {
    static constinit State instance;
    return instance;
  }
};

// For allocate_shared, and for what is behind a shared_ptr.
template <class T>
struct PoolAllocator {
  using value_type = T;

  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}

  T* allocate(size_t n) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    return static_cast<T*>(is_pooled(n) ? NodePool<sizeof(T)>::take()
                                        : ::operator new(n * sizeof(T)));
  }
  void deallocate(T* data, size_t n) noexcept {
    if (is_pooled(n))
      NodePool<sizeof(T)>::give_back(data);
    else
      ::operator delete(data);
  }
  friend bool operator==(PoolAllocator, PoolAllocator) { return true; }

 private:
  // Nothing is pooled under a sanitizer: it finds a use after free only if the memory is freed.
  static bool is_pooled(size_t n) {
#if defined(__SANITIZE_ADDRESS__)
    return false && n;
#else
    return n == 1;
#endif
  }
};

}  // namespace tutti::base
