// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/error.h>
#include <tutti/strategy.h>
#include <tutti/variable.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "kernels/cast.h"
#include "kernels/gpu.h"
#include "kernels/update.h"
#include "strategy/context.h"
#include "strategy/workers.h"
#include "tensor/tensor_impl.h"

namespace tutti {

using detail::TensorAccess;

namespace {

// All variables, by the memory of their components.
struct Registry {
  std::mutex mutex;
  std::map<const void*, std::weak_ptr<void>> by_memory;
};
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

struct Variable::Impl {
  Impl(const VariableOptions& options, StrategyExtended& extended)
      : name(options.name),
        synchronization(options.synchronization == VariableSynchronization::ON_READ
                            ? VariableSynchronization::ON_READ
                            : VariableSynchronization::ON_WRITE),
        aggregation(options.aggregation),
        trainable(options.trainable.value_or(synchronization != VariableSynchronization::ON_READ)),
        extended(extended),
        count(extended.variables_) {
    ++*count;
  }
  ~Impl() {
    --*count;
    std::lock_guard lock(registry().mutex);
    for (const Tensor& component : components) registry().by_memory.erase(component.const_data());
  }
  Impl(const Impl&) = delete;

  // Makes it known by its components.
  void enlist(const std::shared_ptr<Impl>& self) {
    std::lock_guard lock(registry().mutex);
    for (const Tensor& component : components)
      registry().by_memory[component.const_data()] = std::shared_ptr<void>(self);
  }

