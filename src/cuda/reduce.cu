// SPDX-License-Identifier: Apache-2.0
// The fused n-way reduction. A whole list of tensors is one launch: its table of pointers travels
// as the kernel's parameters. The sums are the tree of base/tree_split.h, so the bits are the
// host's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <tutti/error.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "cuda/check.h"
#include "cuda/cuda.h"

namespace tutti::cuda {

namespace {

using base::Combine;
using kernels::Reduction;

constexpr int kThreads = 256;

// How a stored element becomes one of the accumulation type, and back.
template <class T>
struct Plain {
  using Stored = T;
  using Acc = T;
  static __device__ Acc widen(Stored x) { return x; }
  static __device__ Stored narrow(Acc x) { return x; }
};
struct Float16 {
  using Stored = uint16_t;
  using Acc = float;
  static __device__ Acc widen(Stored x) { return __half2float(__ushort_as_half(x)); }
  static __device__ Stored narrow(Acc x) { return __half_as_ushort(__float2half_rn(x)); }
};
struct BFloat16 {
  using Stored = uint16_t;
  using Acc = float;
  static __device__ Acc widen(Stored x) { return __uint_as_float(uint32_t(x) << 16); }
  static __device__ Stored narrow(Acc x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
};

// 16 bytes, moved at once.
template <class T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T lanes[kSize];
};

// The tensors of a launch. Tensor e starts at block first_block[e]; its pointers, the inputs first,
// at pointers[first_pointer[e]].
template <int kMostTensors, int kMostPointers>
struct Table {
  static constexpr int kTensors = kMostTensors, kPointers = kMostPointers;

  int tensors;
  int inputs;
  int64_t divisor;  // 1: none
  int64_t count[kMostTensors];
  uint32_t first_block[kMostTensors];
  uint16_t first_pointer[kMostTensors];
  uint8_t outputs[kMostTensors];
  bool aligned[kMostTensors];  // to 16 bytes, all of them
  const void* pointers[kMostPointers];

  __device__ int tensor_of(uint32_t block) const {
    if constexpr (kMostTensors == 1) return 0;
    int low = 0, high = tensors;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};
using OneTensor = Table<1, 18>;
using FewTensors = Table<16, 440>;
using ManyTensors = Table<256, 3500>;  // kernels take 32,764 bytes

template <class Type, int kFirst, int N>
__device__ __forceinline__ typename Type::Acc tree(const Vector<typename Type::Stored>* in,
                                                   int lane) {
  if constexpr (N == 1) {
    return Type::widen(in[kFirst].lanes[lane]);
  } else {
    constexpr int kLeft = base::left_part(N);
    return tree<Type, kFirst, kLeft>(in, lane) + tree<Type, kFirst + kLeft, N - kLeft>(in, lane);
  }
}

// How many vectors a thread sums, one after another: more if a block has to look for its tensor.
template <class Tables>
constexpr int kVectors = Tables::kTensors == 1 ? 1 : 4;

// The sum of N inputs of floats.
template <class Type, int N, class Tables>
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ Tables table) {
  using Stored = typename Type::Stored;
  using Acc = typename Type::Acc;
  constexpr int kLanes = Vector<Stored>::kSize;
  constexpr int kSteps = kVectors<Tables>;
  const int e = table.tensor_of(blockIdx.x);
  const int64_t count = table.count[e];
  const void* const* const inputs = table.pointers + table.first_pointer[e];
  const void* const* const outputs = inputs + N;
  const int num_outputs = table.outputs[e];
  const Acc divisor = Acc(table.divisor);
  const bool divides = table.divisor != 1;
  const int64_t block_at =
      int64_t(blockIdx.x - table.first_block[e]) * (kThreads * kLanes * kSteps);

  if (!table.aligned[e]) {
    for (int k = 0; k < kLanes * kSteps; ++k) {
      const int64_t i = block_at + k * kThreads + threadIdx.x;
      if (i >= count) return;
      Vector<Stored> in[N];
#pragma unroll
      for (int n = 0; n < N; ++n) in[n].lanes[0] = static_cast<const Stored*>(inputs[n])[i];
      Acc sum = tree<Type, 0, N>(in, 0);
      if (divides) sum = sum / divisor;
      for (int o = 0; o < num_outputs; ++o)
        static_cast<Stored*>(const_cast<void*>(outputs[o]))[i] = Type::narrow(sum);
    }
    return;
  }
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const int64_t i = block_at + (int64_t(step) * kThreads + threadIdx.x) * kLanes;
    if (i >= count) return;
    Vector<Stored> in[N], out;
    const bool whole = i + kLanes <= count;
    if (whole) {
#pragma unroll
      for (int n = 0; n < N; ++n)
        in[n] = *reinterpret_cast<const Vector<Stored>*>(static_cast<const Stored*>(inputs[n]) + i);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n)
        for (int l = 0; l < kLanes; ++l)
          in[n].lanes[l] = i + l < count ? static_cast<const Stored*>(inputs[n])[i + l] : Stored{};
    }
#pragma unroll
    for (int l = 0; l < kLanes; ++l) {
      Acc sum = tree<Type, 0, N>(in, l);
      if (divides) sum = sum / divisor;
      out.lanes[l] = Type::narrow(sum);
    }
    for (int o = 0; o < num_outputs; ++o) {
      Stored* const to = static_cast<Stored*>(const_cast<void*>(outputs[o])) + i;
      if (whole)
        *reinterpret_cast<Vector<Stored>*>(to) = out;
      else
        for (int l = 0; l < kLanes && i + l < count; ++l) to[l] = out.lanes[l];
    }
  }
}

