// What a healthy job survives of its surroundings, one case per run:
//   surroundings_worker CASE
// Reports "ok", "error" for an error of Tutti's, or "wrong" with what is wrong.
#include <tutti/tutti.h>

#include <algorithm>

#include "report.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Tensors of the window beyond its first segment, of which all ranks read and write all.
void grow() {
  const Group group = Group::from_environment();
  std::vector<Tensor> all;
  for (const int64_t mebibytes : {1, 40, 80, 3}) {
    all.push_back(group.empty({mebibytes << 18}, DType::float32));
    std::ranges::fill(all.back().span<float>(), float(group.rank() + 1));
    group.all_reduce(all.back(), ReduceOp::SUM);
    const float sum = float(group.size() * (group.size() + 1) / 2);
    require(std::ranges::all_of(all.back().span<float>(), [&](float x) { return x == sum; }),
            "a wrong sum of " + std::to_string(mebibytes) + " MiB");
    group.barrier();
  }
}

void run(const std::string& name) {
  if (name == "join") return Group::from_environment().barrier();
  if (name == "grow") return grow();
  throw std::runtime_error("there is no case " + name);
}

}  // namespace

int main(int, char** argv) {
  try {
    run(argv[1]);
    report("ok", -1, argv[1]);
    return 0;
  } catch (const Error& error) {
    report("error", -1, error);
    return 3;
  } catch (const std::exception& wrong) {
    report("wrong", -1, "", wrong.what());
    return 4;
  }
}
