// SPDX-License-Identifier: Apache-2.0
// Dataset: a sequence of elements, each a list of tensors, made by composing a source with
// transformations.
//
//   Dataset::from_tensor_slices({images, labels}).shuffle(1000, /*seed=*/1).batch(32).prefetch(2)
//
// What the functions of a pipeline make lands on CPU:0 unless they name a device.
// Elements may share memory with their source (from_tensors, from_tensor_slices, cache): clone a
// tensor before writing into it.
//
// A Dataset is a recipe: a value that is cheap to copy and never changes. Iterating runs it from
// the start, any number of times and from any thread; with the same seeds it gives the same
// elements every time, whatever the number of threads.
#pragma once

#include <tutti/tensor.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tutti::detail {
class DatasetNode;
class DatasetCursor;
}  // namespace tutti::detail

#pragma GCC visibility push(default)

namespace tutti {

// What all elements of a dataset have in common in one component.
struct TensorSpec {
  DType dtype;                 // the same in all elements
  std::vector<int64_t> shape;  // -1 for an extent that may differ
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// One run over a Dataset. Movable, not copyable; for one thread at a time.
class DatasetIterator {
 public:
  // The next element, or none at the end. An exception thrown by a function of the pipeline, or by
  // a file that cannot be read, comes out here, also if it happened on another thread; after it
  // the iterator is at its end.
  std::optional<std::vector<Tensor>> next();

  // Where this run stands, shuffle buffers and what was read ahead included, as bytes to be given
  // to Dataset::make_iterator of the same dataset. The run goes on unharmed.
  std::string save();

  ~DatasetIterator();
  DatasetIterator(DatasetIterator&&) noexcept;
  DatasetIterator& operator=(DatasetIterator&&) noexcept;

 private:
  friend class Dataset;
  explicit DatasetIterator(std::unique_ptr<detail::DatasetCursor> cursor);
  std::unique_ptr<detail::DatasetCursor> cursor_;
};

// A recipe for a sequence of elements, as the top of dataset.h says.
class Dataset {
 public:
  using Components = std::vector<Tensor>;  // an element
  // The next element of one run, or none at its end.
  using Generator = std::function<std::optional<Components>()>;

  // Sources. int64 scalars from 0 or `start` on, which end before `stop`.
  static Dataset range(int64_t stop);
  static Dataset range(int64_t start, int64_t stop, int64_t step = 1);
  static Dataset from_tensors(Components components);  // one element
  // An element for each row; all components have as many.
  static Dataset from_tensor_slices(Components components);
  static Dataset from_tensor_slices(Tensor tensor);
  // `start` is called once per run and returns a function that gives the elements one by one. Saved
  // by its position: a restored run asks for the earlier elements again and drops them.
  static Dataset from_generator(std::function<Generator()> start);
  // The files that match a glob pattern, sorted by name, as uint8 tensors: see text().
  // NotFoundError if none does.
  static Dataset list_files(const std::string& pattern);
  // The lines, without their ends, as uint8 tensors of their bytes.
  static Dataset text_lines(std::vector<std::string> files);
  // The records of TFRecord files, uncompressed. DataLossError if a checksum is wrong.
  static Dataset tfrecords(std::vector<std::string> files);
  // Records of `record_bytes` each, after `header_bytes` and before `footer_bytes` of every file.
  static Dataset fixed_length_records(std::vector<std::string> files, int64_t record_bytes,
                                      int64_t header_bytes = 0, int64_t footer_bytes = 0);

  // Transformations: each throws InvalidArgumentError for numbers out of range.

