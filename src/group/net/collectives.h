// SPDX-License-Identifier: Apache-2.0
// The collectives between hosts; a file for each.
//
// Small data travels with the handshake: in one hop, or between many hosts in a logarithmic number
// of rounds (plan/way.h chooses). A large reduction is cut into blocks, and a block into a shard
// for each host: every host sends the subtrees that its ranks hold of a shard to that shard's host,
// which finishes the sum and sends the result to all. Blocks overlap, so that some travel while
// others are summed. The ranks of a host meet in their window, and the first of them, its leader,
// sends for all. Data for all ranks (broadcast, all_gather) crosses the network once for every
// host; for these the root, or every rank, sends its own data.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "group/net/meeting.h"
#include "group/net/peer_channels.h"
#include "group/net/reduction_layout.h"

namespace tutti::group {

// What the ranks of a host share besides their window: their leader's memory for the values and the
// results of kBlocks blocks under way.
struct Staging {
  std::byte* subtrees = nullptr;
  std::byte* results = nullptr;
};
constexpr size_t kBlocks = 5;

class NetworkCollectives {
 public:
  // `window`: that of the ranks on this host; null if this is the only one, and `staging` is empty
  // then.
  NetworkCollectives(PeerChannels& channels, const GroupTopology& topology, Window* window,
                     Staging staging, const Costs& costs);
  ~NetworkCollectives();
  NetworkCollectives(const NetworkCollectives&) = delete;

  size_t reserved() const;  // as that of Backend
  const Way& way() const { return way_; }
  void run(const Description& what, const detail::GroupCall& call, Timeouts timeouts,
           std::span<const Piece> list = {});
  void all_reduce(const Description& what, const LeafReduction& reduction, Timeouts timeouts);
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Timeouts timeouts);

 private:
  class Reducer;
  class Rounds;
  // Memory that is kept from one operation to the next. Only the bytes in use are ever touched.
  class Scratch {
   public:
    std::byte* at_least(size_t bytes) {
      if (bytes > bytes_) {
        memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
        bytes_ = bytes;
      }
      return memory_.get();
    }
    size_t bytes() const { return bytes_; }
    void abandon() { static_cast<void>(memory_.release()); }

   private:
    std::unique_ptr<std::byte[]> memory_;
    size_t bytes_ = 0;
  };

  using GroupCall = detail::GroupCall;

  void begin(const Description& what, Timeouts timeouts, std::span<const Piece> list = {});
  void reduce(const Description& what, const GroupCall& call, Timeouts timeouts);  // or all_reduce
  bool fits_handshake(const detail::Memory& in, ReduceOp op) const;
  void all_at_once(const GroupCall& call, bool wanted);
  // Waits until all ranks have come here, and checks that they do the same.
  void agree();
  // The way of parts of `bytes` for each rank, `total` together.
  struct Parts {
    size_t bytes, total;
  };
  Way way_of(Collective kind, Parts parts) const;
  // Does the same as agree(), and takes the few bytes of each rank, or of the root if it is given,
  // to all ranks. Returns where they are until the next operation: host by host.
  const std::byte* share(const void* mine, size_t bytes, int root = -1);
  void broadcast(const GroupCall& call);
  void broadcast_by_relays(std::byte* data, size_t bytes, int root);
  void gather(const GroupCall& call);  // to the root, or to all
  // `starts`: where each rank's part begins in `out`, and where the last one ends.
  void all_gather(const std::byte* in, std::byte* out, std::span<const size_t> starts);
  void scatter(const GroupCall& call);
  void all_to_all(const GroupCall& call);
  void reduce_scatter(const GroupCall& call);
  void reduce_leaves(const LeafReduction& reduction);

  // Sends `bytes` from part(peer) to each of `to`, and receives as many from each of `from`, to
  // target(peer); with the handshake if that is the way.
  template <class Part, class Target>
  void exchange(size_t bytes, std::span<const int> to, const Part& part, std::span<const int> from,
                const Target& target) {
    if (way_ == Way::handshake) {
      channels_.shake_hands(
          others(),
          [&](int peer, std::byte* memory) -> size_t {
            if (std::ranges::find(to, peer) == to.end()) return 0;
            copy_bytes(memory, part(peer), bytes);
            return bytes;
          },
          window_);
      for (const int peer : from) copy_bytes(target(peer), channels_.told(peer), bytes);
      return;
    }
    agree();
    PeerChannels::Transfers transfers(channels_);
    for (const int peer : from) transfers.receive(peer, MessageKind::data, target(peer), bytes);
    for (const int peer : to) transfers.send(peer, MessageKind::data, part(peer), bytes);
    transfers.wait_all();
  }
  // All ranks but this, and the leaders of the other hosts. Each begins with the one that comes
  // after it, so that no rank gets all messages at once.
  const std::vector<int>& others();
  const std::vector<int>& leaders();
  bool is_root(const GroupCall& call) const { return channels_.rank() == call.root; }

  PeerChannels& channels_;
  const GroupTopology& topology_;
  Window* const window_;
  Staging staging_;
  const Costs costs_;
  Way way_ = Way::only;  // of the last operation
  Meeting meeting_;
  Scratch shared_, scattered_;
  Scratch own_staging_;  // if there is no window
  std::array<Scratch, kBlocks> received_;
  ReductionPlan plan_;
  const std::vector<int>& all_ranks_;
  std::vector<int> others_, leaders_;  // made when first needed
  std::vector<const void*> leaves_;
};

}  // namespace tutti::group
