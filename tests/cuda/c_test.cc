// SPDX-License-Identifier: Apache-2.0
// GPU memory from C: as a pointer with the number of its GPU, and by DLPack.
#include <dlpack/dlpack.h>
#include <tutti/c.h>

#include "cuda/gpus.h"
#include "group/ranks.h"

namespace tutti {
namespace {

struct GpuC : testing::LogicalGpus<2> {};

TEST_F(GpuC, ReducesMemoryOfAGpuInPlace) {
  tutti_group* groups[2];
  ASSERT_EQ(tutti_group_in_process(2, groups), TUTTI_OK) << tutti_last_error();
  testing::on_threads(2, [&](size_t r) {
    const Tensor data = Tensor::full({5, 20}, double(r + 1), DType::float64, testing::gpu(0));
    const int device = 1 + cuda_device(testing::gpu(0));
    const tutti_tensor plain{data.data(), 100, TUTTI_FLOAT64, device, nullptr, 0, 0};
    EXPECT_EQ(tutti_all_reduce(groups[r], nullptr, &plain, TUTTI_SUM, nullptr, nullptr), TUTTI_OK)
        << tutti_last_error();
    EXPECT_EQ(data.to_vector<double>(), std::vector<double>(100, 3));

    DLManagedTensor* const managed = data.to_dlpack();
    tutti_tensor view;
    EXPECT_EQ(tutti_tensor_from_dlpack(managed, &view), TUTTI_OK) << tutti_last_error();
    EXPECT_EQ(view.device, device);
    EXPECT_EQ(view.shape[1], 20);
    tutti_work* work;
    EXPECT_EQ(tutti_all_reduce(groups[r], nullptr, &view, TUTTI_SUM, nullptr, &work), TUTTI_OK)
        << tutti_last_error();
    EXPECT_EQ(tutti_work_wait(work), TUTTI_OK) << tutti_last_error();
    EXPECT_EQ(tutti_work_destroy(work), TUTTI_OK);
    EXPECT_EQ(data.to_vector<double>(), std::vector<double>(100, 6));
    managed->deleter(managed);
  });
  for (tutti_group* group : groups) EXPECT_EQ(tutti_group_destroy(group), TUTTI_OK);
}

// What the caller enqueues on a stream of its own comes before a collective, and what it enqueues
// then after it; in the background, too.
TEST_F(GpuC, FollowsTheStreamOfTheOptions) {
  tutti_group* groups[2];
  ASSERT_EQ(tutti_group_in_process(2, groups), TUTTI_OK) << tutti_last_error();
  testing::on_threads(2, [&](size_t r) {
    const std::string gpu = testing::gpu(0);
    const Tensor data = Tensor::full({1000}, 1, DType::float64, gpu);
    const tutti_tensor tensor{data.data(), 1000, TUTTI_FLOAT64, 1 + cuda_device(gpu), nullptr,
                              0,           0};
    void* const stream = testing::runtime().make_stream(cuda_device(gpu));
    const tutti_options options{sizeof options, 0, stream, 0, 0};
    const auto multiply = [&](double factor) {  // without a StreamScope, which would order it
      testing::kernels_of_gpus().scale(cuda_device(gpu), stream, static_cast<double*>(data.data()),
                                       1000, factor, false);
    };
    synchronize(gpu);
    multiply(r == 0 ? 3 : 1);
    EXPECT_EQ(tutti_all_reduce(groups[r], nullptr, &tensor, TUTTI_SUM, &options, nullptr), TUTTI_OK)
        << tutti_last_error();
    multiply(r == 0 ? 5 : 2);
    tutti_work* work;
    EXPECT_EQ(tutti_all_reduce_list(groups[r], &tensor, 1, TUTTI_SUM, &options, &work), TUTTI_OK)
        << tutti_last_error();
    EXPECT_EQ(tutti_work_wait(work), TUTTI_OK) << tutti_last_error();
    EXPECT_EQ(tutti_work_destroy(work), TUTTI_OK);
    multiply(r == 0 ? 7 : 1);
    const StreamScope scope(stream, gpu);
    EXPECT_EQ(data.to_vector<double>(), std::vector<double>(1000, r == 0 ? 28 * 7 : 28));
  });
  for (tutti_group* group : groups) EXPECT_EQ(tutti_group_destroy(group), TUTTI_OK);
}

}  // namespace
}  // namespace tutti
