// SPDX-License-Identifier: Apache-2.0
// Trains a convolutional network of LibTorch on handwritten digits, on any number of workers.
//
//   tutti run -n 2 08_torch_digits [--epochs N] [--batch N] [--seed N] [--checkpoint FOLDER]
#include <torch/torch.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "digits.h"

using namespace tutti;
namespace F = torch::nn::functional;

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Options {
  int epochs = 30, seed = 1;
  int batch = 32;          // over all workers
  std::string checkpoint;  // a folder: after every epoch, and to go on from
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    int* const number = name == "--epochs"  ? &options.epochs
                        : name == "--batch" ? &options.batch
                        : name == "--seed"  ? &options.seed
                                            : nullptr;
    if (number && (*number = std::atoi(value.c_str())) > 0) continue;
    if (name == "--checkpoint" && !value.empty()) {
      options.checkpoint = value;
      continue;
    }
    std::cerr << "usage: " << argv[0]
              << " [--epochs N] [--batch N] [--seed N] [--checkpoint FOLDER]\n";
    std::exit(2);
  }
  return options;
}

struct Examples {
  torch::Tensor images, labels;  // [n, 1, 8, 8], from -1 to 1, and [n]

  // Views of the tensors of Tutti.
  explicit Examples(const digits::Data& data)
      : images(to_torch(data.pixels).reshape({-1, 1, 8, 8})),
        labels(to_torch(data.labels).to(torch::kLong)) {}
  int64_t size() const { return images.size(0); }
};

torch::nn::Sequential network() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 32, 3).padding(1)), ReLU(),
                    Conv2d(Conv2dOptions(32, 32, 3).padding(1)), ReLU(), MaxPool2d(2),
                    Conv2d(Conv2dOptions(32, 64, 3).padding(1)), ReLU(), Flatten(),
                    Linear(64 * 16, 128), ReLU(), Dropout(0.3), Linear(128, 10));
}

// The digits as another hand might have written them: each one turned, slanted, scaled and moved.
torch::Tensor varied(const torch::Tensor& images) {
  const int64_t n = images.size(0);
  const auto around = [&](double center, double most) {
    return center + most * (2 * torch::rand({n}) - 1);
  };
  const torch::Tensor turn = around(0, 0.1), slant = around(0, 0.15), width = around(1, 0.1),
                      height = around(1, 0.1), right = around(0, 0.12), down = around(0, 0.12);
  const torch::Tensor rows = torch::stack(
      {width * turn.cos(), slant - turn.sin(), right, turn.sin(), height * turn.cos(), down}, 1);
  const torch::Tensor grid = F::affine_grid(rows.reshape({n, 2, 3}), images.sizes(), false);
  // Outside of an image are zeros.
  return F::grid_sample(images + 1, grid, F::GridSampleFuncOptions().align_corners(false)) - 1;
}

// The share of the test digits that are recognised. Each rank looks at some of them.
double accuracy(torch::nn::Sequential net, const Examples& test, const Group& world) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto mine = torch::arange(world.rank(), test.size(), world.size());
  const torch::Tensor found = net->forward(test.images.index_select(0, mine)).argmax(1);
  std::vector<int64_t> correct{found.eq(test.labels.index_select(0, mine)).sum().item<int64_t>()};
  world.all_reduce(correct, ReduceOp::SUM);
  net->train();
  return double(correct[0]) / double(test.size());
}

// What a training program needs to go on: the model, the optimizer and the epoch, in one file.
class Checkpoint {
 public:
  Checkpoint(const std::string& folder, torch::nn::Sequential net,
             torch::optim::Optimizer& optimizer)
      : folder_(folder), net_(net), optimizer_(optimizer) {}

  // To a temporary file that is renamed: a program that is killed leaves the file before it.
  void save(int64_t epoch) const {
    torch::serialize::OutputArchive archive, net, optimizer;
    net_->save(net);
    optimizer_.save(optimizer);
    archive.write("net", net);
    archive.write("optimizer", optimizer);
    archive.write("epoch", c10::IValue(epoch));
    std::filesystem::create_directories(folder_);
    archive.save_to(path() + ".tmp");
    std::filesystem::rename(path() + ".tmp", path());
  }

  // The epochs that are done. Rank 0 reads the file, so that the others need not reach it.
  int64_t restore(const Group& world) {
    std::string bytes;
    if (world.rank() == 0 && std::filesystem::exists(path())) {
      std::ostringstream text;
      text << std::ifstream(path(), std::ios::binary).rdbuf();
      bytes = text.str();
    }
    std::vector<int64_t> size{int64_t(bytes.size())};
    world.broadcast(size, 0);
    if (size[0] == 0) return 0;
    bytes.resize(size_t(size[0]));
    world.broadcast(std::span(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()), 0);

    std::istringstream stream(bytes);
    torch::serialize::InputArchive archive, net, optimizer;
    c10::IValue epoch;
    archive.load_from(stream);
    archive.read("net", net);
    archive.read("optimizer", optimizer);
    archive.read("epoch", epoch);
    net_->load(net);
    optimizer_.load(optimizer);
    return epoch.toInt();
  }

