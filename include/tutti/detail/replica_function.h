// SPDX-License-Identifier: Apache-2.0
// How a replica function is called: with a component of each argument, and if it takes one with
// its context.
#pragma once

#include <tutti/values.h>

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

class ReplicaContext;

namespace detail {

// What one replica gets of an argument that is a T.
template <class T>
struct ComponentOf {
  using type = T;
  static const T& of(const T& value, size_t) { return value; }
};
template <>
struct ComponentOf<void> {
  using type = bool;  // a stand-in: there is nothing to hand out
};
template <class T>
struct ComponentOf<PerReplica<T>> {
  using type = T;
  static const T& of(const PerReplica<T>& value, size_t replica) { return value[replica]; }
};
template <class T>
struct ComponentOf<Mirrored<T>> {
  using type = T;
  static const T& of(const Mirrored<T>& value, size_t replica) { return value[replica]; }
};
// An element of a distributed input.
template <class T>
struct ComponentOf<std::vector<PerReplica<T>>> {
  using type = std::vector<T>;
  static type of(const std::vector<PerReplica<T>>& element, size_t replica) {
    type parts;
    for (const PerReplica<T>& component : element) parts.push_back(component[replica]);
    return parts;
  }
};

// What f(i) returned for every i that `drive` called it with, in the order of i; nothing if f
// returns nothing.
template <class F, class Drive>
auto collect(size_t count, const F& f, const Drive& drive) {
  using Result = std::decay_t<std::invoke_result_t<const F&, size_t>>;
  if constexpr (std::is_void_v<Result>) {
    drive([&](size_t i) { f(i); });
  } else {
    std::vector<std::optional<Result>> results(count);
    drive([&](size_t i) { results[i].emplace(f(i)); });
    std::vector<Result> moved;
    moved.reserve(count);
    for (std::optional<Result>& result : results)
      if (result) moved.push_back(std::move(*result));
    return PerReplica<Result>(std::move(moved));
  }
}

// The components of an element, per replica, as one list per replica.
PerReplica<std::vector<Tensor>> transpose(const std::vector<PerReplica<Tensor>>& element);
[[noreturn]] void throw_arity(size_t parameters, size_t components);

// fn(context, arguments...), or fn(arguments...) if it takes no context.
template <class F, class... Args>
constexpr bool takes =
    std::is_invocable_v<F&, ReplicaContext&, Args...> || std::is_invocable_v<F&, Args...>;
template <class F, class... Args>
decltype(auto) invoke_with(F& fn, ReplicaContext& context, const Args&... args) {
  if constexpr (std::is_invocable_v<F&, ReplicaContext&, const Args&...>)
    return fn(context, args...);
  else
    return fn(args...);
}

// How many tensors fn takes, a context aside; 0 if it does not take tensors.
template <class F, class... Tensors>
constexpr size_t arity() {
  if constexpr (sizeof...(Tensors) > 16)
    return 0;
  else if constexpr (takes<F, const Tensor&, Tensors...>)
    return sizeof...(Tensors) + 1;
  else
    return arity<F, Tensors..., const Tensor&>();
}

// fn of a context and tensors as a function of the context and one list; a function that takes the
// list is left as it is.
template <class F>
auto unpacking(F&& fn) {
  return [&fn](ReplicaContext& context, const std::vector<Tensor>& parts) -> decltype(auto) {
    constexpr bool takes_list = takes<F, const std::vector<Tensor>&>;
    constexpr size_t n = arity<F>();
    static_assert(takes_list || n > 0,
                  "run: the function must take the components of the element as Tensors, or one "
                  "std::vector<Tensor>, and may take a ReplicaContext& before them");
    if constexpr (takes_list) {
      return invoke_with(fn, context, parts);
    } else if constexpr (n > 0) {
      if (parts.size() != n) throw_arity(n, parts.size());
      return [&]<size_t... I>(std::index_sequence<I...>) -> decltype(auto) {
        return invoke_with(fn, context, parts[I]...);
      }(std::make_index_sequence<n>{});
    }
  };
}

}  // namespace detail
}  // namespace tutti

#pragma GCC visibility pop