  std::string name;
  VariableSynchronization synchronization;
  VariableAggregation aggregation;
  bool trainable;
  StrategyExtended& extended;
  const std::shared_ptr<std::atomic<int>> count;  // of the strategy's variables
  std::vector<Tensor> components;
};

namespace {

// "w_1" and "w" are one name: "_N" at the end of a name, or of a part of it, only keeps names
// apart.
std::string canonical_name(const std::string& name) {
  std::string result;
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t slash = std::min(name.find('/', begin), name.size());
    std::string part = name.substr(begin, slash - begin);
    const size_t digits = part.find_last_not_of("0123456789");
    if (digits != std::string::npos && digits + 1 < part.size() && part[digits] == '_' &&
        digits > 0)
      part.resize(digits);
    result += (begin ? "/" : "") + part;
    begin = slash + 1;
  }
  return result;
}

// The replica function of `strategy` that this thread is in; null if it is in cross-replica or no
// context.
ReplicaContext* replica_of(const Strategy& strategy, const char* what) {
  const strategy::Context& context = strategy::context();
  if (context.strategy && context.strategy != &strategy)
    throw FailedPreconditionError(fmt::format(
        "{}: the variable belongs to another strategy than the one this thread is in", what));
  return context.replica;
}

}  // namespace

std::string_view name(VariableSynchronization synchronization) {
  constexpr std::array<std::string_view, 4> names{"AUTO", "NONE", "ON_WRITE", "ON_READ"};
  if (size_t(synchronization) >= names.size())
    detail::throw_not_a("VariableSynchronization", int(synchronization));
  return names[size_t(synchronization)];
}

Variable Variable::make(const Tensor& initial_value, const VariableOptions& options,
                        StrategyExtended& extended) {
  const std::string what = fmt::format("Variable \"{}\"", options.name);
  if (!initial_value) throw InvalidArgumentError(what + ": the initial value holds nothing");
  if (options.synchronization == VariableSynchronization::NONE)
    throw InvalidArgumentError(
        what + ": synchronization NONE cannot be used; AUTO, ON_WRITE and ON_READ can");
  if (options.aggregation == VariableAggregation::MEAN && !is_floating(initial_value.dtype()))
    throw InvalidArgumentError(
        fmt::format("{}: {} has no mean of its own type, so aggregation MEAN cannot be used", what,
                    tutti::name(initial_value.dtype())));
  const std::vector<std::string>& colocated = strategy::context().colocated_on;
  const auto impl = std::make_shared<Impl>(options, extended);
  extended.workers_->agree(
      "Variable::create",
      fmt::format("\"{}\" ({}{}, {}, {})", options.name, tutti::name(initial_value.dtype()),
                  initial_value.shape().to_string(), tutti::name(impl->synchronization),
                  tutti::name(options.aggregation)));
  const Tensor start = extended.from_chief(initial_value).tensor();
  for (const std::string& device : colocated.empty() ? extended.parameter_devices() : colocated)
    impl->components.push_back(start.clone_to(device));
  impl->enlist(impl);
  return Variable(impl);
}

Variable Variable::create(const Tensor& initial_value, const VariableOptions& options) {
  (void)tutti::name(options.synchronization);  // which throws for what is none
  (void)tutti::name(options.aggregation);
  const strategy::Context& context = strategy::context();
  if (!context.replica) return make(initial_value, options, get_strategy().extended());

  if (!initial_value)
    throw InvalidArgumentError("Variable::create: the initial value holds nothing");
  struct Creation : detail::Meeting {
    Creation(const Tensor& value, const VariableOptions& given)
        : Meeting("Variable::create"), initial_value(value), options(given) {}

    bool agrees_with(const Meeting& part) const override {
      const auto& other = static_cast<const Creation&>(part);
      return options.synchronization == other.options.synchronization &&
             options.aggregation == other.options.aggregation &&
             initial_value.dtype() == other.initial_value.dtype() &&
             initial_value.shape() == other.initial_value.shape();
    }

    std::string describe() const override {
      return fmt::format("\"{}\", {}{}, {}, {}", options.name, tutti::name(initial_value.dtype()),
                         initial_value.shape().to_string(), tutti::name(options.synchronization),
                         tutti::name(options.aggregation));
    }

    void act(Strategy& strategy, std::span<Meeting* const> parts) override {
      const auto part = [&](size_t r) -> Creation& { return static_cast<Creation&>(*parts[r]); };
      for (size_t r = 1; r < parts.size(); ++r)
        if (canonical_name(part(r).options.name) != canonical_name(options.name))
          throw FailedPreconditionError(
              fmt::format("Variable::create: replica 0 makes \"{}\" where replica {} makes "
                          "\"{}\"; replicas must make "
                          "the same variables in the same order",
                          options.name, r, part(r).options.name));
      const Variable variable = make(initial_value, options, strategy.extended());
      for (size_t r = 0; r < parts.size(); ++r) part(r).result = variable;
    }

    const Tensor& initial_value;
    const VariableOptions& options;
    std::optional<Variable> result = {};
  } part(initial_value, options);
  context.replica->meet(part);
  return *part.result;
}

const std::string& Variable::name() const { return impl_->name; }
DType Variable::dtype() const { return impl_->components[0].dtype(); }
const Shape& Variable::shape() const { return impl_->components[0].shape(); }
bool Variable::trainable() const { return impl_->trainable; }
VariableSynchronization Variable::synchronization() const { return impl_->synchronization; }
VariableAggregation Variable::aggregation() const { return impl_->aggregation; }
Strategy& Variable::strategy() const { return *impl_->extended.strategy_; }
size_t Variable::size() const { return impl_->components.size(); }

std::vector<std::string> Variable::devices() const {
  std::vector<std::string> names;
  for (const Tensor& component : impl_->components) names.push_back(component.device());
  return names;
}

const Tensor& Variable::component(size_t i) const {
  if (i >= size()) detail::throw_component_out_of_range(i, size());
  return impl_->components[i];
}

Variable::operator Destinations() const { return PerReplica<Tensor>(impl_->components); }

Variable Variable::clone() const {
  replica_of(strategy(), "clone");
  const auto copy = std::make_shared<Impl>(VariableOptions{.name = name(),
                                                           .synchronization = synchronization(),
                                                           .aggregation = aggregation(),
                                                           .trainable = trainable()},
                                           impl_->extended);
  for (const Tensor& component : impl_->components) copy->components.push_back(component.clone());
  copy->enlist(copy);
  return Variable(copy);
}

std::optional<Variable> StrategyExtended::value_container(const Tensor& component) const {
  std::shared_ptr<void> found;
  {
    std::lock_guard lock(registry().mutex);
    if (const auto entry = registry().by_memory.find(component.const_data());
        entry != registry().by_memory.end())
      found = entry->second.lock();
  }
  if (!found) return {};
  const Variable variable(std::static_pointer_cast<Variable::Impl>(found));
  if (!variable_created_in_scope(variable)) return {};
  return variable;
}

Tensor Variable::read_value() const {
  if (const ReplicaContext* replica = replica_of(strategy(), "read_value"))
    return component(size_t(replica->local_replica_id()) % size()).clone();
  if (synchronization() == VariableSynchronization::ON_READ) {
    if (aggregation() == VariableAggregation::NONE)
      throw InvalidArgumentError(
          fmt::format("read_value: the variable \"{}\" is synchronised on read and has aggregation "
                      "NONE, so it has no "
                      "value outside of a replica function",
                      name()));
    if (aggregation() != VariableAggregation::ONLY_FIRST_REPLICA)
      return impl_->extended.ops_->reduce(
          reduce_op(aggregation()), PerReplica<Tensor>(impl_->components), current_device())[0];
    return impl_->extended.from_chief(component(0)).tensor().clone_to(current_device());
  }
  return component(detail::component_on_current_device(devices())).clone();
}

namespace {

// What each of n replicas gets of an integer, so that it is their sum.
Tensor share_of_integer(const Tensor& value, size_t replica, int n) {
  const Tensor share = value.clone_to(host_of(value.device()));
  kernels::with_type(value.dtype(), [&]<class T>(T*) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      for (T& x : share.span<T>()) {
        const auto rest = int64_t(__int128(x) % n);
        const int more = int64_t(replica) < std::abs(rest) ? (rest < 0 ? -1 : 1) : 0;
        x = T(__int128(x) / n + more);
      }
  });
  return share;
}

}  // namespace

