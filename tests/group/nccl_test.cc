// SPDX-License-Identifier: Apache-2.0
// Collectives on GPUs, with GPUs and NCCL that are not real.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "device/failure.h"
#include "gpu/gpu_collectives.h"
#include "group/ranks.h"
#include "support/expect.h"
#include "support/fake_nccl.h"
#include "support/program.h"

namespace tutti {
namespace {

using detail::GroupCall;
using detail::Memory;
using group::Collective;
using group::Description;
using group::GpuHello;
using group::Route;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using testing::Caught;
using testing::caught;
using testing::FakeNccl;
using testing::on_threads;

TEST(TypeInNccl, WidensHalvesAndExcludesWhatNcclComputesOtherwise) {
  EXPECT_EQ(group::type_in_nccl(ReduceOp::SUM, DType::float32), DType::float32);
  EXPECT_EQ(group::type_in_nccl(ReduceOp::MEAN, DType::float64), DType::float64);
  for (const DType half : {DType::float16, DType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::PROD})
      EXPECT_EQ(group::type_in_nccl(op, half), DType::float32);
    EXPECT_EQ(group::type_in_nccl(ReduceOp::MAX, half), std::nullopt);
  }
  EXPECT_EQ(group::type_in_nccl(ReduceOp::MIN, DType::float32), std::nullopt);
  EXPECT_EQ(group::type_in_nccl(ReduceOp::MIN, DType::int32), DType::int32);
  EXPECT_EQ(group::type_in_nccl(ReduceOp::MEAN, DType::int64), std::nullopt);
  EXPECT_EQ(group::type_in_nccl(ReduceOp::SUM, DType::uint16), std::nullopt);
  EXPECT_EQ(group::type_in_nccl(ReduceOp::MAX, DType::boolean), DType::uint8);
}

TEST(WhyNotNccl, NamesTheRanksThatShareAGpu) {
  const std::vector<GpuHello> shared{{"a", ""}, {"b", ""}, {"a", ""}};
  EXPECT_THAT(group::why_not_nccl(shared), HasSubstr("ranks 0 and 2 use the same GPU (a)"));
  const std::vector<GpuHello> hosts{{"a, NCCL_HOSTID 0", ""}, {"a, NCCL_HOSTID 1", ""}};
  EXPECT_THAT(group::why_not_nccl(hosts), IsEmpty());
  const std::vector<GpuHello> lacking{{"a", ""}, {"b", "no library"}};
  EXPECT_THAT(group::why_not_nccl(lacking), HasSubstr("rank 1: no library"));
}

// Ranks with a GPU each, whose memory is any.
class GpuRanks : public ::testing::Test {
 protected:
  explicit GpuRanks(int n = 3, bool required = false) { make(n, required); }
  ~GpuRanks() override {
    for (int gpu = 0; gpu < 8; ++gpu) (void)caught([&] { device::throw_failure(gpu); });
    base::set_log_sink(nullptr);
  }

  void make(int n, bool required = false) {
    ranks.clear();
    backends = group::make_in_process(n);
    for (const auto& backend : backends)
      ranks.push_back(std::make_unique<group::GpuCollectives>(*backend, fake.gpus, required));
  }

