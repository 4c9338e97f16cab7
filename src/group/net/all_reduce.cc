// SPDX-License-Identifier: Apache-2.0
// Reductions between hosts.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "group/net/rounds.h"
#include "kernels/reduce.h"

namespace tutti::group {

// One reduction, seen from one rank. Ranks that do not lead their host meet its other ranks in the
// window, and never touch the network.
class NetworkCollectives::Reducer {
 public:
  using Layout = ReductionLayout;
  using Part = FlatView::Part;

  Reducer(NetworkCollectives& all, const LeafReduction& reduction)
      : all_(all),
        channels_(all.channels_),
        topology_(all.topology_),
        window_(all.window_),
        layout_(reduction, topology_, all.plan_, all.costs_),
        sums_(layout_, topology_, window_),
        me_(size_t(topology_.my_host())),
        leads_(topology_.leads()),
        staging_(all.staging_),
        own_staging_(all.own_staging_),
        received_(all.received_),
        transfers_(channels_) {
    all.way_ = layout_.way();
  }

  void run() {
    if (layout_.goes_in_rounds()) return run_rounds();
    layout_.is_small() ? run_small() : run_blocks();
  }

 private:
  using Range = Layout::Range;
  static constexpr size_t kLag = kBlocks - 3;
  struct Starts {
    size_t block = SIZE_MAX;
    std::vector<size_t> values = {}, results = {};
  };
  // The numbers of a block's messages in the transfers.
  struct Round {
    std::vector<size_t> values, results, sent;
  };

  void run_blocks() {
    const size_t blocks = layout_.blocks();
    // A pipeline: step i sends block i, sums block i - kLag, and takes the results of block
    // i - kLag - 1; with a window those of block i - kLag - 2, which the leader has by then.
    for (size_t i = 0; i < blocks + kLag + 2; ++i) {
      const size_t pieces = i < blocks ? layout_.pieces(i) : 0;
      for (size_t p = 0; window_ && p < std::max(pieces, size_t{1}); ++p) {
        if (p < pieces) show(layout_.piece(i, p));
        window_->next_phase();
        if (p == 0 && i >= kLag + 2) take_results(i - kLag - 2);
        if (p < pieces) make_values(i, layout_.piece(i, p));
      }
      if (window_ && i < blocks) window_->next_phase();
      if (!window_ && i < blocks) make_values(i, layout_.block(i));
      if (!leads_) continue;
      if (i < blocks) post(i);
      if (i == 0) agree();
      if (i >= kLag && i - kLag < blocks) finish(i - kLag);
      if (i > kLag && i - kLag - 1 < blocks) {
        wait_for(i - kLag - 1);
        if (!window_) take_results(i - kLag - 1);
      }
    }
    if (leads_) transfers_.wait_all();
  }

  // Compares the calls of all hosts while the first block is on its way. Many hosts do it in
  // rounds, with fewer messages.
  void agree() {
    if (handshake_)
      handshake_->finish();
    else
      all_.meeting_.hold(nullptr, [](size_t) { return size_t{0}; });
  }
  bool agrees_in_rounds() const {
    constexpr size_t kHidden = 4;  // greetings that cost the time of one, since data follows them
    const size_t hosts = layout_.hosts(), greetings = (hosts - 1) / kHidden;
    return choose_way_of_parts({.kind = Collective::barrier,
                                .hosts = hosts,
                                .ranks = 1 + greetings,
                                .most_told = kMostTold},
                               all_.costs_) == Way::rounds;
  }

  // Shows all of this rank's leaves in the window. Returns the most bytes that any rank shows.
  size_t show_all() {
    const FlatView& view = layout_.view();
    const size_t bytes = view.bytes(), shown = bytes * view.most_leaves();
    if (window_) {
      view.copy_leaves(0, bytes, window_->mine(shown), bytes, 0);
      window_->next_phase();
    }
    return shown;
  }

