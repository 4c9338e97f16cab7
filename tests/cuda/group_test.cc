// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks with GPUs: by a fake of NCCL if each has a GPU of its own, else
// through host memory.
#include <gmock/gmock.h>

#include "cuda/collective_checks.h"
#include "cuda/gpus.h"
#include "group/ranks.h"
#include "support/fake_nccl.h"

namespace tutti {
namespace {

using testing::FakeNccl;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::on_ranks;
using testing::physical_gpus;

class GpuGroup : public ::testing::TestWithParam<int> {
 protected:
  GpuGroup() {
    FakeNccl::renew(FakeNccl::instance().runtime);
    (void)testing::devices("GPU", size_t(2 * std::max(physical_gpus(), 1)));
  }
  // Two of one GPU; the ranks take turns at the GPUs.
  static std::vector<std::string> gpus_of(int rank) {
    const auto gpu = size_t(rank % physical_gpus());
    return {testing::gpu(gpu), testing::gpu(gpu + size_t(physical_gpus()))};
  }

  const testing::Groups groups = Group::in_process(GetParam());
};

TEST_P(GpuGroup, HasTheSameResultsAsOnTheHost) {
  on_ranks(groups, [&](const Group& group) {
    testing::CollectiveChecks checks(group, gpus_of(group.rank()));
    checks.all();
    EXPECT_THAT(checks.failures(), IsEmpty());
  });
  if (!testing::is_fake()) return;
  EXPECT_EQ(FakeNccl::instance().launched > 0, GetParam() > 1 && GetParam() <= physical_gpus());
}

// What a thread enqueues on a stream of its own comes before a collective, and what it enqueues
// then after it; in the background, too.
TEST_P(GpuGroup, FollowsTheStreamsOfItsCallers) {
  on_ranks(groups, [&](const Group& group) {
    const std::string gpu = gpus_of(group.rank())[0];
    const StreamScope scope(testing::runtime().make_stream(cuda_device(gpu)), gpu);
    const Tensor data = Tensor::full({1000}, 1, DType::float64, gpu);
    testing::multiply(data, 3);
    group.all_reduce(data, ReduceOp::SUM);
    testing::multiply(data, 2);
    Work work = group.all_reduce_async(data, ReduceOp::SUM);
    work.wait();
    testing::multiply(data, 5);
    const double n = group.size();
    EXPECT_EQ(data.to_vector<double>(), std::vector<double>(1000, 3 * n * 2 * n * 5));
  });
}

// A rank's input may lie in its output: that of rank 0 begins with the whole.
TEST_P(GpuGroup, GathersInPlace) {
  on_ranks(groups, [&](const Group& group) {
    const std::string gpu = gpus_of(group.rank())[0];
    const int64_t part = 5000, size = group.size();
    const Tensor all = Tensor::zeros({part * size}, DType::float64, gpu);
    const Tensor mine = Tensor::borrow(static_cast<double*>(all.data()) + part * group.rank(),
                                       {part}, DType::float64, gpu);
    testing::multiply(all, 0);
    const Tensor value = Tensor::full({part}, group.rank() + 1, DType::float64, gpu);
    device::copy_runs(device::find(gpu, "test"), mine.data(), 0, device::find(gpu, "test"),
                      value.const_data(), 0, value.num_bytes(), 1);
    group.all_gather(mine, all);
    const std::vector<double> got = all.to_vector<double>();
    for (int64_t r = 0; r < size; ++r) {
      EXPECT_EQ(got[size_t(r * part)], double(r + 1));
      EXPECT_EQ(got[size_t(r * part + part - 1)], double(r + 1));
    }
  });
}

TEST_P(GpuGroup, RefusesBuffersInTwoMemories) {
  on_ranks(groups, [&](const Group& group) {
    const Tensor gpu = Tensor::zeros({3}, DType::float32, gpus_of(group.rank())[0]);
    const Tensor host = Tensor::zeros({3}, DType::float32, "/cpu:0");
    const auto error = testing::caught([&] { group.all_reduce(gpu, host, ReduceOp::SUM); });
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_THAT(error.text, HasSubstr("those of one call lie in one memory"));
    const auto list = testing::caught([&] {
      group.all_reduce(std::vector<Tensor>{gpu, host}, ReduceOp::SUM);
    });
    EXPECT_EQ(list.code, ErrorCode::invalid_argument);
  });
}

TEST_P(GpuGroup, NamesTheFirstTensorOfAListThatDiffers) {
  if (GetParam() == 1) return;
  on_ranks(groups, [&](const Group& group) {
    const std::string gpu = gpus_of(group.rank())[0];
    const auto zeros = [&](int64_t count) { return Tensor::zeros({count}, DType::float32, gpu); };
    const int64_t count = group.rank() == 0 ? 4 : 5;
    const std::vector<Tensor> list{zeros(3), zeros(count), zeros(2)};
    const auto error = testing::caught([&] { group.all_reduce(list, ReduceOp::SUM); });
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_THAT(error.text, HasSubstr("tensor 1 is float32["));
  });
}

INSTANTIATE_TEST_SUITE_P(, GpuGroup, ::testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace tutti
