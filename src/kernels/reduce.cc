// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/topology.h"

// This file is compiled once per vector instruction set; the best one is chosen at run time.
// Machines that have SSSE3 and no SSE4 are no longer worth a copy.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS HWY_SSSE3
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tutti::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using base::Combine;
using base::left_part;

// Results are built tile by tile in the first-level cache, then written to all outputs.
constexpr size_t kTileBytes = 4096;
template <class T>
constexpr size_t kTile = kTileBytes / sizeof(T);

// How a stored element becomes a lane of the accumulation type.
template <class T>
struct Plain {
  using Stored = T;
  using Acc = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Stored* from) {
    return hn::LoadU(d, from);
  }
};

// The 16-bit floats are converted in integer lanes: Highway's own conversions differ between
// instruction sets.
struct BFloat16 {
  using Stored = uint16_t;
  using Acc = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Stored* from) {
    const hn::Rebind<uint32_t, D> du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> value, Stored* to) {
    const hn::Rebind<uint32_t, D> du;
    const auto bits = hn::BitCast(du, value);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
    const auto is_nan = hn::Gt(hn::BitCast(hn::RebindToSigned<decltype(du)>(), magnitude),
                               hn::Set(hn::RebindToSigned<decltype(du)>(), 0x7f800000));
    const auto result = hn::IfThenElse(hn::RebindMask(du, is_nan), quiet, rounded);
    hn::StoreU(hn::DemoteTo(hn::Rebind<uint16_t, D>(),
                            hn::BitCast(hn::RebindToSigned<decltype(du)>(), result)),
               hn::Rebind<uint16_t, D>(), to);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Acc = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Stored* from) {
    const hn::Rebind<uint32_t, D> du;
    const auto half = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000u)));
    const auto shifted = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffu)));
    const auto exponent = hn::And(shifted, hn::Set(du, 0x7c00u << 13));
    const auto normal = hn::Add(shifted, hn::Set(du, (127u - 15u) << 23));
    const auto special = hn::Add(normal, hn::Set(du, (128u - 16u) << 23));  // infinity, NaN
    const auto subnormal =
        hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(du, 1u << 23))),
                                hn::BitCast(d, hn::Set(du, 113u << 23))));
    auto bits = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x7c00u << 13)), special, normal);
    bits = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), subnormal, bits);
    return hn::BitCast(d, hn::Or(bits, sign));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, Stored* to) {
    const hn::Rebind<int32_t, D> di;  // magnitudes are positive, so signed comparisons do
    const auto bits = hn::BitCast(di, value);
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
    const auto normal = hn::ShiftRight<13>(
        hn::Add(magnitude, hn::Add(odd, hn::Set(di, ((15 - 127) * (1 << 23)) + 0xfff))));
    const auto half = hn::Set(d, 0.5f);
    const auto subnormal =
        hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
    const auto special = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)),
                                        hn::Set(di, 0x7e00), hn::Set(di, 0x7c00));
    auto result =
        hn::IfThenElse(hn::Gt(hn::Set(di, (127 - 14) << 23), magnitude), subnormal, normal);
    result =
        hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, ((127 + 16) << 23) - 1)), special, result);
    hn::StoreU(hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::Or(result, sign)),
               hn::Rebind<uint16_t, D>(), to);
  }
};

struct Add {
  template <class D>
  static HWY_INLINE hn::Vec<D> of(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Add(a, b);
  }
};
struct Mul {
  template <class D>
  static HWY_INLINE hn::Vec<D> of(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Mul(a, b);
  }
};
// NaN wins, and -0 comes before +0. Where neither is less, both are equal, and the bits of two
// equal floats differ in the sign of a zero only; or else one is NaN, and so is their sum.
template <bool kMin>
struct Extreme {
  template <class D>
  static HWY_INLINE hn::Vec<D> of(D, hn::Vec<D> a, hn::Vec<D> b) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      const auto a_first = kMin ? hn::Lt(a, b) : hn::Lt(b, a);
      const auto b_first = kMin ? hn::Lt(b, a) : hn::Lt(a, b);
      const auto equal = kMin ? hn::Or(a, b) : hn::And(a, b);
      const auto neither = hn::IfThenElse(hn::Eq(a, b), equal, hn::Add(a, b));
      return hn::IfThenElse(a_first, a, hn::IfThenElse(b_first, b, neither));
    } else {
      return kMin ? hn::Min(a, b) : hn::Max(a, b);
    }
  }
};

