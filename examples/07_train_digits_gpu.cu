// SPDX-License-Identifier: Apache-2.0
// Trains on handwritten digits with CUDA kernels of its own, on logical GPUs of this machine.
//
//   07_train_digits_gpu [--devices N] [--epochs N] [--batch N] [--seed N] [--save FILE]
//
// Nothing waits for a GPU until the end of an epoch: a step is enqueued, on tutti::cuda_stream, and
// so is the reduction of its gradients.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "digits.h"

using namespace tutti;

constexpr int kPixels = 64, kHidden = 256, kDigits = 10;

// c[i, j] = sum over k of a[i, k] b[k, j], plus bias[j]; the strides make it work on transposes.
// With `mask`, zero where the mask is not positive; with `relu`, zero where it would be negative.
__global__ void multiply(const float* a, int a_row, int a_column, const float* b, int b_row,
                         int b_column, float* c, int rows, int columns, int inner,
                         const float* bias, bool relu, const float* mask) {
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= rows * columns) return;
  const int i = at / columns, j = at % columns;
  float sum = bias ? bias[j] : 0;
  for (int k = 0; k < inner; ++k) sum += a[i * a_row + k * a_column] * b[k * b_row + j * b_column];
  c[at] = (relu && sum < 0) || (mask && mask[at] <= 0) ? 0 : sum;
}

__global__ void sum_columns(const float* a, float* sums, int rows, int columns) {
  const int j = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (j >= columns) return;
  float sum = 0;
  for (int i = 0; i < rows; ++i) sum += a[i * columns + j];
  sums[j] = sum;
}

// z becomes the gradient of the summed loss. totals: the loss, the examples, those recognised. One
// thread does it all: a replica has few examples.
__global__ void softmax_loss(float* z, const int* labels, int rows, float* totals) {
  float loss = 0, correct = 0;
  for (int i = 0; i < rows; ++i) {
    float* const row = z + i * kDigits;
    int best = 0;
    for (int j = 1; j < kDigits; ++j)
      if (row[j] > row[best]) best = j;
    const float most = row[best];
    float sum = 0;
    for (int j = 0; j < kDigits; ++j) sum += row[j] = expf(row[j] - most);
    for (int j = 0; j < kDigits; ++j) row[j] /= sum;
    loss -= logf(fmaxf(1e-30f, row[labels[i]]));
    correct += best == labels[i];
    row[labels[i]] -= 1;
  }
  totals[0] = loss;
  totals[1] = float(rows);
  totals[2] = correct;
}

__global__ void update(float* weights, float* momentum, const float* gradient, const float* totals,
                       float rate, int count) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  momentum[i] = 0.9f * momentum[i] + gradient[i] / totals[1];
  weights[i] -= rate * momentum[i];
}

float* floats(const Tensor& t) { return static_cast<float*>(t.data()); }
int blocks(int64_t count) { return int((count + 127) / 128); }

struct Model {
  std::vector<Variable> weights, momenta;

  explicit Model(int seed) {
    std::mt19937 random{unsigned(seed)};
    add("hidden/weights", {kPixels, kHidden}, random);
    add("hidden/bias", {kHidden}, random);
    add("output/weights", {kHidden, kDigits}, random);
    add("output/bias", {kDigits}, random);
  }

  void add(const std::string& name, const Shape& shape, std::mt19937& random) {
    const Tensor start = Tensor::zeros(shape, DType::float32, "/cpu:0");
    if (shape.rank() == 2)
      for (float& w : start.span<float>())
        w = std::sqrt(2.f / float(shape[0])) * (float(random()) / float(random.max()) * 2 - 1);
    weights.push_back(Variable::create(start, {.name = name}));
    momenta.push_back(Variable::create(Tensor::zeros(shape, DType::float32, "/cpu:0"),
                                       {.name = name + "/momentum", .trainable = false}));
  }
};

// One replica's pass over its examples, enqueued: {hidden, dz, totals}.
struct Pass {
  Pass(const Model& model, const ReplicaContext& ctx, const Tensor& x, const Tensor& y)
      : stream(static_cast<cudaStream_t>(cuda_stream(ctx.device()))), rows(int(x.shape()[0])) {
    const auto weight = [&](size_t i) {
      return floats(model.weights[i].component(size_t(ctx.local_replica_id())));
    };
    hidden = Tensor::empty({rows, kHidden}, DType::float32);
    z = Tensor::empty({rows, kDigits}, DType::float32);
    totals = Tensor::empty({3}, DType::float32);
    if (rows > 0) {
      multiply<<<blocks(rows * kHidden), 128, 0, stream>>>(
          static_cast<const float*>(x.const_data()), kPixels, 1, weight(0), kHidden, 1,
          floats(hidden), rows, kHidden, kPixels, weight(1), true, nullptr);
      multiply<<<blocks(rows * kDigits), 128, 0, stream>>>(floats(hidden), kHidden, 1, weight(2),
                                                           kDigits, 1, floats(z), rows, kDigits,
                                                           kHidden, weight(3), false, nullptr);
    }
    softmax_loss<<<1, 1, 0, stream>>>(floats(z), static_cast<const int*>(y.const_data()), rows,
                                      floats(totals));
  }

