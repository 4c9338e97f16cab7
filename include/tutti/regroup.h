// SPDX-License-Identifier: Apache-2.0
// Turning structures of replicas inside out: what each replica returned, and one structure of
// distributed values.
#pragma once

#include <tutti/detail/regroup.h>
#include <tutti/values.h>

#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// One structure per replica becomes one structure of PerReplica (or another wrapper, such as
// Mirrored). Vectors, maps and tuples are walked; everything else is a leaf. InvalidArgumentError
// if lengths or keys differ between replicas.
template <template <class> class Wrap = PerReplica, class T>
auto regroup(const std::vector<T>& replicas) {
  return detail::Regroup<Wrap, T>::of(replicas);
}

}  // namespace tutti

#pragma GCC visibility pop
