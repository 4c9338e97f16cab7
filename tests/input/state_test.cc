// SPDX-License-Identifier: Apache-2.0
// Saving the position of a run, and going on from there.
#include <tutti/device.h>

#include <functional>
#include <future>
#include <random>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Folder;
using testing::Ints;
using testing::repeated_number;
using testing::squared;
using testing::value;
using Components = Dataset::Components;

// An element with everything that can differ.
std::string fingerprint(const Components& element) {
  std::string all;
  for (const Tensor& component : element) {
    const Tensor host = component.clone_to("/cpu:0");
    all += component.to_string() + ":";
    all.append(static_cast<const char*>(host.const_data()), host.num_bytes());
  }
  return all;
}

std::vector<std::string> rest_of(DatasetIterator& it) {
  std::vector<std::string> all;
  while (const auto element = it.next()) all.push_back(fingerprint(*element));
  return all;
}

// Saves at every position, the start and the end included, and compares what follows with the
// undisturbed run; a restored run is saved and restored again.
void expect_restorable(const Dataset& dataset) {
  DatasetIterator undisturbed = dataset.make_iterator();
  const std::vector<std::string> expected = rest_of(undisturbed);
  DatasetIterator it = dataset.make_iterator();
  for (size_t i = 0; i <= expected.size() + 1; ++i) {
    SCOPED_TRACE("saved after " + std::to_string(i) + " elements");
    const size_t position = std::min(i, expected.size());
    DatasetIterator restored = dataset.make_iterator(it.save());
    DatasetIterator again = dataset.make_iterator(restored.save());
    const std::vector<std::string> rest(expected.begin() + int64_t(position), expected.end());
    ASSERT_EQ(rest_of(restored), rest);
    ASSERT_EQ(rest_of(again), rest);
    const auto element = it.next();
    ASSERT_EQ(element.has_value(), i < expected.size());
    if (element) {
      ASSERT_EQ(fingerprint(*element), expected[i]);
    }
  }
}

Dataset composed() {
  const Tensor x =
      Tensor::of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}).reshape({7, 2});
  const Tensor y = Tensor::of<bool>({true, false, true, true, false, true, false});
  return Dataset::from_tensor_slices({x, y})
      .shuffle(5, 11)
      .repeat(3)
      .map(
          [](const Components& element) {
            return Components{element[0], element[1], Tensor::scalar<int16_t>(3)};
          },
          4)
      .batch(2)
      .prefetch(3);
}

TEST(State, OfSources) {
  expect_restorable(Dataset::range(5));
  expect_restorable(Dataset::range(0));
  expect_restorable(Dataset::from_tensors({Tensor::scalar(1.5)}));
  expect_restorable(Dataset::from_tensor_slices({Tensor::of<int8_t>({1, 2, 3})}));
  expect_restorable(Dataset::from_generator([] {
    return [i = int64_t{0}]() mutable -> std::optional<Components> {
      if (i == 4) return {};
      return Components{Tensor::scalar(i++)};
    };
  }));
}

TEST(State, OfFiles) {
  const Folder folder;
  const std::string a = folder.write("a.txt", "one\r\n\ntwo"), b = folder.write("b.txt", "");
  const std::string c = folder.write("c.txt", "three\nfour\n"), d = folder.write("d", "Habcdef");
  expect_restorable(Dataset::list_files(folder / "*.txt"));
  expect_restorable(Dataset::text_lines({a, b, c, b}));
  expect_restorable(Dataset::fixed_length_records({d, d}, 2, 1));
  const std::string e = folder.write("e", testing::tfrecords_of({"one", "", "two", "three"}));
  expect_restorable(Dataset::tfrecords({e, b, e}));
  expect_restorable(
      Dataset::list_files(folder / "*.txt")
          .interleave([](const Components& name) { return Dataset::text_lines({text(name[0])}); },
                      2)
          .shuffle(3, 1));
}

