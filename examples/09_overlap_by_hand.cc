// SPDX-License-Identifier: Apache-2.0
// A backward pass by hand, with Eigen. The gradient of a layer travels while the pass makes that of
// the layer before: GradientReducer.
// Run it alone, or as several workers: tutti run -n 3 09_overlap_by_hand
#include <tutti/eigen.h>
#include <tutti/tutti.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

using namespace tutti;
using Matrix = EigenMatrix<float>;

Matrix uniform(Eigen::Index rows, Eigen::Index columns, float most, std::mt19937& random) {
  return Matrix::NullaryExpr(
      rows, columns, [&] { return most * (2 * float(random()) / float(std::mt19937::max()) - 1); });
}

int main() try {
  const Group world = Group::from_environment();

  // A network of three layers, the same on all ranks.
  const std::vector<Eigen::Index> widths{2, 32, 32, 1};
  std::mt19937 random(1);
  std::vector<Matrix> weights;
  std::vector<GradientReducer::Parameter> parameters;
  for (size_t l = 0; l + 1 < widths.size(); ++l) {
    weights.push_back(uniform(widths[l], widths[l + 1], std::sqrt(3 / float(widths[l])), random));
    parameters.push_back({"layer " + std::to_string(l), {widths[l], widths[l + 1]}});
  }
  const size_t layers = weights.size();
  parameters.push_back({"loss", {1}});  // its mean is of use, too
  // A network this small would fit into one bucket; here each layer has its own.
  GradientReducer reducer(world, parameters, {.bucket_bytes = 1});

  // Every rank has other points, and learns sin(3 a + 2 b).
  std::mt19937 own(unsigned(world.rank()) + 2);
  const Matrix x = uniform(200, 2, 1, own);
  const Matrix y = (3 * x.col(0) + 2 * x.col(1)).array().sin();

  for (int step = 0; step <= 400; ++step) {
    std::vector<Matrix> in{x};  // of each layer
    for (size_t l = 0; l + 1 < layers; ++l) in.push_back((in[l] * weights[l]).array().tanh());
    const Matrix error = in.back() * weights.back() - y;
    reducer.gradient(layers).span<float>()[0] = error.squaredNorm() / float(error.rows());
    reducer.ready(layers);

    Matrix delta = error * (2 / float(error.rows()));
    for (size_t l = layers; l-- > 0;) {
      as_matrix<float>(reducer.gradient(l)).noalias() = in[l].transpose() * delta;
      reducer.ready(l);  // the mean is on its way, and the pass goes on
      if (l > 0) delta = (delta * weights[l].transpose()).array() * (1 - in[l].array().square());
    }
    reducer.finish();  // all of them are the means over all ranks

    for (size_t l = 0; l < layers; ++l)
      weights[l] -= 0.03f * as_matrix<const float>(reducer.gradient(l));
    if (step % 100 == 0 && world.rank() == 0)
      std::printf("step %3d: loss %.3f\n", step, reducer.gradient(layers).span<const float>()[0]);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