template <class Type, class Op, size_t N, class D>
HWY_INLINE hn::Vec<D> tree(D d, const typename Type::Stored* const* in, size_t i) {
  if constexpr (N == 1) {
    return Type::load(d, in[0] + i);
  } else {
    constexpr size_t kLeft = left_part(N);
    return Op::of(d, tree<Type, Op, kLeft>(d, in, i), tree<Type, Op, N - kLeft>(d, in + kLeft, i));
  }
}

// out[0, count) = the tree of N inputs, in registers. `out` may be inputs[0] + offset.
template <class Type, class Op, size_t N>
HWY_NOINLINE void tree_tile(const typename Type::Stored* const* inputs, size_t offset, size_t count,
                            typename Type::Acc* out) {
  using Stored = typename Type::Stored;
  const hn::ScalableTag<typename Type::Acc> d;
  const size_t lanes = hn::Lanes(d);
  const Stored* in[N];
  for (size_t k = 0; k < N; ++k) in[k] = inputs[k] + offset;
  if (count < lanes) {
    // Too few for a vector: work on padded copies.
    HWY_ALIGN Stored padded[N][hn::MaxLanes(d)] = {};
    HWY_ALIGN typename Type::Acc result[hn::MaxLanes(d)];
    for (size_t k = 0; k < N; ++k) {
      std::memcpy(padded[k], in[k], count * sizeof(Stored));
      in[k] = padded[k];
    }
    hn::Store(tree<Type, Op, N>(d, in, 0), d, result);
    std::memcpy(out, result, count * sizeof(typename Type::Acc));
    return;
  }
  // The last vector may overlap the one before it. It is computed first, since `out` may be one of
  // the inputs.
  const auto last = tree<Type, Op, N>(d, in, count - lanes);
  for (size_t i = 0; i + lanes <= count; i += lanes)
    hn::StoreU(tree<Type, Op, N>(d, in, i), d, out + i);
  hn::StoreU(last, d, out + count - lanes);
}

// out[0, count) = the tree of n inputs; count is at most a tile.
template <class Type, class Op>
void tree_of(const typename Type::Stored* const* in, size_t n, size_t offset, size_t count,
             typename Type::Acc* out) {
  using Acc = typename Type::Acc;
  switch (n) {
    case 1: return tree_tile<Type, Op, 1>(in, offset, count, out);
    case 2: return tree_tile<Type, Op, 2>(in, offset, count, out);
    case 3: return tree_tile<Type, Op, 3>(in, offset, count, out);
    case 4: return tree_tile<Type, Op, 4>(in, offset, count, out);
    default: break;
  }
  // Sums of floats are what training is made of; all else makes do with fewer registers and a
  // shorter build.
  if constexpr (hwy::IsFloat<Acc>() && std::is_same_v<Op, Add>) {
    switch (n) {
      case 5: return tree_tile<Type, Op, 5>(in, offset, count, out);
      case 6: return tree_tile<Type, Op, 6>(in, offset, count, out);
      case 7: return tree_tile<Type, Op, 7>(in, offset, count, out);
      case 8: return tree_tile<Type, Op, 8>(in, offset, count, out);
      default: break;
    }
  }
  HWY_ALIGN Acc right[kTile<Acc>];
  const size_t left = left_part(n);
  tree_of<Type, Op>(in, left, offset, count, out);
  tree_of<Type, Op>(in + left, n - left, offset, count, right);
  const Acc* both[2] = {out, right};
  tree_tile<Plain<Acc>, Op, 2>(both, 0, count, out);
}