  static Description describe(const GroupCall& call, Route route = Route::gpu) {
    const Memory& memory = call.in.data ? call.in : call.out;
    return {.kind = call.kind,
            .dtype = memory.dtype,
            .route = route,
            .op = call.op,
            .root = call.root,
            .extents = {call.kind == Collective::scatter ? call.out.count : memory.count}};
  }
  void run(size_t rank, const GroupCall& call, group::Timeouts timeouts = {10s, 0s},
           Route route = Route::gpu) {
    ranks[rank]->run({{describe(call, route), 1, timeouts}, int(rank)}, call);
  }
  template <class F>
  std::vector<Caught> errors(const F& f) {
    std::vector<Caught> all(backends.size());
    on_threads(backends.size(), [&](size_t r) { all[r] = caught([&] { f(r); }); });
    return all;
  }
  template <class F>
  void everywhere(const F& f) {
    for (const Caught& error : errors(f)) EXPECT_EQ(error.text, "");
  }
  // All ranks sum one number, and nothing waits for it.
  void sum_one(std::vector<float>& data, group::Timeouts timeouts) {
    everywhere([&](size_t r) {
      const Memory memory{&data[r], 1, DType::float32};
      run(r, detail::in_place(Collective::all_reduce, memory, ReduceOp::SUM), timeouts);
    });
  }
  Caught failure_of_gpu(int gpu, std::chrono::milliseconds within = 5s) {
    const auto until = Clock::now() + within;
    while (Clock::now() < until) {
      Caught failure = caught([&] { device::throw_failure(gpu); });
      if (failure.code) return failure;
      std::this_thread::sleep_for(5ms);
    }
    return {};
  }

  testing::FakeGpus& fake = testing::FakeGpus::make();
  std::vector<std::unique_ptr<group::Backend>> backends;
  std::vector<std::unique_ptr<group::GpuCollectives>> ranks;
};

// Bytes that mean something in any type, and differ between ranks.
std::vector<std::byte> sample(DType dtype, int64_t count, size_t rank) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < count; ++i)
    numbers.push_back(dtype == DType::boolean ? double((i + int64_t(rank)) % 2)
                                              : double((i * 7 + int64_t(rank) * 5) % 11));
  std::vector<std::byte> bytes(size_t(count) * size_of(dtype));
  kernels::cast(numbers.data(), DType::float64, bytes.data(), dtype, count);
  return bytes;
}

constexpr DType kTypes[] = {DType::boolean, DType::int8,    DType::int16,    DType::int32,
                            DType::int64,   DType::uint8,   DType::uint16,   DType::uint32,
                            DType::uint64,  DType::float16, DType::bfloat16, DType::float32,
                            DType::float64};

// The same call on GPUs, by the given way, and on the host.
class EveryCollective : public GpuRanks, public ::testing::WithParamInterface<int> {
 protected:
  EveryCollective() : GpuRanks(GetParam()) {}

  void compare(Route route) {
    for (const DType dtype : kTypes)
      for (const ReduceOp op :
           {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MIN, ReduceOp::MAX, ReduceOp::PROD}) {
        if (dtype == DType::boolean && op != ReduceOp::MIN && op != ReduceOp::MAX) continue;
        for (const Collective kind :
             {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter})
          compare(route, kind, dtype, op);
      }
    for (const DType dtype : {DType::boolean, DType::uint16, DType::float64})
      for (const Collective kind :
           {Collective::broadcast, Collective::all_gather, Collective::gather, Collective::scatter,
            Collective::all_to_all})
        compare(route, kind, dtype, ReduceOp::SUM);
  }

  void compare(Route route, Collective kind, DType dtype, ReduceOp op) {
    const auto n = int64_t(backends.size());
    for (const int64_t part : {0, 1, 5}) {
      SCOPED_TRACE(std::string(group::name(kind)) + " " + std::string(name(dtype)) + " " +
                   std::string(name(op)) + " " + std::to_string(part));
      const bool reduces = kind == Collective::all_reduce || kind == Collective::reduce ||
                           kind == Collective::reduce_scatter;
      const DType out_type = reduces ? result_dtype(op, dtype) : dtype;
      const int64_t in_count = kind == Collective::reduce_scatter || kind == Collective::scatter ||
                                       kind == Collective::all_to_all
                                   ? part * n
                                   : part;
      const int64_t out_count = kind == Collective::all_gather || kind == Collective::gather ||
                                        kind == Collective::all_to_all
                                    ? part * n
                                    : part;
      const int root = kind == Collective::reduce || kind == Collective::broadcast ||
                               kind == Collective::gather || kind == Collective::scatter
                           ? int(n) - 1
                           : -1;
      std::vector<std::vector<std::byte>> got(size_t(n), std::vector<std::byte>{});
      for (const bool on_gpu : {true, false}) {
        everywhere([&](size_t r) {
          std::vector<std::byte> in = sample(dtype, in_count, r);
          std::vector<std::byte> out(size_t(out_count) * size_of(out_type));
          if (kind == Collective::broadcast) out = in;
          const GroupCall call{
              kind,
              {kind == Collective::broadcast ? out.data() : in.data(), in_count, dtype},
              {out.data(), out_count, out_type},
              op,
              root};
          if (on_gpu)
            run(r, call, {10s, 0s}, route);
          else
            backends[r]->run(describe(call, Route::host), call, {10s, 0s});
          if (on_gpu)
            got[r] = out;
          else
            EXPECT_EQ(got[r], out) << "rank " << r;
        });
      }
    }
  }
};

