#include "job/shutdown.h"

namespace tutti::group {

namespace {

// How long the process that runs the service stays for ranks that are not done yet.
constexpr std::chrono::seconds kLinger{5};
// How long a worker on a network stays for what it has sent.
constexpr std::chrono::seconds kFarewell{1};
// How long it stays if a peer does not answer, so that the others hear of it: they listen more
// often.
constexpr std::chrono::milliseconds kLastWords{200};

void wait_for_all(Link& link) {
  try {
    link.exchange("farewell", "", kFarewell);
  } catch (const Error&) {
  }
}

void linger(Transport& transport, std::chrono::nanoseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  for (auto now = until - time; now < until; now = std::chrono::steady_clock::now()) {
    transport.sleep(nullptr, until - now);
    transport.progress();
  }
}

}  // namespace

bool leave_network(Network& network, Link& link) {
  // What was sent last may still be on its way to ranks that are about to leave, too.
  const bool failed = link.alarm().load();
  network.transport().flush(kFarewell);
  const bool complete = !failed && !network.misses_somebody();
  if (complete)
    wait_for_all(link);
  else if (network.misses_somebody())
    linger(network.transport(), kLastWords);
  network.transport().progress();
  network.listen();  // the last words of the others
  network.close();
  return complete;
}

void leave_service(Bootstrap& boot, Link& link, bool complete) {
  link.leave();
  if (!boot.service) return;
  complete ? boot.service->wait_until_empty(kLinger) : boot.service->wait_until_quiet(kLinger);
  boot.service.reset();
}

}  // namespace tutti::group
