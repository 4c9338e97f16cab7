// SPDX-License-Identifier: Apache-2.0
#include "digits.h"

#include <tutti/eigen.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>

using namespace tutti;

namespace digits {

namespace {

using Clock = std::chrono::steady_clock;
using Matrix = EigenMatrix<float>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Tensor random_weights(int64_t rows, int64_t columns, std::mt19937& random) {
  const Tensor weights = Tensor::empty({rows, columns}, DType::float32);
  const float scale = std::sqrt(2.f / float(rows));
  for (float& w : weights.span<float>())
    w = scale * (float(random()) / float(random.max()) * 2 - 1);
  return weights;
}

constexpr int kPixels = 64, kHidden = 256, kDigits = 10;

// Two layers, and what momentum remembers of the gradients.
struct Model {
  std::vector<Variable> weights, momenta;

  explicit Model(int seed) {
    std::mt19937 random{unsigned(seed)};
    add("hidden/weights", random_weights(kPixels, kHidden, random));
    add("hidden/bias", Tensor::zeros({kHidden}, DType::float32));
    add("output/weights", random_weights(kHidden, kDigits, random));
    add("output/bias", Tensor::zeros({kDigits}, DType::float32));
  }

  void add(const std::string& name, const Tensor& value) {
    weights.push_back(Variable::create(value, {.name = name}));
    momenta.push_back(Variable::create(Tensor::zeros(value.shape(), DType::float32),
                                       {.name = name + "/momentum", .trainable = false}));
  }

