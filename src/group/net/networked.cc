#include "group/net/networked.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "group/plan/stream.h"
#include "group/plan/tree.h"
#include "kernels/reduce.h"

namespace tutti::group {

namespace {

using detail::GroupCall;

// What a rank sends to another at once, where it cannot be sent from where it lies.
constexpr size_t kPart = 256 << 10;
// So few hosts send all they have to each other, where that is not much.
constexpr size_t kFew = 4;
// Two send each other no more than if each summed a half; only, both sum all of it.
constexpr size_t kMuchForTwo = 256 << 10;

constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

Layout::Layout(const std::vector<std::string>& names, int r) : rank(r) {
  std::map<std::string, int> known;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto [entry, is_new] = known.try_emplace(names[i], int(hosts.size()));
    if (is_new) hosts.emplace_back();
    host_of.push_back(entry->second);
    hosts[size_t(entry->second)].push_back(int(i));
  }
}

size_t Layout::place(int r) const {
  const std::vector<int>& ranks = hosts[size_t(host_of[size_t(r)])];
  return size_t(std::ranges::find(ranks, r) - ranks.begin());
}

int Layout::taker(int r, int host) const {
  const std::vector<int>& ranks = hosts[size_t(host)];
  return ranks[(place(r) + size_t(host_of[size_t(r)])) % ranks.size()];
}

Networked::Networked(Wire& wire, const Layout& layout, Window* window, Staging staging)
    : wire_(wire), layout_(layout), window_(window), staging_(staging) {
  for (int r = 0; r < wire.size(); ++r) {
    everybody_.push_back(r);
    if (r != wire.rank()) others_.push_back(r);
  }
  for (int h = 0; h < int(layout.hosts.size()); ++h)
    if (h != layout.my_host()) leaders_.push_back(layout.leader(h));
}

void Networked::Cut::update(std::span<const int> new_owners, const Layout& layout,
                            bool now_single) {
  if (single == now_single && std::ranges::equal(owners, new_owners)) return;
  owners.assign(new_owners.begin(), new_owners.end());
  single = now_single;
  by_host.clear();
  order.clear();
  all.clear();
  for (size_t h = 0; h < layout.hosts.size(); ++h) {
    by_host.push_back(largest_subtrees(
        owners.size(), [&](size_t leaf) { return layout.host_of[size_t(owners[leaf])] == int(h); },
        single));
    for (size_t i = 0; i < by_host[h].size(); ++i) order.push_back({by_host[h][i], h, i});
  }
  std::ranges::sort(order, {}, [](const Value& value) { return value.subtree.first; });
  for (const Value& value : order) all.push_back(value.subtree);
}

Networked::~Networked() {
  if (!wire_.has_lost_memory()) return;
  own_staging_.abandon();
  for (Scratch& scratch : received_) scratch.abandon();
}

// One reduction, seen from one rank. Those of a host that do not lead it meet the others in the
// window, and never touch the wire.
class Networked::Reducer {
 public:
  Reducer(Networked& all, const LeafReduction& reduction)
      : wire_(all.wire_),
        layout_(all.layout_),
        window_(all.window_),
        leaders_(all.leaders_),
        op_(reduction.op),
        stream_(reduction, all.wire_.rank(), all.wire_.size()),
        hosts_(all.layout_.hosts.size()),
        me_(size_t(all.layout_.my_host())),
        leads_(all.layout_.leads()),
        staging_(all.staging_),
        own_(all.own_staging_),
        received_(all.received_),
        subtrees_(all.cut_.by_host),
        order_(all.cut_.order),
        all_(all.cut_.all),
        flight_(all.wire_) {
    bool single = false;
    size_t wide = 1;
    for (const Piece& piece : reduction.pieces) {
      single |= !has_partials(op_, piece.dtype);
      wide = std::max(wide, size_of(partial_dtype(op_, piece.dtype)) / size_of(piece.dtype));
    }
    all.cut_.update(reduction.owners, layout_, single);
    size_t values = 1;  // bytes of values per byte of the stream, of any host
    for (const std::vector<Subtree>& of_host : subtrees_) {
      size_t here = 0;
      for (const Subtree& subtree : of_host) here += subtree.leaves == 1 ? 1 : wide;
      values = std::max(values, here);
    }

    small_ = stream_.bytes() * std::max(values, stream_.most_leaves()) <= kSmallMessage;
    // A little is soonest summed by every host: one hop instead of two.
    whole_ = small_ || (hosts_ == 2 && values == 1 && stream_.bytes() <= kMuchForTwo) ||
             (hosts_ <= kFew && stream_.bytes() <= kPart / 4);
    const bool shared =
        std::ranges::any_of(layout_.hosts, [](const auto& ranks) { return ranks.size() > 1; });
    slot_ = shared ? kArea : std::min(hosts_ * kArea, kMostStaged);
    const size_t most = std::max({values, stream_.most_leaves(), stream_.widest()});
    // Enough blocks that they overlap, unless they become so small that their number costs more.
    const size_t block = std::min(slot_ / most, std::max(stream_.bytes() / 8, hosts_ * kLeast));
    block_ = std::max(block / kAlign, size_t{1}) * kAlign;
    if (block_ * most > slot_)
      throw UnimplementedError(
          fmt::format("all_reduce: {} values of each element on one host are too many", most));
  }

