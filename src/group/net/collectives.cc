// SPDX-License-Identifier: Apache-2.0
#include "group/net/collectives.h"

#include "group/plan/way.h"

namespace tutti::group {

NetworkCollectives::NetworkCollectives(PeerChannels& channels, const GroupTopology& topology,
                                       Window* window, Staging staging)
    : channels_(channels),
      topology_(topology),
      window_(window),
      staging_(staging),
      meeting_(doubling_of(topology.my_host(), int(topology.hosts.size()), 1)) {
  const int ranks = channels.size(), hosts = int(topology.hosts.size());
  for (int r = 0; r < ranks; ++r) all_ranks_.push_back(r);
  // Each begins with the one that comes after it, so that no rank gets all messages at once.
  for (int i = 1; i < ranks; ++i) others_.push_back((channels.rank() + i) % ranks);
  for (int i = 1; i < hosts; ++i)
    leaders_.push_back(topology.leader((topology.my_host() + i) % hosts));
}

NetworkCollectives::~NetworkCollectives() {
  if (!channels_.has_lost_memory()) return;
  own_staging_.abandon();
  for (Scratch& scratch : received_) scratch.abandon();
}

size_t NetworkCollectives::reserved() const {
  size_t bytes = own_staging_.bytes();
  for (const Scratch& scratch : received_) bytes += scratch.bytes();
  return bytes;
}

void NetworkCollectives::begin(const Description& what, Timeouts timeouts,
                               std::span<const Piece> list) {
  channels_.begin(what, timeouts, list);
  if (window_) window_->begin(what, timeouts, list);
}

void NetworkCollectives::run(const Description& what, const GroupCall& call, Timeouts timeouts,
                             std::span<const Piece> list) {
  if (call.kind == Collective::send) return channels_.send(what, call.in, call.tag, timeouts);
  if (call.kind == Collective::recv) return channels_.recv(what, call.out, call.tag, timeouts);
  if (call.kind == Collective::all_reduce || call.kind == Collective::reduce)
    return reduce(what, call, timeouts);
  begin(what, timeouts, list);
  switch (call.kind) {
    case Collective::barrier: return barrier();
    case Collective::broadcast: return broadcast(call);
    case Collective::all_gather:
    case Collective::split:
    case Collective::gather: return gather(call);
    case Collective::scatter: return scatter(call);
    case Collective::all_to_all: return all_to_all(call);
    case Collective::reduce_scatter: return reduce_scatter(call);
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::send:
    case Collective::recv: break;
  }
}

void NetworkCollectives::barrier() {
  if (choose_way({.hosts = topology_.hosts.size()}) == Way::direct)
    return channels_.shake_hands(others_, window_);
  if (window_) window_->next_phase();
  if (topology_.leads()) {
    const auto meet = [&](int to, int from) {
      const int told = to < 0 ? 0 : topology_.leader(to),
                heard = from < 0 ? 0 : topology_.leader(from);
      PeerChannels::Handshake(channels_, {&told, size_t(to < 0 ? 0 : 1)}, {},
                              {&heard, size_t(from < 0 ? 0 : 1)})
          .finish();
    };
    if (meeting_.gives_to >= 0) meet(meeting_.gives_to, meeting_.gives_to);
    if (meeting_.takes_from >= 0) meet(-1, meeting_.takes_from);
    for (const Doubling::Round& round : meeting_.rounds) meet(round.peer, round.peer);
    if (meeting_.takes_from >= 0) meet(meeting_.takes_from, -1);
  }
  if (window_) window_->next_phase();
}

}  // namespace tutti::group