void write(const void* tile, size_t bytes, std::span<void* const> outputs, size_t offset,
           bool stream) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const uint8_t* const from = static_cast<const uint8_t*>(tile);
  for (void* output : outputs) {
    uint8_t* const to = static_cast<uint8_t*>(output) + offset;
    size_t i = 0;
    if (stream && reinterpret_cast<uintptr_t>(to) % 64 == 0)
      for (; i + lanes <= bytes; i += lanes) hn::Stream(hn::Load(d, from + i), d, to + i);
    std::memcpy(to + i, from + i, bytes - i);
  }
}

template <class T>
void divide(T* values, size_t count, T divisor) {
  if constexpr (hwy::IsFloat<T>()) {
    const hn::ScalableTag<T> d;
    const auto by = hn::Set(d, divisor);
    size_t i = 0;
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d))
      hn::StoreU(hn::Div(hn::LoadU(d, values + i), by), d, values + i);
    for (; i < count; ++i) values[i] /= divisor;
  }
}

template <class Type, class Op>
void run(const Reduction& r, int64_t begin, int64_t end, bool stream) {
  using Acc = typename Type::Acc;
  using Stored = typename Type::Stored;
  const hn::ScalableTag<Acc> d;
  const auto* const in = reinterpret_cast<const Stored* const*>(r.inputs.data());
  HWY_ALIGN Acc tile[kTile<Acc>];
  // Few inputs are combined in registers, so the first output needs no tile, even if it is one of
  // the inputs.
  const bool direct =
      sizeof(Acc) == sizeof(Stored) && r.inputs.size() <= 4 && !r.outputs.empty() && !stream;
  const bool divides = hwy::IsFloat<Acc>() && base::divides(r.op) && r.divisor != 1;
  for (int64_t at = begin; at < end; at += int64_t(kTile<Acc>)) {
    const size_t count = std::min(kTile<Acc>, size_t(end - at));
    if (direct) {
      Acc* const first = static_cast<Acc*>(r.outputs[0]) + at;
      tree_of<Type, Op>(in, r.inputs.size(), size_t(at), count, first);
      if (divides) divide(first, count, Acc(r.divisor));
      write(first, count * sizeof(Acc), r.outputs.subspan(1), size_t(at) * sizeof(Acc), false);
      continue;
    }
    tree_of<Type, Op>(in, r.inputs.size(), size_t(at), count, tile);
    if (divides) divide(tile, count, Acc(r.divisor));
    const size_t bytes = count * sizeof(Stored);
    if constexpr (sizeof(Acc) == sizeof(Stored)) {
      write(tile, bytes, r.outputs, size_t(at) * sizeof(Stored), stream);
    } else {
      HWY_ALIGN Stored narrow[kTile<Acc>];
      // Whole vectors: what lies behind `count` in the tile is of no interest.
      for (size_t i = 0; i < count; i += hn::Lanes(d))
        Type::store(d, hn::Load(d, tile + i), narrow + i);
      write(narrow, bytes, r.outputs, size_t(at) * sizeof(Stored), stream);
    }
  }
}

// Highway has no product of 8- and 64-bit integers on every target; the compiler does well enough.
// T is unsigned.
template <class T>
void run_product(const Reduction& r, int64_t begin, int64_t end) {
  HWY_ALIGN T tile[kTile<T>];
  for (int64_t at = begin; at < end; at += int64_t(kTile<T>)) {
    const size_t count = std::min(kTile<T>, size_t(end - at));
    std::memcpy(tile, static_cast<const T*>(r.inputs[0]) + at, count * sizeof(T));
    for (const void* input : r.inputs.subspan(1)) {
      const T* const in = static_cast<const T*>(input) + at;
      for (size_t i = 0; i < count; ++i) tile[i] = T(uint64_t(tile[i]) * uint64_t(in[i]));
    }
    write(tile, count * sizeof(T), r.outputs, size_t(at) * sizeof(T), false);
  }
}