  void run() {
    if (small_) return all_at_once();
    const size_t rounds = (stream_.bytes() + block_ - 1) / block_;
    // Block i sets out, while kLag others are on their way; then comes the sum of an earlier one,
    // and the end of one that is earlier still.
    for (size_t i = 0; i < rounds + kLag + 2; ++i) {
      if (window_) {
        if (i < rounds) show(i);
        window_->meet();
        if (i >= kLag + 2) take_results(i - kLag - 2);
        if (i < rounds) {
          make_values(i, layout_.neighbours());
          window_->meet();
        }
      } else if (i < rounds) {
        make_values(i, layout_.neighbours());
      }
      if (!leads_) continue;
      if (i < rounds) post(i);
      if (i == 0) greetings_->finish();
      if (i >= kLag && i - kLag < rounds) finish(i - kLag);
      if (i > kLag && i - kLag - 1 < rounds) {
        wait_for(i - kLag - 1);
        if (!window_) take_results(i - kLag - 1);
      }
    }
    if (leads_) flight_.wait_all();
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
  // The numbers of a block's messages in the flight.
  struct Round {
    std::vector<size_t> values, results, sent;
  };

  Range block(size_t i) const { return {i * block_, std::min(stream_.bytes(), (i + 1) * block_)}; }
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
      stream_.for_each_part(range.begin, range.end, [&](const Stream::Part& part) {
        const size_t at = padded(end);
        f(i, part, at);
        end = at + size_t(part.count()) * width(subtrees_[host][i], part.piece.dtype);
      });
    return end;
  }
  size_t value_bytes(size_t host, Range range) const {
    return for_each_value(host, range, [](size_t, const Stream::Part&, size_t) {});
  }
  template <class F>
  size_t for_each_result(Range range, const F& f) const {
    size_t end = 0;
    stream_.for_each_part(range.begin, range.end, [&](const Stream::Part& part) {
      const size_t at = padded(end);
      f(part, at);
      end = at + part.result_bytes(op_);
    });
    return end;
  }
  size_t result_bytes(Range range) const {
    return for_each_result(range, [](const Stream::Part&, size_t) {});
  }
  std::optional<Stream::Part> only_part(Range range) const {
    std::optional<Stream::Part> only;
    size_t parts = 0;
    stream_.for_each_part(range.begin, range.end, [&](const Stream::Part& part) {
      if (parts++ == 0) only.emplace(part);
    });
    return parts == 1 ? std::move(only) : std::nullopt;
  }

  TreeSum& sum_of(DType dtype) {
    const auto found = sums_.find(dtype);
    return found != sums_.end()
               ? found->second
               : sums_.try_emplace(dtype, op_, dtype, stream_.leaves()).first->second;
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
    stream_.copy_leaves(range.begin, range.end, window_->mine(kArea), block_, range.begin);
  }