template <class T>
constexpr T smaller(T a, T b, bool min) {
  // NaN wins, and -0 comes before +0.
  if (min ? a < b : b < a) return a;
  if (min ? b < a : a < b) return b;
  if constexpr (std::is_floating_point_v<T>) {
    if (a != b) return a + b;
    using Bits = std::conditional_t<sizeof(T) == sizeof(uint32_t), uint32_t, uint64_t>;
    const Bits x = std::bit_cast<Bits>(a), y = std::bit_cast<Bits>(b);
    return std::bit_cast<T>(min ? x | y : x & y);
  }
  return a;
}

template <class T>
constexpr T combined(Combine how, T a, T b) {
  using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;  // integers wrap
  switch (how) {
    case Combine::add: return T(Wide(a) + Wide(b));
    case Combine::multiply: return T(Wide(a) * Wide(b));
    case Combine::least: return smaller(a, b, true);
    case Combine::most: return smaller(a, b, false);
  }
  return a;
}
// The host's compiler warns of a case that is missing above, and only if the host calls it.
static_assert(combined(Combine::most, 1, 2) == 2);

constexpr int kLevels = 12;   // of the tree: 4,096 inputs
constexpr int kElements = 4;  // for each thread, one after another

// Any operation on any number of inputs, element by element. The tree is that of a binary counter:
// level l holds the sum of the last 2^l inputs that are still without a partner.
template <class Type, class Tables>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Tables table, Combine how) {
  using Stored = typename Type::Stored;
  using Acc = typename Type::Acc;
  const int e = table.tensor_of(blockIdx.x);
  const int64_t count = table.count[e];
  const void* const* const inputs = table.pointers + table.first_pointer[e];
  const void* const* const outputs = inputs + table.inputs;
  const int64_t block_at = int64_t(blockIdx.x - table.first_block[e]) * (kThreads * kElements);
  for (int k = 0; k < kElements; ++k) {
    const int64_t i = block_at + k * kThreads + threadIdx.x;
    if (i >= count) return;
    Acc levels[kLevels];
    for (int n = 0; n < table.inputs; ++n) {
      Acc x = Type::widen(static_cast<const Stored*>(inputs[n])[i]);
      bool placed = false;
#pragma unroll
      for (int l = 0; l < kLevels; ++l) {
        if (placed) continue;
        if (n >> l & 1) {
          x = combined(how, levels[l], x);
        } else {
          levels[l] = x;
          placed = true;
        }
      }
    }
    Acc result{};
    bool any = false;
#pragma unroll
    for (int l = 0; l < kLevels; ++l)
      if (table.inputs >> l & 1) {
        result = any ? combined(how, levels[l], result) : levels[l];
        any = true;
      }
    if constexpr (!std::is_integral_v<Acc>)
      if (table.divisor != 1) result = result / Acc(table.divisor);
    for (int o = 0; o < table.outputs[e]; ++o)
      static_cast<Stored*>(const_cast<void*>(outputs[o]))[i] = Type::narrow(result);
  }
}

template <class T, class Tables>
__global__ void __launch_bounds__(kThreads)
    integer_mean_kernel(const __grid_constant__ Tables table) {
  using Wide = kernels::ExactSum<T>;
  using Out = kernels::MeanOf<T>;
  const int e = table.tensor_of(blockIdx.x);
  const int64_t count = table.count[e];
  const void* const* const inputs = table.pointers + table.first_pointer[e];
  const void* const* const outputs = inputs + table.inputs;
  const int64_t block_at = int64_t(blockIdx.x - table.first_block[e]) * (kThreads * kElements);
  for (int k = 0; k < kElements; ++k) {
    const int64_t i = block_at + k * kThreads + threadIdx.x;
    if (i >= count) return;
    Wide sum = 0;
    for (int n = 0; n < table.inputs; ++n) sum += Wide(static_cast<const T*>(inputs[n])[i]);
    const Out mean = Out(double(sum) / double(table.divisor));
    for (int o = 0; o < table.outputs[e]; ++o)
      static_cast<Out*>(const_cast<void*>(outputs[o]))[i] = mean;
  }
}

