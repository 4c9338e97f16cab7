// The collectives between hosts.
//
// What is small travels with the greetings, in one hop. A large reduction is cut into blocks, and a
// block into a shard for each host: every host sends the subtrees that its ranks hold of a shard to
// that shard's host, which finishes the sum and sends the result to all. Blocks overlap, so that
// some travel while others are summed. Within a host a window is between its ranks and the first of
// them, which speaks for all. What all ranks want (broadcast, all_gather) crosses the network once
// for every host; there the root, or every rank, speaks for itself.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "group/net/wire.h"
#include "group/plan/tree.h"
#include "group/shm/reach.h"
#include "group/shm/window.h"

namespace tutti::group {

// Where the ranks of a group are.
struct Layout {
  std::vector<int> host_of;             // by rank
  std::vector<std::vector<int>> hosts;  // the ranks of each, in their order
  int rank;

  // `names`: of the hosts, by rank. Hosts count in the order of their first ranks.
  Layout(const std::vector<std::string>& names, int rank);

  int my_host() const { return host_of[size_t(rank)]; }
  int leader(int host) const { return hosts[size_t(host)][0]; }
  bool leads() const { return leader(my_host()) == rank; }
  const std::vector<int>& neighbours() const { return hosts[size_t(my_host())]; }
  size_t place(int rank) const;         // among the ranks of its host
  int taker(int rank, int host) const;  // who takes in there what the rank has for all
};

// What the ranks of a host share besides their window: their leader's memory for blocks on their
// way. kBlocks of each.
struct Staging {
  std::byte* subtrees = nullptr;
  std::byte* results = nullptr;
};
constexpr size_t kBlocks = 5;

class Networked {
 public:
  // `window`: of the ranks on this host, null where this is the only one; so is `staging`.
  Networked(Wire& wire, const Layout& layout, Window* window, Staging staging);
  ~Networked();
  Networked(const Networked&) = delete;

  void run(const Description& what, const detail::GroupCall& call, Patience patience,
           std::span<const Piece> list = {});
  void all_reduce(const Description& what, const LeafReduction& reduction, Patience patience);
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Patience patience);

 private:
  class Reducer;
  // How the leaves of a reduction are spread over the hosts; kept, since most are alike.
  struct Cut {
    struct Value {
      Subtree subtree;
      size_t host, index;
    };
    void update(std::span<const int> new_owners, const Layout& layout, bool now_single);

    std::vector<int> owners;
    bool single = false;
    std::vector<std::vector<Subtree>> by_host;
    std::vector<Value> order;  // of all hosts, by their leaves
    std::vector<Subtree> all;  // the same
  };
  // Memory that is kept from one operation to the next. Only what is used of it is ever touched.
  class Scratch {
   public:
    std::byte* at_least(size_t bytes) {
      if (bytes > bytes_) {
        memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
        bytes_ = bytes;
      }
      return memory_.get();
    }
    void abandon() { static_cast<void>(memory_.release()); }

   private:
    std::unique_ptr<std::byte[]> memory_;
    size_t bytes_ = 0;
  };

  void begin(const Description& what, Patience patience, std::span<const Piece> list = {});
  bool is_soon_told(size_t bytes) const;
  void all_at_once(const detail::GroupCall& call, bool wanted);
  void broadcast(std::byte* data, size_t bytes, int root);
  // `starts`: where each rank's part begins in `out`, and where the last one ends.
  void all_gather(const std::byte* in, std::byte* out, std::span<const size_t> starts);
  void reduce_scatter(const detail::GroupCall& call);

  Wire& wire_;
  const Layout& layout_;
  Window* const window_;
  Staging staging_;
  Scratch own_staging_;  // where no window is
  std::array<Scratch, kBlocks> received_;
  Cut cut_;
  std::vector<int> everybody_;
  std::vector<int> others_;   // all ranks but this
  std::vector<int> leaders_;  // of the other hosts
  std::vector<const void*> leaves_;
};

}  // namespace tutti::group
