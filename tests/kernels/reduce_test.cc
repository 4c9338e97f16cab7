// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduce.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <numeric>

#include "support/reference.h"

namespace tutti::kernels {
namespace {

using tutti::testing::reference;
using tutti::testing::same_bits;

// Runs `body` on every instruction set that was compiled and that this CPU has.
template <class Body>
void for_each_target(const Body& body) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body(target == targets.front());                 // the first is the best
    if (::testing::Test::HasFatalFailure()) return;  // one is enough
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Elements of some dtype at a chosen distance, in elements, from a cache line.
class Buffer {
 public:
  Buffer(DType dtype, size_t count, size_t offset)
      : bytes_(count * size_of(dtype)), memory_(bytes_ + 64 + offset * size_of(dtype) + kGuard) {
    const auto base = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (64 - base % 64) % 64 + offset * size_of(dtype);
  }
  std::byte* data() { return data_; }
  void paint() { std::fill(memory_.begin(), memory_.end(), kPaint); }
  // Is nothing written but the first `bytes`?
  bool rest_is_painted(size_t bytes) const {
    const auto painted = [](std::byte b) { return b == kPaint; };
    return std::all_of(memory_.data(), const_cast<const std::byte*>(data_), painted) &&
           std::all_of(data_ + bytes, data_ + bytes_ + kGuard, painted);
  }

