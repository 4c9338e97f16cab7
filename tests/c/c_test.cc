// SPDX-License-Identifier: Apache-2.0
// What C programs may get wrong is a code with its text, and the group is as good as before.
#include <tutti/c.h>
#include <tutti/version.h>

#include <climits>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "group/ranks.h"
#include "support/expect.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using testing::on_threads;

void expect_error(int code, const std::string& part, int got) {
  EXPECT_EQ(got, code) << tutti_last_error();
  EXPECT_THAT(tutti_last_error(), HasSubstr(part));
}

tutti_tensor of(std::vector<float>& data) {
  return {data.data(), int64_t(data.size()), TUTTI_FLOAT32, 0, nullptr, 0, 0};
}

class CGroup : public ::testing::Test {
 protected:
  CGroup() { EXPECT_EQ(tutti_group_in_process(3, groups), TUTTI_OK) << tutti_last_error(); }
  ~CGroup() override {
    for (tutti_group* g : groups) EXPECT_EQ(tutti_group_destroy(g), TUTTI_OK);
  }
  void expect_good() {
    on_threads(3, [&](size_t r) {
      float one = 1;
      const tutti_tensor tensor{&one, 1, TUTTI_FLOAT32, 0, nullptr, 0, 0};
      EXPECT_EQ(tutti_all_reduce(groups[r], nullptr, &tensor, TUTTI_SUM, nullptr, nullptr),
                TUTTI_OK);
      EXPECT_EQ(one, 3);
    });
  }
  // Of an all_reduce in place on rank 1.
  int reduce(const tutti_tensor& tensor, int op = TUTTI_SUM,
             const tutti_options* options = nullptr) {
    return tutti_all_reduce(groups[1], nullptr, &tensor, op, options, nullptr);
  }

  tutti_group* groups[3] = {};
  std::vector<float> six = std::vector<float>(6), two = std::vector<float>(2);
  const tutti_tensor good = of(six), part = of(two);
};

TEST_F(CGroup, NullArgumentsAreErrors) {
  constexpr int kBad = TUTTI_INVALID_ARGUMENT;
  tutti_group* const g = groups[1];
  const int64_t counts[] = {2, 2, 2};
  tutti_tensor tensor;
  expect_error(kBad, "result is NULL", tutti_group_from_environment(nullptr));
  expect_error(kBad, "results is NULL", tutti_group_in_process(3, nullptr));
  expect_error(kBad, "result is NULL", tutti_group_split(g, 0, 0, nullptr));
  expect_error(kBad, "tutti_group_split: the group is NULL", [&] {
    tutti_group* out = g;
    const int code = tutti_group_split(nullptr, 0, 0, &out);
    EXPECT_EQ(out, nullptr);
    return code;
  }());
  expect_error(kBad, "reason is NULL", tutti_group_abort(g, nullptr));
  expect_error(kBad, "group is NULL", tutti_group_abort(nullptr, "why"));
  for (auto* const f :
       {tutti_group_rank, tutti_group_size, tutti_group_local_rank, tutti_group_local_size})
    expect_error(-1, "group is NULL", f(nullptr));
  EXPECT_EQ(tutti_group_backend(nullptr), nullptr);
  expect_error(kBad, "result is NULL", tutti_alloc(g, 8, nullptr));
  expect_error(kBad, "is null", tutti_tensor_from_dlpack(nullptr, &tensor));
  expect_error(kBad, "is null", tutti_tensor_from_dlpack_versioned(nullptr, &tensor));
  expect_error(kBad, "group is NULL", tutti_barrier(nullptr, nullptr));
  expect_error(kBad, "output is NULL", tutti_all_reduce(g, &good, nullptr, 0, nullptr, nullptr));
  expect_error(kBad, "list of 2 tensors is NULL",
               tutti_all_reduce_list(g, nullptr, 2, 0, nullptr, nullptr));
  expect_error(kBad, "is NULL", tutti_all_reduce_weighted(g, nullptr, 1, 1, nullptr, nullptr));
  expect_error(kBad, "output is NULL", tutti_reduce(g, nullptr, nullptr, 0, 0, nullptr));
  expect_error(kBad, "output is NULL", tutti_reduce(g, &good, nullptr, 0, 1, nullptr));
  expect_error(kBad, "output is NULL", tutti_broadcast(g, nullptr, 0, nullptr, nullptr));
  expect_error(kBad, "is NULL", tutti_broadcast_list(g, nullptr, 1, 0, nullptr));
  expect_error(kBad, "input is NULL", tutti_all_gather(g, nullptr, &good, nullptr, nullptr));
  expect_error(kBad, "output is NULL", tutti_all_gather(g, &part, nullptr, nullptr, nullptr));
  expect_error(kBad, "input is NULL", tutti_all_gather_uneven(g, nullptr, &good, counts, nullptr));
  expect_error(kBad, "output is NULL", tutti_all_gather_uneven(g, &part, nullptr, counts, nullptr));
  expect_error(kBad, "counts are NULL", tutti_all_gather_uneven(g, &part, &good, nullptr, nullptr));
  expect_error(kBad, "input is NULL", tutti_reduce_scatter(g, nullptr, &part, 0, nullptr, nullptr));
  expect_error(kBad, "output is NULL",
               tutti_reduce_scatter(g, &good, nullptr, 0, nullptr, nullptr));
  expect_error(kBad, "input is NULL", tutti_all_to_all(g, nullptr, &good, nullptr, nullptr));
  expect_error(kBad, "input is NULL", tutti_gather(g, nullptr, nullptr, 0, nullptr));
  expect_error(kBad, "output is NULL", tutti_gather(g, &part, nullptr, 1, nullptr));
  expect_error(kBad, "output is NULL", tutti_scatter(g, nullptr, nullptr, 0, nullptr));
  expect_error(kBad, "input is NULL", tutti_scatter(g, nullptr, &part, 1, nullptr));
  expect_error(kBad, "input is NULL", tutti_send(g, nullptr, 0, 0, nullptr));
  expect_error(kBad, "output is NULL", tutti_recv(g, nullptr, 0, 0, nullptr));
  expect_error(kBad, "work is NULL", tutti_work_wait(nullptr));
  expect_error(-1, "work is NULL", tutti_work_done(nullptr));
  expect_good();
}

