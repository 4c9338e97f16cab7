// SPDX-License-Identifier: Apache-2.0
// A rank's side of the heartbeats between a job's ranks and its coordination service.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "cluster/host_pulse.h"
#include "cluster/session.h"

namespace tutti::cluster {

// When the next heartbeat is due, for which other ranks of the host it speaks, and how long the
// service has been silent. Not thread-safe.
class Heartbeats {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Of a rank that the service has just heard.
  Heartbeats(const Job& job, Time now)
      : job_(job), heard_(now), next_(now + heartbeat_interval(job)) {}

  // From now on the speaker of the host sends heartbeats for the ranks that share this with it.
  void share(std::shared_ptr<HostPulse> pulse) { pulse_ = std::move(pulse); }

  // Called at next(), or later. What to send; nothing if the speaker of the host does.
  Time next() const { return next_; }
  std::optional<Heartbeat> due(Time now) {
    heard_ = last_heard(now);
    // While this process was suspended it could not hear anything.
    if (const auto late = now - next_; late > heartbeat_interval(job_)) {
      heard_ = std::min(now, heard_ + late);
      if (unanswered_) unanswered_ = std::min(now, *unanswered_ + late);
    }
    next_ = now + heartbeat_interval(job_);
    if (!pulse_) return Heartbeat{};
    pulse_->beat(now);
    if (pulse_->is_speaker()) {
      // However late this is, it speaks for each rank that has beaten since the last time.
      const Time since = now - lifeless_after(job_);
      const Time last = std::exchange(sent_, now);
      return Heartbeat{pulse_->living(last == Time() ? since : std::min(since, last))};
    }
    const Time missed = pulse_->service_heard(now) + unspoken_after(job_);
    const bool is_answered = !unanswered_ || now - *unanswered_ < unspoken_after(job_);
    const auto own_every = std::min<std::chrono::nanoseconds>(kOwnEvery, job_.heartbeat_timeout);
    if (missed > now && now - sent_ < own_every && is_answered) {
      next_ = std::min(next_, missed);
      return {};
    }
    sent_ = now;
    if (!unanswered_) unanswered_ = now;
    return Heartbeat{};
  }

  // On this rank's own connection.
  void hear(Time now) {
    heard_ = now;
    unanswered_.reset();
    // A speaker that is late with its own heartbeat speaks for none, although the service is there.
    if (pulse_ && pulse_->is_speaker()) pulse_->hear_service(std::min(now, next_));
  }
  // The time since this rank or the speaker last heard the service. If only this rank's own
  // connection is broken: the time since its first unanswered heartbeat.
  std::chrono::nanoseconds silence(Time now) const {
    return now - (unanswered_ ? std::min(*unanswered_, last_heard(now)) : last_heard(now));
  }

  // Whether the speaker hears the service: if this rank does not, its own connection is broken.
  bool speaker_hears(Time now) const {
    return pulse_ && !pulse_->is_speaker() && now - pulse_->service_heard(now) < silent_after(job_);
  }

 private:
  Time last_heard(Time now) const {
    return pulse_ ? std::max(heard_, pulse_->service_heard(now)) : heard_;
  }

  const Job& job_;
  std::shared_ptr<HostPulse> pulse_;  // null: this rank is the only one that shares it
  Time heard_, next_;
  // When this rank last sent a heartbeat itself; and, if another rank speaks for it, when it sent
  // the first unanswered one.
  Time sent_{};
  std::optional<Time> unanswered_;
};

}  // namespace tutti::cluster
