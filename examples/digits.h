// SPDX-License-Identifier: Apache-2.0
// Training a network of two layers on handwritten digits, under any strategy. The examples choose
// the strategy.
#pragma once

#include <tutti/tutti.h>

#include <string>
#include <vector>

namespace digits {

struct Options {
  int devices = 4;
  int epochs = 40;
  int batch = 32;  // over all replicas
  int seed = 1;
  std::string save;        // a safetensors file for the weights
  std::string checkpoint;  // a folder: every 50 steps, and to go on from
  bool quiet = false;
};

// From the command line; prints the usage and exits if that cannot be understood.
Options parse_options(int argc, char** argv);

struct Data {
  tutti::Tensor pixels;  // float32 [n, 64], from -1 to 1
  tutti::Tensor labels;  // int32 [n]
};

// The first 80 % of the digits to train on, and the rest to test with.
std::pair<Data, Data> load();

// Every epoch in another order, batched, read ahead, and dealt out to the replicas.
tutti::DistributedDataset batches(tutti::Strategy& strategy, const Data& data,
                                  const Options& options);

struct Result {
  double accuracy;             // the share of the test digits that were recognised
  double examples_per_second;  // while training
};

// Trains, and prints how it goes.
Result train(tutti::Strategy& strategy, const Options& options);

}  // namespace digits
