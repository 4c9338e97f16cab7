// SPDX-License-Identifier: Apache-2.0
// The gradients of ResNet-50: 161 tensors, 25,557,032 elements.
#pragma once

#include <tutti/shape.h>

#include <vector>

namespace tutti::bench {

inline std::vector<Shape> resnet50_shapes() {
  std::vector<Shape> shapes;
  const auto conv = [&](int64_t out, int64_t in, int64_t size) {
    shapes.push_back({out, in, size, size});
    shapes.insert(shapes.end(), {{out}, {out}});  // the batch norm behind it
  };
  conv(64, 3, 7);
  int64_t in = 64;
  for (const auto& [blocks, width] : {std::pair<int, int64_t>{3, 64}, {4, 128}, {6, 256}, {3, 512}})
    for (int block = 0; block < blocks; ++block) {
      conv(width, in, 1);
      conv(width, width, 3);
      conv(4 * width, width, 1);
      if (block == 0) conv(4 * width, in, 1);
      in = 4 * width;
    }
  shapes.push_back({1000, 2048});
  shapes.push_back({1000});
  return shapes;
}

}  // namespace tutti::bench
