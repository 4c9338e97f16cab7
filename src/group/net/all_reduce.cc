// SPDX-License-Identifier: Apache-2.0
// Reductions between hosts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "group/net/collectives.h"
#include "kernels/reduce.h"

namespace tutti::group {

namespace {

// This few hosts send all they have to each other, if it is at most this much.
constexpr size_t kFewHosts = 4;
constexpr size_t kMuchForFew = 64 << 10;
// Two hosts send each other no more than if each summed a half; only, both sum all of it.
constexpr size_t kMuchForTwo = 256 << 10;

constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

void NetworkCollectives::Cut::update(std::span<const int> new_owners, const GroupTopology& topology,
                                     bool now_single) {
  if (single == now_single && std::ranges::equal(owners, new_owners)) return;
  owners.assign(new_owners.begin(), new_owners.end());
  single = now_single;
  by_host.clear();
  order.clear();
  all.clear();
  for (size_t h = 0; h < topology.hosts.size(); ++h) {
    by_host.push_back(largest_subtrees(
        owners.size(),
        [&](size_t leaf) { return topology.host_of[size_t(owners[leaf])] == int(h); }, single));
    for (size_t i = 0; i < by_host[h].size(); ++i) order.push_back({by_host[h][i], h, i});
  }
  std::ranges::sort(order, {}, [](const Value& value) { return value.subtree.first; });
  for (const Value& value : order) all.push_back(value.subtree);
}

// One reduction, seen from one rank. Those of a host that do not lead it meet the others in the
// window, and never touch the wire.
class NetworkCollectives::Reducer {
 public:
  Reducer(NetworkCollectives& all, const LeafReduction& reduction)
      : channels_(all.channels_),
        topology_(all.topology_),
        window_(all.window_),
        leaders_(all.leaders_),
        op_(reduction.op),
        view_(reduction, all.channels_.rank(), all.channels_.size()),
        hosts_(all.topology_.hosts.size()),
        me_(size_t(all.topology_.my_host())),
        leads_(all.topology_.leads()),
        staging_(all.staging_),
        own_(all.own_staging_),
        received_(all.received_),
        subtrees_(all.cut_.by_host),
        order_(all.cut_.order),
        all_(all.cut_.all),
        transfers_(all.channels_) {
    bool single = false;
    size_t wide = 1;
    for (const Piece& piece : reduction.pieces) {
      single |= !has_partials(op_, piece.dtype);
      wide = std::max(wide, size_of(partial_dtype(op_, piece.dtype)) / size_of(piece.dtype));
    }
    all.cut_.update(reduction.owners, topology_, single);
    size_t values = 1;  // bytes of values per byte of the view, of any host
    for (const std::vector<Subtree>& of_host : subtrees_) {
      size_t here = 0;
      for (const Subtree& subtree : of_host) here += subtree.leaves == 1 ? 1 : wide;
      values = std::max(values, here);
    }

    small_ = view_.bytes() * std::max(values, view_.most_leaves()) <= kSmallMessage;
    // A little is soonest summed by every host: one hop instead of two.
    whole_ = small_ || (hosts_ == 2 && values == 1 && view_.bytes() <= kMuchForTwo) ||
             (hosts_ <= kFewHosts && view_.bytes() <= kMuchForFew);
    const bool shared =
        std::ranges::any_of(topology_.hosts, [](const auto& ranks) { return ranks.size() > 1; });
    slot_ = shared ? kArea : std::min(hosts_ * kArea, kMostStaged);
    const size_t most = std::max({values, view_.most_leaves(), view_.widest()});
    // Enough blocks that they overlap, unless they become so small that their number costs more.
    const size_t block = std::min(slot_ / most, std::max(view_.bytes() / 8, hosts_ * kLeast));
    block_ = std::max(block / kAlign, size_t{1}) * kAlign;
    if (block_ * most > slot_)
      throw UnimplementedError(
          fmt::format("all_reduce: {} values of each element on one host are too many", most));
  }