  // fn of each element, on up to `num_parallel_calls` threads; the order of the elements stays.
  Dataset map(std::function<Components(const Components&)> fn, int num_parallel_calls = 1) const;
  Dataset filter(std::function<bool(const Components&)> keep) const;  // those it is true for
  Dataset take_while(std::function<bool(const Components&)> predicate) const;  // to the first false
  // Joins elements along a new first axis; they must agree in dtypes and shapes.
  Dataset batch(int64_t batch_size, bool drop_remainder = false) const;
  // The same for other shapes: each component is padded at its ends to the shape given for it, or
  // if none is, or by an extent of -1, to the largest in the batch. With 0, or with its scalar of
  // `padding_values`.
  Dataset padded_batch(int64_t batch_size, std::vector<std::vector<int64_t>> padded_shapes = {},
                       Components padding_values = {}, bool drop_remainder = false) const;
  Dataset unbatch() const;  // each row for itself
  // The rows of batches in batches of another size; several sizes take turns.
  Dataset rebatch(int64_t batch_size, bool drop_remainder = false) const;
  Dataset rebatch(std::vector<int64_t> batch_sizes, bool drop_remainder = false) const;
  // Draws from a buffer of `buffer_size` elements. Each run within a repeat draws another order
  // unless told otherwise.
  Dataset shuffle(int64_t buffer_size, uint64_t seed, bool reshuffle_each_iteration = true) const;
  Dataset repeat(int64_t count = -1) const;  // -1: without end
  Dataset take(int64_t count) const;         // -1: all
  Dataset skip(int64_t count) const;         // -1: all
  // Every num_shards-th element, from `index` on.
  Dataset shard(int64_t num_shards, int64_t index) const;
  Dataset enumerate(int64_t start = 0) const;  // with its number, an int64 scalar, in front
  // Components side by side; as long as the shortest.
  static Dataset zip(std::vector<Dataset> datasets);
  Dataset concatenate(const Dataset& other) const;  // InvalidArgumentError if dtypes differ
  // Each element from one of the datasets, drawn by `weights`, equal ones unless given. A dataset
  // at its end is left out, or ends them all. Each run draws the same unless told otherwise.
  static Dataset sample_from_datasets(std::vector<Dataset> datasets, std::vector<double> weights,
                                      uint64_t seed, bool stop_on_empty_dataset = false,
                                      bool rerandomize_each_iteration = false);
  // fn of each element is a dataset; takes `block_length` elements from each of `cycle_length` of
  // them in turn. Up to `num_parallel_calls` of them are read ahead, each on a thread of its own;
  // the order of the elements stays.
  Dataset interleave(std::function<Dataset(const Components&)> fn, int64_t cycle_length,
                     int64_t block_length = 1, int num_parallel_calls = 1) const;
  Dataset flat_map(std::function<Dataset(const Components&)> fn) const;  // one after the other
  Dataset prefetch(int64_t buffer_size) const;  // reads ahead on a thread of its own; 0: does not
  Dataset cache() const;                        // in memory, filled by the first complete run

  // state = fn(state, element) for all elements, from `initial_state` on. Dtypes stay.
  Components reduce(
      Components initial_state,
      const std::function<Components(const Components& state, const Components&)>& fn) const;

  // From the start, or from where `state` was saved. DataLossError if the state is damaged or of
  // another dataset.
  DatasetIterator make_iterator() const;
  DatasetIterator make_iterator(const std::string& state) const;

  // `for (const std::vector<Tensor>& element : dataset)`
  class Range;
  Range begin() const;
  std::default_sentinel_t end() const { return {}; }

  // A spec for each component. What only a function knows (of map, say) is looked up in the first
  // element that it makes, extents aside; nothing if there is none.
  std::vector<TensorSpec> element_spec() const;

  // Number of elements, if it is known without running: -1 is infinite, -2 unknown.
  int64_t cardinality() const;
  static constexpr int64_t infinite = -1;
  static constexpr int64_t unknown = -2;

  // What the strategies ask of a pipeline.
  // The size of its batches: of its last batch step, through steps that keep elements whole
  // (prefetch, take, skip, repeat, shuffle, cache, shard, concatenate and zip of equal ones); none
  // if there is no such step.
  std::optional<int64_t> batch_size() const;
  // Is the last step a batch, prefetches aside?
  bool ends_with_batch() const;
  // The pipeline with its files dealt out: every num_shards-th file from `index` on, shuffles of
  // file names upstream of the readers removed. None if it reads no files. OutOfRangeError if
  // there are fewer files than shards.
  std::optional<Dataset> with_files_sharded(int64_t num_shards, int64_t index) const;

 private:
  friend class detail::DatasetNode;
  explicit Dataset(std::shared_ptr<const detail::DatasetNode> node) : node_(std::move(node)) {}
  std::shared_ptr<const detail::DatasetNode> node_;
};

// The iterator behind a range-based for over a Dataset.
class Dataset::Range {
 public:
  using value_type = Components;
  using difference_type = std::ptrdiff_t;
  explicit Range(DatasetIterator iterator)
      : iterator_(std::move(iterator)), element_(iterator_.next()) {}
  const Components& operator*() const { return *element_; }
  Range& operator++() {
    element_ = iterator_.next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const Range& range, std::default_sentinel_t) { return !range.element_; }

 private:
  DatasetIterator iterator_;
  std::optional<Components> element_;
};

inline Dataset::Range Dataset::begin() const { return Range(make_iterator()); }

// The bytes of a uint8 tensor, such as a line or a file name, as a string; and back.
std::string text(const Tensor& bytes);
Tensor text_tensor(std::string_view text);

}  // namespace tutti

#pragma GCC visibility pop
