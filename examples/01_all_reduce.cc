// SPDX-License-Identifier: Apache-2.0
// Four replicas hold a gradient each; afterwards every replica holds their mean.
#include <tutti/tutti.h>

#include <iostream>

int main() {
  tutti::set_logical_devices("CPU", 4);  // four devices, on however many cores there are

  std::vector<tutti::Tensor> gradients;
  for (int i = 0; i < 4; ++i)
    gradients.push_back(
        tutti::Tensor::of<float>({1.f * i, 10.f * i, 100.f * i}, "/cpu:" + std::to_string(i)));
  const tutti::PerReplica<tutti::Tensor> gradient(gradients);

  // To all-reduce, pass the value as the destinations too.
  tutti::ReductionToOneDevice ops;
  const tutti::Mirrored<tutti::Tensor> mean = ops.reduce(tutti::ReduceOp::MEAN, gradient, gradient);

  for (const tutti::Tensor& copy : mean) {
    std::cout << copy.device() << ":";
    for (const float x : copy.span<const float>()) std::cout << " " << x;
    std::cout << "\n";
  }
}
