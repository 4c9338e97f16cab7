// SPDX-License-Identifier: Apache-2.0
#include "cluster/job_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace tutti::cluster {

namespace {

// Takes the same time however much of a guess is right.
bool same_secret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  return difference == 0;
}

std::string host_in(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::string in_mib(size_t bytes) { return fmt::format("{:.4g} MiB", double(bytes) / (1 << 20)); }

}  // namespace

void Refusals::add(const std::string& refused) {
  constexpr size_t kMost = 8;
  if (std::ranges::find(refused_, refused) != refused_.end()) return;
  if (refused_.size() == kMost)
    ++more_;
  else
    refused_.push_back(refused);
}

std::string Refusals::text() const {
  return fmt::format("{}{}", fmt::join(refused_, ", "),
                     more_ ? fmt::format(" and {} more", more_) : "");
}

JobState::JobState(const Job& job, const std::string& address, Outlet& outlet, Time now)
    : job_(job),
      host_(host_in(address)),
      outlet_(outlet),
      members_(job.addresses.size()),
      next_heartbeat_(now),
      last_heard_(next_heartbeat_) {}

void JobState::admit(const Hello& hello, Time now) {
  // Checked first, so that a stranger learns nothing else.
  if (!same_secret(hello.token, job_.token)) throw UnauthenticatedError(kWrongToken);
  if (hello.version != job_.version)
    throw FailedPreconditionError(
        fmt::format("the worker runs version {} of Tutti and the service {}; install one version "
                    "everywhere",
                    hello.version, job_.version));
  const int ranks = static_cast<int>(members_.size());
  const int rank = hello.rank;
  if (hello.ranks != ranks)
    throw FailedPreconditionError(
        fmt::format("rank {} belongs to a job of {} ranks and the service to one of {}; start "
                    "all of them with the same list of workers",
                    rank, hello.ranks, ranks));
  if (rank < 0 || rank >= ranks)
    throw InvalidArgumentError(fmt::format("rank {} is not one of the job's {}", rank, ranks));
  if (members_[rank].presence != Presence::absent)
    throw FailedPreconditionError(
        fmt::format("{} has joined before; a restarted worker cannot rejoin: restart the whole job",
                    name(rank)));
  hear(rank, now);
  members_[rank].presence = Presence::here;
}

void JobState::welcome(int rank) {
  outlet_.send(rank, Heartbeat{});
  if (failure_) outlet_.send(rank, *failure_);
}

void JobState::handle(int rank, const ToService& message, Time now) {
  Member& member = members_[rank];
  if (member.presence != Presence::here) return;  // it was dropped and does not know yet
  hear(rank, now);
  if (const auto* const call = std::get_if<Exchange>(&message.body))
    return exchange({rank, message.id, call->timeout, deadline_after(now, call->timeout)}, *call);
  if (const auto* const abort = std::get_if<Abort>(&message.body)) return fail(abort->failure);
  if (const auto* const report = std::get_if<Report>(&message.body)) {
    if (!first_failure_) first_failure_ = report->failure;
    reported_.try_emplace(rank, report->failure);
    return;
  }
  if (const auto* const heartbeat = std::get_if<Heartbeat>(&message.body))
    return take_heartbeat(rank, *heartbeat, now);
  if (std::holds_alternative<Goodbye>(message.body)) leave(rank);
}

void JobState::take_heartbeat(int rank, const Heartbeat& heartbeat, Time now) {
  Member& member = members_[rank];
  // It has missed its speaker, and waits to hear from the service.
  if (std::exchange(member.is_spoken_for, false)) outlet_.send(rank, Heartbeat{});
  if (heartbeat.living.empty()) return;
  member.is_speaker = true;
  for (const int other : heartbeat.living) {
    if (other < 0 || other >= int(members_.size()) || other == rank ||
        members_[other].presence != Presence::here)
      continue;
    hear(other, now);
    members_[other].is_spoken_for = true;
  }
}

