#include "strategy/workers.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include "group/group_impl.h"
#include "group/job.h"

namespace tutti::strategy {

namespace {

std::string task_name(const std::string& type, int id) {
  return fmt::format("/job:{}/task:{}", type, id);
}

}  // namespace

Cast Cast::from_environment() {
  Cast cast{.membership = cluster::membership_from_environment()};  // which checks TF_CONFIG, too
  const TFConfigClusterResolver config;
  if (const ClusterSpec cluster = config.cluster_spec()) {
    cast.has_chief = cluster.contains("chief");
    cast.leader = collective_leader(cluster, config.task_type(), *config.task_id());
    cast.own_task = task_name(config.task_type(), *config.task_id());
  } else if (cast.membership) {
    cast.leader = "/job:worker/replica:0/task:0";
    cast.own_task = task_name("worker", cast.membership->rank);
  }
  return cast;
}

Cast Cast::from(const ClusterSpec& cluster, const std::string& task_type,
                std::optional<int> task_id) {
  if (!cluster) return {};
  if (task_type.empty() || !task_id)
    throw InvalidArgumentError(
        fmt::format("a cluster was given without {}: which of its tasks is this process? ({})",
                    task_type.empty() ? "task_type" : "task_id", cluster.to_string()));
  return {.membership = cluster::membership_from(cluster, task_type, *task_id),
          .has_chief = cluster.contains("chief"),
          .leader = collective_leader(cluster, task_type, *task_id),
          .own_task = task_name(task_type, *task_id)};
}

int Cast::size() const {
  return group ? group->size() : membership ? int(membership->addresses.size()) : 1;
}

int Cast::rank_of(const std::string& task_type, int task_id) const {
  const int chiefs = has_chief ? 1 : 0;
  int rank = -1;
  if (task_type == "chief" && task_id < chiefs) rank = task_id;
  if (task_type == "worker" && task_id >= 0) rank = chiefs + task_id;
  if (rank < 0 || rank >= size())
    throw InvalidArgumentError(fmt::format("there is no {} among the {} workers of this job",
                                           task_name(task_type, task_id), size()));
  return rank;
}

ConfigProto Cast::updated(const ConfigProto& config) const {
  ConfigProto updated = config;
  updated.scoped_allocator_optimization = true;
  updated.scoped_allocator_enable_op = {"CollectiveReduce"};
  if (leader.empty()) return updated;
  updated.experimental.collective_group_leader = leader;
  updated.device_filters = {own_task};
  return updated;
}

void check_health(int rank) {
  const std::optional<cluster::Failure> failure = group::job_failure();
  if (failure && (rank < 0 || failure->rank < 0 || failure->rank == rank))
    throw_error(failure->code, failure->text);
}

namespace {

Group make_group(const Cast& cast) {
  return cast.group ? cast.group->split(0, cast.group->rank()) : group::join_group(cast.membership);
}

}  // namespace

Workers::Workers(Cast cast) : cast_(std::move(cast)), group_(make_group(cast_)) {}

Group Workers::new_group() {
  Group group = make_group(cast_);
  const std::lock_guard lock(mutex_);
  std::erase_if(others_, [](const auto& other) { return other.expired(); });
  others_.push_back(detail::GroupAccess::shared(group));
  return group;
}

Tensor Workers::from_chief(const Tensor& value) const {
  if (size() == 1) return value;
  const Tensor result = value.clone();
  group_.broadcast(result, 0);
  return result;
}

Value Workers::from_chief(const Value& value) const {
  if (!value.is_sparse()) return from_chief(value.tensor());
  if (size() == 1) return value;
  // Workers may have different numbers of rows.
  const IndexedSlices& mine = value.slices();
  std::vector<int64_t> rows{mine.values.shape()[0]};
  group_.broadcast(rows, 0);
  std::vector<int64_t> extents(mine.values.shape().begin(), mine.values.shape().end());
  extents[0] = rows[0];
  const bool chief = rank() == 0;
  const Tensor values =
      chief ? mine.values.clone() : Tensor::empty(Shape(extents), mine.dtype(), mine.device());
  const Tensor indices = chief ? mine.indices.to(DType::int64).clone()
                               : Tensor::empty({rows[0]}, DType::int64, mine.device());
  group_.broadcast(values, 0);
  group_.broadcast(indices, 0);
  return IndexedSlices{values, indices, mine.dense_shape};
}

std::string Workers::from_chief(const std::string& text) const {
  if (size() == 1) return text;
  std::vector<uint64_t> length{text.size()};
  group_.broadcast(length, 0);
  std::vector<uint8_t> bytes(text.begin(), text.end());
  bytes.resize(length[0]);
  group_.broadcast(bytes, 0);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> Workers::from_all(const std::string& text) const {
  std::vector<int64_t> length{int64_t(text.size())}, lengths(static_cast<size_t>(size()));
  group_.all_gather(length, lengths);
  const std::vector<uint8_t> bytes =
      group_.all_gather_uneven(std::vector<uint8_t>(text.begin(), text.end()));
  std::vector<std::string> result;
  auto at = bytes.begin();
  for (const int64_t n : lengths) {
    result.emplace_back(at, at + n);
    at += n;
  }
  return result;
}

void Workers::on_chief(const std::function<void()>& fn) const {
  if (size() == 1) return fn();
  std::exception_ptr error;
  std::string outcome;  // empty: all is well
  if (rank() == 0) try {
      fn();
    } catch (const Error& e) {
      error = std::current_exception();
      outcome = fmt::format("{} {}", int(e.code()), e.what());
    } catch (const std::exception& e) {
      error = std::current_exception();
      outcome = fmt::format("{} {}", int(ErrorCode::internal), e.what());
    }
  outcome = from_chief(outcome);
  if (error) std::rethrow_exception(error);
  if (!outcome.empty())
    throw_error(ErrorCode(std::atoi(outcome.c_str())),
                fmt::format("worker 0: {}", outcome.substr(outcome.find(' ') + 1)));
}

void Workers::abandon(const std::string& why) const {
  if (size() == 1) return;
  std::string place;
  if (cast_.membership) place = fmt::format(" ({})", cast_.membership->addresses[size_t(rank())]);
  const std::string text = fmt::format("worker {}{} gave up: {}", rank(), place, why);
  detail::GroupAccess::impl(group_).backend().poison(ErrorCode::aborted, text);
  const std::lock_guard lock(mutex_);
  for (const auto& other : others_)
    if (const auto group = other.lock()) group->backend().poison(ErrorCode::aborted, text);
}

}  // namespace tutti::strategy