TEST_P(EveryCollective, IsTheSameByNcclAndOnTheHost) {
  compare(Route::gpu);
  EXPECT_EQ(FakeNccl::instance().opened, GetParam() > 1 ? GetParam() : 0);
}

TEST_P(EveryCollective, IsTheSameThroughHostMemory) {
  compare(Route::gpu_by_host);
  EXPECT_EQ(FakeNccl::instance().opened, 0);
}

INSTANTIATE_TEST_SUITE_P(, EveryCollective, ::testing::Values(1, 2, 3, 4));

TEST_F(GpuRanks, ReduceLeavesOfSeveralReplicas) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int16})
    for (const Route route : {Route::gpu, Route::gpu_by_host})
      for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MAX}) {
        SCOPED_TRACE(std::string(name(dtype)) + " " + std::string(name(op)));
        const int64_t count = 9;
        const DType out_type = result_dtype(op, dtype);
        std::vector<std::vector<std::byte>> leaves;
        std::vector<const void*> all;
        std::vector<int> owners;
        for (size_t i = 0; i < 6; ++i) {
          leaves.push_back(sample(dtype, count, i));
          owners.push_back(int(i / 2));
        }
        for (const auto& leaf : leaves) all.push_back(leaf.data());
        std::vector<std::byte> expected(size_t(count) * size_of(out_type));
        void* const to = expected.data();
        kernels::reduce_here({.inputs = all,
                              .outputs = {&to, 1},
                              .count = count,
                              .dtype = dtype,
                              .op = op,
                              .divisor = 6},
                             false);
        everywhere([&](size_t r) {
          std::vector<std::byte> a(expected.size()), b(expected.size());
          void* const outputs[] = {a.data(), b.data()};
          const group::Piece piece{std::span(all).subspan(2 * r, 2), outputs, count, dtype};
          const Description what{
              .kind = Collective::all_reduce, .dtype = dtype, .route = route, .op = op};
          ranks[r]->all_reduce({{what, 1, {10s, 0s}}, int(r)}, {{&piece, 1}, owners, op, int(r)});
          EXPECT_EQ(a, expected);
          EXPECT_EQ(b, expected);
        });
      }
}

TEST_F(GpuRanks, GatherWhatIsUneven) {
  for (const Route route : {Route::gpu, Route::gpu_by_host})
    everywhere([&](size_t r) {
      const std::vector<int64_t> counts{2, 0, 3};
      std::vector<int32_t> in(size_t(counts[r]), int32_t(r) + 1), out(5);
      const Description what{.kind = Collective::all_gather, .route = route};
      ranks[r]->all_gather_uneven({{what, 1, {10s, 0s}}, int(r)},
                                  {in.data(), counts[r], DType::int32},
                                  {out.data(), 5, DType::int32}, counts);
      EXPECT_THAT(out, ElementsAre(1, 1, 3, 3, 3));
    });
}

