// SPDX-License-Identifier: Apache-2.0
// The failure contract, as docs/failures.md has it, checked on a trial whose faults are known.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/settings.h"
#include "sim/trial.h"

namespace tutti::sim {

namespace {

using namespace std::chrono_literals;
using Kind = Operation::Kind;

// What the contract calls "within a second", with the time to notice and to report.
constexpr nanoseconds kWithinASecond = 1s + 200ms;
// The same for the loss of the service, which takes two seconds.
constexpr nanoseconds kServiceMissed = 2s + 200ms;
// How long after a deadline a rank may fail, since other ranks fail first.
constexpr nanoseconds kBeyondDeadline = 1s + 300ms;
// The time in which an error of one rank reaches the others of its group.
constexpr nanoseconds kPublished = 500ms;
// An operation that all ranks have come to takes less than the time between two polls, which would
// hide a wake-up that was missed.
constexpr nanoseconds kWithoutAPoll = 15ms;
// The time to leave: for the last messages, the service, and ranks that the chief stays for.
constexpr nanoseconds kLeaving = 8s;

double ms(nanoseconds time) { return double(time.count()) / 1e6; }

const char* code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "InvalidArgumentError";
    case ErrorCode::unavailable: return "UnavailableError";
    case ErrorCode::deadline_exceeded: return "DeadlineExceededError";
    case ErrorCode::aborted: return "AbortedError";
    case ErrorCode::internal: return "InternalError";
    default: return "another error";
  }
}

class Judge {
 public:
  explicit Judge(const Trial& trial) : trial_(trial), schedule_(trial.schedule) {
    for (size_t f = 0; f < faults().size(); ++f) {
      const Fault& fault = faults()[f];
      if (!trial_.injected[f]) continue;
      if (fault.is_harmless()) {
        is_disturbed_ = true;
        if (fault.lasts != nanoseconds::max()) extra_ += fault.lasts;
        if (fault.kind == Fault::Kind::late || fault.kind == Fault::Kind::compute)
          extra_ += fault.after;
        if (fault.kind == Fault::Kind::slow) extra_ += 2s;
      } else {
        lethal_.push_back(f);
        is_cut_ |= fault.kind == Fault::Kind::cut_off || fault.kind == Fault::Kind::mute ||
                   fault.kind == Fault::Kind::deafen || fault.kind == Fault::Kind::part;
        is_suspended_ |= fault.kind == Fault::Kind::suspend;
      }
    }
  }

  std::vector<std::string> judge() {
    for (int rank = 0; rank < schedule_.size(); ++rank) {
      check_ending(rank);
      check_results(rank);
      check_errors(rank);
      check_times(rank);
    }
    check_published();
    if (lethal_.empty() && !is_disturbed_) check_wake_ups();
    check_leaks();
    return std::move(violations_);
  }

 private:
  const std::vector<Fault>& faults() const { return schedule_.faults; }
  const Story& story(int rank) const { return trial_.ranks[size_t(rank)]; }
  const Operation& operation(const Call& call) const {
    return schedule_.operations[call.operation];
  }
  template <class... T>
  void violated(fmt::format_string<T...> text, T&&... values) {
    violations_.push_back(fmt::format(text, std::forward<T>(values)...));
  }

