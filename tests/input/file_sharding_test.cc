// SPDX-License-Identifier: Apache-2.0
// C221: the files of a pipeline dealt out to workers.
#include <algorithm>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Folder;
using testing::squared;
using testing::texts;
using testing::value;
using Components = Dataset::Components;
using Texts = std::vector<std::string>;

Dataset lines_of(const Components& name) { return Dataset::text_lines({text(name[0])}); }

// Ten files of three lines, "0a" to "9c", each of which is a record of three bytes, too.
class FileSharding : public ::testing::Test {
 protected:
  FileSharding() {
    for (int i = 0; i < 10; ++i) {
      std::string content;
      for (const char line : {'a', 'b', 'c'}) content += std::to_string(i) + line + "\n";
      files.push_back(folder.write("file" + std::to_string(i) + ".txt", content));
    }
  }

  Dataset names() const {
    Components all;
    const int64_t length = int64_t(files[0].size());
    const Tensor table = Tensor::empty({int64_t(files.size()), length}, DType::uint8);
    uint8_t* row = table.span<uint8_t>().data();
    for (const std::string& file : files) row = std::copy(file.begin(), file.end(), row);
    return Dataset::from_tensor_slices({table});
  }
  // What is left to a worker, with the ends of lines cut off.
  static Texts shard_of(const Dataset& dataset, int64_t num_shards, int64_t index) {
    const std::optional<Dataset> shard = dataset.with_files_sharded(num_shards, index);
    if (!shard) return {"it reads no files"};
    Texts all = texts(*shard);
    for (std::string& line : all)
      if (line.ends_with('\n')) line.pop_back();
    return all;
  }
  static Texts sorted(Texts all) {
    std::ranges::sort(all);
    return all;
  }

  Folder folder;
  std::vector<std::string> files;
  const Texts first_of_four{"0a", "0b", "0c", "4a", "4b", "4c", "8a", "8b", "8c"};
  const Texts last_of_four{"3a", "3b", "3c", "7a", "7b", "7c"};
};

TEST_F(FileSharding, DealsOutTheFilesOfReaders) {
  EXPECT_EQ(shard_of(Dataset::text_lines(files), 4, 0), first_of_four);
  EXPECT_EQ(shard_of(Dataset::text_lines(files), 4, 3), last_of_four);
  EXPECT_EQ(shard_of(Dataset::fixed_length_records(files, 3), 4, 0), first_of_four);
  EXPECT_EQ(shard_of(Dataset::text_lines(files), 1, 0), texts(Dataset::text_lines(files)));
}

TEST_F(FileSharding, DealsOutListedFiles) {
  const Dataset listed = Dataset::list_files(folder / "*.txt");
  EXPECT_EQ(texts(*listed.with_files_sharded(4, 1)), (Texts{files[1], files[5], files[9]}));
  const auto first_line = [](const Components& name) {
    return *Dataset::text_lines({text(name[0])}).make_iterator().next();
  };
  EXPECT_EQ(shard_of(listed.map(first_line), 4, 0), (Texts{"0a", "4a", "8a"}));
}

TEST_F(FileSharding, DealsOutInterleavedFiles) {
  const Dataset listed = Dataset::list_files(folder / "*.txt");
  for (const Dataset& source : {listed, names()}) {
    EXPECT_EQ(shard_of(source.interleave(lines_of, 1), 4, 0), first_of_four);
    EXPECT_EQ(shard_of(source.interleave(lines_of, 2), 4, 3),
              (Texts{"3a", "7a", "3b", "7b", "3c", "7c"}));
  }
}

TEST_F(FileSharding, RemovesShufflesOfFileNames) {
  const Dataset listed = Dataset::list_files(folder / "*.txt");
  for (const Dataset& source : {listed, names()})
    EXPECT_EQ(shard_of(source.shuffle(10, 3).prefetch(1).interleave(lines_of, 1), 4, 0),
              first_of_four);
}

TEST_F(FileSharding, DealsOutBeneathRepetitionsOfFileNames) {
  Texts twice = first_of_four;
  twice.insert(twice.end(), first_of_four.begin(), first_of_four.end());
  for (const Dataset& source : {Dataset::list_files(folder / "*.txt"), names()})
    EXPECT_EQ(shard_of(source.repeat(2).shuffle(4, 1).interleave(lines_of, 1), 4, 0), twice);
}

