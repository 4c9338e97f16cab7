// What the target tutti::eigen brings along.
#include <tutti/eigen.h>
#include <tutti/tutti.h>

#include "check.h"

int main() {
  const tutti::Tensor tensor = tutti::Tensor::of<float>({1, 2, 3});
  CHECK(tutti::as_matrix<float>(tensor).sum() == 6);
}
