// SPDX-License-Identifier: Apache-2.0
#include "strategy/workers.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include "base/fork.h"
#include "group/group_impl.h"
#include "job/job.h"

namespace tutti::detail {

namespace {

std::string task_name(const std::string& type, int id) {
  return fmt::format("/job:{}/task:{}", type, id);
}

Group duplicate(const Group& group) { return group.split(0, group.rank()); }

// How a function ended, as text: empty if all is well.
struct Outcome {
  std::exception_ptr error = {};
  std::string text = {};

  static Outcome of(const std::function<void()>& fn) {
    try {
      fn();
    } catch (const Error& e) {
      return {std::current_exception(), fmt::format("{} {}", int(e.code()), e.what())};
    } catch (const std::exception& e) {
      return {std::current_exception(), fmt::format("{} {}", int(ErrorCode::internal), e.what())};
    }
    return {};
  }
  [[noreturn]] static void rethrow(size_t worker, const std::string& text) {
    throw_error(ErrorCode(std::atoi(text.c_str())),
                fmt::format("worker {}: {}", worker, text.substr(text.find(' ') + 1)));
  }
};

}  // namespace

Roster Roster::from_environment() {
  Roster roster{.membership = cluster::membership_from_environment()};  // which checks TF_CONFIG
  const TFConfigClusterResolver config;
  if (const ClusterSpec cluster = config.cluster_spec()) {
    roster.has_chief = cluster.contains("chief");
    roster.leader = collective_leader(cluster, config.task_type(), *config.task_id());
    roster.own_task = task_name(config.task_type(), *config.task_id());
  } else if (roster.membership) {
    roster.leader = "/job:worker/replica:0/task:0";
    roster.own_task = task_name("worker", roster.membership->rank);
  }
  return roster;
}

Roster Roster::from(const ClusterSpec& cluster, const std::string& task_type,
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

int Roster::size() const {
  return group ? group->size() : membership ? int(membership->addresses.size()) : 1;
}

int Roster::rank_of(const std::string& task_type, int task_id) const {
  const int chiefs = has_chief ? 1 : 0;
  int rank = -1;
  if (task_type == "chief" && task_id < chiefs) rank = task_id;
  if (task_type == "worker" && task_id >= 0) rank = chiefs + task_id;
  if (rank < 0 || rank >= size())
    throw InvalidArgumentError(fmt::format("there is no {} among the {} workers of this job",
                                           task_name(task_type, task_id), size()));
  return rank;
}

void Roster::check_health(int rank) const {
  if (size() == 1) return;
  const std::optional<cluster::Failure> failure = group::job_failure();
  // The ranks of a group may be others than those of the job.
  if (failure && (rank < 0 || failure->rank < 0 || failure->rank == rank || group))
    throw_error(failure->code, failure->text);
}

ConfigProto Roster::updated(const ConfigProto& config) const {
  ConfigProto updated = config;
  updated.scoped_allocator_optimization = true;
  updated.scoped_allocator_enable_op = {"CollectiveReduce"};
  if (leader.empty()) return updated;
  updated.experimental.collective_group_leader = leader;
  updated.device_filters = {own_task};
  return updated;
}

Workers::Workers(const Roster& roster, const CommunicationOptions& options)
    : roster_(roster),
      options_{.timeout = options.timeout},
      group_(roster.group ? duplicate(*roster.group)
                          : group::join_group(roster.membership, "a strategy")),
      size_(group_->size()),
      rank_(group_->rank()) {}

bool Workers::alone() const {
  if (left_)
    throw FailedPreconditionError(
        "the strategy has left its job (experimental_finalize); experimental_initialize joins it "
        "again");
  return size() == 1;
}

const Group& Workers::group() const {
  (void)alone();  // which throws if this worker has left
  return *group_;
}

Group Workers::new_group() const {
  Group group = duplicate(this->group());
  const std::lock_guard lock(mutex_);
  std::erase_if(others_, [](const auto& other) { return other.expired(); });
  others_.push_back(GroupAccess::shared(group));
  return group;
}

Tensor Workers::from_chief(const Tensor& value) const {
  if (alone()) return value;
  const Tensor result = value.clone();
  group_->broadcast(result, 0, options_);
  return result;
}

Value Workers::from_chief(const Value& value) const {
  if (!value.is_sparse()) return from_chief(value.tensor());
  if (alone()) return value;
  // Workers may have different numbers of rows.
  const IndexedSlices& mine = value.slices();
  std::vector<int64_t> rows{mine.values.shape()[0]};
  group_->broadcast(rows, 0, options_);
  const Shape shape = mine.values.shape().with_extent(0, rows[0]);
  const bool chief = rank() == 0;
  const Tensor values =
      chief ? mine.values.clone() : Tensor::empty(shape, mine.dtype(), mine.device());
  const Tensor indices = chief ? mine.indices.to(DType::int64).clone()
                               : Tensor::empty({rows[0]}, DType::int64, mine.device());
  group_->broadcast(values, 0, options_);
  group_->broadcast(indices, 0, options_);
  return IndexedSlices{values, indices, mine.dense_shape};
}

std::string Workers::from_chief(const std::string& text) const {
  if (alone()) return text;
  std::vector<uint64_t> length{text.size()};
  group_->broadcast(length, 0, options_);
  std::vector<uint8_t> bytes(text.begin(), text.end());
  bytes.resize(length[0]);
  group_->broadcast(bytes, 0, options_);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> Workers::from_all(const std::string& text) const {
  if (alone()) return {text};
  const std::vector<int64_t> length{int64_t(text.size())};
  std::vector<int64_t> lengths(static_cast<size_t>(size()));
  group_->all_gather(length, lengths, options_);
  const std::vector<uint8_t> bytes =
      group_->all_gather_uneven(std::vector<uint8_t>(text.begin(), text.end()), options_);
  std::vector<std::string> result;
  auto at = bytes.begin();
  for (const int64_t n : lengths) {
    result.emplace_back(at, at + n);
    at += n;
  }
  return result;
}

void Workers::agree(const char* what, const std::string& text) const {
  if (size() == 1) return;
  const std::vector<std::string> all = from_all(text);
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw InvalidArgumentError(fmt::format(
          "{}: the workers disagree: worker 0 has {}, worker {} {}", what, all[0], r, all[r]));
}

void Workers::on_chief(const std::function<void()>& fn) const {
  if (alone()) return fn();
  const Outcome mine = rank() == 0 ? Outcome::of(fn) : Outcome{};
  const std::string text = from_chief(mine.text);
  if (mine.error) std::rethrow_exception(mine.error);
  if (!text.empty()) Outcome::rethrow(0, text);
}

void Workers::on_all(const std::function<void()>& fn) const {
  if (alone()) return fn();
  const Outcome mine = Outcome::of(fn);
  const std::vector<std::string> all = from_all(mine.text);
  if (mine.error) std::rethrow_exception(mine.error);
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) Outcome::rethrow(r, all[r]);
}

void Workers::abandon(const std::string& why) const {
  if (size() == 1 || !group_ || base::is_forked_child()) return;
  std::string place;
  if (roster_.membership)
    place = fmt::format(" ({})", roster_.membership->addresses[size_t(rank())]);
  const std::string text = fmt::format("worker {}{} gave up: {}", rank(), place, why);
  group::report_failure({rank(), ErrorCode::aborted, text});
  GroupAccess::impl(*group_).backend().poison(ErrorCode::aborted, text);
  const std::lock_guard lock(mutex_);
  for (const auto& other : others_)
    if (const auto group = other.lock()) group->backend().poison(ErrorCode::aborted, text);
}

}  // namespace tutti::detail