TEST_F(FileSharding, ReachesThroughEveryStep) {
  const Dataset lines = Dataset::text_lines(files);
  const auto same = [](const Components& element) { return element; };
  const auto any = [](const Components&) { return true; };
  for (const Dataset& dataset :
       {lines.map(same), lines.map(same, 2), lines.filter(any), lines.batch(2).unbatch(),
        lines.prefetch(2), lines.cache(), lines.take(100), lines.skip(0), lines.shard(1, 0),
        lines.repeat(1), lines.concatenate(lines).take(9), Dataset::zip({lines, lines})})
    EXPECT_EQ(shard_of(dataset, 4, 0), first_of_four);
  EXPECT_EQ(sorted(shard_of(lines.shuffle(100, 1), 4, 0)), first_of_four);
}

TEST_F(FileSharding, OfAComplexPipelineSeesItsFilesInEveryEpoch) {
  const Dataset dataset = names()
                              .shuffle(10, 1)
                              .interleave(lines_of, 3)
                              .prefetch(2)
                              .shuffle(60, 2)
                              .repeat(5)
                              .map([](const Components& element) { return element; }, 2)
                              .batch(2)
                              .prefetch(1);
  const std::optional<Dataset> shard = dataset.with_files_sharded(10, 0);
  ASSERT_TRUE(shard);
  EXPECT_EQ(shard->batch_size(), 2);
  EXPECT_TRUE(shard->ends_with_batch());
  Texts expected;
  for (int i = 0; i < 5; ++i) expected.insert(expected.end(), {"0a", "0b", "0c"});
  EXPECT_EQ(sorted(texts(shard->unbatch())), sorted(expected));
}

TEST_F(FileSharding, EveryFileGoesToOneWorker) {
  const Dataset lines =
      Dataset::list_files(folder / "*.txt").shuffle(10, 1).interleave(lines_of, 4);
  for (int64_t shards : {1, 2, 3, 4, 7, 10}) {
    Texts all;
    for (int64_t i = 0; i < shards; ++i)
      for (const std::string& line : shard_of(lines, shards, i)) all.push_back(line);
    EXPECT_EQ(sorted(all), texts(Dataset::text_lines(files)));
  }
}

TEST_F(FileSharding, DoesNotTouchACacheThatIsFull) {
  const Dataset cached = Dataset::text_lines(files).cache();
  const Texts all = texts(cached);
  EXPECT_EQ(shard_of(cached, 4, 0), first_of_four);
  EXPECT_EQ(texts(cached), all);
}

TEST_F(FileSharding, IsNoneWithoutFiles) {
  const Dataset n = Dataset::range(5), lines = Dataset::text_lines(files);
  EXPECT_FALSE(n.with_files_sharded(2, 0));
  EXPECT_FALSE(n.map(squared).batch(2).with_files_sharded(2, 0));
  EXPECT_FALSE(n.interleave([=](const Components&) { return n; }, 2).with_files_sharded(2, 0));
  EXPECT_FALSE(Dataset::zip({lines, n}).with_files_sharded(2, 0));
  EXPECT_FALSE(
      lines.concatenate(Dataset::from_tensors({text_tensor("x")})).with_files_sharded(2, 0));
  EXPECT_FALSE(names().with_files_sharded(2, 0));
}

TEST_F(FileSharding, NeedsAFileForEveryShard) {
  const Dataset listed = Dataset::list_files(folder / "*.txt");
  EXPECT_ERROR(OutOfRangeError, "with_files_sharded: text_lines(10 files ",
               Dataset::text_lines(files).with_files_sharded(11, 0));
  EXPECT_ERROR(OutOfRangeError, "has 10 files for 11 shards",
               Dataset::fixed_length_records(files, 3).batch(2).with_files_sharded(11, 0));
  EXPECT_ERROR(OutOfRangeError, "has 10 files for 11 shards", listed.with_files_sharded(11, 10));
  EXPECT_ERROR(OutOfRangeError, "has 10 files for 11 shards",
               listed.interleave(lines_of, 2).with_files_sharded(11, 0));
  EXPECT_ERROR(OutOfRangeError, "has 10 files for 11 shards",
               names().shuffle(10, 1).interleave(lines_of, 2).with_files_sharded(11, 0));
  EXPECT_ERROR(InvalidArgumentError, "with_files_sharded: index is 2, expected 0 to 1",
               listed.with_files_sharded(2, 2));
  EXPECT_ERROR(InvalidArgumentError, "with_files_sharded: num_shards is 0",
               listed.with_files_sharded(0, 0));
}

}  // namespace
}  // namespace tutti
