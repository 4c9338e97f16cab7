// SPDX-License-Identifier: Apache-2.0
// Trains on handwritten digits, on many workers with as many devices each as are asked for. Only
// the strategy's line differs from 02_train_digits.
//
//   tutti run -n 2 05_train_digits_many_workers [--devices N] [--epochs N] [--batch N] [--seed N]
//                                               [--save FILE] [--checkpoint FOLDER]
#include "digits.h"

int main(int argc, char** argv) {
  const digits::Options options = digits::parse_options(argc, argv);
  tutti::set_logical_devices("CPU", options.devices);
  tutti::CollectiveAllReduceStrategy strategy({.cpu_devices_per_worker = options.devices});
  return digits::train(strategy, options).accuracy >= 0.95 ? 0 : 1;
}
