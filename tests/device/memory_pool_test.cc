// SPDX-License-Identifier: Apache-2.0
#include "device/memory_pool.h"

#include <tutti/device.h>
#include <tutti/error.h>
#include <tutti/tensor.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "support/expect.h"

namespace tutti::device {
namespace {

constexpr size_t kMi = 1 << 20;
// What a pool without slack may hold if at most this many bytes were in use at one time.
size_t bound(size_t most) { return most + most / 4; }

struct Block {
  void* data;
  size_t bytes;
};

TEST(MemoryPool, AlignsEverySizeTo64Bytes) {
  MemoryPool pool;
  std::vector<Block> blocks;
  std::vector<size_t> sizes{0, 1, 64 << 10, (64 << 10) + 1, 2 * kMi - 1, 2 * kMi, 5 * kMi + 3};
  for (size_t bytes = 2; bytes <= 100'000; bytes += bytes / 7 + 1) sizes.push_back(bytes);
  for (const size_t bytes : sizes) {
    void* const data = pool.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u) << bytes;
    std::memset(data, 0xff, bytes);
    blocks.push_back({data, bytes});
  }
  for (const Block& block : blocks) pool.deallocate(block.data, block.bytes);
  EXPECT_EQ(pool.stats().in_use, 0u);
}

TEST(MemoryPool, BlocksInUseDoNotOverlap) {
  MemoryPool pool;
  std::mt19937 random(3);
  std::vector<Block> blocks;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() > 100 || (!blocks.empty() && random() % 3 == 0)) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto* const bytes = static_cast<const unsigned char*>(blocks.back().data);
      const size_t n = blocks.back().bytes;
      ASSERT_TRUE(std::all_of(bytes, bytes + n, [&](unsigned char b) { return b == bytes[0]; }));
      pool.deallocate(blocks.back().data, n);
      blocks.pop_back();
    }
    const size_t bytes = 1 + random() % (random() % 8 ? 4000 : 200'000);
    blocks.push_back({pool.allocate(bytes), bytes});
    std::memset(blocks.back().data, i % 251, bytes);
  }
  for (const Block& block : blocks) pool.deallocate(block.data, block.bytes);
}

TEST(MemoryPool, ASteadyStateDoesNotAskTheSystem) {
  MemoryPool pool;
  const size_t sizes[] = {10, 100, 5000, 100'000, kMi, 3 * kMi + 5, kMi};
  const auto step = [&] {
    std::vector<Block> blocks;
    for (const size_t bytes : sizes) blocks.push_back({pool.allocate(bytes), bytes});
    for (const Block& block : blocks) pool.deallocate(block.data, block.bytes);
  };
  step();
  const size_t calls = pool.stats().system_calls;
  for (int i = 0; i < 100; ++i) step();
  EXPECT_EQ(pool.stats().system_calls, calls);
}

TEST(MemoryPool, TensorsOfASteadyStateDoNotAskTheSystem) {
  const auto step = [] {
    std::vector<Tensor> tensors;
    for (const int64_t n : {0, 1, 1000, 1 << 18, 1 << 20})
      tensors.push_back(Tensor::zeros({n}, DType::float32).clone());
  };
  step();
  const size_t calls = MemoryPool::host().stats().system_calls;
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(MemoryPool::host().stats().system_calls, calls);
}

// Blocks of ever changing sizes, so that few of those in reserve fit.
TEST(MemoryPool, HoldsLittleMoreThanWasOnceInUse) {
  MemoryPool pool(0);
  std::mt19937 random(5);
  std::vector<Block> blocks;
  size_t most = 0;
  for (int i = 0; i < 2000; ++i) {
    const size_t bytes = (65 << 10) + random() % (4 * kMi);
    blocks.push_back({pool.allocate(bytes), bytes});
    most = std::max(most, pool.stats().in_use);
    while (blocks.size() > random() % 12) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      pool.deallocate(blocks.back().data, blocks.back().bytes);
      blocks.pop_back();
    }
    ASSERT_LE(pool.stats().held, bound(most)) << i;
  }
  for (const Block& block : blocks) pool.deallocate(block.data, block.bytes);
}