// Reductions that one kind of kernel does: what differs between them is in the table.
struct Kind {
  DType dtype;
  ReduceOp op;
  int inputs;
  int64_t divisor;
  auto operator<=>(const Kind&) const = default;
};

// A copy: see `simplified`.
bool is_copy(const Kind& kind) {
  return kind.inputs == 1 && kind.dtype == DType::uint8 && kind.op == ReduceOp::SUM;
}

// Whether the inputs are summed in registers, or only copied. Sums of floats are what training is
// made of, in teams of 2, 4 and 8 above all; everything else has one kernel for each type.
bool has_sum_kernel(const Kind& kind) {
  if (is_copy(kind)) return true;
  if (!base::is_sum(kind.op) || kind.inputs > 8) return false;
  if (kind.dtype == DType::float32) return true;
  return is_floating(kind.dtype) && std::has_single_bit(unsigned(kind.inputs));
}

// Fills tables, and launches each when it is full.
template <class Tables, class Launch>
void launch_all(const Kind& kind, std::span<const Reduction* const> reductions,
                int elements_per_block, const Launch& launch) {
  Tables table;
  table.inputs = kind.inputs;
  table.divisor = kind.divisor;
  int pointers = 0;
  uint32_t blocks = 0;
  table.tensors = 0;
  const auto flush = [&] {
    if (table.tensors) launch(table, blocks);
    table.tensors = pointers = 0;
    blocks = 0;
  };
  for (const Reduction* const r : reductions) {
    // Outputs that do not fit into one table are written by further passes over the inputs.
    for (size_t done = 0; done < r->outputs.size();) {
      const size_t room = size_t(Tables::kPointers) - size_t(kind.inputs);
      const size_t outputs = std::min({r->outputs.size() - done, room, size_t(255)});
      if (table.tensors == Tables::kTensors ||
          size_t(pointers) + size_t(kind.inputs) + outputs > size_t(Tables::kPointers))
        flush();
      const int e = table.tensors++;
      table.count[e] = r->count;
      table.first_block[e] = blocks;
      table.first_pointer[e] = uint16_t(pointers);
      table.outputs[e] = uint8_t(outputs);
      uintptr_t bits = 0;
      const auto add = [&](const void* pointer) {
        bits |= reinterpret_cast<uintptr_t>(pointer);
        table.pointers[pointers++] = pointer;
      };
      for (const void* const input : r->inputs) add(input);
      for (void* const output : r->outputs.subspan(done, outputs)) add(output);
      table.aligned[e] = bits % 16 == 0;
      blocks += uint32_t((r->count + elements_per_block - 1) / elements_per_block);
      done += outputs;
    }
  }
  flush();
}

template <class Tables>
class Launcher {
 public:
  Launcher(cudaStream_t stream, const Kind& kind, std::span<const Reduction* const> reductions)
      : stream_(stream), kind_(kind), reductions_(reductions) {}

  void launch() {
    switch (kind_.dtype) {
      case DType::boolean:
      case DType::uint8: return integers<uint8_t>();
      case DType::int8: return integers<int8_t>();
      case DType::uint16: return integers<uint16_t>();
      case DType::int16: return integers<int16_t>();
      case DType::uint32: return integers<uint32_t>();
      case DType::int32: return integers<int32_t>();
      case DType::uint64: return integers<uint64_t>();
      case DType::int64: return integers<int64_t>();
      case DType::float16: return floats<Float16>();
      case DType::bfloat16: return floats<BFloat16>();
      case DType::float32: return floats<Plain<float>>();
      case DType::float64: return floats<Plain<double>>();
    }
  }

  // Bytes are copied as they are, 16 at a time.
  void copy() { sum<Plain<uint8_t>, 1>(); }

 private:
  template <class Type>
  void floats() {
    if (base::is_sum(kind_.op)) {
      switch (kind_.inputs) {
        case 1: return sum<Type, 1>();
        case 2: return sum<Type, 2>();
        case 4: return sum<Type, 4>();
        case 8: return sum<Type, 8>();
        default: break;
      }
      if constexpr (std::is_same_v<typename Type::Stored, float>) {
        switch (kind_.inputs) {
          case 3: return sum<Type, 3>();
          case 5: return sum<Type, 5>();
          case 6: return sum<Type, 6>();
          case 7: return sum<Type, 7>();
          default: break;
        }
      }
    }
    combine<Type>();
  }

