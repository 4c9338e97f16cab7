// SPDX-License-Identifier: Apache-2.0
// What a group runs on: it brings the ranks together and moves their data.
#pragma once

#include <tutti/error.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/costs.h"
#include "cluster/coordination.h"
#include "group/core/operation.h"
#include "group/core/way.h"

namespace tutti::group {

// One rank's side of a group. Collectives come one at a time; a send and a recv may go on beside
// them. Arguments have been checked.
class Backend {
 public:
  virtual ~Backend() = default;  // leaves the group, without waiting
  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string address(int rank) const = 0;  // "worker-2:5000"; empty for a thread
  virtual bool is_local(int rank) const = 0;        // on the same host as this rank
  // That of the last collective, or of the one under way. For the thread that calls it.
  virtual const Way& way() const = 0;

  // `call` says what to do; `what` is what the ranks must agree on, and what errors name.
  // `list`: the tensors behind `what`, if it describes a list.
  virtual void run(const Description& what, const detail::GroupCall& call, Timeouts timeouts,
                   std::span<const Piece> list) = 0;
  void run(const Description& what, const detail::GroupCall& call, Timeouts timeouts) {
    run(what, call, timeouts, {});
  }
  virtual void all_reduce(const Description& what, const LeafReduction& reduction,
                          Timeouts timeouts) = 0;
  // counts[r] elements from rank r.
  virtual void all_gather_uneven(const Description& what, const detail::Memory& in,
                                 const detail::Memory& out, std::span<const int64_t> counts,
                                 Timeouts timeouts) = 0;

  // A group of those ranks of this one that are named, in this order; a collective.
  virtual std::unique_ptr<Backend> split(std::span<const int> ranks, Timeouts timeouts) = 0;

  // Memory that all ranks reach.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;

  // Bytes that this rank reserves to work with; most are touched by large operations only.
  virtual size_t reserved() const = 0;

  // Throws if the group has failed, or has lost a rank; `during` starts the text. On any thread,
  // also during an operation.
  virtual void check(const std::string& during) = 0;

  // Every rank gets this error from now on, unless there was one before. This rank is at fault.
  virtual void poison(ErrorCode code, const std::string& text) = 0;
  // The error that every rank gets, if there is one, with the rank of the job that is at fault.
  virtual std::optional<cluster::Failure> failure() const = 0;
};

std::vector<std::unique_ptr<Backend>> make_in_process(int n, const base::Costs& costs = {});

}  // namespace tutti::group