// component[i] = component[i] op value, element by element or row by row. What can fail has been
// checked.
void Variable::apply(Update update, const Value& value, size_t i) const {
  const Tensor& target = component(i);
  detail::Device& device = TensorAccess::device(target);
  const Tensor& given = value.is_sparse() ? value.slices().values : value.tensor();
  if (update == Update::assign && !value.is_sparse())
    return detail::copy_runs(device, target.data(), target.num_bytes(), TensorAccess::device(given),
                             given.const_data(), given.num_bytes(), target.num_bytes(), 1);
  const Tensor source = detail::within_reach(given, device);
  std::vector<int64_t> rows{0};
  int64_t width = target.num_elements();
  if (value.is_sparse()) {
    rows = value.slices().indices.to(DType::int64).to_vector<int64_t>();
    width = shape()[0] ? target.num_elements() / shape()[0] : 0;
  }
  const auto kind = kernels::Update(update);
  if (device.gpu() >= 0) {
    if (value.is_sparse())
      kernels::gpu::update_rows(device.gpu(), kind, dtype(), target.data(), source.const_data(),
                                width, rows);
    else
      kernels::gpu::update(device.gpu(), kind, dtype(), target.data(), source.const_data(), width);
    return;
  }
  kernels::with_type(dtype(), [&]<class T>(T*) {
    using Acc =
        std::conditional_t<std::is_class_v<T>, float, T>;  // the 16-bit floats compute in 32
    const T* const from = source.span<const T>().data();
    T* const to = target.span<T>().data();
    for (size_t r = 0; r < rows.size(); ++r)
      for (int64_t j = 0; j < width; ++j) {
        T& x = to[rows[r] * width + j];
        x = T(kernels::updated<Acc>(kind, Acc(x), Acc(from[int64_t(r) * width + j])));
      }
  });
}

