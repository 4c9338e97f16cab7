// SPDX-License-Identifier: Apache-2.0
// The module "nccl": communicators of NCCL, none of whose calls blocks.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>
#include <sched.h>
#include <tutti/error.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/module.h"
#include "gpu/nccl.h"

namespace tutti::group {

namespace {

using Clock = std::chrono::steady_clock;

std::string text_of(ncclResult_t result) {
  const char* const last = ncclGetLastError(nullptr);
  return last && *last ? fmt::format("{}: {}", ncclGetErrorString(result), last)
                       : ncclGetErrorString(result);
}

[[noreturn]] void fail(ncclResult_t result, const char* what) {
  const std::string text = fmt::format("nccl: {} failed: {}", what, text_of(result));
  if (result == ncclRemoteError || result == ncclSystemError) throw UnavailableError(text);
  throw InternalError(text);
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess && result != ncclInProgress) fail(result, what);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw InternalError(fmt::format("nccl: {} failed: {}", what, cudaGetErrorString(error)));
}

// While it lives, `gpu` is this thread's device.
class OnGpu {
 public:
  explicit OnGpu(int gpu) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(gpu), "cudaSetDevice");
  }
  ~OnGpu() { cudaSetDevice(before_); }
  OnGpu(const OnGpu&) = delete;

 private:
  int before_ = 0;
};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::uint8: return ncclUint8;
    case DType::int8: return ncclInt8;
    case DType::int32: return ncclInt32;
    case DType::uint32: return ncclUint32;
    case DType::int64: return ncclInt64;
    case DType::uint64: return ncclUint64;
    case DType::float16: return ncclFloat16;
    case DType::bfloat16: return ncclBfloat16;
    case DType::float32: return ncclFloat32;
    case DType::float64: return ncclFloat64;
    case DType::int16:
    case DType::uint16: break;
  }
  throw InternalError("nccl: NCCL has no 16-bit integers");
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::SUM: return ncclSum;
    case ReduceOp::PROD: return ncclProd;
    case ReduceOp::MIN: return ncclMin;
    case ReduceOp::MAX: return ncclMax;
    case ReduceOp::MEAN: break;
  }
  throw InternalError("nccl: a mean is divided outside");
}

cudaStream_t native(device::Stream stream) { return static_cast<cudaStream_t>(stream); }

class Communicator final : public NcclCommunicator {
 public:
  explicit Communicator(ncclComm_t comm) : comm_(comm) {}
  ~Communicator() override { abort(); }
  Communicator(const Communicator&) = delete;

  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  device::Stream stream) override {
    check(ncclAllReduce(in, out, size_t(count), type_of(dtype), op_of(op), comm_, native(stream)),
          "ncclAllReduce");
  }
  void reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op, int root,
              device::Stream stream) override {
    check(
        ncclReduce(in, out, size_t(count), type_of(dtype), op_of(op), root, comm_, native(stream)),
        "ncclReduce");
  }
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                      device::Stream stream) override {
    check(
        ncclReduceScatter(in, out, size_t(count), type_of(dtype), op_of(op), comm_, native(stream)),
        "ncclReduceScatter");
  }
  void broadcast(void* data, size_t bytes, int root, device::Stream stream) override {
    check(ncclBroadcast(data, data, bytes, ncclUint8, root, comm_, native(stream)),
          "ncclBroadcast");
  }
  void all_gather(const void* in, void* out, size_t bytes, device::Stream stream) override {
    check(ncclAllGather(in, out, bytes, ncclUint8, comm_, native(stream)), "ncclAllGather");
  }
  void send(const void* in, size_t bytes, int peer, device::Stream stream) override {
    check(ncclSend(in, bytes, ncclUint8, peer, comm_, native(stream)), "ncclSend");
  }
  void recv(void* out, size_t bytes, int peer, device::Stream stream) override {
    check(ncclRecv(out, bytes, ncclUint8, peer, comm_, native(stream)), "ncclRecv");
  }

  std::string async_error() override {
    if (!comm_) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return {};
    return fmt::format("nccl: {}", text_of(state));
  }

  void abort() noexcept override {
    if (const ncclComm_t comm = std::exchange(comm_, nullptr)) ncclCommAbort(comm);
  }

  // Until what was asked of it has been taken on.
  void settle(const char* what, const StillWanted& still_wanted) {
    const auto began = Clock::now();
    while (true) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      if (state == ncclSuccess) return;
      check(state, what);
      still_wanted();
      // Most launches are done at once; connecting to the others takes its time.
      if (Clock::now() - began < std::chrono::microseconds(500))
        sched_yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void finalize() { check(ncclCommFinalize(comm_), "ncclCommFinalize"); }
  void destroy() noexcept {
    if (const ncclComm_t comm = std::exchange(comm_, nullptr)) ncclCommDestroy(comm);
  }

 private:
  ncclComm_t comm_;
};