TEST_F(CGroup, TensorsAreChecked) {
  constexpr int kBad = TUTTI_INVALID_ARGUMENT;
  const auto changed = [&](auto member, auto value) {
    tutti_tensor tensor = good;
    tensor.*member = value;
    return reduce(tensor);
  };
  const int64_t shape[] = {2, 3}, other[] = {2, 4}, negative[] = {-2, -3};
  for (const int dtype : {-1, 13, 99, 256, 256 + TUTTI_FLOAT32, INT_MAX, INT_MIN})
    expect_error(kBad, "tutti_all_reduce: " + std::to_string(dtype) + " is not a dtype",
                 changed(&tutti_tensor::dtype, dtype));
  for (const int64_t count : {int64_t(-1), INT64_MIN, INT64_MAX})
    expect_error(kBad, std::to_string(count) + " is not a number of elements of float32",
                 changed(&tutti_tensor::count, count));
  expect_error(kBad, "the data of float32[6] is NULL", changed(&tutti_tensor::data, nullptr));
  expect_error(kBad, "not aligned for float32",
               changed(&tutti_tensor::data, reinterpret_cast<char*>(six.data()) + 2));
  expect_error(kBad, "the output is read-only", changed(&tutti_tensor::flags, TUTTI_READ_ONLY));
  expect_error(TUTTI_UNIMPLEMENTED, "does not know", changed(&tutti_tensor::flags, 6));
  for (const int device : {1, 7, -1, INT_MIN, INT_MAX})
    expect_error(kBad, "on device " + std::to_string(device),
                 changed(&tutti_tensor::device, device));
  expect_error(kBad, "2 axes, and a shape that is NULL", changed(&tutti_tensor::ndim, 2));
  for (const int ndim : {-1, 65, INT_MAX}) {
    tutti_tensor tensor = good;
    tensor.shape = shape;
    tensor.ndim = ndim;
    expect_error(kBad, std::to_string(ndim) + " axes", reduce(tensor));
  }
  for (const int64_t* extents : {other, negative}) {
    tutti_tensor tensor = good;
    tensor.shape = extents;
    tensor.ndim = 2;
    expect_error(kBad, extents == other ? "shape [2, 4] counts 6" : "negative", reduce(tensor));
  }
  const tutti_tensor list[] = {good, {nullptr, 1, TUTTI_INT8, 0, nullptr, 0, 0}};
  expect_error(kBad, "the data of int8[1] is NULL",
               tutti_all_reduce_list(groups[1], list, 2, TUTTI_SUM, nullptr, nullptr));
  const tutti_tensor read_only{six.data(), 6, TUTTI_FLOAT32, 0, nullptr, 0, TUTTI_READ_ONLY};
  expect_error(kBad, "read-only",
               tutti_all_reduce_list(groups[1], &read_only, 1, TUTTI_SUM, nullptr, nullptr));
  std::vector<float> large(1 << 19);  // travels by itself
  const tutti_tensor after_large[] = {{large.data(), 1 << 19, TUTTI_FLOAT32, 0, nullptr, 0, 0},
                                      read_only};
  expect_error(kBad, "read-only", tutti_broadcast_list(groups[1], after_large, 2, 0, nullptr));
  expect_good();
}

