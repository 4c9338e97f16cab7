// SPDX-License-Identifier: Apache-2.0
// A list of tensors as one all-reduce, against one buffer of the same bytes: the gradients of
// ResNet-50. usage: tutti run -n 2 group [--rounds N]
#include <tutti/tutti.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "resnet50.h"
#include "side_by_side.h"

using namespace tutti;
using namespace tutti::bench;

int main(int argc, char** argv) {
  const int rounds = argc > 2 && argv[1] == std::string("--rounds") ? std::atoi(argv[2]) : 15;
  const Group group = Group::from_environment();
  for (const bool window : {false, true}) {
    const auto ones = [&](const Shape& shape) {
      const Tensor tensor =
          window ? group.empty(shape, DType::float32) : Tensor::empty(shape, DType::float32);
      for (float& x : tensor.span<float>()) x = 1;
      return tensor;
    };
    std::vector<Tensor> list;
    int64_t elements = 0;
    for (const Shape& shape : resnet50_shapes()) {
      list.push_back(ones(shape));
      elements += shape.num_elements();
    }
    const Tensor whole = ones({elements});
    // A mean of equal values leaves them as they are, so that every round is like the first.
    const Timings timings = side_by_side(rounds, 1,
                                         {[&] { group.all_reduce(list, ReduceOp::MEAN); },
                                          [&] { group.all_reduce(whole, ReduceOp::MEAN); }});
    for (const Tensor& tensor : list)
      for (const float x : tensor.span<const float>())
        if (x != 1) {
          std::fprintf(stderr, "wrong: %g\n", double(x));
          return 1;
        }
    if (group.rank() == 0)
      std::printf("%zu tensors, %s: %.2f ms as a list, %.2f ms as one buffer, ratio %.3f\n",
                  list.size(), window ? "window" : "private", timings.median_of(0) * 1e3,
                  timings.median_of(1) * 1e3, timings.ratio(0, 1));
  }
}