Communicator& real(const std::unique_ptr<NcclCommunicator>& communicator) {
  return static_cast<Communicator&>(*communicator);
}

// A group of NCCL's calls, ended whatever happens in between.
void grouped(const std::function<void()>& calls) {
  check(ncclGroupStart(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    ncclGroupEnd();
    throw;
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

std::string version() {
  int number = 0;
  check(ncclGetVersion(&number), "ncclGetVersion");
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::string unique_id() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.internal, sizeof(id.internal)};
}

std::unique_ptr<NcclCommunicator> begin_open(const std::string& id, int rank, int size, int gpu) {
  ncclUniqueId unique{};
  if (id.size() != sizeof(unique.internal))
    throw InternalError(fmt::format("nccl: an id of {} bytes", id.size()));
  std::memcpy(unique.internal, id.data(), id.size());
  const OnGpu device(gpu);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, size, unique, rank, &config);
  auto communicator = std::make_unique<Communicator>(comm);
  check(result, "ncclCommInitRankConfig");
  return communicator;
}

std::unique_ptr<NcclCommunicator> open(const std::string& id, int rank, int size, int gpu,
                                       const StillWanted& still_wanted) {
  std::unique_ptr<NcclCommunicator> communicator = begin_open(id, rank, size, gpu);
  real(communicator).settle("ncclCommInitRankConfig", still_wanted);
  return communicator;
}

NcclCommunicators open_all(std::span<const int> gpus, const StillWanted& still_wanted) {
  const std::string id = unique_id();
  NcclCommunicators communicators;
  grouped([&] {
    for (size_t i = 0; i < gpus.size(); ++i)
      communicators.push_back(begin_open(id, int(i), int(gpus.size()), gpus[i]));
  });
  for (const auto& communicator : communicators)
    real(communicator).settle("ncclCommInitRankConfig", still_wanted);
  return communicators;
}

void launch(std::span<const std::unique_ptr<NcclCommunicator>> communicators,
            const std::function<void()>& calls, const StillWanted& still_wanted) {
  grouped(calls);
  for (const auto& communicator : communicators)
    real(communicator).settle("the launch", still_wanted);
}

void close(NcclCommunicators communicators, const StillWanted& still_wanted) noexcept {
  try {
    for (const auto& communicator : communicators) real(communicator).finalize();
    for (const auto& communicator : communicators)
      real(communicator).settle("ncclCommFinalize", still_wanted);
    for (const auto& communicator : communicators) real(communicator).destroy();
  } catch (const std::exception&) {
    // What is left is aborted by the destructors.
  }
}

constexpr NcclModule kInterface{.version = version,
                                .unique_id = unique_id,
                                .open = open,
                                .open_all = open_all,
                                .launch = launch,
                                .close = close};
constexpr base::Module kModule{TUTTI_VERSION, &kInterface};

}  // namespace

}  // namespace tutti::group

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &tutti::group::kModule;
}