  void run() {
    if (small_) return all_at_once();
    const size_t rounds = (view_.bytes() + block_ - 1) / block_;
    // Block i sets out, while kLag others are on their way; then comes the sum of an earlier one,
    // and the end of one that is earlier still.
    for (size_t i = 0; i < rounds + kLag + 2; ++i) {
      if (window_) {
        if (i < rounds) show(i);
        window_->next_phase();
        if (i >= kLag + 2) take_results(i - kLag - 2);
        if (i < rounds) {
          make_values(i, topology_.local_ranks());
          window_->next_phase();
        }
      } else if (i < rounds) {
        make_values(i, topology_.local_ranks());
      }
      if (!leads_) continue;
      if (i < rounds) post(i);
      if (i == 0) handshake_->finish();
      if (i >= kLag && i - kLag < rounds) finish(i - kLag);
      if (i > kLag && i - kLag - 1 < rounds) {
        wait_for(i - kLag - 1);
        if (!window_) take_results(i - kLag - 1);
      }
    }
    if (leads_) transfers_.wait_all();
  }

 private:
  static constexpr size_t kLag = kBlocks - 3;
  // The least that a shard of a large reduction has, and the most that a block may take, in bytes.
  static constexpr size_t kLeast = 256 << 10;
  static constexpr size_t kMostStaged = 4 << 20;

  using Value = Cut::Value;
  struct Range {
    size_t begin, end;
    bool empty() const { return begin == end; }
  };
  // The numbers of a block's messages in the transfers.
  struct Round {
    std::vector<size_t> values, results, sent;
  };

  Range block(size_t i) const { return {i * block_, std::min(view_.bytes(), (i + 1) * block_)}; }
  Range shard(size_t i, size_t host) const {
    const Range all = block(i);
    if (whole_) return all;
    const size_t share = rounded_up((all.end - all.begin + hosts_ - 1) / hosts_);
    return {std::min(all.end, all.begin + host * share),
            std::min(all.end, all.begin + (host + 1) * share)};
  }
  size_t width(const Subtree& subtree, DType dtype) const {
    return size_of(subtree.leaves == 1 ? dtype : partial_dtype(op_, dtype));
  }

  // A message of values: the subtrees of a host one after the other, each of all parts in a range.
  // f(index of the subtree, part, where it begins). Returns where the last one ends.
  template <class F>
  size_t for_each_value(size_t host, Range range, const F& f) const {
    size_t end = 0;
    for (size_t i = 0; i < subtrees_[host].size(); ++i)
      view_.for_each_part(range.begin, range.end, [&](const FlatView::Part& part) {
        const size_t at = padded(end);
        f(i, part, at);
        end = at + size_t(part.count()) * width(subtrees_[host][i], part.piece.dtype);
      });
    return end;
  }
  size_t value_bytes(size_t host, Range range) const {
    return for_each_value(host, range, [](size_t, const FlatView::Part&, size_t) {});
  }
  template <class F>
  size_t for_each_result(Range range, const F& f) const {
    size_t end = 0;
    view_.for_each_part(range.begin, range.end, [&](const FlatView::Part& part) {
      const size_t at = padded(end);
      f(part, at);
      end = at + part.result_bytes(op_);
    });
    return end;
  }
  size_t result_bytes(Range range) const {
    return for_each_result(range, [](const FlatView::Part&, size_t) {});
  }
  std::optional<FlatView::Part> only_part(Range range) const {
    std::optional<FlatView::Part> only;
    size_t parts = 0;
    view_.for_each_part(range.begin, range.end, [&](const FlatView::Part& part) {
      if (parts++ == 0) only.emplace(part);
    });
    return parts == 1 ? std::move(only) : std::nullopt;
  }

  TreeSum& sum_of(DType dtype) {
    const auto found = sums_.find(dtype);
    return found != sums_.end()
               ? found->second
               : sums_.try_emplace(dtype, op_, dtype, view_.leaves()).first->second;
  }