  // Small data travels with the handshake.
  void run_small() {
    const Range range{0, layout_.view().bytes()};
    const size_t shown = show_all(), results = layout_.result_bytes(range);
    std::vector<std::byte> own(window_ ? 0 : results);
    std::byte* const result = window_ ? window_->mine(results) : own.data();
    if (leads_) {
      alignas(kLine) std::byte values[kSmall];
      const size_t bytes = sums_.make_values(range, range, values, {0, range.end, shown});
      channels_.shake_hands(leaders(), [&](int, std::byte* to) {
        copy_bytes(to, values, bytes);
        return bytes;
      });
      std::vector<const std::byte*> from(layout_.hosts());
      from[me_] = values;
      for (const int leader : leaders()) from[host_of(leader)] = channels_.told(leader);
      sums_.combine(range, from, result);
    }
    if (window_) window_->next_phase();
    take_results(range, window_ ? window_->shown(0, results) : result);
  }

  void run_rounds() {
    const Range range{0, layout_.view().bytes()};
    const size_t shown = show_all();
    const std::byte* values = sums_.ready_value(range);
    const bool in_shares = window_ && layout_.way() == Way::halving;
    if (!values && (in_shares || leads_)) {
      std::byte* const made =
          window_ ? staged_values(0) : received_[3].at_least(layout_.value_bytes(me_, range));
      const size_t workers = in_shares ? topology_.local_ranks().size() : 1;
      sums_.make_values(range,
                        Layout::share(range, topology_.local_index(channels_.rank()), workers),
                        made, {0, range.end, shown});
      values = made;
    }
    if (in_shares) window_->next_phase();
    const size_t results = layout_.result_bytes(range);
    std::byte* result = window_ ? window_->mine(results) : only_output(range);
    if (!result) result = received_[4].at_least(results);
    if (leads_) Rounds(all_, layout_, sums_).run(values, result);
    if (window_) window_->next_phase();
    take_results(range, window_ ? window_->shown(0, results) : result);
  }

  const std::vector<int>& leaders() { return all_.leaders(); }
  size_t host_of(int rank) const { return size_t(topology_.host_of[size_t(rank)]); }
  // Memory of the leader: the values and results of each block under way.
  std::byte* staged_values(size_t i) { return staging().subtrees + i % kBlocks * layout_.slot(); }
  std::byte* staged_results(size_t i) { return staging().results + i % kBlocks * layout_.slot(); }
  const Staging& staging() {
    if (!staging_.subtrees) {
      std::byte* const memory = own_staging_.at_least(2 * kBlocks * layout_.slot());
      staging_ = {memory, memory + kBlocks * layout_.slot()};
    }
    return staging_;
  }

  void show(Range piece) {
    layout_.view().copy_leaves(piece.begin, piece.end, window_->mine(kArea), layout_.piece_bytes(),
                               piece.begin);
  }

  // Makes this rank's share of the host's values for a piece of a block, in the messages of all
  // shards that the piece overlaps.
  void make_values(size_t i, Range piece) {
    const Shown shown{piece.begin, layout_.piece_bytes(), kArea};
    const size_t worker = topology_.local_index(channels_.rank());
    for (size_t h = 0; h < layout_.shards(); ++h) {
      const Range range = layout_.shard(i, h);
      const Range now{std::max(range.begin, piece.begin), std::min(range.end, piece.end)};
      if (now.begin >= now.end || sums_.ready_value(range)) continue;
      const Range mine = Layout::share(now, worker, topology_.local_ranks().size());
      sums_.make_values(range, mine, staged_for(i, h), shown);
    }
  }

  // The values of this host for a shard, once they are made.
  const std::byte* values_for(size_t i, size_t host) {
    if (const std::byte* const ready = sums_.ready_value(layout_.shard(i, host))) return ready;
    return staged_for(i, host);
  }
  std::byte* staged_for(size_t i, size_t host) {
    return staged_values(i) + (layout_.is_whole() ? 0 : starts_of(i).values[host]);
  }

  // The place in this rank's output that all results of a range go to; null if there is not one
  // such place.
  std::byte* only_output(Range range) const {
    const auto part = window_ ? std::nullopt : layout_.only_part(range);
    if (!part || part->piece.outputs.empty()) return nullptr;
    return bytes_of(part->piece.outputs[0]) + part->result_at(layout_.op());
  }