  cudaStream_t stream;
  int rows;
  Tensor hidden, z, totals;
};

Tensor step(const Model& model, ReplicaContext& ctx, const Tensor& x, const Tensor& y, float rate) {
  const Pass pass(model, ctx, x, y);
  const auto replica = size_t(ctx.local_replica_id());
  const Tensor dh = Tensor::empty({pass.rows, kHidden}, DType::float32);
  std::vector<Tensor> gradients;
  for (const Variable& w : model.weights)
    gradients.push_back(Tensor::empty(w.shape(), DType::float32));
  if (pass.rows > 0)
    multiply<<<blocks(pass.rows * kHidden), 128, 0, pass.stream>>>(
        floats(pass.z), kDigits, 1, floats(model.weights[2].component(replica)), 1, kDigits,
        floats(dh), pass.rows, kHidden, kDigits, nullptr, false, floats(pass.hidden));
  multiply<<<blocks(kPixels * kHidden), 128, 0, pass.stream>>>(
      static_cast<const float*>(x.const_data()), 1, kPixels, floats(dh), kHidden, 1,
      floats(gradients[0]), kPixels, kHidden, pass.rows, nullptr, false, nullptr);
  sum_columns<<<blocks(kHidden), 128, 0, pass.stream>>>(floats(dh), floats(gradients[1]), pass.rows,
                                                        kHidden);
  multiply<<<blocks(kHidden * kDigits), 128, 0, pass.stream>>>(
      floats(pass.hidden), 1, kHidden, floats(pass.z), kDigits, 1, floats(gradients[2]), kHidden,
      kDigits, pass.rows, nullptr, false, nullptr);
  sum_columns<<<1, 128, 0, pass.stream>>>(floats(pass.z), floats(gradients[3]), pass.rows, kDigits);
  gradients.push_back(pass.totals);

  const std::vector<Tensor> sums = ctx.all_reduce(ReduceOp::SUM, gradients);

  for (size_t i = 0; i < model.weights.size(); ++i) {
    const int64_t count = sums[i].num_elements();
    update<<<blocks(count), 128, 0, pass.stream>>>(
        floats(model.weights[i].component(replica)), floats(model.momenta[i].component(replica)),
        floats(sums[i]), floats(sums.back()), rate, int(count));
  }
  return sums.back();
}

double accuracy(Strategy& strategy, const Model& model, const digits::Data& test) {
  float correct = 0;
  const int64_t all = test.labels.num_elements();
  for (const auto& element : strategy.experimental_distribute_dataset(
           Dataset::from_tensor_slices({test.pixels, test.labels}).batch(all))) {
    const PerReplica<Tensor> totals =
        strategy.run([&](ReplicaContext& ctx, const Tensor& x,
                         const Tensor& y) { return Pass(model, ctx, x, y).totals; },
                     element[0], element[1]);
    correct += strategy.reduce(ReduceOp::SUM, totals).to_vector<float>()[2];
  }
  return correct / double(all);
}

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

int main(int argc, char** argv) {
  const digits::Options options = digits::parse_options(argc, argv);
  if (list_logical_devices("GPU").empty()) {
    std::puts("this machine has no GPU that Tutti can use; `tutti info` says why");
    return 77;
  }
  set_logical_devices("GPU", options.devices);
  MirroredStrategy strategy;
  const auto [training, test] = digits::load();
  const auto scope = strategy.scope();
  const Model model(options.seed);
  const auto examples = training.labels.num_elements();
  const int64_t steps = (examples * options.epochs + options.batch - 1) / options.batch;
  const int64_t steps_per_epoch = (steps + options.epochs - 1) / options.epochs;
  std::printf("%d replicas, %d digits to train on, %d to test with\n",
              strategy.num_replicas_in_sync(), int(examples), int(test.labels.num_elements()));
  int64_t done = 0;
  double recognised = 0;
  std::vector<Tensor> totals;  // of the steps of this epoch; still on the GPU
  for (const auto& element : digits::batches(strategy, training, options)) {
    const float rate = 0.025f * (1 + std::cos(3.14159265f * float(done) / float(steps)));
    const PerReplica<Tensor> sums =
        strategy.run([&](ReplicaContext& ctx, const Tensor& x,
                         const Tensor& y) { return step(model, ctx, x, y, rate); },
                     element[0], element[1]);
    totals.push_back(sums[0]);
    if (++done % steps_per_epoch != 0 && done != steps) continue;
    double loss = 0, seen = 0;
    for (const Tensor& t : totals) {
      loss += t.to_vector<float>()[0];
      seen += t.to_vector<float>()[1];
    }
    totals.clear();
    recognised = accuracy(strategy, model, test);
    std::printf("epoch %2d  loss %.4f  test accuracy %5.2f %%\n",
                int((done - 1) / steps_per_epoch + 1), loss / seen, 100 * recognised);
  }
  std::printf("weights %016llx\n", static_cast<unsigned long long>(fingerprint(model)));
  if (!options.save.empty()) save_variables(options.save, model.weights);
  return recognised >= 0.95 ? 0 : 1;
}