  // Memory of the leader: the values and results of each block under way.
  std::byte* staged_values(size_t i) { return staging().subtrees + i % kBlocks * slot_; }
  std::byte* staged_results(size_t i) { return staging().results + i % kBlocks * slot_; }
  Staging& staging() {
    if (!staging_.subtrees) {
      std::byte* const memory = own_.at_least(2 * kBlocks * slot_);
      staging_ = {memory, memory + kBlocks * slot_};
    }
    return staging_;
  }

  void show(size_t i) {
    const Range range = block(i);
    view_.copy_leaves(range.begin, range.end, window_->mine(kArea), block_, range.begin);
  }

  // A leaf's data in this process's reach: its own, or what is shown in the window.
  const std::byte* leaf_at(size_t leaf, const FlatView::Part& part, size_t base, size_t stride,
                           size_t shown) const {
    if (!window_) return bytes_of(part.piece.inputs[view_.place(leaf)]) + part.first;
    const int local = int(topology_.local_index(view_.owner(leaf)));
    return window_->shown(local, shown) + view_.place(leaf) * stride + (part.at - base);
  }

  // Whether the only value of a range is this rank's own data, as it lies.
  bool lies_ready(Range range) const {
    return !window_ && subtrees_[me_].size() == 1 && subtrees_[me_][0].leaves == 1 &&
           only_part(range).has_value();
  }
  const std::byte* ready_value(Range range) const {
    const auto part = only_part(range);
    return leaf_at(subtrees_[me_][0].first, *part, 0, 0, 0);
  }

  // The values of this host, for all shards of a block: this rank's share of the work.
  void make_values(size_t i, const std::vector<int>& workers) {
    const Range all = block(i);
    size_t at = 0;
    for (size_t h = 0; h < (whole_ ? 1 : hosts_); ++h) {
      const Range range = shard(i, h);
      if (lies_ready(range)) continue;
      const size_t share =
          rounded_up((range.end - range.begin + workers.size() - 1) / workers.size());
      const size_t me = topology_.local_index(channels_.rank());
      const Range mine{std::min(range.end, range.begin + me * share),
                       std::min(range.end, range.begin + (me + 1) * share)};
      at += padded(make_values(range, mine, staged_values(i) + at, all.begin, block_, kArea));
    }
  }

  // Those of `mine`, into a message of the values of `range`.
  size_t make_values(Range range, Range mine, std::byte* to, size_t base, size_t stride,
                     size_t shown) {
    return for_each_value(me_, range, [&](size_t index, const FlatView::Part& part, size_t at) {
      const size_t begin = std::max(part.at, mine.begin);
      const size_t end = std::min(part.at + part.bytes, mine.end);
      if (begin >= end) return;
      const Subtree& subtree = subtrees_[me_][index];
      const size_t each = size_of(part.piece.dtype);
      inputs_.clear();
      for (size_t leaf = subtree.first; leaf < subtree.first + subtree.leaves; ++leaf)
        inputs_.push_back(leaf_at(leaf, part, base, stride, shown) + (begin - part.at));
      sum_of(part.piece.dtype)
          .partial(inputs_, to + at + (begin - part.at) / each * width(subtree, part.piece.dtype),
                   int64_t((end - begin) / each));
    });
  }

  // The values of this host for a shard, once they are made.
  const std::byte* values_for(size_t i, size_t host) {
    const Range range = shard(i, host);
    if (lies_ready(range)) return ready_value(range);
    size_t at = 0;
    for (size_t h = 0; h < host && !whole_; ++h)
      if (!lies_ready(shard(i, h))) at += padded(value_bytes(me_, shard(i, h)));
    return staged_values(i) + at;
  }

  // Where the result of a shard goes: to the output itself, or into the staging.
  std::byte* result_at(size_t i, size_t host) {
    const Range range = shard(i, host);
    if (!window_)
      if (const auto part = only_part(range); part && !part->piece.outputs.empty())
        return bytes_of(part->piece.outputs[0]) + part->result_at(op_);
    size_t at = 0;
    for (size_t h = 0; h < host && !whole_; ++h) at += padded(result_bytes(shard(i, h)));
    return staged_results(i) + at;
  }

