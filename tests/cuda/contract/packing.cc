// On GPUs, too, how a batch is repacked before it travels never shows in the result.
#include <tutti/tutti.h>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;

int main() {
  need_gpus(3);
  const std::vector<std::string> devices{"/gpu:0", "/gpu:1", "/gpu:2"};

  // A gradient list as a model makes it: many small tensors, a few large ones, several dtypes.
  std::vector<std::pair<PerReplica<Value>, Destinations>> pairs;
  for (int64_t i = 0; i < 40; ++i) {
    std::vector<Value> parts;
    for (size_t d = 0; d < devices.size(); ++d) {
      const DType dtype = i % 7 == 3 ? DType::bfloat16 : i % 5 == 4 ? DType::float64 : DType::float32;
      parts.push_back(Tensor::full({i % 4, i * i + 1}, double(i + 1) * double(d + 1), dtype, devices[d]));
    }
    const PerReplica<Value> v(parts);
    pairs.emplace_back(v, v);
  }

  std::vector<std::unique_ptr<CrossDeviceOps>> all;
  all.push_back(std::make_unique<ReductionToOneDevice>());
  for (int packs : {0, 1, 2, 8, 1000}) all.push_back(std::make_unique<AllReduceCrossDeviceOps>("hierarchical_copy", packs));
  all.push_back(std::make_unique<AllReduceCrossDeviceOps>("hierarchical_copy", 0, /*agg_small_grads_max_bytes=*/100, /*agg_small_grads_max_group=*/10));
  all.push_back(std::make_unique<AllReduceCrossDeviceOps>("nccl"));  // logical GPUs of one card: falls back, and says so once in the log
  for (auto& ops : all)
    for (int64_t bytes_per_pack : {0, 1, 200, 1 << 20}) {
      const auto out = ops->batch_reduce(ReduceOp::SUM, pairs, CommunicationOptions{.bytes_per_pack = bytes_per_pack});
      CHECK_EQ(out.size(), pairs.size());
      for (size_t i = 0; i < out.size(); ++i)
        for (size_t d = 0; d < devices.size(); ++d) {
          const Tensor t = out[i][d].tensor();
          CHECK_EQ(t.device(), canonicalize(devices[d]));
          CHECK(t.shape() == pairs[i].first[d].tensor().shape());
          CHECK(t.dtype() == pairs[i].first[d].tensor().dtype());
          for (double x : t.to(DType::float64).to_vector<double>()) CHECK_EQ(x, double(i + 1) * 6);
        }
    }
  CHECK_THROWS(InvalidArgumentError, "bytes_per_pack",
               all[0]->batch_reduce(ReduceOp::SUM, pairs, CommunicationOptions{.bytes_per_pack = -1}));
  return CONTRACT_OK();
}
