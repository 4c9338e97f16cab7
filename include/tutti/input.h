// SPDX-License-Identifier: Apache-2.0
// Input that is dealt out to the replicas of a strategy.
#pragma once

#include <tutti/dataset.h>
#include <tutti/values.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::detail {
class InputSource;
}

#pragma GCC visibility push(default)

namespace tutti {

class Group;

// Whether an input function makes one pipeline for a worker, or for each replica.
enum class InputReplicationMode { PER_WORKER, PER_REPLICA };

// How the workers of a job share a dataset. DATA: all of them read it, and each takes its replicas'
// parts of every batch, so that replicas get the same in every layout. FILE: each reads its share
// of the files. OFF: each has data of its own. With FILE and OFF a worker's replicas take their
// rows of every global batch from its own data. AUTO is DATA.
enum class AutoShardPolicy { OFF = -1, AUTO = 0, FILE = 1, DATA = 2 };

// Handed to an input function: which of how many pipelines it makes.
class InputContext {
 public:
  explicit InputContext(int num_input_pipelines = 1, int input_pipeline_id = 0,
                        int num_replicas_in_sync = 1);

  // How many pipelines there are, which of them this one is (from 0), and for how many replicas.
  int num_input_pipelines() const { return num_input_pipelines_; }
  int input_pipeline_id() const { return input_pipeline_id_; }
  int num_replicas_in_sync() const { return num_replicas_in_sync_; }
  // InvalidArgumentError if it does not divide.
  int64_t get_per_replica_batch_size(int64_t global_batch_size) const;
  std::string to_string() const;  // for logs

 private:
  int num_input_pipelines_, input_pipeline_id_, num_replicas_in_sync_;
};

// Makes a pipeline. On several workers each calls it for its own.
using InputFn = std::function<Dataset(const InputContext&)>;

// How a dataset is dealt out.
struct InputOptions {
  // PER_REPLICA is for distribute_datasets_from_function alone.
  InputReplicationMode experimental_replication_mode = InputReplicationMode::PER_WORKER;
  // Between the workers of a job; one worker reads all.
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::AUTO;
};

// One entry per component of an element.
using DistributedElement = std::vector<PerReplica<Tensor>>;

// Deals the elements of one or more datasets to the replicas of this process, on their devices. For
// one thread at a time.
class InputIterator {
 public:
  // Starts from the beginning; needed before the first get_next, and to start over.
  void initialize();

  // One part for every replica. OutOfRangeError at the end, FailedPreconditionError before
  // initialize and inside a replica function. A replica for which nothing is left gets an empty
  // batch while another one still has data; on one worker whose own elements all have one shape
  // (scalars, or batches without a remainder), the input ends instead.
  DistributedElement get_next();
  std::optional<DistributedElement> get_next_as_optional();  // none at the end

  // Where this iterator stands, and back to there. See DatasetIterator::save.
  std::string save();
  void restore(const std::string& state);

  ~InputIterator();
  InputIterator(InputIterator&&) noexcept;
  InputIterator& operator=(InputIterator&&) noexcept;

 private:
  friend class Strategy;
  friend class DistributedDataset;
  friend class Checkpoint;
  bool has_own_data() const;  // this worker, which no other has
  explicit InputIterator(std::shared_ptr<const detail::InputSource> source);
  struct Run;
  std::shared_ptr<const detail::InputSource> source_;
  std::unique_ptr<Group> group_;  // of the workers, if each has data of its own
  std::unique_ptr<Run> run_;
};

// `for (const DistributedElement& element : dataset)`; each loop starts from the beginning.
class DistributedDataset {
 public:
  // The iterator of such a loop.
  class Range {
   public:
    explicit Range(InputIterator iterator)
        : iterator_(std::move(iterator)), element_(iterator_.get_next_as_optional()) {}
    const DistributedElement& operator*() const { return *element_; }
    Range& operator++() {
      element_ = iterator_.get_next_as_optional();
      return *this;
    }
    friend bool operator==(const Range& range, std::default_sentinel_t) { return !range.element_; }

   private:
    InputIterator iterator_;
    std::optional<DistributedElement> element_;
  };

  // For such a loop.
  Range begin() const { return Range(make_iterator()); }
  std::default_sentinel_t end() const { return {}; }
  InputIterator make_iterator() const;  // initialised

 private:
  friend class Strategy;
  explicit DistributedDataset(std::shared_ptr<const detail::InputSource> source)
      : source_(std::move(source)) {}
  std::shared_ptr<const detail::InputSource> source_;
};

}  // namespace tutti

#pragma GCC visibility pop