template <class T>
void run_integer_mean(const Reduction& r, int64_t begin, int64_t end) {
  using Wide = ExactSum<T>;
  using Out = MeanOf<T>;
  constexpr size_t kCount = kTile<Wide>;
  Wide sum[kCount];
  HWY_ALIGN Out tile[kCount];
  for (int64_t at = begin; at < end; at += int64_t(kCount)) {
    const size_t count = std::min(kCount, size_t(end - at));
    for (size_t i = 0; i < count; ++i) sum[i] = 0;
    for (const void* input : r.inputs) {
      const T* const in = static_cast<const T*>(input) + at;
      for (size_t i = 0; i < count; ++i) sum[i] += Wide(in[i]);
    }
    for (size_t i = 0; i < count; ++i) tile[i] = Out(double(sum[i]) / double(r.divisor));
    write(tile, count * sizeof(Out), r.outputs, size_t(at) * sizeof(Out), false);
  }
}

template <class Type>
void run_float(const Reduction& r, int64_t begin, int64_t end, bool stream) {
  switch (base::combine_of(r.op)) {
    case Combine::add: return run<Type, Add>(r, begin, end, stream);
    case Combine::multiply: return run<Type, Mul>(r, begin, end, stream);
    case Combine::least: return run<Type, Extreme<true>>(r, begin, end, stream);
    case Combine::most: return run<Type, Extreme<false>>(r, begin, end, stream);
  }
}

template <class T>
void run_integer(const Reduction& r, int64_t begin, int64_t end, bool stream) {
  using Unsigned = hwy::MakeUnsigned<T>;  // wraps
  switch (base::combine_of(r.op)) {
    case Combine::add:
      if (base::divides(r.op)) return run_integer_mean<T>(r, begin, end);
      return run<Plain<Unsigned>, Add>(r, begin, end, stream);
    case Combine::multiply: return run_product<Unsigned>(r, begin, end);
    case Combine::least: return run<Plain<T>, Extreme<true>>(r, begin, end, stream);
    case Combine::most: return run<Plain<T>, Extreme<false>>(r, begin, end, stream);
  }
}

// Elements [begin, end) of one reduction. With `stream`, outputs bypass the cache.
void reduce_range(const Reduction& r, int64_t begin, int64_t end, bool stream) {
  switch (r.dtype) {
    case DType::boolean:
    case DType::uint8: run_integer<uint8_t>(r, begin, end, stream); break;
    case DType::int8: run_integer<int8_t>(r, begin, end, stream); break;
    case DType::int16: run_integer<int16_t>(r, begin, end, stream); break;
    case DType::int32: run_integer<int32_t>(r, begin, end, stream); break;
    case DType::int64: run_integer<int64_t>(r, begin, end, stream); break;
    case DType::uint16: run_integer<uint16_t>(r, begin, end, stream); break;
    case DType::uint32: run_integer<uint32_t>(r, begin, end, stream); break;
    case DType::uint64: run_integer<uint64_t>(r, begin, end, stream); break;
    case DType::float16: run_float<Float16>(r, begin, end, stream); break;
    case DType::bfloat16: run_float<BFloat16>(r, begin, end, stream); break;
    case DType::float32: run_float<Plain<float>>(r, begin, end, stream); break;
    case DType::float64: run_float<Plain<double>>(r, begin, end, stream); break;
  }
  if (stream) hwy::FlushStream();
}

}  // namespace tutti::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::kernels {

HWY_EXPORT(reduce_range);

namespace {

// Work below this many bytes, read and written, is done by the calling thread alone: waking another
// takes longer.
constexpr size_t kAlone = 256 << 10;
// What one thread takes at a time.
constexpr size_t kChunk = 1 << 20;

struct Chunk {
  const Reduction* reduction;
  int64_t begin, end;
};

size_t traffic_per_element(const Reduction& r) {
  return r.inputs.size() * size_of(r.dtype) +
         r.outputs.size() * size_of(result_dtype(r.op, r.dtype));
}

}  // namespace

