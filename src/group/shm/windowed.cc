#include "group/shm/windowed.h"

#include <algorithm>
#include <array>
#include <bit>

#include "group/plan/stream.h"
#include "kernels/reduce.h"

namespace tutti::group {

namespace {

using detail::GroupCall;
using detail::Memory;

// Beyond this a reduction is worth two meetings: one to learn where everything lies, or to share
// the work out.
constexpr size_t kWhole = 64 << 10;
// What goes through the window at once: all that the ranks of a core touch should stay in its
// cache.
constexpr size_t kChunk = 256 << 10;
}  // namespace

template <class Show, class Take>
void Windowed::in_chunks(size_t bytes, size_t chunk, const Show& show, const Take& take) {
  size_t at = 0;
  do {
    const size_t now = std::min(chunk, bytes - at);
    show(at, now);
    window_.meet();
    take(at, now);
    at += now;
  } while (at < bytes);
}

void Windowed::run(const Description& what, const GroupCall& call, Patience patience,
                   std::span<const Piece> list) {
  if (call.kind == Collective::send) return window_.send(what, call.in, call.tag, patience);
  if (call.kind == Collective::recv) return window_.recv(what, call.out, call.tag, patience);
  const size_t in_bytes = size_in_bytes(call.in), out_bytes = size_in_bytes(call.out);
  if (call.kind == Collective::all_reduce && in_bytes > kWhole) {
    const void* const in = call.in.data;
    void* const out = call.out.data;
    const Piece piece{{&in, 1}, {&out, 1}, call.in.count, call.in.dtype};
    std::vector<int> owners(size_t(window_.size()));
    for (int r = 0; r < window_.size(); ++r) owners[size_t(r)] = r;
    return all_reduce(what, {{&piece, 1}, owners, call.op}, patience);
  }

  window_.begin(what, patience, list);
  const int me = window_.rank(), n = window_.size(), root = call.root;
  const std::byte* const in = bytes_of(static_cast<const void*>(call.in.data));
  std::byte* const out = bytes_of(call.out.data);
  const auto elements_in = [shift = std::countr_zero(size_of(call.in.dtype))](size_t bytes) {
    return bytes >> shift;  // a division takes longer than the sum of a small call
  };
  const auto combined = [&](std::byte* to, size_t bytes, const auto& leaf) {
    std::array<const void*, 16> few;
    std::vector<const void*> many(size_t(n) > few.size() ? size_t(n) : 0);
    const void** const inputs = many.empty() ? few.data() : many.data();
    for (int r = 0; r < n; ++r) inputs[r] = leaf(r);
    void* const output = to;
    kernels::reduce_here({.inputs = {inputs, size_t(n)},
                          .outputs = {&output, 1},
                          .count = int64_t(elements_in(bytes)),
                          .dtype = call.in.dtype,
                          .op = call.op,
                          .divisor = n},
                         false);
  };
  // Where each rank shows a part for every other, they share the area.
  const auto part_chunk = [&] { return kArea / size_t(n) / kAlign * kAlign; };
  const auto show_parts = [&](size_t at, size_t now, size_t part_bytes) {
    const size_t stride = rounded_up(now);
    std::byte* const to = window_.mine(stride * size_t(n));
    for (int r = 0; r < n; ++r)
      copy_bytes(to + size_t(r) * stride, in + size_t(r) * part_bytes + at, now);
  };
  const auto part = [&](int rank, size_t now) {
    const size_t stride = rounded_up(now);
    return window_.shown(rank, stride * size_t(n)) + size_t(me) * stride;
  };
  // Results may be wider than what they are made of.
  const auto result_at = [&](size_t at) { return elements_in(at) * size_of(call.out.dtype); };

  switch (call.kind) {
    case Collective::barrier: window_.meet(); break;
    case Collective::broadcast:
      in_chunks(
          out_bytes, kArea,
          [&](size_t at, size_t now) {
            if (me == root) copy_bytes(window_.mine(now), out + at, now);
          },
          [&](size_t at, size_t now) {
            if (me != root) copy_bytes(out + at, window_.shown(root, now), now);
          });
      break;
    case Collective::all_gather:
    case Collective::split:
    case Collective::gather:
      in_chunks(
          in_bytes, kArea,
          [&](size_t at, size_t now) { copy_bytes(window_.mine(now), in + at, now); },
          [&](size_t at, size_t now) {
            if (call.kind == Collective::gather && me != root) return;
            for (int r = 0; r < n; ++r)
              copy_bytes(out + size_t(r) * in_bytes + at, window_.shown(r, now), now);
          });
      break;
    case Collective::scatter:
      in_chunks(
          out_bytes, part_chunk(),
          [&](size_t at, size_t now) {
            if (me == root) show_parts(at, now, out_bytes);
          },
          [&](size_t at, size_t now) { copy_bytes(out + at, part(root, now), now); });
      break;
    case Collective::all_to_all: {
      const size_t part_bytes = in_bytes / size_t(n);
      in_chunks(
          part_bytes, part_chunk(), [&](size_t at, size_t now) { show_parts(at, now, part_bytes); },
          [&](size_t at, size_t now) {
            for (int r = 0; r < n; ++r)
              copy_bytes(out + size_t(r) * part_bytes + at, part(r, now), now);
          });
      break;
    }
    case Collective::all_reduce:
    case Collective::reduce:
      in_chunks(
          in_bytes, kArea,
          [&](size_t at, size_t now) { copy_bytes(window_.mine(now), in + at, now); },
          [&](size_t at, size_t now) {
            if (me == root || call.kind == Collective::all_reduce)
              combined(out + result_at(at), now, [&](int r) { return window_.shown(r, now); });
          });
      break;
    case Collective::reduce_scatter: {
      const size_t part_bytes = in_bytes / size_t(n);
      in_chunks(
          part_bytes, part_chunk(), [&](size_t at, size_t now) { show_parts(at, now, part_bytes); },
          [&](size_t at, size_t now) {
            combined(out + result_at(at), now, [&](int r) { return part(r, now); });
          });
      break;
    }
    case Collective::send:
    case Collective::recv: break;
  }
}

void Windowed::all_gather_uneven(const Description& what, const Memory& in, const Memory& out,
                                 std::span<const int64_t> counts, Patience patience) {
  window_.begin(what, patience);
  const size_t each = size_of(in.dtype);
  const size_t most = size_t(*std::ranges::max_element(counts)) * each;
  const auto length = [&](int rank, size_t at, size_t now) {
    const size_t bytes = size_t(counts[size_t(rank)]) * each;
    return bytes <= at ? 0 : std::min(now, bytes - at);
  };
  in_chunks(
      most, kArea,
      [&](size_t at, size_t now) {
        copy_bytes(window_.mine(now), bytes_of(in.data) + at, length(window_.rank(), at, now));
      },
      [&](size_t at, size_t now) {
        std::byte* to = bytes_of(out.data);
        for (int r = 0; r < window_.size(); ++r) {
          copy_bytes(to + at, window_.shown(r, now), length(r, at, now));
          to += size_t(counts[size_t(r)]) * each;
        }
      });
}

void Windowed::all_reduce(const Description& what, const LeafReduction& reduction,
                          Patience patience) {
  window_.begin(what, patience, reduction.pieces);
  const Stream stream(reduction, window_.rank(), window_.size());
  if (stream.bytes() * stream.most_leaves() <= kWhole) return all_at_once(stream);
  in_place(stream);
}

void Windowed::all_at_once(const Stream& stream) {
  const size_t end = stream.bytes(), shown = end * stream.most_leaves();
  stream.copy_leaves(0, end, window_.mine(shown), end, 0);
  window_.meet();
  stream.combine(
      0, end,
      [&](size_t leaf, const Stream::Part& part) {
        return window_.shown(stream.owner(leaf), shown) + stream.place(leaf) * end + part.at;
      },
      [&](const Stream::Part& part, std::vector<void*>& outputs) {
        stream.add_my_outputs(part, outputs);
      });
}

// Where all ranks reach each other's memory, each combines its share of the whole, and writes it to
// all. Where one does not, all go through the window.
void Windowed::in_place(const Stream& stream) {
  const auto& pieces = stream.reduction().pieces;
  const size_t mine = stream.my_leaves(), outputs = stream.outputs();
  const size_t words = 2 + pieces.size() * (mine + outputs);
  bool reachable = words * 8 <= kArea;
  auto* const table = reinterpret_cast<uint64_t*>(window_.mine(kArea));
  if (reachable) {
    uint64_t* to = table;
    *to++ = mine;
    *to++ = outputs;
    for (const Piece& piece : pieces) {
      const auto add = [&](const void* data, DType dtype) {
        const size_t bytes = size_t(piece.count) * size_of(dtype);
        *to = bytes ? reach_.place(data, bytes) : 0;
        reachable &= *to++ != Reach::kNowhere;
      };
      for (const void* input : piece.inputs) add(input, piece.dtype);
      for (const void* output : piece.outputs)
        add(output, result_dtype(stream.reduction().op, piece.dtype));
      to = std::fill_n(to, outputs - piece.outputs.size(), Reach::kNowhere);
      if (!reachable) break;
    }
  }
  // From here on others may work on this rank's memory, and it on theirs.
  Window::Touch touch(window_);
  window_.meet(reachable);
  for (int r = 0; r < window_.size(); ++r)
    if (!window_.flag(r)) return through_window(stream);
  touch.begin();

  const int n = window_.size(), me = window_.rank();
  const size_t share = rounded_up((stream.bytes() + size_t(n) - 1) / size_t(n));
  const size_t begin = std::min(stream.bytes(), share * size_t(me));
  const auto place_of = [&](int rank, size_t piece, size_t column) {
    const auto* t = reinterpret_cast<const uint64_t*>(window_.shown(rank, kArea));
    return t[2 + piece * (t[0] + t[1]) + column];
  };
  const auto count_of = [&](int rank, size_t which) {
    return reinterpret_cast<const uint64_t*>(window_.shown(rank, kArea))[which];
  };
  stream.combine(
      begin, std::min(stream.bytes(), begin + share),
      [&](size_t leaf, const Stream::Part& part) {
        const int owner = stream.owner(leaf);
        return bytes_of(reach_.find(owner, place_of(owner, part.index, stream.place(leaf)))) +
               part.first;
      },
      [&](const Stream::Part& part, std::vector<void*>& to) {
        for (int r = 0; r < n; ++r)
          for (size_t k = 0; k < count_of(r, 1); ++k)
            if (const uint64_t place = place_of(r, part.index, count_of(r, 0) + k);
                place != Reach::kNowhere)
              to.push_back(bytes_of(reach_.find(r, place)) + part.result_at(stream.reduction().op));
      });
  touch.end();
  window_.meet();
  touch.all_done();
}

// Chunk by chunk. A rank shows what the others need of it, combines its own share of the chunk from
// its own memory and from what they show, shows the result, and takes theirs.
void Windowed::through_window(const Stream& stream) {
  const int n = window_.size(), me = window_.rank();
  const ReduceOp op = stream.reduction().op;
  const size_t chunk = kChunk / std::max(stream.most_leaves(), stream.widest()) / kAlign * kAlign;
  for (size_t at = 0; at < stream.bytes(); at += chunk) {
    const size_t end = std::min(stream.bytes(), at + chunk);
    const size_t share = rounded_up((end - at + size_t(n) - 1) / size_t(n));
    const auto begin_of = [&](int rank) { return std::min(end, at + share * size_t(rank)); };
    const size_t begin = begin_of(me), stop = begin_of(me + 1);

    std::byte* const to = window_.mine(kArea);
    stream.copy_leaves(at, begin, to, chunk, at);
    stream.copy_leaves(stop, end, to, chunk, at);
    window_.meet();

    std::byte* const results = window_.mine(kArea);
    const size_t wide = stream.widest();
    stream.combine(
        begin, stop,
        [&](size_t leaf, const Stream::Part& part) -> const std::byte* {
          const int owner = stream.owner(leaf);
          if (owner == me) return bytes_of(part.piece.inputs[stream.place(leaf)]) + part.first;
          return window_.shown(owner, kArea) + stream.place(leaf) * chunk + (part.at - at);
        },
        [&](const Stream::Part& part, std::vector<void*>& outputs) {
          outputs.push_back(results + (part.at - at) * wide);
          stream.add_my_outputs(part, outputs);
        });
    window_.meet();

    for (int r = 0; r < n; ++r) {
      if (r == me) continue;
      stream.for_each_part(begin_of(r), begin_of(r + 1), [&](const Stream::Part& part) {
        for (void* output : part.piece.outputs)
          copy_bytes(bytes_of(output) + part.result_at(op),
                     window_.shown(r, kArea) + (part.at - at) * wide, part.result_bytes(op));
      });
    }
  }
}

}  // namespace tutti::group