  // Where the result of a shard goes: to the output itself, or into the staging.
  std::byte* result_at(size_t i, size_t host) {
    if (std::byte* const output = only_output(layout_.shard(i, host))) return output;
    return staged_results(i) + (layout_.is_whole() ? 0 : starts_of(i).results[host]);
  }

  // Where the values and results of a block's shards begin in the staging.
  const Starts& starts_of(size_t i) {
    Starts& starts = starts_[i % kBlocks];
    if (std::exchange(starts.block, i) == i) return starts;
    starts.values.clear();
    starts.results.clear();
    size_t values = 0, results = 0;
    for (size_t h = 0; h < layout_.hosts(); ++h) {
      const Range range = layout_.shard(i, h);
      starts.values.push_back(values);
      starts.results.push_back(results);
      if (!sums_.ready_value(range)) values += padded(layout_.value_bytes(me_, range));
      results += padded(layout_.result_bytes(range));
    }
    return starts;
  }

  void post(size_t i) {
    Round& round = rounds_[i % kBlocks];
    round = {};
    const Range mine = layout_.shard(i, me_);
    size_t at = 0;
    for (const int leader : leaders()) at += padded(layout_.value_bytes(host_of(leader), mine));
    std::byte* const received = received_[i % kBlocks].at_least(layout_.is_told() ? 0 : at);
    at = 0;
    for (const int leader : leaders()) {
      const size_t host = host_of(leader);
      if (const size_t bytes = layout_.value_bytes(host, mine); bytes && !layout_.is_told()) {
        round.values.push_back(transfers_.receive(leader, MessageKind::data, received + at, bytes));
        at += padded(bytes);
      }
      if (layout_.is_whole()) continue;
      if (const size_t bytes = layout_.result_bytes(layout_.shard(i, host)))
        round.results.push_back(
            transfers_.receive(leader, MessageKind::results, result_at(i, host), bytes));
    }
    if (layout_.is_told()) return tell_values();
    if (i == 0 && !agrees_in_rounds()) handshake_.emplace(channels_, leaders());
    for (const int leader : leaders()) {
      const size_t host = host_of(leader);
      if (const size_t bytes = layout_.value_bytes(me_, layout_.shard(i, host)))
        round.sent.push_back(
            transfers_.send(leader, MessageKind::data, values_for(i, host), bytes));
    }
  }

  // Sends the values of the only block with the handshake.
  void tell_values() {
    std::vector<size_t> told;
    for (const int leader : leaders()) {
      const size_t host = host_of(leader);
      told.push_back(layout_.value_bytes(me_, layout_.shard(0, host)));
      copy_bytes(channels_.to_tell(leader), values_for(0, host), told.back());
    }
    handshake_.emplace(channels_, leaders(), told);
  }

  // Sums this host's shard, and sends the result to the other hosts unless each sums all of it.
  void finish(size_t i) {
    Round& round = rounds_[i % kBlocks];
    wait_for(round.values);
    const Range range = layout_.shard(i, me_);
    if (range.empty()) return;
    std::byte* const result = result_at(i, me_);
    // The result may overwrite this rank's data, which must have been sent before.
    if (layout_.is_whole() && sums_.ready_value(range)) wait_for(round.sent);
    std::vector<const std::byte*> from(layout_.hosts());
    from[me_] = values_for(i, me_);
    size_t at = 0;
    for (const int leader : leaders()) {
      from[host_of(leader)] =
          layout_.is_told() ? channels_.told(leader) : received_[i % kBlocks].at_least(0) + at;
      at += padded(layout_.value_bytes(host_of(leader), range));
    }
    sums_.combine(range, from, result);
    if (layout_.is_whole()) return;
    for (const int leader : leaders())
      round.sent.push_back(
          transfers_.send(leader, MessageKind::results, result, layout_.result_bytes(range)));
  }

