// SPDX-License-Identifier: Apache-2.0
#include "job/shutdown.h"

#include "base/world.h"
#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

void wait_for_all(Link& link) {
  try {
    link.get()->exchange("leaving", "", timing::kLastFlush);
  } catch (const Error&) {
  }
}

void linger(ControlPlane& control, std::chrono::nanoseconds time) {
  const auto until = base::Clock::now() + time;
  for (auto now = until - time; now < until; now = base::Clock::now()) {
    control.transport().sleep(nullptr, until - now);
    control.pump();
  }
}

}  // namespace

bool leave_network(ControlPlane& control, Link& link) {
  // What was sent last may still be on its way to ranks that are about to leave, too.
  const bool failed = link.alarm().load();
  control.leave();
  control.transport().flush(timing::kLastFlush);
  const bool complete = !failed && !control.misses_a_rank();
  if (complete)
    wait_for_all(link);
  else if (control.misses_a_rank())
    linger(control, timing::kLastNotices);
  control.pump();  // the last notices of the others
  return complete;
}

void leave_service(Bootstrap& boot, Link& link, bool complete) {
  link.leave();
  if (!boot.service) return;
  complete ? boot.service->wait_until_empty(timing::kServiceLinger)
           : boot.service->wait_until_quiet(timing::kServiceLinger);
  boot.service.reset();
}

}  // namespace tutti::group
