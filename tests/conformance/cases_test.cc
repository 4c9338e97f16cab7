// SPDX-License-Identifier: Apache-2.0
// CASES.md, section 1: reduce, batch_reduce and broadcast in one process.
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "support/cpus.h"

namespace tutti {
namespace {

using testing::device;

struct Subject {
  const char* name;
  std::function<std::unique_ptr<CrossDeviceOps>()> make;
};

Tensor added(const std::vector<Tensor>& parts) {
  float sum = 0;
  for (const Tensor& part : parts) sum += part.item<float>();
  return Tensor::scalar(sum, parts[0].device());
}

void PrintTo(const Subject& subject, std::ostream* os) { *os << subject.name; }

const Subject kSubjects[] = {
    {"O1", [] { return std::make_unique<ReductionToOneDevice>(); }},
    {"O2", [] { return std::make_unique<ReductionToOneDevice>(device(7)); }},
    {"O3", [] { return std::make_unique<ReductionToOneDevice>("", added); }},
    {"O4", [] { return std::make_unique<AllReduceCrossDeviceOps>("nccl", 1); }},
    {"O5", [] { return std::make_unique<AllReduceCrossDeviceOps>("nccl", 0); }},
    {"O6", [] { return std::make_unique<AllReduceCrossDeviceOps>("hierarchical_copy", 8); }},
    {"O7",
     [] { return std::make_unique<AllReduceCrossDeviceOps>("hierarchical_copy", 0, 100, 10); }},
};

class CrossDeviceCases : public testing::LogicalDevices<8, ::testing::TestWithParam<Subject>> {
 protected:
  // first, first + 1, ... on `n` devices.
  static PerReplica<Tensor> counting(size_t n, float first) {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < n; ++i)
      parts.push_back(Tensor::scalar<float>(first + float(i), device(i)));
    return PerReplica<Tensor>(parts);
  }

  // M, X, S and L: mirrored on the same devices, mirrored on another, a string, a list.
  static std::vector<Destinations> destinations(size_t n) {
    const PerReplica<Tensor> same = counting(n, 0);
    std::vector<std::string> reversed = same.devices();
    std::ranges::reverse(reversed);
    return {Mirrored<Tensor>(std::vector<Tensor>(same.begin(), same.end())),
            Mirrored<Tensor>{Tensor::scalar<float>(0, device(7))}, "/cpu:0", reversed};
  }

  // Calls body(n, destinations) for all numbers of devices and destinations.
  template <class Body>
  static void for_each_layout(const Body& body) {
    for (const size_t n : {1, 2, 3, 4, 7})
      for (const Destinations& d : destinations(n)) {
        SCOPED_TRACE(std::to_string(n) + " devices to " + std::to_string(d.size()));
        body(n, d);
      }
  }

  static void expect_on(const Destinations& d, const Mirrored<Tensor>& result, float want) {
    EXPECT_EQ(result.devices(), d.devices());
    for (const Tensor& t : result) {
      EXPECT_EQ(t.shape(), Shape{});
      EXPECT_EQ(t.item<float>(), want);
    }
  }
  static float mean(size_t n) { return (float(n) - 1) / 2; }

  std::unique_ptr<CrossDeviceOps> ops = GetParam().make();
};

// C001, C002
TEST_P(CrossDeviceCases, MeanIsOnExactlyTheDestinations) {
  for_each_layout([&](size_t n, const Destinations& d) {
    expect_on(d, ops->reduce(ReduceOp::MEAN, counting(n, 0), d), mean(n));
    expect_on(d, ops->reduce(ReduceOp::MEAN, counting(n, 1), d), mean(n) + 1);
  });
}

// C004; C008 if the packs outnumber the elements
TEST_P(CrossDeviceCases, SumIsOnExactlyTheDestinations) {
  for_each_layout([&](size_t n, const Destinations& d) {
    expect_on(d, ops->reduce(ReduceOp::SUM, counting(n, 1), d), (mean(n) + 1) * float(n));
  });
}

// C005, C008
TEST_P(CrossDeviceCases, BatchesMixDestinations) {
  for (const size_t n : {1, 2, 3, 4, 7})
    for (const Destinations& first : destinations(n))
      for (const Destinations& second : destinations(n)) {
        const std::vector<ValueDestinationPair> pairs{{counting(n, 0), first},
                                                      {counting(n, 1), second}};
        for (const bool is_mean : {true, false}) {
          const auto out = ops->batch_reduce(is_mean ? ReduceOp::MEAN : ReduceOp::SUM, pairs);
          const float scale = is_mean ? 1 : float(n);
          ASSERT_EQ(out.size(), 2u);
          expect_on(first, out[0].map(&Value::tensor), mean(n) * scale);
          expect_on(second, out[1].map(&Value::tensor), (mean(n) + 1) * scale);
        }
      }
}

// C007
TEST_P(CrossDeviceCases, BroadcastReachesEveryDestination) {
  for_each_layout([&](size_t, const Destinations& d) {
    expect_on(d, ops->broadcast(Tensor::scalar<float>(1, device(0)), d), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(, CrossDeviceCases, ::testing::ValuesIn(kSubjects),
                         [](const auto& subject) { return std::string(subject.param.name); });

}  // namespace
}  // namespace tutti