TEST_F(CGroup, NumbersOutOfRangeAreErrors) {
  constexpr int kBad = TUTTI_INVALID_ARGUMENT;
  tutti_group* const g = groups[1];
  for (const int op : {-1, 5, INT_MAX, INT_MIN}) {
    const std::string text = std::to_string(op) + " is not a ReduceOp";
    expect_error(kBad, text, reduce(good, op));
    expect_error(kBad, text, tutti_all_reduce_list(g, &good, 1, op, nullptr, nullptr));
    expect_error(kBad, text, tutti_reduce(g, &good, nullptr, op, 0, nullptr));
    expect_error(kBad, text, tutti_reduce_scatter(g, &good, &part, op, nullptr, nullptr));
  }
  for (const double weight : {-1.0, double(NAN), double(INFINITY)})
    expect_error(kBad, "weight", tutti_all_reduce_weighted(g, &good, 1, weight, nullptr, nullptr));
  for (const int root : {-1, 3, INT_MAX, INT_MIN}) {
    expect_error(kBad, "root is", tutti_reduce(g, nullptr, &good, TUTTI_SUM, root, nullptr));
    expect_error(kBad, "root is", tutti_broadcast(g, &good, root, nullptr, nullptr));
    expect_error(kBad, "root is", tutti_broadcast_list(g, &good, 1, root, nullptr));
    expect_error(kBad, "root is", tutti_gather(g, &part, nullptr, root, nullptr));
    expect_error(kBad, "root is", tutti_scatter(g, nullptr, &part, root, nullptr));
    expect_error(kBad, "peer is", tutti_send(g, &part, root, 0, nullptr));
    expect_error(kBad, "peer is", tutti_recv(g, &part, root, 0, nullptr));
  }
  for (const int n : {0, -1, 4097})
    expect_error(kBad, "expected 1 to 4096", tutti_group_in_process(n, groups));
  void* data;
  expect_error(kBad, "-1 is not a number of bytes", tutti_alloc(g, -1, &data));
  EXPECT_EQ(data, nullptr);
  expect_good();
}

TEST_F(CGroup, CountsOfRanksFitWhatIsGathered) {
  constexpr int kBad = TUTTI_INVALID_ARGUMENT;
  const auto gather = [&](std::vector<int64_t> counts, const tutti_tensor& in,
                          const tutti_tensor& out) {
    return tutti_all_gather_uneven(groups[1], &in, &out, counts.data(), nullptr);
  };
  expect_error(kBad, "expected 1 and 6 elements by the counts 2, 1, 3",
               gather({2, 1, 3}, part, good));
  expect_error(kBad, "expected 2 and 7 elements", gather({2, 2, 3}, part, good));
  expect_error(kBad, "counts are 5, 2, -1", gather({5, 2, -1}, part, good));
  expect_error(kBad, "expected numbers", gather({INT64_MAX, 2, 1}, part, good));
  std::vector<int32_t> ints(6);
  const tutti_tensor other{ints.data(), 6, TUTTI_INT32, 0, nullptr, 0, 0};
  expect_error(kBad, "the output is int32, expected float32", gather({2, 2, 2}, part, other));
  const tutti_tensor within{six.data() + 1, 2, TUTTI_FLOAT32, 0, nullptr, 0, 0};
  expect_error(kBad, "overlap", gather({2, 2, 2}, within, good));
  expect_good();
}

TEST_F(CGroup, OptionsAreReadUpToTheirSize) {
  constexpr int kBad = TUTTI_INVALID_ARGUMENT;
  for (const size_t size : {size_t{0}, size_t{7}, size_t{4097}, SIZE_MAX}) {
    const tutti_options options{size, 0, nullptr, 0, 0};
    expect_error(kBad, "expected sizeof(tutti_options)", reduce(good, TUTTI_SUM, &options));
  }
  const tutti_options negative{sizeof negative, -2, nullptr, 0, 0},
      soon{sizeof soon, 1'000'000, nullptr, 0, 0}, unknown{sizeof unknown, 0, nullptr, 3, 0},
      reserved{sizeof reserved, 0, nullptr, 0, 1};
  expect_error(kBad, "the timeout is -2 ns", reduce(good, TUTTI_SUM, &negative));
  expect_error(kBad, "3 is not a CommunicationImplementation", reduce(good, TUTTI_SUM, &unknown));
  expect_error(TUTTI_UNIMPLEMENTED, "does not know", reduce(good, TUTTI_SUM, &reserved));
  expect_good();
  expect_error(TUTTI_DEADLINE_EXCEEDED, "rank 0", reduce(good, TUTTI_SUM, &soon));
}