  void post(size_t i) {
    Round& round = rounds_[i % kBlocks];
    round = {};
    size_t at = 0;
    for (const int leader : leaders_)
      at += padded(value_bytes(size_t(topology_.host_of[size_t(leader)]), shard(i, me_)));
    std::byte* const received = received_[i % kBlocks].at_least(at);
    at = 0;
    for (const int leader : leaders_) {
      const size_t host = size_t(topology_.host_of[size_t(leader)]);
      if (const size_t bytes = value_bytes(host, shard(i, me_))) {
        round.values.push_back(transfers_.receive(leader, MessageKind::data, received + at, bytes));
        at += padded(bytes);
      }
      if (const size_t bytes = result_bytes(shard(i, host)); bytes && !whole_)
        round.results.push_back(
            transfers_.receive(leader, MessageKind::results, result_at(i, host), bytes));
    }
    if (i == 0) handshake_.emplace(channels_, leaders_);
    for (const int leader : leaders_) {
      const size_t host = size_t(topology_.host_of[size_t(leader)]);
      if (const size_t bytes = value_bytes(me_, shard(i, host)))
        round.sent.push_back(
            transfers_.send(leader, MessageKind::data, values_for(i, host), bytes));
    }
  }

  // The sum of this host's shard, for all.
  void finish(size_t i) {
    Round& round = rounds_[i % kBlocks];
    for (const size_t number : round.values) transfers_.wait(number);
    const Range range = shard(i, me_);
    if (range.empty()) return;
    std::byte* const result = result_at(i, me_);
    // Data that is sent from the place of the result must have left it.
    if (whole_ && lies_ready(range))
      for (const size_t number : round.sent) transfers_.wait(number);
    std::vector<const std::byte*> from(hosts_);
    from[me_] = values_for(i, me_);
    size_t at = 0;
    for (const int leader : leaders_) {
      const size_t host = size_t(topology_.host_of[size_t(leader)]);
      from[host] = received_[i % kBlocks].at_least(0) + at;
      at += padded(value_bytes(host, range));
    }
    combine(range, from, result);
    if (whole_) return;
    for (const int leader : leaders_)
      round.sent.push_back(
          transfers_.send(leader, MessageKind::results, result, result_bytes(range)));
  }

  void combine(Range range, const std::vector<const std::byte*>& from, std::byte* result) {
    // Where each value of each part begins, in the order of the leaves.
    std::vector<std::vector<std::vector<const std::byte*>>> places(hosts_);
    for (size_t h = 0; h < hosts_; ++h) {
      places[h].resize(subtrees_[h].size());
      for_each_value(h, range, [&](size_t index, const FlatView::Part&, size_t at) {
        places[h][index].push_back(from[h] + at);
      });
    }
    size_t number = 0;
    for_each_result(range, [&](const FlatView::Part& part, size_t at) {
      inputs_.clear();
      for (const Value& value : order_) inputs_.push_back(places[value.host][value.index][number]);
      void* const output = result + at;
      sum_of(part.piece.dtype).finish(all_, inputs_, {&output, 1}, part.count());
      ++number;
    });
  }

  void wait_for(size_t i) {
    for (const size_t number : rounds_[i % kBlocks].results) transfers_.wait(number);
    for (const size_t number : rounds_[i % kBlocks].sent) transfers_.wait(number);
  }

  void take_results(size_t i) {
    for (size_t h = 0; h < (whole_ ? 1 : hosts_); ++h) take_results(shard(i, h), result_at(i, h));
  }
  void take_results(Range range, const std::byte* from) {
    for_each_result(range, [&](const FlatView::Part& part, size_t at) {
      for (void* output : part.piece.outputs)
        copy_bytes(bytes_of(output) + part.result_at(op_), from + at, part.result_bytes(op_));
    });
  }

