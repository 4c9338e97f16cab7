// SPDX-License-Identifier: Apache-2.0
// A worker whose results must have the same bits wherever the ranks are.
//   layout_worker            this process among the workers of its job
//   layout_worker threads N  N threads of this process
//   layout_worker traffic OP N TIMES  only all_reduce, broadcast or all_gather of N floats, TIMES
//   times
// Reports "bits" for every case: its name and a hash of the result. Cases of one name have the same
// data, whichever way it is reduced, so the hashes of a name are all alike.
#include <tutti/tutti.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "report.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

// Of many magnitudes, so that another order of additions gives another sum.
Tensor make_data(int rank, int64_t count, DType dtype) {
  std::vector<double> values(static_cast<size_t>(count));
  uint64_t state = uint64_t(rank + 1) * 0x9e3779b97f4a7c15u + uint64_t(count);
  for (double& value : values) {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    value = std::ldexp(double(int64_t(z)), -63 + int(z % 17));
  }
  return Tensor::of(std::span<const double>(values)).to(dtype);
}

// As FNV-1a, of words.
std::string hash_of(const Tensor& tensor) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto* const bytes = static_cast<const std::byte*>(tensor.const_data());
  for (size_t i = 0; i < tensor.num_bytes(); i += sizeof(hash)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof(word), tensor.num_bytes() - i));
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return std::to_string(hash);
}

class Cases {
 public:
  explicit Cases(const Group& group) : group_(group), rank_(group.rank()) {}

  void run() {
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN}) {
      for (const DType dtype : kDTypes) {
        for (const int64_t count : kCounts) all_reduce(op, dtype, count);
        for (const int64_t part : {100, 20'000}) reduce_scatter(op, dtype, part);
      }
      for (const int64_t bytes_per_pack : {0, 1, 4096}) lists(op, bytes_per_pack);
    }
    group_.barrier();
  }

 private:
  static constexpr DType kDTypes[] = {DType::float32, DType::bfloat16, DType::float64};
  static constexpr int64_t kCounts[] = {1, 1000, 3000, 8000, 100'000, 700'001};

  // A copy of what this rank has.
  Tensor data(int64_t count, DType dtype) {
    const auto [known, is_new] = data_.try_emplace({count, dtype});
    if (is_new) known->second = make_data(rank_, count, dtype);
    return known->second.clone();
  }

  void say(ReduceOp op, const Tensor& result) const {
    const std::string name = std::string(tutti::name(op)) + " of " +
                             std::to_string(result.num_elements()) + " " +
                             std::string(tutti::name(result.dtype()));
    report("bits", rank_, name, hash_of(result));
  }

  void all_reduce(ReduceOp op, DType dtype, int64_t count) {
    const Tensor in_place = data(count, dtype);
    const Tensor in_window = group_.empty({count}, dtype);
    std::memcpy(in_window.data(), in_place.const_data(), in_place.num_bytes());
    for (const Tensor& tensor : {in_place, in_window}) {
      group_.all_reduce(tensor, op);
      say(op, tensor);
    }
  }

  // Put together again it is what all_reduce gives, and so is what the root of reduce has.
  void reduce_scatter(ReduceOp op, DType dtype, int64_t part) {
    const int64_t count = part * group_.size();
    const Tensor in = data(count, dtype), mine = Tensor::zeros({part}, dtype),
                 all = Tensor::zeros({count}, dtype);
    group_.reduce_scatter(in, mine, op);
    group_.all_gather(mine, all);
    say(op, all);
    const int root = group_.size() - 1;
    group_.reduce(in, op, root);
    if (rank_ == root) say(op, in);
  }

  void lists(ReduceOp op, int64_t bytes_per_pack) {
    std::vector<Tensor> list;
    for (const int64_t count : kCounts)
      for (const DType dtype : kDTypes) list.push_back(data(count, dtype));
    group_.all_reduce(list, op, {.bytes_per_pack = bytes_per_pack});
    for (const Tensor& tensor : list) say(op, tensor);
  }

  const Group& group_;
  const int rank_;
  std::map<std::pair<int64_t, DType>, Tensor> data_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "threads") {
    std::vector<std::thread> threads;
    for (const Group& group : Group::in_process(std::stoi(argv[2])))
      threads.emplace_back([group] { Cases(group).run(); });
    for (std::thread& thread : threads) thread.join();
    return 0;
  }
  const Group group = Group::from_environment();
  report("ready", group.rank(), std::string(group.backend()));
  try {
    if (mode == "traffic") {
      const std::string op = argv[2];
      std::vector<float> data(std::stoul(argv[3]), 1.f), all;
      if (op == "all_gather") all.resize(data.size() * size_t(group.size()));
      for (int i = 0; i < std::stoi(argv[4]); ++i)
        if (op == "all_reduce")
          group.all_reduce(data, ReduceOp::MEAN);
        else if (op == "broadcast")
          group.broadcast(data, i % 2 == 0 ? 0 : group.size() - 1);
        else
          group.all_gather(data, all);
    } else {
      Cases(group).run();
    }
  } catch (const Error& error) {
    report("error", group.rank(), error);
    return 3;
  }
  report("done", group.rank());
}
