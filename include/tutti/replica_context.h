// ReplicaContext: what a replica function may do with the other replicas.
#pragma once

#include <tutti/reduce_op.h>
#include <tutti/values.h>

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

class ReplicaGroup;

// What one replica asks of all: compared between the replicas, then done once for all by the last
// to come. Slots are one pointer per local replica, to what each brought along.
struct Meeting {
  const char* what;
  const std::type_info& type;  // replicas with another type ask for something else
  bool (*same)(const void* slot, const void* other);
  std::string (*describe)(const void* slot);
  void (*act)(Strategy& strategy, std::span<void* const> slots);
};

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

}  // namespace detail

struct AllReduceOptions {
  // With MEAN: the result is the sum of weight * value over the sum of the weights. A replica of
  // weight 0 contributes nothing, whatever its value. Every replica gives one, or none does. Not
  // negative; not all 0.
  std::optional<double> weight = {};
  CommunicationOptions communication = {};
};

// Handed to a replica function; good until it returns, on its own thread only.
//
// all_reduce, all_gather and merge_call meet the other replicas: every replica must make the same
// calls in the same order. They never hang: where a replica throws, returns, asks for something
// else or does not come in time, every other one gets an error that names it (AbortedError,
// FailedPreconditionError, InvalidArgumentError, DeadlineExceededError).
class ReplicaContext {
 public:
  int replica_id_in_sync_group() const { return replica_id_; }  // over all workers
  int local_replica_id() const { return local_id_; }            // in this process
  int num_replicas_in_sync() const { return num_replicas_; }
  const std::string& device() const { return device_; }
  Strategy& strategy() const { return *strategy_; }

  // This replica's copy of what all replicas' values combine to. A list is reduced as one batch.
  Tensor all_reduce(ReduceOpArg op, const Tensor& value, const AllReduceOptions& options = {});
  IndexedSlices all_reduce(ReduceOpArg op, const IndexedSlices& value,
                           const AllReduceOptions& options = {});
  std::vector<Tensor> all_reduce(ReduceOpArg op, const std::vector<Tensor>& values,
                                 const AllReduceOptions& options = {});
  std::vector<Value> all_reduce(ReduceOpArg op, const std::vector<Value>& values,
                                const AllReduceOptions& options = {});
  // A number. The MEAN of integers is an InvalidArgumentError: make them doubles.
  template <Element T>
  T all_reduce(ReduceOpArg op, T value, const AllReduceOptions& options = {}) {
    return all_reduce(op, Tensor::scalar(value, device_), options).template item<T>();
  }

  // The values of all replicas, one after another along `axis`.
  Tensor all_gather(const Tensor& value, int64_t axis, const CommunicationOptions& options = {});
  std::vector<Tensor> all_gather(const std::vector<Tensor>& values, int64_t axis,
                                 const CommunicationOptions& options = {});

  // Calls fn(strategy, args) once for all replicas, in cross-replica context, when all of them have
  // come; each argument is then a PerReplica with what every replica passed. A PerReplica or
  // Mirrored result is handed out component by component; any other is copied to every replica. The
  // function is replica 0's; all must be of one type.
  template <class F, class... Args>
  auto merge_call(F&& fn, const Args&... args) {
    constexpr bool fits = std::is_invocable_v<F&, Strategy&, const PerReplica<Args>&...>;
    static_assert(
        fits, "merge_call: the function must take a Strategy& and a PerReplica of each argument");
    if constexpr (fits) return merged(std::forward<F>(fn), args...);
  }

 private:
  friend class detail::ReplicaGroup;
  friend class Variable;

  template <class F, class... Args>
  auto merged(F&& fn, const Args&... args) {
    using Result = std::invoke_result_t<F&, Strategy&, const PerReplica<Args>&...>;
    using Component = typename detail::ComponentOf<std::decay_t<Result>>::type;
    constexpr bool is_void = std::is_void_v<Result>;
    struct Slot {
      std::remove_reference_t<F>* fn;
      std::tuple<const Args&...> args;
      std::optional<Component> result;
    } slot{&fn, {args...}, {}};
    const detail::Meeting meeting{
        "merge_call", typeid(Slot), [](const void*, const void*) { return true; },
        [](const void*) { return std::string("a function of type ") + typeid(F).name(); },
        [](Strategy& strategy, std::span<void* const> slots) {
          const auto slot_of = [&](size_t i) { return static_cast<Slot*>(slots[i]); };
          const auto gather = [&]<size_t I>(std::integral_constant<size_t, I>) {
            using Arg = std::decay_t<std::tuple_element_t<I, decltype(Slot::args)>>;
            std::vector<Arg> parts;
            for (size_t r = 0; r < slots.size(); ++r)
              parts.push_back(std::get<I>(slot_of(r)->args));
            return PerReplica<Arg>(std::move(parts));
          };
          const auto call = [&]<size_t... I>(std::index_sequence<I...>)->decltype(auto) {
            return std::invoke(*slot_of(0)->fn, strategy,
                               gather(std::integral_constant<size_t, I>{})...);
          };
          if constexpr (is_void) {
            call(std::index_sequence_for<Args...>{});
          } else {
            const auto result = call(std::index_sequence_for<Args...>{});
            for (size_t r = 0; r < slots.size(); ++r)
              slot_of(r)->result.emplace(detail::ComponentOf<std::decay_t<Result>>::of(result, r));
          }
        }};
    meet(meeting, &slot, {});
    if constexpr (!is_void) return std::move(*slot.result);
  }

  ReplicaContext(Strategy& strategy, detail::ReplicaGroup& group, int local_id, int replica_id,
                 int num_replicas, std::string device)
      : strategy_(&strategy),
        group_(&group),
        local_id_(local_id),
        replica_id_(replica_id),
        num_replicas_(num_replicas),
        device_(std::move(device)) {}

  // Waits for the other replicas and has `meeting` done once. `slot` must stay good until it
  // returns.
  void meet(const detail::Meeting& meeting, void* slot, const CommunicationOptions& options);

  Strategy* strategy_;
  detail::ReplicaGroup* group_;
  int local_id_, replica_id_, num_replicas_;
  std::string device_;
};

// The context of the replica function that this thread is in; outside of any strategy, that of the
// default strategy's only replica. FailedPreconditionError in cross-replica context.
ReplicaContext& get_replica_context();

}  // namespace tutti

#pragma GCC visibility pop
