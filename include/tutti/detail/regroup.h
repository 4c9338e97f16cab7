// SPDX-License-Identifier: Apache-2.0
// regroup, one structure after another.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti::detail {

[[noreturn]] void throw_ragged(const char* what, size_t replica, size_t got, size_t expected);

template <template <class> class Wrap, class T>
struct Regroup {
  static Wrap<T> of(const std::vector<T>& replicas) { return Wrap<T>(replicas); }
};

template <template <class> class Wrap, class T>
struct Regroup<Wrap, std::vector<T>> {
  static auto of(const std::vector<std::vector<T>>& replicas) {
    using Leaf = decltype(Regroup<Wrap, T>::of({}));
    std::vector<Leaf> result;
    const size_t length = replicas.empty() ? 0 : replicas[0].size();
    for (size_t r = 0; r < replicas.size(); ++r)
      if (replicas[r].size() != length)
        throw_ragged("a list of length", r, replicas[r].size(), length);
    for (size_t i = 0; i < length; ++i) {
      std::vector<T> leaves;
      for (const auto& replica : replicas) leaves.push_back(replica[i]);
      result.push_back(Regroup<Wrap, T>::of(leaves));
    }
    return result;
  }
};

template <template <class> class Wrap, class K, class T, class Less>
struct Regroup<Wrap, std::map<K, T, Less>> {
  static auto of(const std::vector<std::map<K, T, Less>>& replicas) {
    using Leaf = decltype(Regroup<Wrap, T>::of({}));
    std::map<K, Leaf, Less> result;
    if (replicas.empty()) return result;
    for (size_t r = 0; r < replicas.size(); ++r)
      if (replicas[r].size() != replicas[0].size())
        throw_ragged("a map of size", r, replicas[r].size(), replicas[0].size());
    for (const auto& [key, first] : replicas[0]) {
      std::vector<T> leaves;
      for (size_t r = 0; r < replicas.size(); ++r) {
        const auto found = replicas[r].find(key);
        if (found == replicas[r].end())
          throw_ragged("a map whose keys differ, of size", r, replicas[r].size(),
                       replicas[0].size());
        leaves.push_back(found->second);
      }
      result.emplace(key, Regroup<Wrap, T>::of(leaves));
    }
    return result;
  }
};

template <template <class> class Wrap, class... Ts>
struct Regroup<Wrap, std::tuple<Ts...>> {
  static auto of(const std::vector<std::tuple<Ts...>>& replicas) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return std::make_tuple(part<I>(replicas)...);
    }(std::index_sequence_for<Ts...>{});
  }

 private:
  template <size_t I>
  static auto part(const std::vector<std::tuple<Ts...>>& replicas) {
    using T = std::tuple_element_t<I, std::tuple<Ts...>>;
    std::vector<T> leaves;
    for (const auto& replica : replicas) leaves.push_back(std::get<I>(replica));
    return Regroup<Wrap, T>::of(leaves);
  }
};

}  // namespace tutti::detail

#pragma GCC visibility pop
