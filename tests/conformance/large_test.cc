// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <fstream>
#include <string>

#include "support/cpus.h"
#include "support/reference.h"

namespace tutti {
namespace {

size_t available_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) << 10;
  return 0;
}

// More elements than 32 bits count.
TEST(Large, ReducesMoreThanTwoToThe31Elements) {
  if (TUTTI_TEST_SANITIZED) GTEST_SKIP() << "too much memory under a sanitizer";
  if (available_memory() < 10ull << 30) GTEST_SKIP() << "needs 10 GiB of memory";
  set_logical_devices("CPU", 2);
  const int64_t half = int64_t(1) << 31, count = half + 4099;
  const Tensor a = Tensor::zeros({count}, DType::boolean, "/cpu:0");
  const Tensor b = Tensor::zeros({count}, DType::boolean, "/cpu:1");
  const std::vector<int64_t> in_a{0, half - 1, half + 1}, in_b{1, half, count - 1};
  for (const int64_t i : in_a) a.span<bool>()[size_t(i)] = true;
  for (const int64_t i : in_b) b.span<bool>()[size_t(i)] = true;

  const Mirrored<Tensor> result =
      HierarchicalCopyAllReduce().reduce(ReduceOp::MAX, PerReplica<Tensor>{a, b}, "/cpu:0");
  ASSERT_EQ(result[0].shape(), Shape{count});
  const auto out = result[0].span<const bool>();
  std::vector<int64_t> set;
  for (int64_t i = 0; i < count;) {
    const void* const found = std::memchr(&out[size_t(i)], 1, size_t(count - i));
    if (!found) break;
    i = static_cast<const bool*>(found) - out.data();
    set.push_back(i++);
  }
  EXPECT_EQ(set, (std::vector<int64_t>{0, 1, half - 1, half, half + 1, count - 1}));
}

}  // namespace
}  // namespace tutti
