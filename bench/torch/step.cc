// SPDX-License-Identifier: Apache-2.0
// Times steps of training with LibTorch on this job's workers; to be started by bench/torch/run.
// ddp.py has the same models and the same steps.
//
//   step --model mlp|resnet|transformer --mode none|barrier|list|buckets [--steps N] [--warmup N]
//        [--threads N] [--bucket-bytes N] [--device cpu|cuda] [--initial FILE] [--losses]
//
// After the backward pass `none` goes on, `barrier` waits for the other ranks, `list` exchanges all
// gradients at once; `buckets` exchanges them during the pass. Rank 0 prints an object of JSON.
#include <torch/torch.h>
#include <torch/version.h>
#include <tutti/span.h>
#include <tutti/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace {

namespace nn = torch::nn;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "mlp", mode = "buckets", device = "cpu", initial;
  int steps = 20, warmup = 5, threads = 0;
  int64_t bucket_bytes = tutti::GradientReducerOptions().bucket_bytes;
  bool losses = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--losses") {
      options.losses = true;
      continue;
    }
    if (++i == argc) throw tutti::InvalidArgumentError(name + ": a value is missing");
    const std::string value = argv[i];
    if (name == "--model")
      options.model = value;
    else if (name == "--mode")
      options.mode = value;
    else if (name == "--device")
      options.device = value;
    else if (name == "--initial")
      options.initial = value;
    else if (name == "--steps")
      options.steps = std::max(1, std::stoi(value));
    else if (name == "--warmup")
      options.warmup = std::stoi(value);
    else if (name == "--threads")
      options.threads = std::stoi(value);
    else if (name == "--bucket-bytes")
      options.bucket_bytes = std::stoll(value);
    else
      throw tutti::InvalidArgumentError("there is no option " + name);
  }
  const std::string modes[] = {"none", "barrier", "list", "buckets"};
  if (std::find(std::begin(modes), std::end(modes), options.mode) == std::end(modes))
    throw tutti::InvalidArgumentError("there is no mode " + options.mode);
  return options;
}

nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : body(convolution(in, out, 3, stride), nn::BatchNorm2d(out), nn::ReLU(),
             convolution(out, out, 3, 1), nn::BatchNorm2d(out)) {
    register_module("body", body);
    if (stride == 1 && in == out) return;
    shortcut = nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut ? shortcut->forward(x) : x));
  }

  nn::Sequential body, shortcut{nullptr};
};
TORCH_MODULE(Block);

struct Task {
  nn::Sequential model;
  torch::Tensor inputs, targets;  // of all ranks
};

Task make_task(const std::string& name, int64_t ranks) {
  torch::manual_seed(1);
  if (name == "mlp")
    return {nn::Sequential(nn::Linear(784, 1536), nn::ReLU(), nn::Linear(1536, 1536), nn::ReLU(),
                           nn::Linear(1536, 1024), nn::ReLU(), nn::Linear(1024, 10)),
            torch::randn({ranks, 64, 784}), torch::randint(10, {ranks, 64})};
  if (name == "resnet") {
    nn::Sequential model(convolution(3, 64, 7, 2), nn::BatchNorm2d(64), nn::ReLU(),
                         nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
    int64_t in = 64;
    for (const int64_t out : {64, 128, 256, 512}) {
      model->push_back(Block(in, out, in == out ? 1 : 2));
      model->push_back(Block(out, out, 1));
      in = out;
    }
    model->push_back(nn::AdaptiveAvgPool2d(1));
    model->push_back(nn::Flatten());
    model->push_back(nn::Linear(512, 10));
    return {model, torch::randn({ranks, 4, 3, 64, 64}), torch::randint(10, {ranks, 4})};
  }
  if (name == "transformer") {
    const auto layer = nn::TransformerEncoderLayerOptions(512, 8).dim_feedforward(2048).dropout(0);
    return {nn::Sequential(nn::Embedding(1000, 512),
                           nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 4)),
                           nn::Linear(512, 1000),
                           nn::Flatten(nn::FlattenOptions().start_dim(0).end_dim(1))),
            torch::randint(1000, {ranks, 64, 2}, torch::kLong), torch::randint(1000, {ranks, 128})};
  }
  throw tutti::InvalidArgumentError("there is no model " + name);
}