void reduce(std::span<const Reduction> batch, base::ThreadPool* pool, size_t cache) {
  size_t traffic = 0, written = 0;
  for (const Reduction& r : batch) {
    traffic += size_t(r.count) * traffic_per_element(r);
    written += size_t(r.count) * r.outputs.size() * size_of(result_dtype(r.op, r.dtype));
  }
  if (traffic <= kAlone) {
    for (const Reduction& r : batch) HWY_DYNAMIC_DISPATCH(reduce_range)(r, 0, r.count, false);
    return;
  }
  // A virtual machine shows a cache that it shares with others; a core keeps this much of it.
  constexpr size_t kCacheOfACore = 8 << 20;
  const base::Topology& machine = base::topology();
  if (cache == 0) cache = std::min(machine.last_level_cache, size_t(machine.cores) * kCacheOfACore);
  const bool stream = written > cache / 2;
  std::vector<Chunk> chunks;
  for (const Reduction& r : batch) {
    // A multiple of 4096 elements, so that every chunk starts on a cache line of every output.
    const size_t elements = kChunk / traffic_per_element(r);
    const int64_t step = int64_t(std::max<size_t>(1, elements / 4096) * 4096);
    for (int64_t at = 0; at < r.count; at += step)
      chunks.push_back({&r, at, std::min(at + step, r.count)});
  }
  (pool ? *pool : base::ThreadPool::shared()).for_each(int64_t(chunks.size()), [&](int64_t i) {
    const Chunk& c = chunks[size_t(i)];
    HWY_DYNAMIC_DISPATCH(reduce_range)(*c.reduction, c.begin, c.end, stream);
  });
}

namespace {

// A few elements are summed before vectors would be set up. The same tree, so the same bits.
constexpr int64_t kFew = 4;
constexpr int64_t kFewOfTwo = 64;

template <class T>
T tree_sum(std::span<const void* const> inputs, size_t i) {
  if (inputs.size() == 1) return static_cast<const T*>(inputs[0])[i];
  const size_t left = base::left_part(inputs.size());
  return T(tree_sum<T>(inputs.first(left), i) + tree_sum<T>(inputs.subspan(left), i));
}

template <class T>
void sum_few(const Reduction& r) {
  T sums[kFewOfTwo];
  if (r.inputs.size() == 2) {
    const T* const a = static_cast<const T*>(r.inputs[0]);
    const T* const b = static_cast<const T*>(r.inputs[1]);
    for (int64_t i = 0; i < r.count; ++i) sums[i] = a[i] + b[i];
  } else {
    for (int64_t i = 0; i < r.count; ++i) sums[i] = tree_sum<T>(r.inputs, size_t(i));
  }
  if (base::divides(r.op))
    for (int64_t i = 0; i < r.count; ++i) sums[i] /= T(r.divisor);
  for (void* output : r.outputs) std::memcpy(output, sums, size_t(r.count) * sizeof(T));
}

}  // namespace

void reduce_here(const Reduction& reduction, bool stream) {
  if (reduction.count == 0) return;
  if (reduction.count <= (reduction.inputs.size() == 2 ? kFewOfTwo : kFew) &&
      base::is_sum(reduction.op)) {
    if (reduction.dtype == DType::float32) return sum_few<float>(reduction);
    if (reduction.dtype == DType::float64) return sum_few<double>(reduction);
  }
  HWY_DYNAMIC_DISPATCH(reduce_range)(reduction, 0, reduction.count, stream);
}

void copy(void* to, const void* from, size_t bytes) {
  const Reduction r{.inputs = {&from, 1},
                    .outputs = {&to, 1},
                    .count = int64_t(bytes),
                    .dtype = DType::uint8,
                    .op = ReduceOp::SUM};
  reduce({&r, 1});
}

}  // namespace tutti::kernels
#endif