  void all_at_once() {
    const Range range{0, view_.bytes()};
    const size_t shown = range.end * view_.most_leaves(), results = result_bytes(range);
    if (window_) {
      view_.copy_leaves(0, range.end, window_->mine(shown), range.end, 0);
      window_->next_phase();
    }
    std::byte* const result = window_ ? window_->mine(results) : small_result();
    if (leads_) {
      alignas(kLine) std::byte values[kSmallMessage];
      const size_t bytes = make_values(range, range, values, 0, range.end, shown);
      channels_.shake_hands(leaders_, [&](int, std::byte* to) {
        std::memcpy(to, values, bytes);
        return bytes;
      });
      std::vector<const std::byte*> from(hosts_);
      from[me_] = values;
      for (const int leader : leaders_)
        from[size_t(topology_.host_of[size_t(leader)])] = channels_.told(leader);
      combine(range, from, result);
    }
    if (window_) window_->next_phase();
    take_results(range, window_ ? window_->shown(0, results) : result);
  }
  std::byte* small_result() {
    small_memory_.resize(result_bytes({0, view_.bytes()}));
    return small_memory_.data();
  }

  PeerChannels& channels_;
  const GroupTopology& topology_;
  Window* const window_;
  const std::vector<int>& leaders_;
  const ReduceOp op_;
  const FlatView view_;
  const size_t hosts_, me_;
  const bool leads_;
  Staging staging_;
  Scratch& own_;
  std::array<Scratch, kBlocks>& received_;  // values of the others
  size_t slot_, block_;
  bool small_, whole_;
  const std::vector<std::vector<Subtree>>& subtrees_;  // by host
  const std::vector<Value>& order_;                    // of all hosts
  const std::vector<Subtree>& all_;
  std::map<DType, TreeSum> sums_;
  std::vector<const void*> inputs_;
  std::vector<std::byte> small_memory_;
  std::array<Round, kBlocks> rounds_;
  std::optional<PeerChannels::Handshake> handshake_;
  PeerChannels::Transfers transfers_;  // ends before the memory that it works on
};

void NetworkCollectives::all_reduce(const Description& what, const LeafReduction& reduction,
                                    Timeouts timeouts) {
  begin(what, timeouts, reduction.pieces);
  Reducer(*this, reduction).run();
}

// Whether ranks that are alone on their hosts tell each other all of it with their greetings: there
// is nothing to be cut, and no message besides.
bool NetworkCollectives::fits_handshake(size_t bytes) const {
  const size_t hosts = topology_.hosts.size();
  return hosts == all_ranks_.size() &&
         rounded_up(bytes) <= (hosts <= kFewHosts ? kMostTold : kSmallMessage);
}

void NetworkCollectives::reduce(const Description& what, const GroupCall& call, Timeouts timeouts) {
  const bool wanted = call.kind == Collective::all_reduce || is_root(call);
  if (fits_handshake(size_in_bytes(call.in))) {
    begin(what, timeouts);
    return all_at_once(call, wanted);
  }
  const void* const in = call.in.data;
  void* const out = call.out.data;
  const Piece piece{{&in, 1}, {&out, size_t(wanted ? 1 : 0)}, call.in.count, call.in.dtype};
  all_reduce(what, {{&piece, 1}, all_ranks_, call.op}, timeouts);
}

void NetworkCollectives::all_at_once(const GroupCall& call, bool wanted) {
  const size_t bytes = size_in_bytes(call.in);
  channels_.shake_hands(others_, [&](int, std::byte* to) {
    copy_bytes(to, call.in.data, bytes);
    return bytes;
  });
  if (!wanted || !bytes) return;
  leaves_.clear();
  for (const int r : all_ranks_)
    leaves_.push_back(r == channels_.rank() ? call.in.data : channels_.told(r));
  void* const out = call.out.data;
  kernels::reduce_here({.inputs = leaves_,
                        .outputs = {&out, 1},
                        .count = call.in.count,
                        .dtype = call.in.dtype,
                        .op = call.op,
                        .divisor = int64_t(all_ranks_.size())},
                       false);
}

}  // namespace tutti::group