TEST(State, OfEveryTransformation) {
  const Dataset n = Dataset::range(9);
  const auto odd = [](const Components& element) { return value(element) % 2 == 1; };
  expect_restorable(n.map(squared));
  expect_restorable(n.map(squared, 3));
  expect_restorable(n.filter(odd));
  expect_restorable(n.batch(4));
  expect_restorable(n.batch(4, true));
  expect_restorable(n.batch(4).unbatch());
  expect_restorable(n.take(4));
  expect_restorable(n.skip(4));
  expect_restorable(n.shard(4, 1));
  expect_restorable(n.shuffle(4, 1));
  expect_restorable(n.shuffle(4, 1).repeat(3));
  expect_restorable(n.shuffle(4, 1, false).repeat(2).repeat(2));
  expect_restorable(n.repeat().take(20));
  expect_restorable(n.filter(odd).repeat(0));
  expect_restorable(Dataset::zip({n, n.map(squared, 2).prefetch(1), n.skip(2)}));
  expect_restorable(n.take(3).concatenate(Dataset::range(0)).concatenate(n.shuffle(3, 1)));
  for (int64_t cycle : {1, 2, 3, 20})
    for (int64_t block : {1, 3})
      expect_restorable(Dataset::range(6).interleave(repeated_number, cycle, block));
  for (int64_t cycle : {1, 2, 3, 20})
    for (int threads : {2, 4})
      expect_restorable(Dataset::range(6).interleave(repeated_number, cycle, 2, threads));
  expect_restorable(n.prefetch(3));
  expect_restorable(n.prefetch(100));
  expect_restorable(n.take_while([](const Components& element) { return value(element) < 5; }));
  expect_restorable(n.batch(4).rebatch(3));
  expect_restorable(n.batch(4).rebatch({1, 3}));
  expect_restorable(n.batch(2).rebatch(5, true));
  expect_restorable(n.flat_map(repeated_number).padded_batch(4));
  expect_restorable(n.enumerate(3));
  expect_restorable(n.skip(-1));
  for (const bool stop : {false, true})
    expect_restorable(
        Dataset::sample_from_datasets({n, n.take(2), n.shuffle(3, 1)}, {1, 2, 3}, 4, stop, true)
            .repeat(2));
}

TEST(State, OfACacheBeforeAndAfterItIsFull) {
  const Dataset n = Dataset::range(6).shuffle(6, 2);
  expect_restorable(n.cache().repeat(3));
  // The restoring process may never have filled the cache.
  DatasetIterator it = n.cache().repeat(3).make_iterator();
  for (int i = 0; i < 8; ++i) it.next();
  DatasetIterator restored = n.cache().repeat(3).make_iterator(it.save());
  EXPECT_EQ(rest_of(restored), rest_of(it));
}

TEST(State, OfALongPipeline) {
  expect_restorable(composed());
  expect_restorable(composed().unbatch().map(
      [](const Components& element) { return Components{element[0]}; }, 2));
  expect_restorable(Dataset::range(4)
                        .shuffle(2, 1)
                        .interleave(
                            [](const Components& element) {
                              return Dataset::range(value(element) + 1).shuffle(2, 5).prefetch(2);
                            },
                            2)
                        .prefetch(2)
                        .repeat(2)
                        .map(squared, 2)
                        .shuffle(3, 1));
}

TEST(State, HoldsAllTypesAndShapes) {
  Components all;
  for (size_t i = 0; i < detail::kDTypes.size(); ++i)
    all.push_back(Tensor::full({2, 1}, 1, DType(i)));
  all.push_back(Tensor::zeros({3, 0, 2}, DType::float32));
  all.push_back(Tensor());
  const Dataset dataset =
      Dataset::range(3).map([=](const Components&) { return all; }).shuffle(3, 1);
  DatasetIterator it = dataset.make_iterator();
  it.next();
  DatasetIterator restored = dataset.make_iterator(it.save());
  const Components element = *restored.next();
  ASSERT_EQ(element.size(), all.size());
  EXPECT_FALSE(element.back());
  for (size_t i = 0; i + 1 < all.size(); ++i)
    EXPECT_EQ(fingerprint({element[i]}), fingerprint({all[i]}));
}

TEST(State, KeepsTensorsOnTheirDevices) {
  set_logical_devices("CPU", 2);
  const Dataset dataset =
      Dataset::range(4)
          .map([](const Components& element) { return Components{element[0].clone_to("/cpu:1")}; })
          .shuffle(4, 1);
  expect_restorable(dataset);
  std::string state;
  {
    DatasetIterator it = dataset.make_iterator();
    it.next();
    state = it.save();
  }
  set_logical_devices("CPU", 1);
  EXPECT_ERROR(DataLossError, "cannot go back to its device", dataset.make_iterator(state));
}

