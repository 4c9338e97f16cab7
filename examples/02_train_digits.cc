// SPDX-License-Identifier: Apache-2.0
// Trains on handwritten digits, on as many devices of this process as are asked for.
//
//   02_train_digits [--devices N] [--epochs N] [--batch N] [--seed N] [--save FILE]
//                  [--checkpoint FOLDER]
#include "digits.h"

int main(int argc, char** argv) {
  const digits::Options options = digits::parse_options(argc, argv);
  tutti::set_logical_devices("CPU", options.devices);
  tutti::MirroredStrategy strategy;
  return digits::train(strategy, options).accuracy >= 0.95 ? 0 : 1;
}
