// SPDX-License-Identifier: Apache-2.0
// The types that can be reduced, and the type of the result.
#pragma once

#include <tutti/values.h>

#include <type_traits>

#pragma GCC visibility push(default)

namespace tutti::detail {

// Component is what the reduction of a V gives.
template <class V>
struct Reducible {};
template <class V>
  requires IsValue<V>
struct Reducible<V> {
  using Component = V;
};
template <class V>
  requires IsValue<V>
struct Reducible<PerReplica<V>> {
  using Component = V;
};
template <class V>
  requires IsValue<V>
struct Reducible<Mirrored<V>> {
  using Component = V;
};

template <class V>
Mirrored<V> as(Mirrored<Value> values) {
  if constexpr (std::is_same_v<V, Tensor>)
    return values.map(&Value::tensor);
  else if constexpr (std::is_same_v<V, IndexedSlices>)
    return values.map(&Value::slices);
  else
    return values;
}

}  // namespace tutti::detail

#pragma GCC visibility pop
