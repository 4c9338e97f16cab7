// SPDX-License-Identifier: Apache-2.0
// A sequence of operations of all kinds and of sizes from 4 B to 4 MiB, in a random order that all
// ranks know, with results that are known exactly.
#pragma once

#include <tutti/tutti.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::testing {

enum class Kind {
  all_reduce,
  window,  // all_reduce of Group::empty
  list,    // all_reduce of several tensors
  background,
  reduce,
  broadcast,
  all_gather,
  uneven,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  barrier,
  ring,  // send and recv
  split,
  world,  // a new group from the environment
};

// How a rank does an operation differently from the rest.
enum class Twist { none, shape, dtype, op };

struct Step {
  int64_t number;
  Kind kind;
  size_t count;  // of elements of 4 bytes
  int root;
};

class Mixture {
 public:
  // The name of a wrong result's operation.
  struct Wrong : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  // `new_worlds`: also from_environment, which takes part in no check of the order of operations.
  // `steady`: mostly small, and few different sizes beyond 16 KiB, so that what is kept for reuse
  // is soon all that is ever needed.
  // `splits`: also groups of some of the ranks, in which errors name ranks by other numbers.
  Mixture(const Group& group, uint64_t seed, bool new_worlds, bool steady, bool splits = true)
      : group_(group), seed_(seed), new_worlds_(new_worlds), steady_(steady), splits_(splits) {
    floats_.resize(kMost + kPeriod);
    ints_.resize(kMost + kPeriod);
    for (size_t i = 0; i < floats_.size(); ++i) floats_[i] = float(ints_[i] = int(i % kPeriod));
  }

  Step step(int64_t number) const {
    uint64_t state = seed_ * 0x9e3779b97f4a7c15u + uint64_t(number);
    const auto random = [&] {  // splitmix64
      uint64_t z = state += 0x9e3779b97f4a7c15u;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
      z = (z ^ z >> 27) * 0x94d049bb133111ebu;
      return z ^ z >> 31;
    };
    Step step{.number = number, .kind = Kind(random() % 14), .count = 1, .root = 0};
    const uint64_t rare = random() % 100;
    if (rare < 2 && splits_) step.kind = Kind::split;
    if (rare == 2 && new_worlds_) step.kind = Kind::world;
    const double most = double(steady_ ? kSmall : kMost);
    step.count = size_t(std::exp(double(random() % 1000) / 1000 * std::log(most)));
    if (steady_ && random() % 50 == 0) step.count = kMost >> random() % kLargeSizes;
    step.root = int(random() % uint64_t(group_.size()));
    return step;
  }

  // One of each kind in each of the large sizes, from every root.
  void warm_up() {
    for (size_t size = 0; size < kLargeSizes; ++size)
      for (int root = 0; root < group_.size(); ++root)
        for (int kind = 0; kind <= int(Kind::split); ++kind)
          run({.number = 0, .kind = Kind(kind), .count = kMost >> size, .root = root});
  }

  // What all ranks of the group must agree on; empty if it is not about all of them.
  static std::string collective(Kind kind) {
    switch (kind) {
      case Kind::all_reduce:
      case Kind::window:
      case Kind::list:
      case Kind::background: return "all_reduce";
      case Kind::reduce: return "reduce";
      case Kind::broadcast: return "broadcast";
      case Kind::all_gather:
      case Kind::uneven: return "all_gather";
      case Kind::reduce_scatter: return "reduce_scatter";
      case Kind::all_to_all: return "all_to_all";
      case Kind::gather: return "gather";
      case Kind::scatter: return "scatter";
      case Kind::barrier: return "barrier";
      default: return "";
    }
  }

