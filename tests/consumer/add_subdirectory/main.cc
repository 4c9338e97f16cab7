// SPDX-License-Identifier: Apache-2.0
#include <tutti/tutti.h>

int main() {
  const tutti::Tensor one = tutti::Tensor::scalar<float>(1);
  const tutti::PerReplica<tutti::Tensor> value{one, one};
  return tutti::ReductionToOneDevice()
                     .reduce(tutti::ReduceOp::SUM, value, "/cpu:0")[0]
                     .item<float>() == 2
             ? 0
             : 1;
}