void JobState::exchange(const Waiter& waiter, const Exchange& call) {
  if (failure_) return;  // its rank has been told, or will be in a moment
  Member& member = members_[waiter.rank];
  if (const auto shared = std::exchange(member.shared, {});
      shared && member.shared_name == call.name)
    return reply(waiter, {.values = shared});
  const Failure used{waiter.rank, ErrorCode::failed_precondition,
                     fmt::format("exchange \"{}\": {} has come to it before; a name is used once",
                                 call.name, name(waiter.rank))};
  if (const auto found = closed_.find(call.name); found != closed_.end())
    return reply_error(waiter, found->second.value_or(used));
  OpenExchange& open = open_[call.name];
  if (open.values.contains(waiter.rank)) return reply_error(waiter, used);

  open.values[waiter.rank] = call.value;
  open.sharing[waiter.rank] = call.sharing;
  open.waiters.push_back(waiter);
  open.deadline = std::min(open.deadline, waiter.deadline);
  open.bytes += call.value.size();
  if (open.bytes > kLargestTotal)
    return close_exchange(
        call.name,
        Failure{-1, ErrorCode::resource_exhausted,
                fmt::format("exchange \"{}\": the values of {} of {} ranks come to {} together; "
                            "at most {} can be exchanged",
                            call.name, open.values.size(), members_.size(), in_mib(open.bytes),
                            in_mib(kLargestTotal))});
  if (open.values.size() == members_.size()) return close_exchange(call.name, {});
  for (const int rank : left_) fail_what_needs(rank);
}

void JobState::leave(int rank) {
  depart(rank, Presence::left);
  left_.push_back(rank);
  fail_what_needs(rank);
}

void JobState::closed(int rank) {
  if (members_[rank].presence != Presence::here) return;
  depart(rank, Presence::lost);
  fail({rank, ErrorCode::unavailable,
        fmt::format("{} is lost: its connection to the coordination service closed", name(rank))});
}

void JobState::depart(int rank, Presence presence) {
  members_[rank].presence = presence;
  // Those that it has spoken for, perhaps, hear from the service themselves.
  if (std::exchange(members_[rank].is_speaker, false))
    for (Member& member : members_) member.is_spoken_for = false;
}

void JobState::close_exchange(const std::string& name, std::optional<Failure> error) {
  const auto node = open_.extract(name);
  const OpenExchange& open = node.mapped();
  if (error)
    for (const Waiter& waiter : open.waiters) reply_error(waiter, *error);
  else
    reply_values(node.key(), open);
  closed_[node.key()] = std::move(error);
}

void JobState::reply_values(const std::string& name, const OpenExchange& exchange) {
  std::vector<std::string> values;
  std::map<std::string, int> first;  // rank on each host
  for (const auto& [rank, value] : exchange.values) {
    values.push_back(value);
    if (const std::string& host = exchange.sharing.at(rank).host; !host.empty())
      first.try_emplace(host, rank);
  }
  const auto everything = std::make_shared<const std::vector<std::string>>(std::move(values));
  for (const Waiter& waiter : exchange.waiters) {
    const std::string& host = exchange.sharing.at(waiter.rank).host;
    const int holder = host.empty() ? waiter.rank : first.at(host);
    if (holder == waiter.rank) {
      reply(waiter, {.values = everything});
      continue;
    }
    members_[waiter.rank].shared_name = name;
    members_[waiter.rank].shared = everything;
    reply(waiter, {.place = exchange.sharing.at(holder).place});
  }
}

void JobState::fail_what_needs(int rank) {
  for (auto i = open_.begin(); i != open_.end();) {
    const auto open = i++;
    if (!open->second.values.contains(rank))
      close_exchange(open->first,
                     Failure{rank, ErrorCode::unavailable,
                             fmt::format("exchange \"{}\": {} has left the job, and the exchange "
                                         "needs it",
                                         open->first, name(rank))});
  }
}

std::optional<Failure> JobState::first_failure() const {
  std::optional<Failure> failure = first_failure_;
  // Ranks that blame each other are as many at most.
  for (size_t ranks = members_.size();
       failure && failure->code == ErrorCode::deadline_exceeded && ranks > 0; --ranks) {
    const auto own = reported_.find(failure->rank);
    if (own == reported_.end() || own->second.code != ErrorCode::deadline_exceeded) break;
    failure = own->second;
  }
  return failure;
}

void JobState::fail(const Failure& failure) {
  if (!first_failure_) first_failure_ = failure;
  if (failure_) return;
  failure_ = failure;
  open_.clear();
  broadcast(failure);
}

void JobState::hear(int rank, Time now) {
  // All ranks fell silent together and one is back: the others may follow.
  if (now - last_heard_ > silent_after(job_)) forgive(now, now - last_heard_);
  members_[rank].last_heard = last_heard_ = now;
}

void JobState::forgive(Time now, std::chrono::nanoseconds time) {
  for (Member& member : members_) member.last_heard = std::min(now, member.last_heard + time);
  for (auto& [name, open] : open_) {
    for (Waiter& waiter : open.waiters) waiter.deadline += time;
    open.deadline += time;
  }
}