 private:
  std::string path() const { return folder_ + "/digits.pt"; }

  const std::string folder_;
  torch::nn::Sequential net_;
  torch::optim::Optimizer& optimizer_;
};

// Where the time of an epoch's steps went, on the average over the ranks.
struct Shares {
  double waiting, exchange;  // of the time
};

// The rank that comes last to an exchange waits for no other rank, so the shortest wait of a step
// is the exchange itself, as far as the backward pass did not hide it. What the others waited
// longer is waiting for other ranks. No clocks of two machines are compared.
Shares shares(const Group& world, const std::vector<double>& waited, double busy) {
  std::vector<double> least = waited;
  world.all_reduce(least, ReduceOp::MIN);
  std::vector<double> sums{0, 0, busy};
  for (size_t i = 0; i < waited.size(); ++i) {
    sums[0] += waited[i] - least[i];
    sums[1] += least[i];
  }
  world.all_reduce(sums, ReduceOp::SUM);
  return {sums[0] / sums[2], sums[1] / sums[2]};
}

double train(const Options& options, const Group& world) {
  const int rank = world.rank(), ranks = world.size();
  const bool terminal = rank == 0 && isatty(STDOUT_FILENO);
  const auto [training_data, test_data] = digits::load();
  const Examples training(training_data), test(test_data);
  // Every rank takes as many examples; those that fill no batch are left out of an epoch.
  const int64_t share = std::max(1, options.batch / ranks);
  const int64_t steps = training.size() / (share * ranks);
  if (rank == 0)
    std::printf("%d workers, %d digits to train on, %d to test with\n", ranks, int(training.size()),
                int(test.size()));

  torch::manual_seed(uint64_t(options.seed));
  torch::nn::Sequential net = network();
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(0.004).weight_decay(0.05));
  Checkpoint checkpoint(options.checkpoint, net, optimizer);
  const int64_t done = options.checkpoint.empty() ? 0 : checkpoint.restore(world);
  if (done && rank == 0) std::printf("going on from epoch %d\n", int(done));
  TorchDataParallel model(net, world);  // after what is loaded into the network

  double recognised = accuracy(net, test, world);
  for (int64_t epoch = done; epoch < options.epochs; ++epoch) {
    torch::manual_seed(uint64_t(options.seed + epoch * 1'000'003));
    const torch::Tensor order = torch::randperm(training.size());  // the same on all ranks
    torch::manual_seed(uint64_t(options.seed + epoch * 1'000'003 + 1 + rank));

    double loss_sum = 0;
    std::vector<double> waited;
    const auto start = Clock::now();
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t first = (step * ranks + rank) * share;
      const torch::Tensor mine = order.slice(0, first, first + share);
      const double progress = double(epoch * steps + step) / double(options.epochs * steps);
      optimizer.param_groups()[0].options().set_lr(0.002 * (1 + std::cos(3.14159265 * progress)));

      optimizer.zero_grad();
      const torch::Tensor output = model.forward(varied(training.images.index_select(0, mine)));
      const torch::Tensor loss =
          F::cross_entropy(output, training.labels.index_select(0, mine),
                           F::CrossEntropyFuncOptions().label_smoothing(0.1));
      loss.backward();  // now every gradient is the mean over all ranks
      optimizer.step();

      loss_sum += loss.item<double>();
      waited.push_back(Seconds(model.reducer().waited()).count());
      if (terminal && step % 8 == 7) {
        const auto filled = size_t(40 * (step + 1) / steps);
        std::printf("\repoch %2d [%-40s]", int(epoch + 1), std::string(filled, '#').c_str());
        std::fflush(stdout);
      }
    }
    const double seconds = Seconds(Clock::now() - start).count();
    const Shares spent = shares(world, waited, seconds);
    std::vector<double> loss{loss_sum / double(steps)};
    world.all_reduce(loss, ReduceOp::MEAN);
    recognised = accuracy(net, test, world);
    if (rank == 0) {
      if (!options.checkpoint.empty()) checkpoint.save(epoch + 1);
      std::printf(
          "%sepoch %2d  loss %.4f  test accuracy %5.2f %%  %6.0f examples/s  waited for other "
          "workers %2.0f %%, exchange %2.0f %% of the step\n",
          terminal ? "\r\033[K" : "", int(epoch + 1), loss[0], 100 * recognised,
          double(steps * share * ranks) / seconds, 100 * spent.waiting, 100 * spent.exchange);
      std::fflush(stdout);
    }
  }
  if (rank == 0) std::printf("%.2f %% of the test digits are recognised\n", 100 * recognised);
  return recognised;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse_options(argc, argv);
  return train(options, Group::from_environment()) >= 0.98 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