TEST_F(CGroup, ShapesAreComparedAsThoseOfTensors) {
  const int64_t shape[] = {2, 3};
  on_threads(3, [&](size_t r) {
    std::vector<float> data(6, 1);
    tutti_tensor tensor = of(data);
    tensor.shape = shape;
    tensor.ndim = 2;
    EXPECT_EQ(tutti_all_reduce(groups[r], nullptr, &tensor, TUTTI_SUM, nullptr, nullptr), TUTTI_OK);
    EXPECT_EQ(data, std::vector<float>(6, 3));
    if (r == 1) tensor = of(data);
    EXPECT_EQ(tutti_all_reduce(groups[r], nullptr, &tensor, TUTTI_SUM, nullptr, nullptr),
              TUTTI_INVALID_ARGUMENT);
    EXPECT_THAT(tutti_last_error(), HasSubstr("float32[2, 3]"));
    EXPECT_THAT(tutti_last_error(), HasSubstr("float32[6]"));
  });
}

TEST_F(CGroup, IsAbortedForAllRanks) {
  EXPECT_EQ(tutti_group_abort(groups[0], "the disk is full"), TUTTI_OK);
  for (tutti_group* g : groups)
    expect_error(TUTTI_ABORTED, "rank 0 failed: the disk is full", tutti_barrier(g, nullptr));
}

TEST_F(CGroup, CancelsItsWorkWhenItIsDestroyed) {
  tutti_work* work[2];
  for (tutti_work*& each : work)
    ASSERT_EQ(tutti_all_reduce(groups[1], nullptr, &good, TUTTI_SUM, nullptr, &each), TUTTI_OK);
  EXPECT_EQ(tutti_group_destroy(groups[1]), TUTTI_OK);
  ASSERT_EQ(tutti_group_in_process(1, &groups[1]), TUTTI_OK);
  for (tutti_work* each : work) {
    const int code = tutti_work_wait(each);
    EXPECT_TRUE(code == TUTTI_CANCELLED || code == TUTTI_ABORTED) << tutti_last_error();
    EXPECT_EQ(tutti_work_wait(each), code);
    EXPECT_EQ(tutti_work_destroy(each), TUTTI_OK);
    expect_error(TUTTI_INVALID_ARGUMENT, "work was destroyed", tutti_work_destroy(each));
  }
}

TEST_F(CGroup, StartsNothingAfterAnError) {
  tutti_work* work = reinterpret_cast<tutti_work*>(this);
  EXPECT_EQ(tutti_broadcast(groups[1], &good, 9, nullptr, &work), TUTTI_INVALID_ARGUMENT);
  EXPECT_EQ(work, nullptr);
  expect_good();
}

TEST_F(CGroup, MemoryOutlivesIt) {
  void* data;
  tutti_group* alone;
  ASSERT_EQ(tutti_group_in_process(1, &alone), TUTTI_OK);
  ASSERT_EQ(tutti_alloc(alone, 1000, &data), TUTTI_OK);
  EXPECT_EQ(tutti_group_destroy(alone), TUTTI_OK);
  std::fill_n(static_cast<char*>(data), 1000, 'x');
  EXPECT_EQ(tutti_free(data), TUTTI_OK);
  expect_error(TUTTI_INVALID_ARGUMENT, "not memory of tutti_alloc", tutti_free(data));
}

TEST(CHandles, OfTheDestroyedAreErrorsUntilTheyAreUsedAgain) {
  tutti_group *first, *second;
  ASSERT_EQ(tutti_group_in_process(1, &first), TUTTI_OK);
  EXPECT_EQ(tutti_group_destroy(first), TUTTI_OK);
  expect_error(TUTTI_INVALID_ARGUMENT, "tutti_group_destroy: the group was destroyed",
               tutti_group_destroy(first));
  expect_error(-1, "tutti_group_rank: the group was destroyed", tutti_group_rank(first));
  ASSERT_EQ(tutti_group_in_process(1, &second), TUTTI_OK);
  EXPECT_EQ(tutti_group_rank(second), 0);
  EXPECT_EQ(tutti_group_destroy(second), TUTTI_OK);
}

TEST(CErrors, HaveTheirTextPerThread) {
  EXPECT_EQ(tutti_barrier(nullptr, nullptr), TUTTI_INVALID_ARGUMENT);
  std::thread([] {
    EXPECT_STREQ(tutti_last_error(), "");
    EXPECT_EQ(tutti_work_wait(nullptr), TUTTI_INVALID_ARGUMENT);
    EXPECT_STREQ(tutti_last_error(), "tutti_work_wait: the work is NULL");
  }).join();
  EXPECT_EQ(tutti_free(nullptr), TUTTI_OK);
  EXPECT_STREQ(tutti_last_error(), "tutti_barrier: the group is NULL");
}

TEST(CVersion, IsTheLibrarys) { EXPECT_EQ(tutti_version(), version()); }

}  // namespace
}  // namespace tutti