TEST_F(GpuRanks, SendThroughHostMemory) {
  everywhere([&](size_t r) {
    float value = float(r + 1);
    if (r == 0) run(r, {Collective::send, {&value, 1, DType::float32}, {}, ReduceOp::SUM, 1});
    if (r == 1) {
      run(r, {Collective::recv, {}, {&value, 1, DType::float32}, ReduceOp::SUM, 0});
      EXPECT_EQ(value, 1);
    }
  });
}

TEST_F(GpuRanks, FallBackIfTwoShareAGpuAndSaySoOnce) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  base::set_log_sink([&](base::LogLevel, std::string_view text) {
    std::lock_guard lock(mutex);
    warnings.emplace_back(text);
  });
  fake.runtime.identities = {"a", "b", "a"};
  std::vector<float> data{1, 2, 4};
  for (int i = 0; i < 3; ++i) sum_one(data, {10s, 0s});
  EXPECT_THAT(data, ElementsAre(63, 63, 63));
  EXPECT_EQ(FakeNccl::instance().opened, 0);
  std::lock_guard lock(mutex);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("ranks 0 and 2 use the same GPU (a)"),
                                          HasSubstr("falling back to host memory"))));
}

TEST_F(GpuRanks, FallBackIfNcclIsNotInstalled) {
  base::set_log_sink([](base::LogLevel, std::string_view) {});
  FakeNccl::instance().absent = true;
  std::vector<float> data{1, 2, 4};
  sum_one(data, {10s, 0s});
  EXPECT_THAT(data, ElementsAre(7, 7, 7));
}

TEST_F(GpuRanks, FailWithoutNcclIfItIsRequired) {
  make(3, true);
  fake.runtime.identities = {"a", "b", "a"};
  const auto all = errors([&](size_t r) {
    float value = 1;
    const Memory memory{&value, 1, DType::float32};
    run(r, detail::in_place(Collective::all_reduce, memory, ReduceOp::SUM));
  });
  testing::expect_everywhere(all, ErrorCode::unavailable,
                             {"ranks 0 and 2 use the same GPU", "TUTTI_BACKEND=nccl"});
}

TEST_F(GpuRanks, DisagreeBeforeAnythingIsLaunched) {
  const auto all = errors([&](size_t r) {
    std::vector<float> value(4);
    const Memory memory{value.data(), r == 1 ? 4 : 3, DType::float32};
    run(r, detail::in_place(Collective::all_reduce, memory, ReduceOp::SUM));
  });
  testing::expect_everywhere(all, ErrorCode::invalid_argument,
                             {"float32[3] on GPUs, SUM", "float32[4] on GPUs, SUM"});
  EXPECT_EQ(FakeNccl::instance().launched, 0);
}

TEST_F(GpuRanks, DisagreeIfOneIsInHostMemory) {
  const auto all = errors([&](size_t r) {
    float value = 1;
    const Memory memory{&value, 1, DType::float32};
    const GroupCall call = detail::in_place(Collective::all_reduce, memory, ReduceOp::SUM);
    if (r == 2) return backends[r]->run(describe(call, Route::host), call, {10s, 0s});
    run(r, call);
  });
  testing::expect_everywhere(all, ErrorCode::invalid_argument, {"float32[1] on GPUs, SUM"});
}

TEST_F(GpuRanks, NameTheRankThatDoesNotCome) {
  const auto all = errors([&](size_t r) {
    if (r == 1) return;
    float value = 1;
    const Memory memory{&value, 1, DType::float32};
    run(r, detail::in_place(Collective::all_reduce, memory, ReduceOp::SUM), {200ms, 0s});
  });
  for (const size_t r : {0, 2}) EXPECT_THAT(all[r].text, HasSubstr("rank 1"));
}