 private:
  static constexpr std::byte kPaint{0xa5};
  static constexpr size_t kGuard = 64;
  size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

std::vector<Buffer> random_inputs(DType dtype, size_t n, size_t count, bool specials = true) {
  std::vector<Buffer> inputs;
  for (size_t k = 0; k < n; ++k) {
    inputs.emplace_back(dtype, count, /*offset=*/k % 2);
    testing::fill_random(dtype, inputs.back().data(), count, 1000 * uint64_t(dtype) + k, specials);
  }
  return inputs;
}

std::vector<const void*> pointers(std::vector<Buffer>& inputs, size_t n) {
  std::vector<const void*> result;
  for (size_t k = 0; k < n; ++k) result.push_back(inputs[k].data());
  return result;
}

class ReduceEveryType : public ::testing::TestWithParam<DType> {};

TEST_P(ReduceEveryType, GivesTheTreeForAnyNumberOfInputsAndElements) {
  const DType dtype = GetParam();
  const size_t most = TUTTI_TEST_SANITIZED ? 9001 : 70001;
  // Around the lanes of every instruction set, the tile of 4096 bytes, and what one thread takes.
  std::vector<size_t> counts{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65};
  for (const size_t tile : {512, 1024, 2048, 4096})
    for (const size_t count : {tile - 1, tile, tile + 1, 2 * tile + 5}) counts.push_back(count);
  counts.insert(counts.end(), {1000, most});
  std::vector<size_t> numbers{1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33};
  if (TUTTI_TEST_SANITIZED) {
    counts = {0, 1, 3, 8, 9, 17, 64, 1025, most};
    numbers = {1, 2, 3, 5, 17};
  }
  std::vector<Buffer> inputs = random_inputs(dtype, 33, most);
  base::ThreadPool alone(1), two(2), seven(7);

  for (const ReduceOp op : testing::kOps) {
    if (!testing::is_defined(op, dtype)) continue;
    const DType out_type = result_dtype(op, dtype);
    Buffer aligned(out_type, most, 0), shifted(out_type, most, 1);
    for (const size_t n : numbers) {
      const std::vector<const void*> in = pointers(inputs, n);
      const int64_t divisor = op == ReduceOp::MEAN ? int64_t(n) : 1;
      const std::vector<std::byte> want = reference(dtype, op, in, most, divisor);
      const auto check = [&](size_t count, base::ThreadPool& pool) {
        aligned.paint();
        shifted.paint();
        void* const out[] = {aligned.data(), shifted.data()};
        const Reduction r{in, out, int64_t(count), dtype, op, divisor};
        reduce({&r, 1}, &pool);
        for (Buffer* buffer : {&aligned, &shifted}) {
          ASSERT_TRUE(same_bits(out_type, buffer->data(), want.data(), count))
              << name(op) << " of " << n << " inputs";
          ASSERT_TRUE(buffer->rest_is_painted(count * size_of(out_type)))
              << name(op) << " of " << n << " inputs with " << count << " elements";
        }
      };
      for_each_target([&](bool best) {
        for (const size_t count : counts) {
          if (count != most || best || n < 10) check(count, alone);
          if (HasFatalFailure()) return;
        }
        if (!best) return;
        check(most, two);
        check(most, seven);
      });
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, ReduceEveryType, ::testing::ValuesIn(testing::kDTypes),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

TEST(ReduceKernel, KeepsEverySixteenBitPattern) {
  std::vector<uint16_t> all(65536), out(65536);
  std::iota(all.begin(), all.end(), uint16_t(0));
  const void* const in[] = {all.data()};
  void* const to[] = {out.data()};
  for (const DType dtype : {DType::float16, DType::bfloat16})
    for (const ReduceOp op : testing::kOps)
      for_each_target([&](bool) {
        const Reduction r{in, to, 65536, dtype, op};
        reduce({&r, 1});
        ASSERT_TRUE(same_bits(dtype, out.data(), all.data(), all.size())) << name(op);
      });
}

// Sums of two 16-bit floats, their products and their quotients reach every case of rounding: ties
// of both kinds, carries into the next binade, overflow, and subnormal results.
TEST(ReduceKernel, RoundsToSixteenBitsAsTheStandardSays) {
  constexpr size_t kCount = 65536;
  std::vector<uint16_t> all(kCount), partner(kCount), out(kCount);
  std::iota(all.begin(), all.end(), uint16_t(0));
  const void* const in[] = {all.data(), partner.data()};
  void* const to[] = {out.data()};
  std::mt19937 random(7);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    const int mantissa = dtype == DType::float16 ? 10 : 7;
    for (int round = 0; round < (TUTTI_TEST_SANITIZED ? 3 : 12); ++round) {
      for (size_t i = 0; i < kCount; ++i) {
        partner[i] = uint16_t(random());
        // Every third partner is half a unit in the last place, or one and a half, so that the
        // sum is a tie.
        const int exponent = int(i & 0x7fff) >> mantissa;
        if (i % 3 == 0 && exponent > mantissa + 1) {
          partner[i] = uint16_t((exponent - mantissa - 1) << mantissa | (i & 0x8000));
          if (round % 2) partner[i] |= uint16_t(1 << (mantissa - 1));
        }
      }
      for (const auto& [op, divisor] : {std::pair(ReduceOp::SUM, 1),
                                        {ReduceOp::PROD, 1},
                                        {ReduceOp::MEAN, 2},
                                        {ReduceOp::MEAN, 3 + 2 * round}}) {
        const std::vector<std::byte> want = reference(dtype, op, in, kCount, divisor);
        for_each_target([&, op = op, divisor = divisor](bool) {
          const Reduction r{in, to, int64_t(kCount), dtype, op, divisor};
          reduce({&r, 1});
          ASSERT_TRUE(same_bits(dtype, out.data(), want.data(), kCount))
              << name(op) << ", divided by " << divisor;
        });
      }
    }
  }
}

TEST(ReduceKernel, PropagatesNaNAndOrdersZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  const float a[] = {nan, 1, -0.f, 0.f, -0.f, inf, -inf, nan};
  const float b[] = {1, nan, 0.f, -0.f, -0.f, -inf, nan, inf};
  const float least[] = {nan, nan, -0.f, -0.f, -0.f, -inf, nan, nan};
  const float most[] = {nan, nan, 0.f, 0.f, -0.f, inf, nan, nan};
  float out[8];
  const void* const in[] = {a, b};
  void* const to[] = {out};
  for_each_target([&](bool) {
    for (const int64_t count : {1, 2, 3, 8}) {
      for (const auto& [op, want] : {std::pair(ReduceOp::MIN, least), {ReduceOp::MAX, most}}) {
        const Reduction r{in, to, count, DType::float32, op};
        reduce({&r, 1});
        EXPECT_TRUE(same_bits(DType::float32, out, want, size_t(count))) << name(op);
      }
    }
  });
}

TEST(ReduceKernel, RunsABatchOfDifferentReductionsAsOne) {
  std::vector<Buffer> floats = random_inputs(DType::float32, 3, 50000);
  std::vector<Buffer> bytes = random_inputs(DType::int8, 5, 30000);
  const std::vector<const void*> f = pointers(floats, 3), b = pointers(bytes, 5);
  Buffer sum(DType::float32, 50000, 0), none(DType::float32, 1, 0), mean(DType::float32, 30000, 0);
  void* const to_sum[] = {sum.data()};
  void* const to_none[] = {none.data()};
  void* const to_mean[] = {mean.data()};
  none.paint();
  const Reduction batch[] = {{f, to_sum, 50000, DType::float32, ReduceOp::SUM},
                             {f, to_none, 0, DType::float32, ReduceOp::SUM},
                             {b, to_mean, 30000, DType::int8, ReduceOp::MEAN, 5}};
  for (const int threads : {1, 2, 7}) {
    base::ThreadPool pool(threads);
    sum.paint();
    mean.paint();
    reduce(batch, &pool);
    EXPECT_TRUE(same_bits(DType::float32, sum.data(),
                          reference(DType::float32, ReduceOp::SUM, f, 50000, 1).data(), 50000));
    EXPECT_TRUE(same_bits(DType::float32, mean.data(),
                          reference(DType::int8, ReduceOp::MEAN, b, 30000, 5).data(), 30000));
    EXPECT_TRUE(none.rest_is_painted(0));
  }
  reduce({});
}

// Outputs larger than the cache are written around it, by other instructions.
TEST(ReduceKernel, GivesTheSameBitsIfOutputsBypassTheCache) {
  constexpr size_t kCache = 1 << 20;  // smaller than any, so that all machines do this
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64}) {
    const size_t count = kCache / 2 / size_of(dtype) + 4099;
    std::vector<Buffer> inputs = random_inputs(dtype, 2, count);
    const std::vector<const void*> in = pointers(inputs, 2);
    Buffer aligned(dtype, count, 0), shifted(dtype, count, 1);
    void* const out[] = {aligned.data(), shifted.data()};
    const std::vector<std::byte> want = reference(dtype, ReduceOp::SUM, in, count, 1);
    base::ThreadPool pool(2);
    for_each_target([&](bool) {
      aligned.paint();
      shifted.paint();
      const Reduction r{in, out, int64_t(count), dtype, ReduceOp::SUM};
      reduce({&r, 1}, &pool, kCache);
      for (Buffer* buffer : {&aligned, &shifted}) {
        ASSERT_TRUE(same_bits(dtype, buffer->data(), want.data(), count));
        ASSERT_TRUE(buffer->rest_is_painted(count * size_of(dtype)));
      }
    });
  }
}

TEST(ReduceKernel, CopiesBytesWhereverTheyLie) {
  for (const size_t bytes : {0, 1, 63, 64, 65, 4097, 1 << 20})
    for (const size_t offset : {0, 1}) {
      Buffer from(DType::uint8, bytes, 1 - offset), to(DType::uint8, bytes, offset);
      testing::fill_random(DType::uint8, from.data(), bytes, bytes);
      to.paint();
      kernels::copy(to.data(), from.data(), bytes);
      EXPECT_TRUE(same_bits(DType::uint8, to.data(), from.data(), bytes));
      EXPECT_TRUE(to.rest_is_painted(bytes));
    }
}

}  // namespace
}  // namespace tutti::kernels