  // A leaf's data in this process's reach: its own, or what is shown in the window.
  const std::byte* leaf_at(size_t leaf, const Stream::Part& part, size_t base, size_t stride,
                           size_t shown) const {
    if (!window_) return bytes_of(part.piece.inputs[stream_.place(leaf)]) + part.first;
    const int neighbour = int(layout_.place(stream_.owner(leaf)));
    return window_->shown(neighbour, shown) + stream_.place(leaf) * stride + (part.at - base);
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
      const size_t me = layout_.place(wire_.rank());
      const Range mine{std::min(range.end, range.begin + me * share),
                       std::min(range.end, range.begin + (me + 1) * share)};
      at += padded(make_values(range, mine, staged_values(i) + at, all.begin, block_, kArea));
    }
  }

  // Those of `mine`, into a message of the values of `range`.
  size_t make_values(Range range, Range mine, std::byte* to, size_t base, size_t stride,
                     size_t shown) {
    return for_each_value(me_, range, [&](size_t index, const Stream::Part& part, size_t at) {
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

  // The values of this host for a shard, where they are ready.
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
      at += padded(value_bytes(size_t(layout_.host_of[size_t(leader)]), shard(i, me_)));
    std::byte* const received = received_[i % kBlocks].at_least(at);
    at = 0;
    for (const int leader : leaders_) {
      const size_t host = size_t(layout_.host_of[size_t(leader)]);
      if (const size_t bytes = value_bytes(host, shard(i, me_))) {
        round.values.push_back(flight_.receive(leader, Lane::data, received + at, bytes));
        at += padded(bytes);
      }
      if (const size_t bytes = result_bytes(shard(i, host)); bytes && !whole_)
        round.results.push_back(flight_.receive(leader, Lane::results, result_at(i, host), bytes));
    }
    if (i == 0) greetings_.emplace(wire_, leaders_);
    for (const int leader : leaders_) {
      const size_t host = size_t(layout_.host_of[size_t(leader)]);
      if (const size_t bytes = value_bytes(me_, shard(i, host)))
        round.sent.push_back(flight_.send(leader, Lane::data, values_for(i, host), bytes));
    }
  }

  // The sum of this host's shard, for all.
  void finish(size_t i) {
    Round& round = rounds_[i % kBlocks];
    for (const size_t number : round.values) flight_.wait(number);
    const Range range = shard(i, me_);
    if (range.empty()) return;
    std::byte* const result = result_at(i, me_);
    // What is sent from where the result goes must be gone.
    if (whole_ && lies_ready(range))
      for (const size_t number : round.sent) flight_.wait(number);
    std::vector<const std::byte*> from(hosts_);
    from[me_] = values_for(i, me_);
    size_t at = 0;
    for (const int leader : leaders_) {
      const size_t host = size_t(layout_.host_of[size_t(leader)]);
      from[host] = received_[i % kBlocks].at_least(0) + at;
      at += padded(value_bytes(host, range));
    }
    combine(range, from, result);
    if (whole_) return;
    for (const int leader : leaders_)
      round.sent.push_back(flight_.send(leader, Lane::results, result, result_bytes(range)));
  }

  void combine(Range range, const std::vector<const std::byte*>& from, std::byte* result) {
    // Where each value of each part begins, in the order of the leaves.
    std::vector<std::vector<std::vector<const std::byte*>>> places(hosts_);
    for (size_t h = 0; h < hosts_; ++h) {
      places[h].resize(subtrees_[h].size());
      for_each_value(h, range, [&](size_t index, const Stream::Part&, size_t at) {
        places[h][index].push_back(from[h] + at);
      });
    }
    size_t number = 0;
    for_each_result(range, [&](const Stream::Part& part, size_t at) {
      inputs_.clear();
      for (const Value& value : order_) inputs_.push_back(places[value.host][value.index][number]);
      void* const output = result + at;
      sum_of(part.piece.dtype).finish(all_, inputs_, {&output, 1}, part.count());
      ++number;
    });
  }

  void wait_for(size_t i) {
    for (const size_t number : rounds_[i % kBlocks].results) flight_.wait(number);
    for (const size_t number : rounds_[i % kBlocks].sent) flight_.wait(number);
  }

  void take_results(size_t i) {
    for (size_t h = 0; h < (whole_ ? 1 : hosts_); ++h) take_results(shard(i, h), result_at(i, h));
  }
  void take_results(Range range, const std::byte* from) {
    for_each_result(range, [&](const Stream::Part& part, size_t at) {
      for (void* output : part.piece.outputs)
        copy_bytes(bytes_of(output) + part.result_at(op_), from + at, part.result_bytes(op_));
    });
  }

  void all_at_once() {
    const Range range{0, stream_.bytes()};
    const size_t shown = range.end * stream_.most_leaves(), results = result_bytes(range);
    if (window_) {
      stream_.copy_leaves(0, range.end, window_->mine(shown), range.end, 0);
      window_->meet();
    }
    std::byte* const result = window_ ? window_->mine(results) : small_result();
    if (leads_) {
      alignas(kLine) std::byte values[kSmallMessage];
      const size_t bytes = make_values(range, range, values, 0, range.end, shown);
      wire_.meet(leaders_, [&](int, std::byte* to) {
        std::memcpy(to, values, bytes);
        return bytes;
      });
      std::vector<const std::byte*> from(hosts_);
      from[me_] = values;
      for (const int leader : leaders_)
        from[size_t(layout_.host_of[size_t(leader)])] = wire_.told(leader);
      combine(range, from, result);
    }
    if (window_) window_->meet();
    take_results(range, window_ ? window_->shown(0, results) : result);
  }
  std::byte* small_result() {
    small_memory_.resize(result_bytes({0, stream_.bytes()}));
    return small_memory_.data();
  }

  Wire& wire_;
  const Layout& layout_;
  Window* const window_;
  const std::vector<int>& leaders_;
  const ReduceOp op_;
  const Stream stream_;
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
  std::optional<Wire::Greetings> greetings_;
  Wire::Flight flight_;  // ends before the memory that it works on
};

void Networked::all_reduce(const Description& what, const LeafReduction& reduction,
                           Patience patience) {
  begin(what, patience, reduction.pieces);
  Reducer(*this, reduction).run();
}

void Networked::begin(const Description& what, Patience patience, std::span<const Piece> list) {
  wire_.begin(what, patience, list);
  if (window_) window_->begin(what, patience, list);
}

// Whether ranks that are alone on their hosts tell each other all of it with their greetings: there
// is nothing to be cut, and no message besides.
bool Networked::is_soon_told(size_t bytes) const {
  const size_t hosts = layout_.hosts.size();
  return hosts == everybody_.size() &&
         rounded_up(bytes) <= (hosts <= kFew ? kMostTold : kSmallMessage);
}

void Networked::all_at_once(const GroupCall& call, bool wanted) {
  const size_t bytes = size_in_bytes(call.in);
  wire_.meet(others_, [&](int, std::byte* to) {
    copy_bytes(to, call.in.data, bytes);
    return bytes;
  });
  if (!wanted || !bytes) return;
  leaves_.clear();
  for (const int r : everybody_)
    leaves_.push_back(r == wire_.rank() ? call.in.data : wire_.told(r));
  void* const out = call.out.data;
  kernels::reduce_here({.inputs = leaves_,
                        .outputs = {&out, 1},
                        .count = call.in.count,
                        .dtype = call.in.dtype,
                        .op = call.op,
                        .divisor = int64_t(everybody_.size())},
                       false);
}

void Networked::run(const Description& what, const GroupCall& call, Patience patience,
                    std::span<const Piece> list) {
  if (call.kind == Collective::send) return wire_.send(what, call.in, call.tag, patience);
  if (call.kind == Collective::recv) return wire_.recv(what, call.out, call.tag, patience);
  const int me = wire_.rank(), n = wire_.size(), root = call.root;
  if (call.kind == Collective::all_reduce || call.kind == Collective::reduce) {
    const void* const in = call.in.data;
    void* const out = call.out.data;
    const bool wanted = call.kind == Collective::all_reduce || me == root;
    const Piece piece{{&in, 1}, {&out, size_t(wanted ? 1 : 0)}, call.in.count, call.in.dtype};
    if (!is_soon_told(size_in_bytes(call.in)))
      return all_reduce(what, {{&piece, 1}, everybody_, call.op}, patience);
    begin(what, patience);
    return all_at_once(call, wanted);
  }

  begin(what, patience, list);
  const size_t in_bytes = size_in_bytes(call.in), out_bytes = size_in_bytes(call.out);
  const std::byte* const in = bytes_of(static_cast<const void*>(call.in.data));
  std::byte* const out = bytes_of(call.out.data);
  // What goes to each of `to`, from part(peer), and comes from each of `from`, to place(peer):
  // `bytes` each.
  const auto exchange = [&](size_t bytes, const std::vector<int>& to, const auto& part,
                            const std::vector<int>& from, const auto& place) {
    if (bytes <= kSmallMessage) {
      wire_.meet(
          others_,
          [&](int peer, std::byte* memory) -> size_t {
            if (std::ranges::find(to, peer) == to.end()) return 0;
            copy_bytes(memory, part(peer), bytes);
            return bytes;
          },
          window_);
      for (const int peer : from) copy_bytes(place(peer), wire_.told(peer), bytes);
      return;
    }
    wire_.meet(others_, window_);
    Wire::Flight flight(wire_);
    for (const int peer : from) flight.receive(peer, Lane::data, place(peer), bytes);
    for (const int peer : to) flight.send(peer, Lane::data, part(peer), bytes);
    flight.wait_all();
  };
  const std::vector<int> nobody, the_root{root};
  const auto& all = others_;
  switch (call.kind) {
    case Collective::barrier: wire_.meet(others_, window_); break;
    case Collective::broadcast:
      if (out_bytes > kSmallMessage && n > 2) {
        broadcast(out, out_bytes, root);
        break;
      }
      exchange(
          out_bytes, me == root ? all : nobody, [&](int) { return out; },
          me == root ? nobody : the_root, [&](int) { return out; });
      break;
    case Collective::all_gather:
    case Collective::split:
    case Collective::gather: {
      const bool gather = call.kind == Collective::gather;
      if (!gather && in_bytes > kSmallMessage) {
        std::vector<size_t> starts;
        for (size_t r = 0; r <= size_t(n); ++r) starts.push_back(r * in_bytes);
        all_gather(in, out, starts);
        break;
      }
      const auto place = [&](int peer) { return out + size_t(peer) * in_bytes; };
      exchange(
          in_bytes,
          !gather      ? all
          : me == root ? nobody
                       : the_root,
          [&](int) { return in; }, gather && me != root ? nobody : all, place);
      if (!gather || me == root) copy_bytes(place(me), in, in_bytes);
      break;
    }
    case Collective::scatter: {
      const auto part = [&](int peer) { return in + size_t(peer) * out_bytes; };
      exchange(out_bytes, me == root ? all : nobody, part, me == root ? nobody : the_root,
               [&](int) { return out; });
      if (me == root) copy_bytes(out, part(me), out_bytes);
      break;
    }
    case Collective::all_to_all: {
      const size_t bytes = in_bytes / size_t(n);
      std::vector<std::byte> copy;
      if (in == out) copy.assign(in, in + in_bytes);
      const std::byte* const source = copy.empty() ? in : copy.data();
      const auto part = [&](int peer) { return source + size_t(peer) * bytes; };
      const auto place = [&](int peer) { return out + size_t(peer) * bytes; };
      exchange(bytes, all, part, all, place);
      copy_bytes(place(me), part(me), bytes);
      break;
    }
    case Collective::reduce_scatter: reduce_scatter(call); break;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::send:
    case Collective::recv: break;
  }
}

// The root's host has it from the root, every other one from its leader. The leaders take turns at
// getting a chunk from the root and passing it on to each other; the rest of a host take it from
// the window.
void Networked::broadcast(std::byte* data, size_t bytes, int root) {
  constexpr size_t kLeast = 64 << 10;  // in a chunk
  const int me = wire_.rank(), roots_host = layout_.host_of[size_t(root)];
  std::vector<int> relays;
  for (int h = 0; h < int(layout_.hosts.size()); ++h)
    if (h != roots_host) relays.push_back(layout_.leader(h));
  const int head = layout_.my_host() == roots_host ? root : layout_.leader(layout_.my_host());
  const size_t ways = std::max(relays.size(), size_t{1});
  const size_t chunk = std::clamp(rounded_up((bytes + ways - 1) / ways), kLeast, kArea);
  const size_t chunks = (bytes + chunk - 1) / chunk;
  const auto part = [&](size_t i) {
    return std::span(data + i * chunk, std::min(chunk, bytes - i * chunk));
  };
  const auto is_relay = [&](size_t i) { return !relays.empty() && me == relays[i % ways]; };

  wire_.meet(others_, window_);
  Wire::Flight flight(wire_);
  std::vector<size_t> numbers;
  const auto post = [&](size_t i) {
    const std::span now = part(i);
    const int relay = relays[i % ways];
    numbers.push_back(me == root    ? flight.send(relay, Lane::data, now.data(), now.size())
                      : is_relay(i) ? flight.receive(root, Lane::data, now.data(), now.size())
                                    : flight.receive(relay, Lane::results, now.data(), now.size()));
  };
  const auto pass_on = [&](size_t i) {
    flight.wait(numbers[i]);
    for (const int other : relays)
      if (other != me) flight.send(other, Lane::results, part(i).data(), part(i).size());
  };
  const auto show = [&](size_t i) {
    if (me == head) copy_bytes(window_->mine(kArea), part(i).data(), part(i).size());
    window_->meet();
    if (me != head)
      copy_bytes(part(i).data(), window_->shown(int(layout_.place(head)), kArea), part(i).size());
  };
  // A chunk that is to be passed on must not wait for those that others pass on: it has a lead.
  constexpr size_t kAhead = 4;
  const size_t lag = kAhead + ways;
  const bool travels = me == head && !relays.empty();
  for (size_t i = 0; i < chunks + lag; ++i) {
    if (travels && i < chunks) post(i);
    if (i >= kAhead && i - kAhead < chunks && is_relay(i - kAhead)) pass_on(i - kAhead);
    if (i < lag) continue;
    if (travels) flight.wait(numbers[i - lag]);
    if (window_) show(i - lag);
  }
  flight.wait_all();
}

// To every other host a rank sends its part once, to one of the ranks there; what they have taken
// in they show to each other, one part of each at a time.
void Networked::all_gather(const std::byte* in, std::byte* out, std::span<const size_t> starts) {
  const int me = wire_.rank();
  const size_t my_place = layout_.place(me);
  const auto bytes_of_part = [&](int rank) {
    return starts[size_t(rank) + 1] - starts[size_t(rank)];
  };
  // The parts that each neighbour has for the others: first its own.
  std::vector<std::vector<int>> parts;
  for (const int neighbour : layout_.neighbours()) parts.push_back({neighbour});
  for (const int r : everybody_)
    if (layout_.host_of[size_t(r)] != layout_.my_host() && bytes_of_part(r))
      parts[layout_.place(layout_.taker(r, layout_.my_host()))].push_back(r);
  const std::vector<int>& mine = parts[my_place];

  wire_.meet(others_, window_);
  Wire::Flight flight(wire_);
  std::vector<size_t> numbers;
  for (size_t i = 1; i < mine.size(); ++i)
    numbers.push_back(
        flight.receive(mine[i], Lane::data, out + starts[size_t(mine[i])], bytes_of_part(mine[i])));
  for (int h = 0; h < int(layout_.hosts.size()); ++h)
    if (h != layout_.my_host() && bytes_of_part(me))
      flight.send(layout_.taker(me, h), Lane::data, in, bytes_of_part(me));
  copy_bytes(out + starts[size_t(me)], in, bytes_of_part(me));

  size_t steps = 0;
  for (const std::vector<int>& of_one : parts) steps = std::max(steps, of_one.size());
  for (size_t i = 0; window_ && i < steps; ++i) {
    if (i > 0 && i < mine.size()) flight.wait(numbers[i - 1]);
    const auto bytes = [&](size_t k) {
      return i < parts[k].size() ? bytes_of_part(parts[k][i]) : 0;
    };
    size_t longest = 0;
    for (size_t k = 0; k < parts.size(); ++k) longest = std::max(longest, bytes(k));
    for (size_t at = 0; at < longest; at += kArea) {
      const auto now = [&](size_t k) {
        return bytes(k) <= at ? 0 : std::min(kArea, bytes(k) - at);
      };
      const auto place = [&](size_t k) { return out + starts[size_t(parts[k][i])] + at; };
      if (now(my_place)) copy_bytes(window_->mine(kArea), place(my_place), now(my_place));
      flight.progress();  // what is under way must not wait for the neighbours
      window_->meet();
      for (size_t k = 0; k < parts.size(); ++k)
        if (k != my_place && now(k)) copy_bytes(place(k), window_->shown(int(k), kArea), now(k));
    }
  }
  flight.wait_all();
}

// Part by part: the next one travels while this one is summed.
void Networked::reduce_scatter(const GroupCall& call) {
  const size_t n = size_t(wire_.size()), me = size_t(wire_.rank());
  const size_t bytes = size_in_bytes(call.in) / n, each = size_of(call.in.dtype);
  const auto* const in = bytes_of(static_cast<const void*>(call.in.data));
  auto* const out = bytes_of(call.out.data);
  std::vector<const void*> inputs(n);
  const auto combine = [&](size_t at, size_t now, const auto& theirs) {
    for (size_t r = 0; r < n; ++r) inputs[r] = r == me ? in + me * bytes + at : theirs(r);
    void* const output = out + at / each * size_of(call.out.dtype);
    kernels::reduce_here({.inputs = inputs,
                          .outputs = {&output, 1},
                          .count = int64_t(now / each),
                          .dtype = call.in.dtype,
                          .op = call.op,
                          .divisor = int64_t(n)},
                         false);
  };
  if (bytes <= kSmallMessage) {
    wire_.meet(
        others_,
        [&](int peer, std::byte* memory) {
          copy_bytes(memory, in + size_t(peer) * bytes, bytes);
          return bytes;
        },
        window_);
    return combine(0, bytes, [&](size_t r) { return wire_.told(int(r)); });
  }
  wire_.meet(others_, window_);
  std::vector<size_t> posted[2], sent[2];
  Wire::Flight flight(wire_);
  const size_t parts = (bytes + kPart - 1) / kPart;
  for (size_t i = 0; i < parts + 1; ++i) {
    if (i < parts) {
      const size_t at = i * kPart, now = std::min(kPart, bytes - at);
      std::byte* const memory = received_[i % 2].at_least(n * kPart);
      posted[i % 2].clear();
      // All peers have taken these, since what they sent after asking for them is here.
      for (const size_t number : sent[i % 2]) flight.wait(number);
      sent[i % 2].clear();
      for (const int peer : others_)
        posted[i % 2].push_back(
            flight.receive(peer, Lane::data, memory + size_t(peer) * kPart, now));
      for (const int peer : others_)
        sent[i % 2].push_back(flight.send(peer, Lane::data, in + size_t(peer) * bytes + at, now));
    }
    if (i == 0) continue;
    const size_t at = (i - 1) * kPart;
    for (const size_t number : posted[(i - 1) % 2]) flight.wait(number);
    combine(at, std::min(kPart, bytes - at),
            [&](size_t r) { return received_[(i - 1) % 2].at_least(0) + r * kPart; });
  }
  flight.wait_all();
}

void Networked::all_gather_uneven(const Description& what, const detail::Memory& in,
                                  const detail::Memory& out, std::span<const int64_t> counts,
                                  Patience patience) {
  begin(what, patience);
  std::vector<size_t> starts{0};
  for (const int64_t count : counts)
    starts.push_back(starts.back() + size_t(count) * size_of(in.dtype));
  all_gather(bytes_of(static_cast<const void*>(in.data)), bytes_of(out.data), starts);
}

}  // namespace tutti::group
