// Without a GPU, the contract programs for GPUs have nothing to show.
#pragma once
#include <tutti/tutti.h>

#include <cstdlib>
#include <iostream>

// From here on there are `count` logical GPUs; without any GPU the program ends, and says why.
inline void need_gpus(int count) {
  try {
    tutti::set_logical_devices("GPU", count);
  } catch (const tutti::InvalidArgumentError& e) {
    std::cout << "skipped: " << e.what() << std::endl;
    std::exit(77);
  }
}