  void run(Step step, Twist twist = Twist::none) {
    if (twist == Twist::shape) ++step.count;
    const int n = group_.size(), me = group_.rank(), root = step.root;
    const size_t count = step.count;
    const size_t part = std::max<size_t>(1, count / size_t(n)), whole = part * size_t(n);
    switch (step.kind) {
      case Kind::all_reduce: {
        if (twist == Twist::dtype) {
          std::vector<int> data = ints(step, me, count);
          return group_.all_reduce(data, ReduceOp::SUM);
        }
        buffer_.assign(of(step, me), of(step, me) + count);
        group_.all_reduce(buffer_, twist == Twist::op ? ReduceOp::MAX : ReduceOp::SUM);
        return expect_sum(step, buffer_);
      }
      case Kind::window: {
        const Tensor data = group_.empty({int64_t(count)}, DType::float32);
        std::copy_n(of(step, me), count, data.span<float>().begin());
        group_.all_reduce(data, ReduceOp::SUM);
        return expect_sum(step, data.span<float>());
      }
      case Kind::list: {
        const std::span<const float> mine(of(step, me), count);
        const std::vector<Tensor> list{Tensor::of(mine.first(count / 3)), Tensor::of(mine),
                                       Tensor::zeros({0}, DType::int8)};
        group_.all_reduce(list, ReduceOp::SUM);
        expect_sum(step, list[0].span<float>());
        return expect_sum(step, list[1].span<float>());
      }
      case Kind::background: {
        std::vector<float> first(of(step, me), of(step, me) + count);
        std::vector<int> second = ints(step, me, count / 2);
        Work a = group_.all_reduce_async(first, ReduceOp::SUM);
        Work b = group_.all_reduce_async(second, ReduceOp::SUM);
        a.wait();
        b.wait();
        return expect_sum(step, first);
      }
      case Kind::reduce: {
        buffer_.assign(of(step, me), of(step, me) + count);
        group_.reduce(buffer_, ReduceOp::SUM, root);
        return me == root ? expect_sum(step, buffer_) : expect(step, buffer_, me);
      }
      case Kind::broadcast: {
        buffer_.assign(of(step, me), of(step, me) + count);
        group_.broadcast(buffer_, root);
        return expect(step, buffer_, root);
      }
      case Kind::all_gather: {
        buffer_.resize(whole);
        group_.all_gather(std::span(of(step, me), part), buffer_);
        return expect_parts(step, part);
      }
      case Kind::uneven: {
        const auto all = group_.all_gather_uneven(std::span(of(step, me), part * size_t(me) / 2));
        std::span<const float> rest = all;
        for (int r = 0; r < n; ++r) {
          const size_t theirs = part * size_t(r) / 2;
          if (rest.size() < theirs) throw wrong(step);
          expect(step, rest.first(theirs), r);
          rest = rest.subspan(theirs);
        }
        return;
      }
      case Kind::reduce_scatter: {
        buffer_.resize(part);
        group_.reduce_scatter(std::span(of(step, me), whole), buffer_, ReduceOp::SUM);
        return expect_sum(step, buffer_, part * size_t(me));
      }
      case Kind::all_to_all: {
        buffer_.resize(whole);
        group_.all_to_all(std::span(of(step, me), whole), buffer_);
        return expect_parts(step, part, part * size_t(me));
      }
      case Kind::gather: {
        buffer_.resize(me == root ? whole : 0);
        group_.gather(std::span(of(step, me), part), buffer_, root);
        if (me == root) expect_parts(step, part);
        return;
      }
      case Kind::scatter: {
        buffer_.resize(part);
        group_.scatter(std::span(of(step, me), me == root ? whole : 0), buffer_, root);
        return expect(step, buffer_, root, part * size_t(me));
      }
      case Kind::barrier: return group_.barrier();
      case Kind::ring: {
        if (n == 1) return;
        buffer_.resize(count);
        const int to = (me + 1) % n, from = (me + n - 1) % n;
        const auto send = [&] { group_.send(std::span(of(step, me), count), to, step.number); };
        if (me > 0) send();
        group_.recv(buffer_, from, step.number);
        if (me == 0) send();
        return expect(step, buffer_, from);
      }
      case Kind::split: {
        // Two groups, in the opposite order.
        const Group half = group_.split(me % 2, -me);
        std::vector<int> data{me};
        half.all_reduce(data, ReduceOp::SUM);
        int expected = 0;
        for (int r = me % 2; r < n; r += 2) expected += r;
        if (data[0] != expected) throw wrong(step);
        return;
      }
      case Kind::world: {
        const Group another = Group::from_environment();
        std::vector<int> data{me};
        another.all_reduce(data, ReduceOp::SUM);
        if (data[0] != n * (n - 1) / 2) throw wrong(step);
        return;
      }
    }
  }

 private:
  static constexpr size_t kMost = 1 << 20, kSmall = 4 << 10;  // elements
  static constexpr size_t kLargeSizes = 6;
  static constexpr size_t kPeriod = 251;  // small numbers, so that sums are exact

  static Wrong wrong(const Step& step) {
    return Wrong("wrong result in step " + std::to_string(step.number) + ", kind " +
                 std::to_string(int(step.kind)) + ", count " + std::to_string(step.count));
  }

  // What `rank` has in a step.
  const float* of(const Step& step, int rank) const {
    return floats_.data() + (size_t(step.number & 0xffff) * 7 + size_t(rank) * 31) % kPeriod;
  }
  std::vector<int> ints(const Step& step, int rank, size_t count) const {
    const auto first = ints_.begin() + (of(step, rank) - floats_.data());
    return {first, first + ptrdiff_t(count)};
  }

  void expect(const Step& step, std::span<const float> data, int rank, size_t from = 0) const {
    if (!std::ranges::equal(data, std::span(of(step, rank) + from, data.size()))) throw wrong(step);
  }
  void expect_parts(const Step& step, size_t part, size_t from = 0) const {
    for (int r = 0; r < group_.size(); ++r)
      expect(step, std::span(buffer_).subspan(part * size_t(r), part), r, from);
  }
  void expect_sum(const Step& step, std::span<const float> data, size_t from = 0) const {
    std::vector<float> sums(data.size());
    for (int r = 0; r < group_.size(); ++r) {
      const float* const theirs = of(step, r) + from;
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += theirs[i];
    }
    if (!std::ranges::equal(data, sums)) throw wrong(step);
  }

  const Group& group_;
  const uint64_t seed_;
  const bool new_worlds_;
  const bool steady_;
  const bool splits_;
  std::vector<float> floats_, buffer_;
  std::vector<int> ints_;
};

}  // namespace tutti::testing
