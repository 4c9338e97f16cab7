// SPDX-License-Identifier: Apache-2.0
#include "cross_device/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/cross_device_ops.h>
#include <tutti/error.h>

#include <algorithm>
#include <set>

#include "base/settings.h"
#include "device/gpu.h"
#include "gpu/nccl.h"

namespace tutti {

namespace cross_device {

constexpr int kQuad = 4;

namespace {

bool is_pair_of_quads(const LinkTable& links) {
  if (links.size() < 2 * kQuad) return false;
  for (int gpu = 0; gpu < 2 * kQuad; ++gpu) {
    std::set<int> expected{(gpu + kQuad) % (2 * kQuad)};
    for (int i = 0; i < kQuad; ++i) expected.insert(gpu / kQuad * kQuad + i);
    std::set<int> linked(links[size_t(gpu)].begin(), links[size_t(gpu)].end());
    linked.insert(gpu);  // whether a GPU counts as linked to itself does not matter
    if (linked != expected) return false;
  }
  return true;
}

}  // namespace

Choice choose(const std::vector<std::string>& types, const LinkTable& links) {
  if (!std::ranges::all_of(types, [](const std::string& type) { return type == "GPU"; }))
    return {"reduction_to_one_device", 0};
  if (is_pair_of_quads(links)) return {"hierarchical_copy", int(types.size())};
  return {"nccl", 1};
}

}  // namespace cross_device

namespace {

// Probed only if all devices are GPUs.
cross_device::LinkTable links_between_gpus(const std::vector<std::string>& types) {
  if (!std::ranges::all_of(types, [](const std::string& type) { return type == "GPU"; })) return {};
  const device::CudaModule* const cuda = device::cuda_module();
  if (!cuda) return {};
  device::GpuRuntime& runtime = cuda->runtime();
  if (runtime.gpus() < 2 * cross_device::kQuad) return {};
  cross_device::LinkTable links(size_t(runtime.gpus()));
  for (int gpu = 0; gpu < runtime.gpus(); ++gpu)
    for (int peer = 0; peer < runtime.gpus(); ++peer)
      if (gpu != peer && runtime.reaches(gpu, peer)) links[size_t(gpu)].push_back(peer);
  return links;
}

}  // namespace

std::unique_ptr<CrossDeviceOps> choose_the_best(const std::vector<std::string>& devices) {
  if (devices.empty()) throw InvalidArgumentError("choose_the_best: the list of devices is empty");
  std::vector<std::string> types;
  for (const std::string& name : devices)
    types.push_back(device::find(name, "choose_the_best").type());
  cross_device::Choice choice = cross_device::choose(types, links_between_gpus(types));
  if (base::settings().backend == "nccl") {
    group::expect_nccl_if_required();
    if (choice.algorithm == "reduction_to_one_device")
      throw UnavailableError(fmt::format(
          "TUTTI_BACKEND=nccl: not all of {} are GPUs; name GPUs only, or unset TUTTI_BACKEND",
          fmt::join(devices, ", ")));
    choice = {"nccl", 1};
  }
  if (choice.algorithm == "reduction_to_one_device")
    return std::make_unique<ReductionToOneDevice>();
  return std::make_unique<AllReduceCrossDeviceOps>(choice.algorithm, choice.num_packs);
}

}  // namespace tutti
