// SPDX-License-Identifier: Apache-2.0
#include "group/net/collectives.h"

namespace tutti::group {

NetworkCollectives::NetworkCollectives(PeerChannels& channels, const GroupTopology& topology,
                                       Window* window, Staging staging)
    : channels_(channels), topology_(topology), window_(window), staging_(staging) {
  for (int r = 0; r < channels.size(); ++r) {
    all_ranks_.push_back(r);
    if (r != channels.rank()) others_.push_back(r);
  }
  for (int h = 0; h < int(topology.hosts.size()); ++h)
    if (h != topology.my_host()) leaders_.push_back(topology.leader(h));
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
    case Collective::barrier: return channels_.shake_hands(others_, window_);
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

}  // namespace tutti::group