  void wait_for(const std::vector<size_t>& messages) {
    for (const size_t number : messages) transfers_.wait(number);
  }
  void wait_for(size_t i) {
    wait_for(rounds_[i % kBlocks].results);
    wait_for(rounds_[i % kBlocks].sent);
  }

  void take_results(size_t i) {
    for (size_t h = 0; h < layout_.shards(); ++h)
      take_results(layout_.shard(i, h), result_at(i, h));
  }
  void take_results(Range range, const std::byte* from) {
    const ReduceOp op = layout_.op();
    layout_.for_each_result(range, [&](const Part& part, size_t at) {
      for (void* output : part.piece.outputs)
        copy_bytes(bytes_of(output) + part.result_at(op), from + at, part.result_bytes(op));
    });
  }

  NetworkCollectives& all_;
  PeerChannels& channels_;
  const GroupTopology& topology_;
  Window* const window_;
  const Layout layout_;
  Sums sums_;
  const size_t me_;  // this host
  const bool leads_;
  Staging staging_;
  Scratch& own_staging_;
  std::array<Scratch, kBlocks>& received_;  // values of the others
  std::array<Round, kBlocks> rounds_;
  std::array<Starts, kBlocks> starts_;
  std::optional<PeerChannels::Handshake> handshake_;
  PeerChannels::Transfers transfers_;  // ends before the memory that it works on
};

void NetworkCollectives::all_reduce(const Description& what, const LeafReduction& reduction,
                                    Timeouts timeouts) {
  begin(what, timeouts, reduction.pieces);
  reduce_leaves(reduction);
}

void NetworkCollectives::reduce_leaves(const LeafReduction& reduction) {
  Reducer(*this, reduction).run();
}

// Whether all ranks are alone on their hosts, and all data travels with their greetings. Nothing is
// cut then, and there are no other messages.
bool NetworkCollectives::fits_handshake(const detail::Memory& in, ReduceOp op) const {
  const size_t hosts = topology_.hosts.size(), bytes = rounded_up(size_in_bytes(in));
  if (hosts != all_ranks_.size() || bytes > kMostTold) return false;
  const size_t wide = size_of(partial_dtype(op, in.dtype)) / size_of(in.dtype);
  return choose_way(
             {.hosts = hosts,
              .leaves_per_host = 1,
              .bytes = bytes,
              .direct_values = 1,
              .wide = wide,
              .most = std::max(wide, size_of(result_dtype(op, in.dtype)) / size_of(in.dtype)),
              .most_told = kMostTold,
              .most_halved = kMostHalved,
              .sums_apart = has_partials(op, in.dtype)},
             costs_) == Way::whole;
}

void NetworkCollectives::reduce(const Description& what, const GroupCall& call, Timeouts timeouts) {
  const bool wanted = call.kind == Collective::all_reduce || is_root(call);
  if (fits_handshake(call.in, call.op)) {
    begin(what, timeouts);
    way_ = Way::whole;
    return all_at_once(call, wanted);
  }
  const void* const in = call.in.data;
  void* const out = call.out.data;
  const Piece piece{{&in, 1}, {&out, size_t(wanted ? 1 : 0)}, call.in.count, call.in.dtype};
  all_reduce(what, {{&piece, 1}, all_ranks_, call.op}, timeouts);
}

void NetworkCollectives::all_at_once(const GroupCall& call, bool wanted) {
  const size_t bytes = size_in_bytes(call.in);
  channels_.shake_hands(others(), [&](int, std::byte* to) {
    copy_bytes(to, call.in.data, bytes);
    return bytes;
  });
  if (!wanted || !bytes) return;
  leaves_.clear();
  for (const int r : all_ranks_)
    leaves_.push_back(r == channels_.rank() ? call.in.data : channels_.told(r));
  void* const out = call.out.data;
  reduce_here({.inputs = leaves_,
               .outputs = {&out, 1},
               .count = call.in.count,
               .dtype = call.in.dtype,
               .op = call.op,
               .divisor = int64_t(all_ranks_.size())},
              false);
}

}  // namespace tutti::group
