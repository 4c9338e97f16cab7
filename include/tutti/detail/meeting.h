// SPDX-License-Identifier: Apache-2.0
// What the replicas of a strategy do together.
#pragma once

#include <tutti/detail/replica_function.h>
#include <tutti/values.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

class Strategy;

namespace detail {

// One replica's part in a call that all replicas make. The parts are compared; if they agree, the
// last replica to come has the first part act for all.
class Meeting {
 public:
  explicit Meeting(const char* what) : what_(what) {}
  virtual ~Meeting() = default;
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  const char* what() const { return what_; }
  // Whether both ask for the same; `other` is of the same class.
  virtual bool agrees_with(const Meeting& other) const = 0;
  virtual std::string describe() const = 0;
  // `parts` are those of the local replicas, in their order, all of the same class.
  virtual void act(Strategy& strategy, std::span<Meeting* const> parts) = 0;

 private:
  const char* what_;
};

// A replica's part in merge_call.
template <class F, class... Args>
class Merge : public Meeting {
  using Result = std::invoke_result_t<F&, Strategy&, const PerReplica<Args>&...>;
  using Parts = ComponentOf<std::decay_t<Result>>;

 public:
  explicit Merge(F& fn, const Args&... args) : Meeting("merge_call"), fn_(fn), args_(args...) {}

  bool agrees_with(const Meeting&) const override { return true; }
  std::string describe() const override {
    return std::string("a function of type ") + typeid(F).name();
  }

  void act(Strategy& strategy, std::span<Meeting* const> parts) override {
    const auto part = [&](size_t r) -> Merge& { return static_cast<Merge&>(*parts[r]); };
    const auto gathered = [&]<size_t I>(std::integral_constant<size_t, I>) {
      std::vector<std::decay_t<std::tuple_element_t<I, decltype(args_)>>> all;
      for (size_t r = 0; r < parts.size(); ++r) all.push_back(std::get<I>(part(r).args_));
      return PerReplica<typename decltype(all)::value_type>(std::move(all));
    };
    const auto call = [&]<size_t... I>(std::index_sequence<I...>) -> decltype(auto) {
      return std::invoke(fn_, strategy, gathered(std::integral_constant<size_t, I>{})...);
    };
    if constexpr (std::is_void_v<Result>) {
      call(std::index_sequence_for<Args...>{});
    } else {
      const auto result = call(std::index_sequence_for<Args...>{});
      for (size_t r = 0; r < parts.size(); ++r) part(r).result_.emplace(Parts::of(result, r));
    }
  }

  // What the function gave this replica.
  auto take() {
    if constexpr (!std::is_void_v<Result>) return std::move(*result_);
  }

 private:
  F& fn_;
  std::tuple<const Args&...> args_;
  std::optional<typename Parts::type> result_;
};

}  // namespace detail
}  // namespace tutti

#pragma GCC visibility pop