// Saves once `error` has been thrown ahead of the caller, and hands on the run restored from there.
void with_error_read_ahead(auto error, const std::function<void(DatasetIterator&)>& expect) {
  std::promise<void> thrown;
  const Dataset dataset = Dataset::range(9)
                              .map([&](const Components& element) {
                                if (value(element) == 2) {
                                  thrown.set_value();
                                  throw error;
                                }
                                return element;
                              })
                              .prefetch(4);
  DatasetIterator it = dataset.make_iterator();
  it.next();
  thrown.get_future().wait();
  DatasetIterator restored = dataset.make_iterator(it.save());
  EXPECT_EQ(value(*restored.next()), 1);
  expect(restored);
  EXPECT_FALSE(restored.next());
}

TEST(State, HoldsErrorsThatWereReadAhead) {
  with_error_read_ahead(UnavailableError("gone"), [](DatasetIterator& it) {
    EXPECT_ERROR(UnavailableError, "gone", it.next());
  });
  with_error_read_ahead(std::logic_error("odd"), [](DatasetIterator& it) {
    EXPECT_ERROR(std::runtime_error, "odd", it.next());
  });
  with_error_read_ahead(7, [](DatasetIterator& it) {
    EXPECT_ERROR(std::runtime_error, "no std::exception", it.next());
  });
}

TEST(State, AfterAnErrorIsTheEnd) {
  const Dataset dataset = Dataset::range(9).map(
      [](const Components&) -> Components { throw UnavailableError("gone"); }, 3);
  DatasetIterator it = dataset.make_iterator();
  EXPECT_ERROR(UnavailableError, "gone", it.next());
  EXPECT_FALSE(dataset.make_iterator(it.save()).next());
}

TEST(State, TruncatedAnywhereIsDataLoss) {
  const Dataset dataset = composed();
  DatasetIterator it = dataset.make_iterator();
  it.next();
  const std::string state = it.save();
  for (size_t size = 0; size < state.size(); ++size)
    EXPECT_ERROR(DataLossError, "make_iterator: the state is damaged",
                 dataset.make_iterator(state.substr(0, size)));
  EXPECT_ERROR(DataLossError, "damaged", dataset.make_iterator(state + '\0'));
  EXPECT_ERROR(DataLossError, "do not start like a state", dataset.make_iterator("hello there"));
}

TEST(State, WithAnyByteChangedIsDataLoss) {
  const Dataset dataset = composed();
  DatasetIterator it = dataset.make_iterator();
  it.next();
  const std::string state = it.save();
  std::mt19937 random(1);
  for (size_t i = 0; i < state.size(); ++i) {
    std::string damaged = state;
    damaged[i] = char(damaged[i] ^ (1 + random() % 255));
    EXPECT_ERROR(DataLossError, "make_iterator: the state is damaged",
                 dataset.make_iterator(damaged));
  }
  for (int i = 0; i < 1000; ++i) {
    std::string damaged = state;
    for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = char(random());
    if (damaged == state) continue;
    EXPECT_THROW(dataset.make_iterator(damaged), DataLossError);
  }
}

// The checksum of the format, so that damage gets past it to the checks behind.
std::string with_checksum(std::string state) {
  state.resize(state.size() - 8);
  uint64_t sum = state.size();
  for (size_t i = 0; i < state.size(); i += 8) {
    uint64_t word = 0;
    state.copy(reinterpret_cast<char*>(&word), 8, i);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    sum = sum << 29 | sum >> 35;
  }
  return state.append(reinterpret_cast<const char*>(&sum), 8);
}