  // This replica's weights, to read and to change in place.
  Eigen::Map<Matrix> at(size_t i, const ReplicaContext& ctx) const {
    return as_matrix<float>(weights[i].component(size_t(ctx.local_replica_id())));
  }
};

struct Forward {
  Matrix hidden, probabilities;
};

Forward forward(const Model& model, const ReplicaContext& ctx, const Tensor& pixels) {
  const auto x = as_matrix<const float>(pixels);
  Forward f;
  f.hidden = ((x * model.at(0, ctx)).rowwise() + model.at(1, ctx).row(0)).cwiseMax(0.f);
  Matrix z = (f.hidden * model.at(2, ctx)).rowwise() + model.at(3, ctx).row(0);
  for (Eigen::Index i = 0; i < z.rows(); ++i) {
    z.row(i).array() = (z.row(i).array() - z.row(i).maxCoeff()).exp();
    z.row(i) /= z.row(i).sum();
  }
  f.probabilities = std::move(z);
  return f;
}

struct StepResult {
  Tensor loss;  // [sum, examples]
  double seconds, all_reduce_seconds;
};

StepResult step(const Model& model, ReplicaContext& ctx, const Tensor& pixels, const Tensor& labels,
                float learning_rate) {
  const auto start = Clock::now();
  const auto x = as_matrix<const float>(pixels);
  const std::span<const int32_t> y = labels.span<const int32_t>();
  const Forward f = forward(model, ctx, pixels);

  // Gradients of the summed loss: the sum over all replicas, divided by the number of examples, is
  // the gradient of the mean, however many examples each replica has.
  float loss = 0;
  Matrix dz = f.probabilities;
  for (size_t i = 0; i < y.size(); ++i) {
    loss -= std::log(std::max(1e-30f, f.probabilities(Eigen::Index(i), y[i])));
    dz(Eigen::Index(i), y[i]) -= 1;
  }
  const Matrix dh = (f.hidden.array() > 0).select(dz * model.at(2, ctx).transpose(), 0);
  std::vector<Tensor> gradients;
  gradients.push_back(as_tensor<float>(Matrix(x.transpose() * dh), ctx.device()));
  gradients.push_back(
      as_tensor<float>(Matrix(dh.colwise().sum()), ctx.device()).reshape({kHidden}));
  gradients.push_back(as_tensor<float>(Matrix(f.hidden.transpose() * dz), ctx.device()));
  gradients.push_back(
      as_tensor<float>(Matrix(dz.colwise().sum()), ctx.device()).reshape({kDigits}));
  gradients.push_back(Tensor::of<float>({loss, float(y.size())}, ctx.device()));

  const auto reduce_start = Clock::now();
  const std::vector<Tensor> sums = ctx.all_reduce(ReduceOp::SUM, gradients);
  const double all_reduce_seconds = seconds_since(reduce_start);

  const float examples = sums.back().span<const float>()[1];
  for (size_t i = 0; i < model.weights.size(); ++i) {
    auto momentum = as_matrix<float>(model.momenta[i].component(size_t(ctx.local_replica_id())));
    momentum = 0.9f * momentum + as_matrix<const float>(sums[i]) / examples;
    model.at(i, ctx) -= learning_rate * momentum;
  }
  return {sums.back(), seconds_since(start), all_reduce_seconds};
}

Tensor count_correct(const Model& model, const ReplicaContext& ctx, const Tensor& pixels,
                     const Tensor& labels) {
  const Forward f = forward(model, ctx, pixels);
  const std::span<const int32_t> y = labels.span<const int32_t>();
  int64_t correct = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    Eigen::Index best;
    f.probabilities.row(Eigen::Index(i)).maxCoeff(&best);
    correct += best == y[i];
  }
  return Tensor::scalar<int64_t>(correct, ctx.device());
}

double accuracy(Strategy& strategy, const Model& model, const Data& test) {
  int64_t correct = 0;
  for (const auto& element : strategy.experimental_distribute_dataset(
           Dataset::from_tensor_slices({test.pixels, test.labels})
               .batch(test.labels.num_elements()))) {
    const PerReplica<Tensor> counts =
        strategy.run([&](ReplicaContext& ctx, const Tensor& x,
                         const Tensor& y) { return count_correct(model, ctx, x, y); },
                     element[0], element[1]);
    correct += strategy.reduce(ReduceOp::SUM, counts).item<int64_t>();
  }
  return double(correct) / double(test.labels.num_elements());
}

// The shares of the time of some steps, on the average over all replicas.
struct Shares {
  double waiting, exchange;
};

// The replica that comes last to an all_reduce waits for no other one, so the shortest all_reduce
// of a step is the exchange itself, and what the others' took longer is waiting. No clocks of two
// machines are compared.
Shares shares(Strategy& strategy, const std::vector<PerReplica<StepResult>>& steps) {
  std::vector<Tensor> exchanges, totals;
  for (size_t r = 0; r < steps[0].size(); ++r) {
    std::vector<double> exchange;
    double busy = 0;
    for (const PerReplica<StepResult>& step : steps) {
      exchange.push_back(step[r].all_reduce_seconds);
      busy += step[r].seconds;
    }
    const std::string& device = steps[0][r].loss.device();
    exchanges.push_back(Tensor::of(std::span<const double>(exchange), device));
    totals.push_back(Tensor::of<double>(
        {1, busy, std::accumulate(exchange.begin(), exchange.end(), 0.)}, device));
  }
  const Tensor shortest = strategy.reduce(ReduceOp::MIN, PerReplica<Tensor>(exchanges));
  const Tensor sums = strategy.reduce(ReduceOp::SUM, PerReplica<Tensor>(totals));
  const std::span<const double> least = shortest.span<const double>(),
                                sum = sums.span<const double>();
  const double exchange = sum[0] * std::accumulate(least.begin(), least.end(), 0.);
  return {(sum[2] - exchange) / sum[1], exchange / sum[1]};
}

// The digits as another hand might have written them: a third of them moved by a pixel, all of them
// a little noisy.
Tensor varied(const Tensor& pixels, uint64_t number) {
  uint64_t state = (number + 1) * 0x9e3779b97f4a7c15;
  const auto random = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  };
  const Tensor result = Tensor::empty(pixels.shape(), DType::float32);
  const std::span<const float> from = pixels.span<const float>();
  const std::span<float> to = result.span<float>();
  for (size_t at = 0; at < to.size(); at += kPixels) {
    const uint64_t drawn = random() >> 20;
    const int right = drawn % 3 ? 0 : int(drawn / 3 % 3) - 1,
              down = drawn % 3 ? 0 : int(drawn / 9 % 3) - 1;
    if (!right && !down) std::copy_n(&from[at], kPixels, &to[at]);
    for (int row = 0; row < 8; ++row) {
      float* const out = &to[at + size_t(row * 8)];
      const int from_row = row - down;
      for (int column = 0; (right || down) && column < 8; ++column) {
        const int from_column = column - right;
        const bool inside = unsigned(from_row) < 8 && unsigned(from_column) < 8;
        out[column] = inside ? from[at + size_t(from_row * 8 + from_column)] : -1.f;
      }
      const auto noise = std::bit_cast<std::array<uint8_t, 8>>(random());
      for (size_t column = 0; column < 8; ++column)
        out[column] += float(noise[column]) * (1 / 255.f) - 0.5f;
    }
  }
  return result;
}

