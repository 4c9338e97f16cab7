// SPDX-License-Identifier: Apache-2.0
// Runs of datasets restored from states that were never saved. The first byte of the input chooses
// the dataset, the second how often the run is asked before it is saved again, with its upper bit
// for a state as it is; else the rest is the position of the run, and gets the start and the
// checksum of a state.
#include <sys/mman.h>
#include <tutti/dataset.h>
#include <tutti/error.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <string>

#include "base/crc32c.h"
#include "fuzz.h"

namespace tutti::fuzz {
namespace {

using Components = Dataset::Components;

constexpr int kMostElements = 64;  // more than any of the datasets with an end gives

struct Pipeline {
  std::function<Dataset()> make;
  bool ends = true;
};

// A file without a name, so that there is nothing to clean up.
const std::string& file() {
  static const std::string path = [] {
    constexpr std::string_view text = "one\ntwo\nthree\nfour\n\nsix\n";
    const int fd = memfd_create("fuzz", 0);
    check(fd >= 0 && write(fd, text.data(), text.size()) == ssize_t(text.size()),
          "there is room for a file");
    return "/proc/self/fd/" + std::to_string(fd);
  }();
  return path;
}

// The same of two TFRecords.
const std::string& records() {
  static const std::string path = [] {
    std::string bytes;
    for (const std::string text : {"one", "three"}) {
      const uint64_t length = text.size();
      const auto append = [&](const void* data, size_t size) {
        const uint32_t crc = std::rotr(base::crc32c(data, size), 15) + 0xA282EAD8u;
        bytes.append(static_cast<const char*>(data), size);
        bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
      };
      append(&length, sizeof length);
      append(text.data(), text.size());
    }
    const int fd = memfd_create("fuzz", 0);
    check(fd >= 0 && write(fd, bytes.data(), bytes.size()) == ssize_t(bytes.size()),
          "there is room for a file");
    return "/proc/self/fd/" + std::to_string(fd);
  }();
  return path;
}

// Accepts any element: this is not about what a user's function throws.
int64_t number_in(const Components& element) {
  if (element.size() != 1 || !element[0] || element[0].dtype() != DType::int64) return 1;
  return element[0].num_elements() == 1 ? element[0].item<int64_t>() : 2;
}

Components doubled(const Components& element) {
  return {Tensor::scalar(int64_t(uint64_t(number_in(element)) * 2))};
}

Dataset some(const Components& element) {
  return Dataset::range(int64_t(uint64_t(number_in(element)) % 4));
}

Dataset five() {
  return Dataset::from_generator([]() -> Dataset::Generator {
    return [i = 0]() mutable -> std::optional<Components> {
      if (i == 5) return {};
      return Components{Tensor::scalar(int64_t{++i})};
    };
  });
}

Dataset slices() {
  return Dataset::from_tensor_slices(
      {Tensor::full({6, 2}, 1.5, DType::float32), Tensor::of<int16_t>({1, 2, 3, 4, 5, 6})});
}

const auto& pipelines() {
  static const std::array<Pipeline, 21> all{{
      {[] { return Dataset::range(10); }},
      {[] { return Dataset::range(7).shuffle(4, 1).repeat(3).batch(2); }},
      {[] { return Dataset::range(20).batch(4).unbatch().take(9); }},
      {[] { return slices().skip(1).shard(2, 1); }},
      {[] {
        return Dataset::zip({Dataset::range(5), Dataset::range(3).concatenate(Dataset::range(4))});
      }},
      {[] { return Dataset::range(4).interleave(some, 3, 2); }},
      {[] { return Dataset::range(6).cache().repeat(2); }},
      {[] { return Dataset::range(8).prefetch(3); }},
      {[] { return Dataset::range(8).map(doubled, 2).batch(3, true); }},
      {[] { return five().concatenate(five().map(doubled)); }},
      {[] {
        return Dataset::text_lines({file(), file()}).shuffle(3, 2);
      }},
      {[] {
        return Dataset::fixed_length_records({file(), file()}, 4, 2, 2).batch(2);
      }},
      {[] {
         return Dataset::range(6).repeat().filter(
             [](const Components& element) { return number_in(element) % 2 == 0; });
       },
       false},
      {[] {
         return Dataset::range(12).shuffle(5, 3).repeat().map(doubled, 2).batch(3).prefetch(2);
       },
       false},
      {[] {
        return Dataset::from_tensors({Tensor::of<bool>({true, false})}).repeat(2).repeat(2);
      }},
      {[] { return slices().batch(2).prefetch(2).unbatch(); }, false},
      {[] {
        return Dataset::sample_from_datasets({Dataset::range(5), Dataset::range(3)}, {}, 1);
      }},
      {[] {
         return Dataset::range(9).batch(4).rebatch({1, 3});
       },
       false},
      {[] { return Dataset::range(4).interleave(some, 3, 2, 2); }},
      {[] {
        return Dataset::tfrecords({records(), records()}).padded_batch(3);
      }},
      {[] {
        return Dataset::range(5).flat_map(some).enumerate().take_while(
            [](const Components& element) { return element.size() == 2; });
      }},
  }};
  return all;
}

std::string with_checksum(std::string state) {
  uint64_t sum = state.size();
  for (size_t i = 0; i < state.size(); i += 8) {
    uint64_t word = 0;
    state.copy(reinterpret_cast<char*>(&word), sizeof word, i);
    sum = std::rotl((sum ^ word) * 0x9E3779B97F4A7C15u, 29);
  }
  return state.append(reinterpret_cast<const char*>(&sum), sizeof sum);
}

std::string forged(const Dataset& dataset, std::string_view position) {
  const std::string start = dataset.make_iterator().save();
  check(with_checksum(start.substr(0, start.size() - 8)) == start,
        "the checksum here is the library's, else nothing behind it is reached");
  uint64_t description;
  std::memcpy(&description, start.data() + 8, sizeof description);
  return with_checksum(start.substr(0, 8 + sizeof description + description)
                           .append(position.data(), position.size()));
}

struct Step {
  std::optional<Components> element;
  std::string error;
};

Step step(DatasetIterator& iterator) {
  try {
    return {iterator.next(), {}};
  } catch (const std::runtime_error& e) {  // an Error, or what one that was no Error is saved as
    return {{}, std::string("!") + e.what()};
  }
}

bool same(const Tensor& a, const Tensor& b) {
  if (!a || !b) return !a && !b;
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.device() == b.device() &&
         (a.num_bytes() == 0 || std::memcmp(a.const_data(), b.const_data(), a.num_bytes()) == 0);
}

bool same(const Step& a, const Step& b) {
  if (a.error != b.error || a.element.has_value() != b.element.has_value()) return false;
  return !a.element ||
         std::equal(a.element->begin(), a.element->end(), b.element->begin(), b.element->end(),
                    [](const Tensor& x, const Tensor& y) { return same(x, y); });
}

void check_run(const Dataset& dataset, DatasetIterator run, int steps, bool ends) {
  int given = 0;
  for (; steps > 0 && step(run).element; --steps) ++given;
  const std::string state = run.save();
  DatasetIterator restored = dataset.make_iterator(state);
  check(restored.save() == state, "a state that is restored and saved is the same");
  while (given < kMostElements) {
    const Step one = step(run), other = step(restored);
    check(same(one, other), "a run and its restored copy give the same");
    if (!one.element) break;
    ++given;
  }
  check(!ends || given < kMostElements, "a dataset with an end ends, wherever it starts");
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti;
  using namespace tutti::fuzz;
  if (size < 2) return 0;
  const auto& [make, ends] = pipelines()[data[0] % pipelines().size()];
  const Dataset dataset = make();
  const std::string_view rest(reinterpret_cast<const char*>(data + 2), size - 2);
  const std::string state = data[1] & 0x80 ? std::string(rest) : forged(dataset, rest);
  std::optional<DatasetIterator> run;
  try {
    run = dataset.make_iterator(state);
  } catch (const DataLossError&) {
    return 0;
  }
  check_run(dataset, *std::move(run), data[1] % 8, ends);
  return 0;
}