  // Few are in a hurry for what follows, and each kind of table takes the compiler its time.
  template <class T>
  void integers() {
    if constexpr (Tables::kTensors > 1) {
      if (base::divides(kind_.op))
        return each(kThreads * kElements, [&](const Tables& table, uint32_t blocks) {
          integer_mean_kernel<T><<<blocks, kThreads, 0, stream_>>>(table);
        });
      combine<Plain<T>>();
    }
  }

  template <class Type, int N>
  void sum() {
    constexpr int kLanes = Vector<typename Type::Stored>::kSize;
    each(kThreads * kLanes * kVectors<Tables>, [&](const Tables& table, uint32_t blocks) {
      sum_kernel<Type, N><<<blocks, kThreads, 0, stream_>>>(table);
    });
  }

  template <class Type>
  void combine() {
    if constexpr (Tables::kTensors > 1)
      each(kThreads * kElements, [&](const Tables& table, uint32_t blocks) {
        combine_kernel<Type><<<blocks, kThreads, 0, stream_>>>(table, base::combine_of(kind_.op));
      });
  }

  template <class F>
  void each(int elements_per_block, const F& start) {
    launch_all<Tables>(kind_, reductions_, elements_per_block,
                       [&](const Tables& table, uint32_t blocks) {
                         start(table, blocks);
                         check(cudaGetLastError(), "a reduction on a GPU");
                       });
  }

  const cudaStream_t stream_;
  const Kind kind_;
  const std::span<const Reduction* const> reductions_;
};

void run(cudaStream_t stream, const Kind& kind, std::span<const Reduction* const> reductions) {
  constexpr int kMostInputs = 3000;
  static_assert(kMostInputs < ManyTensors::kPointers && kMostInputs < 1 << kLevels);
  if (kind.inputs > kMostInputs)
    throw UnimplementedError("a GPU reduces at most 3,000 replicas at once");
  size_t pointers = 0;
  for (const Reduction* const r : reductions) pointers += r->inputs.size() + r->outputs.size();
  const auto launch = [&]<class Tables>(Tables*) {
    Launcher<Tables> launcher(stream, kind, reductions);
    if (is_copy(kind))
      launcher.copy();
    else
      launcher.launch();
  };
  if (reductions.size() == 1 && pointers <= size_t(OneTensor::kPointers) && has_sum_kernel(kind))
    launch(static_cast<OneTensor*>(nullptr));
  else if (reductions.size() <= size_t(FewTensors::kTensors) &&
           pointers <= size_t(FewTensors::kPointers))
    launch(static_cast<FewTensors*>(nullptr));
  else
    launch(static_cast<ManyTensors*>(nullptr));
}

// A reduction that only copies is one of bytes.
Reduction simplified(const Reduction& r) {
  const bool divides = base::divides(r.op) && (!is_floating(r.dtype) || r.divisor != 1);
  if (r.inputs.size() != 1 || divides) return r;
  return {.inputs = r.inputs,
          .outputs = r.outputs,
          .count = r.count * int64_t(size_of(r.dtype)),
          .dtype = DType::uint8,
          .op = ReduceOp::SUM};
}

Kind kind_of(const Reduction& r) {
  return {r.dtype, r.op, int(r.inputs.size()), base::divides(r.op) ? r.divisor : 1};
}

}  // namespace

void reduce(int gpu, cudaStream_t stream, std::span<const Reduction> batch) {
  const OnGpu here(gpu);
  if (batch.size() == 1) {
    if (batch[0].count == 0 || batch[0].outputs.empty()) return;
    const Reduction alone = simplified(batch[0]);
    const Reduction* const pointer = &alone;
    return run(stream, kind_of(alone), {&pointer, 1});
  }
  std::vector<Reduction> work;
  work.reserve(batch.size());
  for (const Reduction& r : batch)
    if (r.count > 0 && !r.outputs.empty()) work.push_back(simplified(r));
  const auto before = [](const Reduction& a, const Reduction& b) {
    return kind_of(a) < kind_of(b);
  };
  if (!std::is_sorted(work.begin(), work.end(), before))
    std::stable_sort(work.begin(), work.end(), before);
  std::vector<const Reduction*> alike;
  for (size_t i = 0; i < work.size(); ++i) {
    alike.push_back(&work[i]);
    if (i + 1 < work.size() && kind_of(work[i + 1]) == kind_of(work[i])) continue;
    run(stream, kind_of(work[i]), alike);
    alike.clear();
  }
}

}  // namespace tutti::cuda