// Parameters, inputs and targets from a file of ddp.py, which has them as float32 in this order.
void load(const Task& task, const std::string& file) {
  std::vector<torch::Tensor> tensors = task.model->parameters();
  tensors.insert(tensors.end(), {task.inputs, task.targets});
  int64_t size = 0, at = 0;
  for (const torch::Tensor& tensor : tensors) size += tensor.numel();
  if (std::filesystem::file_size(file) != size_t(size) * sizeof(float))
    throw tutti::InvalidArgumentError(file + " is not of this model and number of ranks");
  const torch::Tensor all = torch::from_file(file, false, size, torch::kFloat);
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& tensor : tensors) {
    tensor.copy_(all.narrow(0, at, tensor.numel()).view_as(tensor));
    at += tensor.numel();
  }
}

int run(const Options& options) {
  if (options.threads > 0) at::set_num_threads(options.threads);
  const tutti::Group world = tutti::Group::from_environment();
  Task task = make_task(options.model, world.size());
  if (!options.initial.empty()) load(task, options.initial);
  const bool is_cuda = options.device == "cuda";
  const torch::Device device =
      is_cuda ? torch::Device(torch::kCUDA, torch::DeviceIndex(size_t(world.local_rank()) %
                                                               torch::cuda::device_count()))
              : torch::Device(options.device);
  task.model->to(device);
  const torch::Tensor input = task.inputs[world.rank()].to(device);
  const torch::Tensor target = task.targets[world.rank()].to(device, torch::kLong);
  const std::vector<torch::Tensor> parameters = task.model->parameters();
  int64_t elements = 0;
  for (const torch::Tensor& parameter : parameters) elements += parameter.numel();

  std::optional<tutti::TorchDataParallel<nn::SequentialImpl>> parallel;
  if (options.mode == "list" || options.mode == "buckets") {
    tutti::TorchDataParallelOptions its;
    // A single bucket is full when the pass has made all gradients.
    its.reducer.bucket_bytes =
        options.mode == "list" ? elements * int64_t(sizeof(float)) + 1 : options.bucket_bytes;
    parallel.emplace(task.model, world, its);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto synchronize = [&] {
    if (is_cuda) torch::cuda::synchronize();
  };
  std::vector<float> losses;
  const auto step = [&] {
    const tutti::Span span("step");
    // As zero_grad() of Python; that of LibTorch 1 keeps the memory.
    for (torch::Tensor parameter : parameters) parameter.mutable_grad().reset();
    const torch::Tensor loss = [&] {
      const tutti::Span forward("forward");
      return nn::functional::cross_entropy(
          parallel ? parallel->forward(input) : task.model->forward(input), target);
    }();
    {
      const tutti::Span backward("backward");
      loss.backward();
    }
    if (options.mode == "barrier") {
      synchronize();
      world.barrier();
    }
    {
      const tutti::Span update("update");
      optimizer.step();
    }
    if (options.losses) losses.push_back(loss.item<float>());
    synchronize();
  };

  for (int i = 0; i < options.warmup; ++i) step();
  world.barrier();
  std::vector<double> times;
  for (int i = 0; i < options.steps; ++i) {
    const auto start = Clock::now();
    step();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  if (world.rank() != 0) return 0;
  std::sort(times.begin(), times.end());
  nlohmann::json report{{"program", "tutti"},
                        {"torch", TORCH_VERSION},
                        {"backend", world.backend()},
                        {"model", options.model},
                        {"mode", options.mode},
                        {"device", options.device},
                        {"ranks", world.size()},
                        {"threads", at::get_num_threads()},
                        {"parameters", elements},
                        {"steps", options.steps},
                        {"median_ms", times[times.size() / 2]}};
  if (options.losses) report["losses"] = losses;
  std::printf("%s\n", report.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step: %s\n", error.what());
    return 1;
  }
}
