// SPDX-License-Identifier: Apache-2.0
// Runs every file of the folders given through a fuzz target.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  size_t inputs = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(argv[i]))
      if (entry.is_regular_file()) files.push_back(entry.path());
    if (files.empty()) {
      std::fprintf(stderr, "%s holds no inputs\n", argv[i]);
      return 1;
    }
    std::ranges::sort(files);
    for (const fs::path& file : files) {
      std::printf("%s\n", file.filename().c_str());
      std::fflush(stdout);  // the last line names the input that ends the process
      std::ifstream stream(file, std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
    inputs += files.size();
  }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0;
}