  const Call* call_of(int rank, size_t k) const {
    for (const Call& call : story(rank).calls)
      if (call.operation == k) return &call;
    return nullptr;
  }
  bool is_member(int rank, int of, size_t k) const {
    const std::vector<int> members = schedule_.members(of, k);
    return std::ranges::find(members, rank) != members.end();
  }
  std::string address(int rank) const {
    return fmt::format("host{}:{}", schedule_.hosts[size_t(rank)], 5000 + rank);
  }
  std::string service() const { return schedule_.chief_serves ? address(0) : "host0:4000"; }
  static std::string head_of(const std::string& error) {
    return error.substr(0, error.find("\n  the last operations of rank"));
  }
  bool names(const std::string& text, int rank) const {
    const std::string name = address(rank);
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1))
      if (!isdigit(text[at + name.size()])) return true;
    return false;
  }
  // Whether the first rank or host that the text names is this host, or on it.
  static bool accuses_host(const std::string& text, int host) {
    size_t at = text.find("host");
    while (at != text.npos && !isdigit(text[at + 4])) at = text.find("host", at + 1);
    const std::string rest = at == text.npos ? "" : text.substr(at);
    return rest.starts_with(fmt::format("host{}:", host)) ||
           rest.starts_with(fmt::format("host{})", host));
  }

  // Whether the rank was suspended long enough that others must notice.
  bool is_held(int rank) const {
    return std::ranges::any_of(lethal_, [&](size_t f) {
      return faults()[f].kind == Fault::Kind::suspend && faults()[f].rank == rank;
    });
  }

  void check_ending(int rank) {
    const Story& s = story(rank);
    if (s.ending == Story::Ending::none) {
      const Call* const last = s.calls.empty() ? nullptr : &s.calls.back();
      violated("rank {} still runs after {:.0f} s{}", rank, ms(trial_.time) / 1e3,
               !s.joined                ? ", and has not joined"
               : s.done                 ? ", while it leaves"
               : !last || last->is_over ? ""
                                        : fmt::format(", in #{}", last->operation));
    }
    if (s.ending == Story::Ending::left && s.done && lethal_.empty() && s.code)
      violated("rank {} fails, and nothing that could make it fail was done: {}", rank, s.error);
    if (s.ending == Story::Ending::left && !s.joined && lethal_.empty())
      violated("rank {} does not join, and nothing that could prevent it was done: {}", rank,
               s.error);
    if (s.code && *s.code == ErrorCode::internal)
      violated("rank {} fails by something that is no error of Tutti: {}", rank, s.error);
  }

  // Whether the result of `rank` needs data from `on`.
  bool depends(int rank, int on, size_t k) const {
    const Operation& o = schedule_.operations[k];
    const std::vector<int> members = schedule_.members(rank, k);
    const int n = int(members.size());
    const int root = members[size_t(o.root % n)];
    if (rank == on || std::ranges::find(members, on) == members.end()) return false;
    switch (o.kind) {
      case Kind::barrier:
      case Kind::split:
      case Kind::duplicate: return true;
      case Kind::all_gather_uneven: return true;
      case Kind::all_reduce:
      case Kind::all_reduce_list:
      case Kind::all_gather:
      case Kind::reduce_scatter:
      case Kind::all_to_all: return o.count > 0;
      case Kind::reduce:
      case Kind::gather: return o.count > 0 && rank == root;
      case Kind::broadcast:
      case Kind::scatter: return o.count > 0 && on == root;
      case Kind::message: {
        const int to = o.peer % n == o.root % n ? (o.root + 1) % n : o.peer % n;
        return n > 1 && on == root && rank == members[size_t(to)];
      }
    }
    return false;
  }

  bool is_mismatched(int rank, size_t k) const {
    return std::ranges::any_of(lethal_, [&](size_t f) {
      const Fault& fault = faults()[f];
      return fault.kind == Fault::Kind::mismatch && fault.rank == rank && fault.operation == int(k);
    });
  }
  // Whether the rank has left out an operation before: its later ones then meet other operations of
  // its peers.
  bool has_skipped(int rank, size_t k) const {
    return std::ranges::any_of(lethal_, [&](size_t f) {
      const Fault& fault = faults()[f];
      return fault.kind == Fault::Kind::skip && fault.rank == rank && fault.operation < int(k);
    });
  }

  void check_results(int rank) {
    for (const Call& call : story(rank).calls) {
      if (!call.is_over || call.code || is_mismatched(rank, call.operation) ||
          has_skipped(rank, call.operation))
        continue;
      for (int other = 0; other < schedule_.size(); ++other) {
        if (!depends(rank, other, call.operation)) continue;
        const Call* const theirs = call_of(other, call.operation);
        if (!theirs || theirs->began > call.ended)
          violated("rank {} is done with #{} without rank {}, which had not come to it", rank,
                   call.operation, other);
        else if (is_mismatched(other, call.operation))
          violated("rank {} is done with #{}, in which rank {} called something else", rank,
                   call.operation, other);
      }
      if (call.result != expected(call.operation, rank))
        violated("rank {} has a wrong result of #{} ({})", rank, call.operation,
                 operation(call).to_string());
    }
  }

  uint64_t expected(size_t k, int rank) {
    const Operation& o = schedule_.operations[k];
    const bool is_alike = o.kind == Kind::all_reduce || o.kind == Kind::all_reduce_list ||
                          o.kind == Kind::broadcast || o.kind == Kind::all_gather ||
                          o.kind == Kind::all_gather_uneven;
    if (!is_alike) return expected_result(schedule_, k, rank);
    const int color = o.on == Operation::On::part ? schedule_.color(rank, k) : 0;
    const auto [found, is_new] = expected_.try_emplace({k, color});
    if (is_new) found->second = expected_result(schedule_, k, rank);
    return found->second;
  }

  // Whether a suspended chief looks to `rank` like a cut network: the chief is the only rank on
  // another host, and runs the service.
  bool is_indistinct(int stopped, int rank) const {
    if (stopped != 0 || !schedule_.chief_serves) return false;
    for (int r = 1; r < schedule_.size(); ++r)
      if (schedule_.hosts[size_t(r)] != schedule_.hosts[size_t(rank)]) return false;
    return schedule_.hosts[0] != schedule_.hosts[size_t(rank)];
  }

  // The number of hosts with ranks that had not left.
  size_t hosts_at(nanoseconds time) const {
    std::set<int> hosts;
    for (int rank = 0; rank < schedule_.size(); ++rank)
      if (!story(rank).done || *story(rank).done > time)
        hosts.insert(schedule_.hosts[size_t(rank)]);
    return hosts.size();
  }

  // Whether the chief has left, and the service with it. It stays for the others, but not for long.
  bool is_chief_gone(nanoseconds at) const {
    const Story& chief = story(0);
    return schedule_.chief_serves && chief.ending == Story::Ending::left && chief.ended <= at;
  }

  // Whether a fault explains an error of this rank; `k`: its call, or none while it joins.
  bool explains(size_t number, int rank, std::optional<size_t> k, nanoseconds at, ErrorCode code,
                const std::string& text) const {
    const Fault& f = faults()[number];
    const bool is_unavailable = code == ErrorCode::unavailable;
    const bool is_late = code == ErrorCode::deadline_exceeded;
    switch (f.kind) {
      case Fault::Kind::kill:
        if (f.rank == 0 && schedule_.chief_serves && is_late && !story(rank).joined)
          return text.find(service()) != text.npos;
        return names(text, f.rank) && (is_unavailable || (is_late && !story(f.rank).joined));
      case Fault::Kind::kill_service:
        return text.find(service()) != text.npos &&
               (is_unavailable || (is_late && !story(rank).joined));
      case Fault::Kind::suspend_service:
        return text.find(service()) != text.npos &&
               ((is_unavailable && f.lasts >= schedule_.heartbeat_timeout) ||
                (is_late && !story(rank).joined));
      case Fault::Kind::suspend:
        // Its peers may have left when it comes back.
        if (f.rank == rank) return is_unavailable || is_late || code == ErrorCode::aborted;
        if (is_indistinct(f.rank, rank) && is_unavailable &&
            text.find("the network of its own host") != text.npos)
          return true;
        return names(text, f.rank) &&
               (is_late || (is_unavailable && f.lasts >= schedule_.heartbeat_timeout));
      case Fault::Kind::cut_off:
      case Fault::Kind::mute:
      case Fault::Kind::deafen:
        if (!is_late && !is_unavailable) return false;
        // Ranks that are still joining know only the service.
        if (!k) return text.find("host") != text.npos;
        // It takes two and a half heartbeats to miss the service.
        if (schedule_.timeout < 2500ms) return text.find("host") != text.npos;
        return hosts_at(at) < 3 ? text.find("host") != text.npos : accuses_host(text, f.host);
      case Fault::Kind::part:
        if (!is_late && !is_unavailable) return false;
        return accuses_host(text, f.host) || accuses_host(text, f.other);
      case Fault::Kind::absent: return is_late && names(text, f.rank);
      case Fault::Kind::mismatch:
      case Fault::Kind::skip:
        return code == ErrorCode::invalid_argument && names(text, f.rank) &&
               text.find(" calls ") != text.npos;
      case Fault::Kind::leave:
        if (code == ErrorCode::aborted)
          return text.find("left the group while an operation was under way") != text.npos;
        return f.rank != rank && is_unavailable && names(text, f.rank);
      case Fault::Kind::abort:
        return code == ErrorCode::aborted &&
               text.find(fmt::format("rank {} failed: bad pixel in image 42", f.rank)) != text.npos;
      case Fault::Kind::suspend_all:
      case Fault::Kind::slow:
      case Fault::Kind::late:
      case Fault::Kind::compute: return false;
    }
    return false;
  }

  // Whether the error names a rank that failed in another group. Its peers in this group wait for
  // it, until it ends.
  bool explains_by_another(int rank, std::optional<size_t> k, nanoseconds at, ErrorCode code,
                           const std::string& text) const {
    const bool is_late = code == ErrorCode::deadline_exceeded;
    if (code != ErrorCode::unavailable && !is_late) return false;
    for (int other = 0; other < schedule_.size(); ++other) {
      const Story& s = story(other);
      if (other == rank || !names(text, other)) continue;
      if (!is_late && (!s.done || *s.done > at)) continue;
      for (const Call& call : s.calls)
        if (call.code && call.began <= at &&
            (!k || group_of(other, call.operation) != group_of(rank, *k)))
          return true;
    }
    return false;
  }

  // What tells one group of the trial from another.
  using GroupKey = std::tuple<Operation::On, size_t, int>;
  GroupKey group_of(int rank, size_t k) const {
    const Operation& o = schedule_.operations[k];
    if (o.kind == Kind::duplicate) return {Operation::On::duplicate, k, -1};
    if (o.on == Operation::On::world) return {o.on, 0, 0};
    const Kind maker = o.on == Operation::On::part ? Kind::split : Kind::duplicate;
    size_t made = k;
    while (made > 0 && schedule_.operations[made].kind != maker) --made;
    return {o.on, made, o.on == Operation::On::part ? schedule_.color(rank, k) : 0};
  }

  // Whether the text reports a rank as dead that left. Such a rank has announced that it leaves.
  bool takes_for_dead(const std::string& text) const {
    if (is_cut_) return false;
    for (const char* const words : {"the connection to rank ", "has died (process"}) {
      const size_t at = text.find(words);
      if (at == text.npos) continue;
      const std::string sentence = text.substr(0, text.find(';'));
      for (int rank = 0; rank < schedule_.size(); ++rank)
        if (names(sentence, rank) && story(rank).ending == Story::Ending::left) return true;
    }
    return false;
  }

  void check_error(int rank, std::optional<size_t> k, nanoseconds at, ErrorCode code,
                   const std::string& error, const char* what) {
    const std::string text = head_of(error);
    if (lethal_.empty()) return;  // see check_ending
    if (!is_held(rank) && takes_for_dead(text))
      violated("rank {} {} an error that takes a rank for dead that has left: {}", rank, what,
               text);
    for (const size_t f : lethal_)
      if (*trial_.injected[f] <= at && explains(f, rank, k, at, code, text)) return;
    if (is_chief_gone(at) && text.find(service()) != text.npos) return;
    const bool is_local = std::ranges::any_of(lethal_, [&](size_t f) {
      const Fault::Kind kind = faults()[f].kind;
      // A death fails only the groups that the rank is in.
      if ((kind == Fault::Kind::kill || kind == Fault::Kind::abort) && k)
        return !is_member(faults()[f].rank, rank, *k);
      return kind == Fault::Kind::mismatch || kind == Fault::Kind::skip ||
             kind == Fault::Kind::suspend || kind == Fault::Kind::leave ||
             kind == Fault::Kind::part || kind == Fault::Kind::cut_off ||
             kind == Fault::Kind::mute || kind == Fault::Kind::deafen;
    });
    if (is_local && explains_by_another(rank, k, at, code, text)) return;
    violated("rank {} {} an error that does not name the cause: {}: {}", rank, what,
             code_name(code), text);
  }

  void check_errors(int rank) {
    const Story& s = story(rank);
    if (s.code && !s.joined) check_error(rank, {}, s.ended, *s.code, s.error, "joins with");
    for (const Call& call : s.calls)
      if (call.code)
        check_error(rank, call.operation, call.ended, *call.code, call.error,
                    fmt::format("gets in #{}", call.operation).c_str());
    if (!s.again || !s.again->is_over) return;
    if (!s.again->code)
      violated("rank {}: the group of #{} has failed, and a later call goes well", rank,
               s.again->operation);
    else
      check_error(rank, s.again->operation, s.again->ended, *s.again->code, s.again->error,
                  "gets in a later call");
    // If a group cannot be made, the other groups go on, so a later call may wait.
    const bool is_new = operation(*s.again).kind == Kind::duplicate;
    if (s.again->ended - s.again->began > kPublished && !is_held(rank) && !is_new)
      violated("rank {}: a later call waits for {:.0f} ms", rank,
               ms(s.again->ended - s.again->began));
  }

  nanoseconds timeout_of(const Operation& o) const {
    const base::Settings& settings = base::settings();
    if (o.kind == Kind::split) return 2 * settings.timeout;
    if (o.kind == Kind::duplicate) return settings.join_timeout + schedule_.heartbeat_timeout;
    return o.kind == Kind::all_gather_uneven ? 2 * schedule_.timeout : schedule_.timeout;
  }

  // When a call that began at this time must be over.
  nanoseconds limit_of(int rank, const Call& call, nanoseconds began) const {
    const Operation& o = operation(call);
    nanoseconds limit = began + timeout_of(o) + kBeyondDeadline;
    if (is_cut_) return limit + extra_;  // reports of failures may not get here
    const bool is_served = std::ranges::none_of(lethal_, [&](size_t f) {
      const Fault& fault = faults()[f];
      return fault.kind == Fault::Kind::kill_service ||
             fault.kind == Fault::Kind::suspend_service ||
             (fault.kind == Fault::Kind::suspend && fault.rank == 0 && schedule_.chief_serves);
    });
    for (const size_t f : lethal_) {
      const Fault& fault = faults()[f];
      const nanoseconds since = std::max(began, *trial_.injected[f]);
      switch (fault.kind) {
        case Fault::Kind::kill:
          if (is_served && is_member(fault.rank, rank, call.operation))
            limit = std::min(limit,
                             since + (fault.rank == 0 && schedule_.chief_serves ? kServiceMissed
                                                                                : kWithinASecond));
          break;
        case Fault::Kind::suspend:
          if ((is_served || lethal_.size() == 1) && is_member(fault.rank, rank, call.operation) &&
              fault.lasts > schedule_.heartbeat_timeout + 2s)
            limit = std::min(limit, since + schedule_.heartbeat_timeout + 2s);
          break;
        case Fault::Kind::suspend_service:
          if (fault.lasts > schedule_.heartbeat_timeout + 2s)
            limit = std::min(limit, since + schedule_.heartbeat_timeout + 2s);
          break;
        case Fault::Kind::kill_service:
          // If the chief ran the service, groups without it go on.
          if (!schedule_.chief_serves || is_member(0, rank, call.operation))
            limit = std::min(limit, since + kServiceMissed);
          break;
        case Fault::Kind::abort:
          if (is_member(fault.rank, rank, call.operation))
            limit = std::min(limit, since + kWithinASecond);
          break;
        case Fault::Kind::mismatch:
        case Fault::Kind::skip:
        case Fault::Kind::leave:
          if (lethal_.size() == 1 && is_member(fault.rank, rank, call.operation) &&
              group_of(rank, call.operation) == group_of(fault.rank, size_t(fault.operation)))
            limit = std::min(limit, since + kWithinASecond);
          break;
        default: break;
      }
    }
    return limit + extra_;
  }

  void check_times(int rank) {
    const Story& s = story(rank);
    if (is_held(rank) || s.ending == Story::Ending::killed) return;
    nanoseconds before{};
    for (const Call& call : s.calls) {
      if (call.is_dropped) continue;
      const nanoseconds began = std::max({call.began, call.waited, before});
      const nanoseconds ended = call.is_over ? call.ended : trial_.time;
      const nanoseconds limit = limit_of(rank, call, began);
      if (ended > limit)
        violated(
            "rank {} waits in #{} ({}) from {:.3f} to {:.3f} ms, and should not after {:.3f} ms",
            rank, call.operation, operation(call).to_string(), ms(began), ms(ended), ms(limit));
      before = std::max(before, ended);
    }
    if (s.started && !s.joined && s.ending == Story::Ending::left) check_joining(rank, s);
    if (s.done && s.ending == Story::Ending::left) {
      nanoseconds most = kLeaving + extra_;
      if (is_cut_ || is_suspended_ || !lethal_.empty()) most += schedule_.heartbeat_timeout + 3s;
      if (s.ended - *s.done > most)
        violated("rank {} takes {:.0f} ms to leave", rank, ms(s.ended - *s.done));
    }
  }

  void check_joining(int rank, const Story& s) {
    const nanoseconds took = s.ended - *s.started;
    const nanoseconds most =
        base::settings().join_timeout + schedule_.heartbeat_timeout + kLeaving + 3s + extra_;
    if (took > most) violated("rank {} takes {:.0f} ms to give up joining", rank, ms(took));
  }

  // The first error of a group reaches all its ranks.
  void check_published() {
    if (is_cut_) return;
    std::map<GroupKey, nanoseconds> first;
    for (int rank = 0; rank < schedule_.size(); ++rank)
      for (const Call& call : story(rank).calls)
        if (call.code) {
          const auto [found, is_new] =
              first.try_emplace(group_of(rank, call.operation), call.ended);
          if (!is_new) found->second = std::min(found->second, call.ended);
        }
    for (int rank = 0; rank < schedule_.size(); ++rank) {
      if (is_held(rank) || story(rank).ending == Story::Ending::killed) continue;
      nanoseconds before{};
      for (const Call& call : story(rank).calls) {
        if (call.is_dropped) continue;
        const nanoseconds began = std::max({call.began, call.waited, before});
        const nanoseconds ended = call.is_over ? call.ended : trial_.time;
        before = std::max(before, ended);
        const auto found = first.find(group_of(rank, call.operation));
        if (found == first.end()) continue;
        const nanoseconds since = std::max(began, found->second);
        if (ended > since + kPublished + extra_)
          violated(
              "rank {} hears of the failure of its group at {:.3f} ms in #{} only at {:.3f} ms",
              rank, ms(found->second), call.operation, ms(ended));
      }
    }
  }

  // An operation that all ranks have come to must soon be over.
  void check_wake_ups() {
    nanoseconds latest{};
    int in_background = 0;
    for (size_t k = 0; k < schedule_.operations.size(); ++k) {
      const Operation& o = schedule_.operations[k];
      in_background += o.in_background;
      for (int rank = 0; rank < schedule_.size(); ++rank)
        if (const Call* const call = call_of(rank, k)) latest = std::max(latest, call->began);
      nanoseconds ended = latest;
      for (int rank = 0; rank < schedule_.size(); ++rank) {
        const Call* const call = call_of(rank, k);
        if (!call || !call->is_over || o.in_background) continue;
        if (call->ended > latest + kWithoutAPoll + in_background * kWithoutAPoll / 3)
          violated("rank {} needs {:.3f} ms for #{} ({}) after all have come to it", rank,
                   ms(call->ended - latest), k, o.to_string());
        ended = std::max(ended, call->ended);
      }
      latest = ended;
    }
    nanoseconds done{};
    for (int rank = 0; rank < schedule_.size(); ++rank)
      if (story(rank).done) done = std::max(done, *story(rank).done);
    for (int rank = 0; rank < schedule_.size(); ++rank) {
      const Story& s = story(rank);
      if (s.joined && s.started && *s.joined - *s.started > 300ms)
        violated("rank {} needs {:.3f} ms to join", rank, ms(*s.joined - *s.started));
      if (s.ended > done + 200ms)
        violated("rank {} needs {:.3f} ms to leave after all are done", rank, ms(s.ended - done));
    }
  }

  void check_leaks() {
    const bool all_left = std::ranges::all_of(
        trial_.ranks, [](const Story& s) { return s.ending == Story::Ending::left; });
    for (const std::string& leak : trial_.leaks)
      if (all_left || leak.find("memory") == leak.npos) violated("{}", leak);
  }

  const Trial& trial_;
  const Schedule& schedule_;
  std::vector<size_t> lethal_;  // faults that happened and that ranks must notice
  bool is_disturbed_ = false, is_cut_ = false, is_suspended_ = false;
  nanoseconds extra_{};
  std::map<std::pair<size_t, int>, uint64_t> expected_;
  std::vector<std::string> violations_;
};

}  // namespace

std::vector<std::string> judge(const Trial& trial) { return Judge(trial).judge(); }

}  // namespace tutti::sim