// A number that stands for every bit of the weights.
uint64_t fingerprint(const Model& model) {
  uint64_t hash = 14695981039346656037u;
  for (const Variable& weights : model.weights)
    for (const float w : weights.read_value().to_vector<float>()) {
      uint32_t bits;
      std::memcpy(&bits, &w, sizeof bits);
      hash = (hash ^ bits) * 1099511628211u;
    }
  return hash;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    int* const number = name == "--devices"  ? &options.devices
                        : name == "--epochs" ? &options.epochs
                        : name == "--batch"  ? &options.batch
                        : name == "--seed"   ? &options.seed
                                             : nullptr;
    if (number && (*number = std::atoi(value.c_str())) > 0) continue;
    if ((name == "--save" || name == "--checkpoint") && !value.empty()) {
      (name == "--save" ? options.save : options.checkpoint) = value;
      continue;
    }
    std::cerr << "usage: " << argv[0]
              << " [--devices N] [--epochs N] [--batch N] [--seed N] [--save FILE]"
                 " [--checkpoint FOLDER]\n";
    std::exit(2);
  }
  return options;
}

std::pair<Data, Data> load() {
  const char* const folder = std::getenv("DIGITS_DATA");  // set if the examples were moved
  const std::string path = std::string(folder ? folder : TUTTI_EXAMPLE_DATA) + "/digits.csv";
  std::ifstream file(path);
  if (!file) throw NotFoundError("cannot read " + path + "; it comes with the examples");
  std::vector<float> pixels;
  std::vector<int32_t> labels;
  for (std::string line; std::getline(file, line);) {
    std::istringstream numbers(line);
    std::vector<int> row;
    for (std::string number; std::getline(numbers, number, ',');)
      row.push_back(std::atoi(number.c_str()));
    if (row.size() != 65) throw DataLossError(path + ": a row does not have 65 numbers");
    for (size_t i = 0; i < 64; ++i) pixels.push_back(float(row[i]) / 8 - 1);
    labels.push_back(row[64]);
  }
  const size_t n = labels.size(), split = n * 8 / 10;
  const auto part = [&](size_t begin, size_t end) {
    return Data{Tensor::of(std::span<const float>(pixels).subspan(begin * 64, (end - begin) * 64))
                    .reshape({int64_t(end - begin), 64}),
                Tensor::of(std::span<const int32_t>(labels).subspan(begin, end - begin))};
  };
  return {part(0, split), part(split, n)};
}

