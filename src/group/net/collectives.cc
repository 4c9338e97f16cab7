// SPDX-License-Identifier: Apache-2.0
#include "group/net/collectives.h"

namespace tutti::group {

NetworkCollectives::NetworkCollectives(PeerChannels& channels, const GroupTopology& topology,
                                       Window* window, Staging staging, const Costs& costs)
    : channels_(channels),
      topology_(topology),
      window_(window),
      staging_(staging),
      costs_(costs),
      meeting_(channels, topology),
      all_ranks_(topology.shared->all) {}

const std::vector<int>& NetworkCollectives::others() {
  const int ranks = channels_.size();
  if (others_.empty())
    for (int i = 1; i < ranks; ++i) others_.push_back((channels_.rank() + i) % ranks);
  return others_;
}

const std::vector<int>& NetworkCollectives::leaders() {
  const int hosts = int(topology_.hosts.size());
  if (leaders_.empty())
    for (int i = 1; i < hosts; ++i)
      leaders_.push_back(topology_.leader((topology_.my_host() + i) % hosts));
  return leaders_;
}

NetworkCollectives::~NetworkCollectives() {
  if (!channels_.has_lost_memory()) return;
  own_staging_.abandon();
  for (Scratch& scratch : received_) scratch.abandon();
}

size_t NetworkCollectives::reserved() const {
  size_t bytes = own_staging_.bytes() + shared_.bytes() + scattered_.bytes();
  for (const Scratch& scratch : received_) bytes += scratch.bytes();
  return bytes;
}

void NetworkCollectives::begin(const Description& what, Timeouts timeouts,
                               std::span<const Piece> list) {
  way_ = Way::only;
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
    case Collective::barrier: way_ = way_of(call.kind, {}); return agree();
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

Way NetworkCollectives::way_of(Collective kind, Parts parts) const {
  return choose_way_of_parts({.kind = kind,
                              .hosts = topology_.hosts.size(),
                              .ranks = all_ranks_.size(),
                              .bytes = parts.bytes,
                              .total = parts.total,
                              .most_told = kMostTold},
                             costs_);
}

void NetworkCollectives::agree() {
  if (way_of(Collective::barrier, {}) == Way::rounds)
    share(nullptr, 0);
  else
    channels_.shake_hands(others(), window_);
}

const std::byte* NetworkCollectives::share(const void* mine, size_t bytes, int root) {
  const auto start = [&](size_t host) {
    if (root < 0) return bytes * topology_.ranks_before[host];
    return int(host) > topology_.host_of[size_t(root)] ? bytes : 0;
  };
  const size_t total = start(topology_.hosts.size());
  const auto has_part = [&](int rank) { return root < 0 || rank == root; };
  if (window_) {
    if (has_part(channels_.rank())) copy_bytes(window_->mine(bytes), mine, bytes);
    window_->next_phase();
  }
  std::byte* const parts = window_ ? window_->mine(total) : shared_.at_least(total);
  if (topology_.leads()) {
    const std::vector<int>& here = topology_.local_ranks();
    std::byte* to = parts + start(size_t(topology_.my_host()));
    for (size_t i = 0; i < here.size(); ++i) {
      if (!has_part(here[i])) continue;
      copy_bytes(to, window_ ? window_->shown(int(i), bytes) : mine, bytes);
      to += bytes;
    }
    meeting_.hold(parts, start);
  }
  if (window_) window_->next_phase();
  return window_ ? window_->shown(0, total) : parts;
}

}  // namespace tutti::group