void Variable::check(const char* what, Update update, const Value& value) const {
  const auto fail = [&](const std::string& why) {
    throw InvalidArgumentError(fmt::format("{}: the variable \"{}\" {}", what, name(), why));
  };
  const Tensor& source = value.is_sparse() ? value.slices().values : value.tensor();
  if (!source) fail("got a value that holds nothing");
  if (source.dtype() != dtype())
    fail(fmt::format("is {} and got {}", tutti::name(dtype()), tutti::name(source.dtype())));
  if (value.is_sparse()) {
    if (synchronization() == VariableSynchronization::ON_READ)
      throw UnimplementedError(fmt::format(
          "{}: the variable \"{}\" is synchronised on read and takes no scatter updates", what,
          name()));
    const bool commutes =
        update != Update::min && update != Update::max && update != Update::assign;
    if (!commutes &&
        (aggregation() == VariableAggregation::SUM || aggregation() == VariableAggregation::MEAN))
      throw UnimplementedError(
          fmt::format("{}: not defined for the variable \"{}\" with aggregation {}; it is for "
                      "ONLY_FIRST_REPLICA and NONE",
                      what, name(), tutti::name(aggregation())));
    value.slices().validate(what);
    const Shape &got = source.shape(), &mine = shape();
    if (got.rank() != mine.rank() || mine.rank() == 0 ||
        !std::equal(got.begin() + 1, got.end(), mine.begin() + 1))
      fail(fmt::format("has shape {} and got rows of shape {}", mine.to_string(), got.to_string()));
    for (const int64_t row : value.slices().indices.to(DType::int64).to_vector<int64_t>())
      if (row < 0 || row >= mine[0])
        fail(fmt::format("has shape {} and no row {}", mine.to_string(), row));
  } else if (!(source.shape() == shape())) {
    fail(fmt::format("has shape {} and got a value of shape {}", shape().to_string(),
                     source.shape().to_string()));
  }
  if (update == Update::div && !is_floating(dtype()))
    for (const double x : source.to(DType::float64).to_vector<double>())
      if (x == 0) fail("cannot be divided by 0");

  if (dtype() == DType::boolean && update != Update::assign)
    fail("is bool, which can only be assigned");
}

void Variable::write(const char* what, Update update, const Value& value) const {
  check(what, update, value);
  const Tensor& source = value.is_sparse() ? value.slices().values : value.tensor();
  // A component of this very variable changes while it is read.
  for (const Tensor& mine : impl_->components)
    if (mine.const_data() == source.const_data() && (value.is_sparse() || update != Update::assign))
      return write(what, update,
                   value.is_sparse() ? Value(IndexedSlices{source.clone(), value.slices().indices,
                                                           value.slices().dense_shape})
                                     : Value(source.clone()));

  if (replica_of(strategy(), what)) return write_in_replica(what, update, value);

  if (synchronization() == VariableSynchronization::ON_READ &&
      aggregation() == VariableAggregation::SUM) {
    if (update != Update::assign)
      throw InvalidArgumentError(
          fmt::format("{}: the variable \"{}\" is a sum that is synchronised on read: outside of a "
                      "replica function only assign is defined, not assign_add or assign_sub",
                      what, name()));
    // Shared out, so that reading gives it back.
    const int replicas = impl_->extended.num_replicas_in_sync();
    for (size_t i = 0; i < size(); ++i) {
      if (is_integer(dtype())) {
        apply(update,
              share_of_integer(value.tensor(), size_t(impl_->extended.replica_ids()[0]) + i,
                               replicas),
              i);
        continue;
      }
      const Tensor share = value.tensor().to(DType::float64);
      detail::scale(share, double(replicas), true);
      apply(update, share.to(dtype()), i);
    }
    return;
  }
  for (size_t i = 0; i < size(); ++i) apply(update, value, i);
}

void Variable::write(const char* what, Update update, const Mirrored<Tensor>& value) const {
  if (replica_of(strategy(), what)) return write(what, update, Value(value.get()));
  if (value.size() != size())
    throw InvalidArgumentError(fmt::format("{}: the variable \"{}\" has {} components and got {}",
                                           what, name(), size(), value.size()));
  if (synchronization() == VariableSynchronization::ON_READ)
    return write(what, update, Value(value[0]));
  for (size_t i = 0; i < size(); ++i)
    if (!(value[i].shape() == shape()) || value[i].dtype() != dtype() || dtype() == DType::boolean)
      return write(what, update, Value(value[i]));  // which says what is wrong with it
  // Components of this very variable may be among the values, in another order.
  const Mirrored<Tensor> copies = value.map([](const Tensor& t) { return t.clone(); });
  for (size_t i = 0; i < size(); ++i) apply(update, copies[i], i);
}

void Variable::write(const char* what, Update update, const PerReplica<Tensor>& value) const {
  if (replica_of(strategy(), what)) return write(what, update, Value(value.get()));
  if (value.size() != impl_->extended.worker_devices().size())
    throw InvalidArgumentError(
        fmt::format("{}: the variable \"{}\" is of {} replicas and got values of {}", what, name(),
                    impl_->extended.worker_devices().size(), value.size()));
  // Components of this very variable may be among the values.
  std::vector<Value> copies;
  for (const Tensor& part : value) {
    check(what, update, part);
    copies.emplace_back(part.clone());
  }
  if (synchronization() == VariableSynchronization::ON_WRITE &&
      aggregation() != VariableAggregation::NONE)
    return write_aggregate(update, PerReplica<Value>(std::move(copies)));
  for (size_t i = 0; i < copies.size(); ++i) apply(update, copies[i], i % size());
}

