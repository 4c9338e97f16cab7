// SPDX-License-Identifier: Apache-2.0
// Where the elements of a distributed input come from, and how they are dealt out to the replicas
// of a worker.
#pragma once

#include <tutti/group.h>
#include <tutti/input.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::input {

// Which part of the job this process is.
struct Layout {
  std::vector<std::string> devices;  // of the local replicas
  int num_workers = 1;
  int worker_id = 0;
  // If each worker has data of its own: makes a group of them, which go on until none has any left.
  std::function<Group()> new_group = {};
  CommunicationOptions communication = {};  // for their operations

  int num_replicas() const { return int(devices.size()) * num_workers; }
};

// Each element is a global batch whose rows go to the replicas in order; its size divides by their
// number.
std::shared_ptr<const detail::InputSource> global_batches(const Layout& layout,
                                                          const Dataset& dataset);

// The same for any batch size: what does not divide is shared out, the first replicas getting one
// row more.
std::shared_ptr<const detail::InputSource> shared_out(const Layout& layout, const Dataset& dataset,
                                                      const InputOptions& options);

// A pipeline per worker, whose elements go to the replicas one by one; or a pipeline per replica.
std::shared_ptr<const detail::InputSource> from_function(const Layout& layout,
                                                         const InputFn& input_fn,
                                                         const InputOptions& options);

}  // namespace tutti::input