DistributedDataset batches(Strategy& strategy, const Data& data, const Options& options) {
  const Dataset shuffled = Dataset::from_tensor_slices({data.pixels, data.labels})
                               .shuffle(data.labels.num_elements(), uint64_t(options.seed))
                               .repeat(options.epochs)
                               .batch(options.batch);
  // What is random about a batch comes from its number, so that it is the same in every run.
  const Dataset numbers = Dataset::range(std::numeric_limits<int64_t>::max());
  // All of it is in memory: making a batch takes less time than waking a thread to read ahead.
  return strategy.experimental_distribute_dataset(
      Dataset::zip({shuffled, numbers}).map([](const std::vector<Tensor>& batch) {
        return std::vector<Tensor>{varied(batch[0], uint64_t(batch[2].item<int64_t>())), batch[1]};
      }));
}

Result train(Strategy& strategy, const Options& options) {
  const bool quiet = options.quiet || !strategy.extended().is_chief();
  const bool terminal = isatty(STDOUT_FILENO) && !quiet;
  const auto [training, test] = load();
  const auto examples = int(training.labels.num_elements());
  const auto scope = strategy.scope();
  const Model model(options.seed);
  const int steps = (examples * options.epochs + options.batch - 1) / options.batch;
  const int steps_per_epoch = (steps + options.epochs - 1) / options.epochs;
  if (!quiet)
    std::printf("%d replicas, %d digits to train on, %d to test with\n",
                strategy.num_replicas_in_sync(), examples, int(test.labels.num_elements()));

  InputIterator input = batches(strategy, training, options).make_iterator();
  std::vector<Variable> state = model.weights;
  state.insert(state.end(), model.momenta.begin(), model.momenta.end());
  std::optional<Checkpoint> checkpoint;
  if (!options.checkpoint.empty())
    checkpoint.emplace(options.checkpoint, state, std::vector{&input});

  Result result{};
  int done = int(checkpoint ? checkpoint->restore().value_or(0) : 0);
  if (done && !quiet) std::printf("going on from step %d\n", done);
  double loss = 0, seen = 0, total = 0, seconds = 0;
  std::vector<PerReplica<StepResult>> epoch_steps;
  auto start = Clock::now();
  while (const std::optional<DistributedElement> element = input.get_next_as_optional()) {
    const float rate =
        0.025f * (1 + std::cos(3.14159265f * float(done) / float(steps)));  // from 0.05 to 0
    const PerReplica<StepResult> results =
        strategy.run([&](ReplicaContext& ctx, const Tensor& x,
                         const Tensor& y) { return step(model, ctx, x, y, rate); },
                     (*element)[0], (*element)[1]);
    const std::span<const float> sums = results[0].loss.span<const float>();
    loss += sums[0];
    seen += sums[1];
    epoch_steps.push_back(results);
    const int epoch = done++ / steps_per_epoch + 1;
    if (checkpoint && done % 50 == 0) checkpoint->save(done);
    if (terminal && done % 8 == 0) {
      const int filled = 40 * ((done - 1) % steps_per_epoch + 1) / steps_per_epoch;
      std::printf("\repoch %2d [%-40s]", epoch, std::string(size_t(filled), '#').c_str());
      std::fflush(stdout);
    }
    if (done % steps_per_epoch != 0 && done != steps) continue;

    const double took = seconds_since(start);
    seconds += took;
    total += seen;
    result = {accuracy(strategy, model, test), total / seconds};
    const Shares spent = shares(strategy, epoch_steps);
    if (!quiet) {
      std::printf(
          "%sepoch %2d  loss %.4f  test accuracy %5.2f %%  %6.0f examples/s  waited for other "
          "replicas %2.0f %%, exchange %2.0f %% of the step\n",
          terminal ? "\r\033[K" : "", epoch, loss / seen, 100 * result.accuracy, seen / took,
          100 * spent.waiting, 100 * spent.exchange);
      std::fflush(stdout);
    }
    loss = seen = 0;
    epoch_steps.clear();
    start = Clock::now();
  }
  if (result.examples_per_second == 0) result.accuracy = accuracy(strategy, model, test);
  if (!quiet) std::printf("weights %016llx\n", static_cast<unsigned long long>(fingerprint(model)));
  if (!options.save.empty()) save_variables(options.save, model.weights);
  return result;
}

}  // namespace digits
