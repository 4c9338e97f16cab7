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
    if (pulse_->is_speaker()) return Heartbeat{pulse_->living(now - lifeless_after(job_))};
    const Time missed = pulse_->service_heard(now) + unspoken_after(job_);
    const bool is_answered = !unanswered_ || now - *unanswered_ < unspoken_after(job_);
    if (missed > now && now - sent_ < kOwnEvery && is_answered) {
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
    if (pulse_ && pulse_->is_speaker()) pulse_->hear_service(now);
  }
  // How long the service has not been heard, neither here nor by the speaker; or how long it has
  // not answered here, although the speaker hears it: then this rank's own connection is broken.
  std::chrono::nanoseconds silence(Time now) const {
    return now - (unanswered_ ? std::min(*unanswered_, last_heard(now)) : last_heard(now));
  }

 private:
  Time last_heard(Time now) const {
    return pulse_ ? std::max(heard_, pulse_->service_heard(now)) : heard_;
  }

  const Job& job_;
  std::shared_ptr<HostPulse> pulse_;  // null: this rank is the only one that shares it
  Time heard_, next_;
  // Heartbeats of this rank's own, if another speaks for it: the last, and the first of those since
  // which nothing came on its own connection.
  Time sent_{};
  std::optional<Time> unanswered_;
};

}  // namespace tutti::cluster