// A forged state may choose the position of the run, but not what memory is read.
TEST(State, ForgedIsSafe) {
  const Folder folder;
  const std::string lines = folder.write("a.txt", "one\ntwo\nthree\n");
  const Dataset datasets[] = {
      composed(),
      composed().unbatch(),
      Dataset::range(6).interleave(repeated_number, 3, 2).cache().repeat(2),
      Dataset::text_lines({lines, lines}).skip(1).take(3),
      Dataset::fixed_length_records({lines}, 7).shuffle(2, 1),
      Dataset::zip({Dataset::range(5), Dataset::range(3).concatenate(Dataset::range(4))}),
      Dataset::sample_from_datasets({Dataset::range(5), Dataset::range(3)}, {}, 1).repeat(2),
      Dataset::range(9).batch(4).rebatch({1, 3}).take_while([](const Components&) { return true; }),
      Dataset::range(6).interleave(repeated_number, 3, 2, 2),
  };
  std::mt19937 random(2);
  int refused = 0, accepted = 0;
  for (const Dataset& dataset : datasets) {
    DatasetIterator it = dataset.make_iterator();
    it.next();
    const std::string state = it.save();
    EXPECT_EQ(with_checksum(state), state);
    const auto attempt = [&](const std::string& forged) {
      try {
        DatasetIterator restored = dataset.make_iterator(with_checksum(forged));
        ++accepted;
        for (int k = 0; k < 100 && restored.next(); ++k) {
        }
      } catch (const Error&) {
        ++refused;
      }
    };
    for (size_t i = 8; i + 8 < state.size(); ++i)
      for (const int byte : {0, 1, 0x7F, 0xFF}) {
        std::string forged = state;
        forged[i] = char(byte);
        if (forged != state) attempt(forged);
      }
    for (size_t size = 16; size < state.size(); ++size) attempt(state.substr(0, size));
    for (int i = 0; i < 200; ++i) {
      std::string forged = state;
      for (int k = 0; k < 4; ++k) forged[8 + random() % (state.size() - 16)] = char(random());
      attempt(forged);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 100);
}

TEST(State, OfAnotherDatasetIsRefused) {
  const Dataset dataset = Dataset::range(10).shuffle(4, 1).batch(2);
  const std::string state = dataset.make_iterator().save();
  EXPECT_TRUE(dataset.make_iterator(state).next());
  EXPECT_TRUE(Dataset::range(10).shuffle(4, 1).batch(2).make_iterator(state).next());
  EXPECT_ERROR(DataLossError,
               "make_iterator: the state is of another dataset: of range(0, 10, 1)"
               ".shuffle(4, 1, true).batch(2, false), and this is range(0, 10, 1).batch(2, false)",
               Dataset::range(10).batch(2).make_iterator(state));
  for (const Dataset& other :
       {dataset.take(1), Dataset::range(11).shuffle(4, 1).batch(2),
        Dataset::range(10).shuffle(5, 1).batch(2), Dataset::range(10).shuffle(4, 2).batch(2),
        Dataset::range(10).shuffle(4, 1).batch(3), Dataset::range(10).shuffle(4, 1).batch(2, true)})
    EXPECT_ERROR(DataLossError, "another dataset", other.make_iterator(state));
  const std::string files = Dataset::text_lines({"a", "b"}).make_iterator().save();
  EXPECT_ERROR(DataLossError, "another dataset",
               Dataset::text_lines({"a", "c"}).make_iterator(files));
  // The end of one is not the end of the other.
  DatasetIterator ended = Dataset::range(0).make_iterator();
  ended.next();
  EXPECT_ERROR(DataLossError, "another dataset", Dataset::range(1).make_iterator(ended.save()));
}

TEST(State, OfOtherInnerDatasetsIsRefused) {
  const auto made_of = [](int64_t factor) {
    return Dataset::range(1, 4).interleave(
        [=](const Components& element) { return Dataset::range(factor * value(element)); }, 2);
  };
  DatasetIterator it = made_of(2).make_iterator();
  it.next();
  EXPECT_TRUE(made_of(2).make_iterator(it.save()).next());
  EXPECT_ERROR(DataLossError, "it has range(0, 2, 1) open, and this has range(0, 3, 1)",
               made_of(3).make_iterator(it.save()));
}

TEST(State, PastTheEndOfAShorterSourceIsDataLoss) {
  const auto lasting = [](int64_t n) {
    return Dataset::from_generator([=] {
      return [=, i = int64_t{0}]() mutable -> std::optional<Components> {
        if (i == n) return {};
        return Components{Tensor::scalar(i++)};
      };
    });
  };
  DatasetIterator it = lasting(9).make_iterator();
  for (int i = 0; i < 5; ++i) it.next();
  EXPECT_ERROR(DataLossError, "it stands at element 5 of a generator, which has only 3",
               lasting(3).make_iterator(it.save()));
  DatasetIterator cached = lasting(9).cache().make_iterator();
  for (int i = 0; i < 5; ++i) cached.next();
  EXPECT_ERROR(DataLossError, "it stands at element 5 of a cache, which has only 3",
               lasting(3).cache().make_iterator(cached.save()));
  const Folder folder;
  const std::string file = folder.write("a", "one\ntwo\nthree\n");
  DatasetIterator lines = Dataset::text_lines({file}).make_iterator();
  lines.next();
  lines.next();
  folder.write("a", "one\n");
  EXPECT_ERROR(DataLossError, "it stands at byte 8 of " + file + ", which has 4",
               Dataset::text_lines({file}).make_iterator(lines.save()));
}

}  // namespace
}  // namespace tutti