void Variable::write_aggregate(Update update, const PerReplica<Value>& values) const {
  StrategyExtended& extended = impl_->extended;
  const Destinations devices = *this;
  Mirrored<Value> result;
  if (aggregation() == VariableAggregation::ONLY_FIRST_REPLICA) {
    result = extended.broadcast_to(extended.from_chief(values[0]), devices);
  } else {
    // Rows that no replica names must stay out of it: they would be multiplied by 0, too.
    CommunicationOptions options = extended.options_;
    options.sparse_as_dense = false;
    result = extended.ops_->reduce(reduce_op(aggregation()), values, devices, options);
  }
  for (size_t i = 0; i < size(); ++i) apply(update, result[i], i);
}

void Variable::write_in_replica(const char* what, Update update, const Value& value) const {
  ReplicaContext& context = get_replica_context();
  const auto local = size_t(context.local_replica_id()) % size();
  if (synchronization() == VariableSynchronization::ON_READ ||
      aggregation() == VariableAggregation::NONE)
    return apply(update, value, local);

  struct Aggregation : detail::Meeting {
    Aggregation(const Variable& target, const char* what, Update kind, const Value& given)
        : Meeting(what), variable(target), update(kind), value(given) {}

    bool agrees_with(const Meeting& part) const override {
      const auto& other = static_cast<const Aggregation&>(part);
      return variable == other.variable && update == other.update &&
             value.is_sparse() == other.value.is_sparse();
    }

    std::string describe() const override {
      return fmt::format("{} of \"{}\"", what(), variable.name());
    }

    void act(Strategy&, std::span<Meeting* const> parts) override {
      std::vector<Value> values;
      for (const Meeting* part : parts)
        values.push_back(static_cast<const Aggregation*>(part)->value);
      variable.write_aggregate(update, PerReplica<Value>(std::move(values)));
    }

    const Variable& variable;
    const Update update;
    const Value& value;
  } part(*this, what, update, value);
  context.meet(part);
}

void Variable::assign(const Tensor& value) const { write("assign", Update::assign, Value(value)); }
void Variable::assign_add(const Tensor& value) const {
  write("assign_add", Update::add, Value(value));
}
void Variable::assign_sub(const Tensor& value) const {
  write("assign_sub", Update::sub, Value(value));
}
void Variable::assign(const Mirrored<Tensor>& value) const {
  write("assign", Update::assign, value);
}
void Variable::assign_add(const Mirrored<Tensor>& value) const {
  write("assign_add", Update::add, value);
}
void Variable::assign_sub(const Mirrored<Tensor>& value) const {
  write("assign_sub", Update::sub, value);
}
void Variable::assign(const PerReplica<Tensor>& value) const {
  write("assign", Update::assign, value);
}
void Variable::assign_add(const PerReplica<Tensor>& value) const {
  write("assign_add", Update::add, value);
}
void Variable::assign_sub(const PerReplica<Tensor>& value) const {
  write("assign_sub", Update::sub, value);
}
void Variable::scatter_add(const IndexedSlices& s) const {
  write("scatter_add", Update::add, Value(s));
}
void Variable::scatter_sub(const IndexedSlices& s) const {
  write("scatter_sub", Update::sub, Value(s));
}
void Variable::scatter_mul(const IndexedSlices& s) const {
  write("scatter_mul", Update::mul, Value(s));
}
void Variable::scatter_div(const IndexedSlices& s) const {
  write("scatter_div", Update::div, Value(s));
}
void Variable::scatter_min(const IndexedSlices& s) const {
  write("scatter_min", Update::min, Value(s));
}
void Variable::scatter_max(const IndexedSlices& s) const {
  write("scatter_max", Update::max, Value(s));
}
void Variable::scatter_update(const IndexedSlices& s) const {
  write("scatter_update", Update::assign, Value(s));
}

}  // namespace tutti