// The same promise for small blocks, whose sizes come in classes: what one class has freed must
// serve the next, or go back.
TEST(MemoryPool, HoldsLittleMoreForSmallBlocksThanWasOnceInUse) {
  MemoryPool pool(0);
  size_t most = 0;
  for (size_t bytes = 1 << 10; bytes <= 64 << 10; bytes += bytes / 4) {
    std::vector<Block> blocks;
    for (size_t total = 0; total < 4 * kMi; total += bytes)
      blocks.push_back({pool.allocate(bytes), bytes});
    most = std::max(most, pool.stats().in_use);
    for (const Block& block : blocks) pool.deallocate(block.data, block.bytes);
  }
  EXPECT_LE(pool.stats().held, bound(most) + MemoryPool::kSlab);
}

TEST(MemoryPool, AFailedRequestDoesNotRaiseWhatIsHeld) {
  MemoryPool pool(0);
  EXPECT_THROW(pool.allocate(size_t(1) << 60), ResourceExhaustedError);
  size_t most = 0;
  for (size_t mib = 1; mib <= 20; ++mib) {
    void* const data = pool.allocate(mib * kMi);
    most = std::max(most, pool.stats().in_use);
    pool.deallocate(data, mib * kMi);
  }
  EXPECT_LE(pool.stats().held, bound(most));
}

TEST(MemoryPool, ReusesABlockThatIsALittleTooLargeAndNotAMuchLargerOne) {
  MemoryPool pool;
  void* const large = pool.allocate(8 * kMi);
  pool.deallocate(large, 8 * kMi);
  void* const close = pool.allocate(8 * kMi - 10'000);
  EXPECT_EQ(close, large);
  pool.deallocate(close, 8 * kMi - 10'000);
  void* const small = pool.allocate(kMi);
  EXPECT_NE(small, large);
  pool.deallocate(small, kMi);
}

TEST(MemoryPool, ReleaseCachedGivesLargeBlocksBack) {
  MemoryPool pool;
  void* const kept = pool.allocate(3 * kMi);
  std::memset(kept, 7, 3 * kMi);
  void* const freed = pool.allocate(5 * kMi);
  pool.deallocate(freed, 5 * kMi);
  EXPECT_EQ(pool.stats().held, 8 * kMi);
  pool.release_cached();
  EXPECT_EQ(pool.stats().held, 3 * kMi);
  EXPECT_EQ(pool.stats().in_use, 3 * kMi);
  EXPECT_EQ(static_cast<char*>(kept)[3 * kMi - 1], 7);
  pool.deallocate(kept, 3 * kMi);
}

TEST(MemoryPool, ReleaseCachedMemoryEmptiesThePoolOfTensors) {
  { const Tensor tensor = Tensor::zeros({int64_t(4 * kMi)}, DType::float32); }
  EXPECT_GE(MemoryPool::host().stats().held, 16 * kMi);
  release_cached_memory();
  EXPECT_LT(MemoryPool::host().stats().held, kMi);
}

TEST(MemoryPool, ServesSeveralThreadsAtOnce) {
  MemoryPool pool;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random{unsigned(t)};
      for (int i = 0; i < 1000; ++i) {
        const size_t bytes = 1 + random() % (i % 10 ? 5000 : 300'000);
        auto* const data = static_cast<unsigned char*>(pool.allocate(bytes));
        data[0] = data[bytes - 1] = (unsigned char)(t + 1);
        std::this_thread::yield();
        if (data[0] != t + 1 || data[bytes - 1] != t + 1) ++wrong[size_t(t)];
        pool.deallocate(data, bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
  EXPECT_EQ(pool.stats().in_use, 0u);
}

TEST(MemoryPool, AnImpossibleSizeIsResourceExhausted) {
  MemoryPool pool;
  for (const size_t bytes : {size_t(1) << 60, size_t(std::numeric_limits<int64_t>::max()) - 4096,
                             size_t(std::numeric_limits<int64_t>::max())})
    EXPECT_ERROR(ResourceExhaustedError, "cannot allocate", pool.allocate(bytes));
  EXPECT_EQ(pool.stats().in_use, 0u);
  EXPECT_ERROR(ResourceExhaustedError, "larger than any memory",
               Tensor::empty({int64_t(1) << 62}, DType::float32));
}

TEST(MemoryPool, ASizeThatWrapsAroundIsResourceExhausted) {
  MemoryPool pool;
  EXPECT_ERROR(ResourceExhaustedError, "18446744073709551615",
               pool.allocate(std::numeric_limits<size_t>::max()));
}

}  // namespace
}  // namespace tutti::device
