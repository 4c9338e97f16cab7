// SPDX-License-Identifier: Apache-2.0
#include "sim/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <tutti/error.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace tutti::sim {

namespace {

constexpr size_t kSlab = 64;  // stacks that are mapped at once

}  // namespace

Stacks::~Stacks() {
  for (std::byte* const slab : slabs_) {
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(slab, kSlab * kBytes);  // others may get these addresses
#endif
    munmap(slab, kSlab * kBytes);
  }
}

std::byte* Stacks::take() {
  if (free_.empty()) {
    void* const slab = mmap(nullptr, kSlab * kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) throw ResourceExhaustedError("simulate: the system has no more stacks");
    slabs_.push_back(static_cast<std::byte*>(slab));
    for (size_t i = kSlab; i > 0; --i) free_.push_back(slabs_.back() + (i - 1) * kBytes);
  }
  std::byte* const stack = free_.back();
  free_.pop_back();
  return stack;
}

Fiber::Fiber(Stacks& stacks, std::function<void()> body)
    : stacks_(stacks), stack_(stacks.take()), body_(std::move(body)) {
  using boost::context::detail::transfer_t;
  context_ = boost::context::detail::make_fcontext(stack_ + Stacks::kBytes, Stacks::kBytes,
                                                   [](transfer_t from) {
                                                     Fiber& self = *static_cast<Fiber*>(from.data);
                                                     self.resumer_ = from.fctx;
                                                     self.run();
                                                   });
#ifdef __SANITIZE_THREAD__
  sanitizer_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(sanitizer_);
#endif
  stacks_.give_back(stack_);
}

void Fiber::run() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &thread_stack_, &thread_stack_bytes_);
#endif
  body_();
  body_ = nullptr;
  over_ = true;
  pause();
}

void Fiber::switch_to(void*& from, void* to) {
  // The runtime keeps exceptions by thread. Each side of the switch has its own.
  auto* const globals = reinterpret_cast<decltype(exceptions_)*>(abi::__cxa_get_globals());
  std::swap(*globals, exceptions_);
  from = boost::context::detail::jump_fcontext(to, this).fctx;
}

void Fiber::resume() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&sanitizer_thread_, stack_, Stacks::kBytes);
#endif
#ifdef __SANITIZE_THREAD__
  sanitizer_thread_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizer_, 0);
#endif
  switch_to(context_, context_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(sanitizer_thread_, nullptr, nullptr);
#endif
}

void Fiber::pause() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(over_ ? nullptr : &sanitizer_, thread_stack_, thread_stack_bytes_);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(sanitizer_thread_, 0);
#endif
  switch_to(resumer_, resumer_);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(sanitizer_, &thread_stack_, &thread_stack_bytes_);
#endif
}

}  // namespace tutti::sim