TEST_F(GpuRanks, EndWhatHangsByTheDeadline) {
  fake.runtime.hang = true;
  std::vector<float> data{1, 2, 4};
  const auto began = Clock::now();
  sum_one(data, {200ms, 0s});
  for (int gpu = 0; gpu < 3; ++gpu) {
    const Caught failure = failure_of_gpu(gpu);
    EXPECT_EQ(failure.code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(failure.text, AllOf(HasSubstr("all_reduce #1 (float32[1] on GPUs, SUM)"),
                                    HasSubstr("waited 0.2 s on the GPU of rank")));
  }
  EXPECT_LT(Clock::now() - began, 4s);
  // The group has failed for all, and stays so.
  const auto all = errors([&](size_t r) {
    const Memory memory{&data[r], 1, DType::float32};
    run(r, detail::in_place(Collective::all_reduce, memory, ReduceOp::SUM));
  });
  testing::expect_everywhere(all, ErrorCode::deadline_exceeded, {"waited 0.2 s"});
  ranks.clear();
  for (int i = 0; i < 200 && (FakeNccl::instance().aborted < 3 || fake.runtime.events); ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(FakeNccl::instance().aborted, 3);
  EXPECT_EQ(fake.runtime.events, 0);
}

TEST_F(GpuRanks, NameTheOneWhoseGpuIsLate) {
  fake.runtime.late = {1};
  fake.runtime.hang = true;
  std::vector<float> data{1, 2, 4};
  sum_one(data, {200ms, 0s});
  for (int gpu = 0; gpu < 3; ++gpu)
    EXPECT_THAT(failure_of_gpu(gpu).text,
                HasSubstr("waited 0.2 s for rank 1: its GPU is not done"));
}

TEST_F(GpuRanks, EndWhatWaitsForARankThatDied) {
  fake.runtime.hang = true;
  std::vector<float> data{1, 2, 4};
  sum_one(data, {600s, 0s});
  backends[2]->poison(ErrorCode::unavailable, "rank 2 (here:2) has died");
  for (int gpu = 0; gpu < 3; ++gpu) {
    const Caught failure = failure_of_gpu(gpu);
    EXPECT_EQ(failure.code, ErrorCode::unavailable);
    EXPECT_THAT(failure.text, HasSubstr("rank 2 (here:2) has died"));
  }
}

TEST_F(GpuRanks, TurnAnErrorOfNcclIntoOurs) {
  fake.runtime.hang = true;
  std::vector<float> data{1, 2, 4};
  sum_one(data, {600s, 0s});
  FakeNccl::instance().broken = true;
  EXPECT_THAT(failure_of_gpu(0).text, HasSubstr("nccl: remote process exited"));
}

TEST_F(GpuRanks, NeverWaitWhenTheyLeave) {
  fake.runtime.hang = true;
  std::vector<float> data{1, 2, 4};
  sum_one(data, {500ms, 0s});
  const auto began = Clock::now();
  ranks.clear();
  EXPECT_LT(Clock::now() - began, 200ms);
  // What is under way is still watched.
  EXPECT_EQ(failure_of_gpu(0).code, ErrorCode::deadline_exceeded);
  for (int i = 0; i < 300 && FakeNccl::instance().aborted < 3; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(FakeNccl::instance().aborted, 3);
}

TEST_F(GpuRanks, CloseWhatIsDone) {
  std::vector<float> data{1, 2, 4};
  sum_one(data, {10s, 0s});
  ranks.clear();
  for (int i = 0; i < 300 && FakeNccl::instance().closed < 3; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(FakeNccl::instance().closed, 3);
  EXPECT_EQ(FakeNccl::instance().aborted, 0);
}

// Nothing runs any more when the program's own objects are destroyed. A child without the thread
// does not wait for it.
TEST(NcclLink, StopsItsWatchAtExit) {
  for (const char* const what : {"watched", "hung"}) {
    // The search for leaks has a thread of its own, and the child leaves what is its parent's.
    const testing::ProgramResult result = testing::run_program("ASAN_OPTIONS=detect_leaks=0", what);
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.output, "no thread is left\nno thread is left\n") << what;
  }
}

}  // namespace
}  // namespace tutti