void JobState::tick(Time now) {
  // This process was suspended.
  if (const auto late = now - next_heartbeat_; late > heartbeat_interval(job_)) {
    forgive(now, late);
    last_heard_ = std::min(now, last_heard_ + late);
  }
  lose_the_silent(now);
  send_heartbeats(now);
  fail_what_is_overdue(now);
}

JobState::Time JobState::next_tick() const {
  Time next = next_heartbeat_;
  for (const auto& [name, open] : open_) next = std::min(next, open.deadline);
  return next;
}

void JobState::lose_the_silent(Time now) {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    Member& member = members_[rank];
    if (member.presence != Presence::here || now - member.last_heard < job_.heartbeat_timeout ||
        last_heard_ - member.last_heard < silent_after(job_))  // all fell silent together
      continue;
    const std::string time = in_seconds(job_.heartbeat_timeout);
    if (is_cut_off(now))
      fail({job_.chief_serves ? 0 : -1, ErrorCode::unavailable,
            fmt::format("{}the coordination service has not heard from any other host for {}: the "
                        "network of its own host ({}) is cut off",
                        job_.chief_serves ? name(0) + " is lost: " : "", time, host_)});
    else
      fail({rank, ErrorCode::unavailable,
            fmt::format("{} is lost: the coordination service has not heard from it for {}",
                        name(rank), time)});
    depart(rank, Presence::lost);  // only now, so that fail() tells it, too
    outlet_.drop(rank);
  }
}

bool JobState::is_cut_off(Time now) const {
  std::set<std::string> silent;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const std::string host = host_in(job_.addresses[rank]);
    if (members_[rank].presence != Presence::here || host == host_) continue;
    if (now - members_[rank].last_heard < silent_after(job_)) return false;
    silent.insert(host);
  }
  return silent.size() > 1;
}

void JobState::send_heartbeats(Time now) {
  if (now < next_heartbeat_) return;
  for (int rank = 0; rank < int(members_.size()); ++rank)
    if (members_[rank].presence == Presence::here && !members_[rank].is_spoken_for)
      outlet_.send(rank, Heartbeat{});
  next_heartbeat_ = now + heartbeat_interval(job_);
}

void JobState::fail_what_is_overdue(Time now) {
  for (auto i = open_.begin(); i != open_.end();) {
    const auto open = i++;
    if (open->second.deadline > now) continue;
    const auto late = std::ranges::min_element(open->second.waiters, {}, &Waiter::deadline);
    // If one rank has given up, the exchange cannot complete for the others.
    close_exchange(open->first,
                   Failure{first_missing(open->second), ErrorCode::deadline_exceeded,
                           fmt::format("waited {} at \"{}\" for {}", in_seconds(late->timeout),
                                       open->first, names_of_missing(open->second))});
  }
}

void JobState::reply(const Waiter& waiter, Reply reply) {
  reply.id = waiter.id;
  outlet_.send(waiter.rank, std::move(reply));
}

void JobState::reply_error(const Waiter& waiter, const Failure& error) {
  reply(waiter, {.error = error});
}

void JobState::broadcast(const FromService& message) {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank)
    if (members_[rank].presence == Presence::here) outlet_.send(rank, message);
}

bool JobState::empty() const {
  return std::ranges::none_of(members_,
                              [](const Member& m) { return m.presence == Presence::here; });
}

JobState::Time JobState::quiet_at() const {
  Time last = {};
  for (const Member& member : members_)
    if (member.presence == Presence::here) last = std::max(last, member.last_heard);
  return last + silent_after(job_);
}

std::string JobState::name(int rank) const {
  return fmt::format("rank {} ({})", rank, job_.addresses[rank]);
}

int JobState::first_missing(const OpenExchange& exchange) const {
  int rank = 0;
  while (exchange.values.contains(rank)) ++rank;
  return rank;
}

std::string JobState::names_of_missing(const OpenExchange& exchange) const {
  std::vector<std::string> missing;
  bool absent = false;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    if (exchange.values.contains(rank)) continue;
    missing.push_back(name(rank));
    if (members_[rank].presence != Presence::absent) continue;
    missing.back().insert(missing.back().size() - 1, ", has not joined");
    absent = true;
  }
  return fmt::format(
      "{}{}", fmt::join(missing, ", "),
      absent && !refusals_.empty() ? "; refused meanwhile: " + refusals_.text() : "");
}

}  // namespace tutti::cluster
