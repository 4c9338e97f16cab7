// SPDX-License-Identifier: Apache-2.0
#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Folder;
using testing::texts;
using Texts = std::vector<std::string>;

TEST(ListFiles, IsSortedByName) {
  const Folder folder;
  for (const char* name : {"b.txt", "c.txt", "a.txt", "B.txt", "d.bin"}) folder.write(name, "");
  std::filesystem::create_directory(folder / "folder.txt");
  const Dataset dataset = Dataset::list_files(folder / "*.txt");
  EXPECT_EQ(texts(dataset),
            (Texts{folder / "B.txt", folder / "a.txt", folder / "b.txt", folder / "c.txt"}));
  EXPECT_EQ(dataset.cardinality(), 4);
}

TEST(ListFiles, NamesAPatternWithoutFiles) {
  EXPECT_ERROR(NotFoundError, "list_files: no file matches \"/no/such/*.txt\"",
               Dataset::list_files("/no/such/*.txt"));
}

TEST(TextLines, KnowsBothLineEnds) {
  const Folder folder;
  const std::string file = folder.write("a", "one\ntwo\r\n\n\r\nthr\ree\nlast");
  EXPECT_EQ(texts(Dataset::text_lines({file})), (Texts{"one", "two", "", "", "thr\ree", "last"}));
}

TEST(TextLines, GoesThroughItsFilesInOrder) {
  const Folder folder;
  const std::string a = folder.write("a", "1\n2"), empty = folder.write("b", ""),
                    c = folder.write("c", "3\n");
  EXPECT_EQ(texts(Dataset::text_lines({c, empty, a, empty, c})), (Texts{"3", "1", "2", "3"}));
  EXPECT_EQ(texts(Dataset::text_lines({empty})), Texts{});
  EXPECT_EQ(texts(Dataset::text_lines({})), Texts{});
  EXPECT_EQ(Dataset::text_lines({a}).cardinality(), Dataset::unknown);
}

TEST(TextLines, ReadsLinesLongerThanAnyBuffer) {
  const Folder folder;
  const std::string line(300000, 'x');
  const std::string file = folder.write("a", line + "\n" + line);
  EXPECT_EQ(texts(Dataset::text_lines({file})), (Texts{line, line}));
}

TEST(TextLines, NamesAFileThatCannotBeRead) {
  const Folder folder;
  const std::string good = folder.write("a", "1\n");
  DatasetIterator it = Dataset::text_lines({good, folder / "none"}).make_iterator();
  EXPECT_EQ(text((*it.next())[0]), "1");
  EXPECT_ERROR(NotFoundError,
               "text_lines: cannot read " + (folder / "none") + ": No such file or directory",
               it.next());
  EXPECT_FALSE(it.next());
  EXPECT_ERROR(NotFoundError, "Is a directory",
               Dataset::text_lines({"/tmp"}).make_iterator().next());
}

TEST(FixedLengthRecords, LieBetweenHeaderAndFooter) {
  const Folder folder;
  const std::string a = folder.write("a", "HHabcdefF"), none = folder.write("b", "HHF"),
                    c = folder.write("c", "HHghiF");
  EXPECT_EQ(texts(Dataset::fixed_length_records({a, none, c}, 3, 2, 1)),
            (Texts{"abc", "def", "ghi"}));
  const std::string plain = folder.write("d", "abcd");
  EXPECT_EQ(texts(Dataset::fixed_length_records({plain}, 2)), (Texts{"ab", "cd"}));
  EXPECT_EQ(texts(Dataset::fixed_length_records({plain}, 4)), (Texts{"abcd"}));
  EXPECT_EQ(texts(Dataset::fixed_length_records({folder.write("e", "")}, 4)), Texts{});
}

TEST(FixedLengthRecords, NameAFileOfAnotherLength) {
  const Folder folder;
  const std::string a = folder.write("a", "HHabcdeF");
  EXPECT_ERROR(DataLossError,
               "fixed_length_records: " + a +
                   " has 8 bytes, which is no header of 2, records of 3 each and a footer of 1",
               Dataset::fixed_length_records({a}, 3, 2, 1).make_iterator().next());
  EXPECT_ERROR(DataLossError, "has 8 bytes",
               Dataset::fixed_length_records({a}, 1, 7, 2).make_iterator().next());
  EXPECT_ERROR(NotFoundError, "fixed_length_records: cannot read " + (folder / "none"),
               Dataset::fixed_length_records({folder / "none"}, 3).make_iterator().next());
}

TEST(FixedLengthRecords, RefuseImpossibleSizes) {
  EXPECT_ERROR(InvalidArgumentError, "fixed_length_records: record_bytes is 0, expected 1 or more",
               Dataset::fixed_length_records({}, 0));
  EXPECT_ERROR(InvalidArgumentError, "header_bytes is -1",
               Dataset::fixed_length_records({}, 1, -1));
  EXPECT_ERROR(InvalidArgumentError, "footer_bytes is -2",
               Dataset::fixed_length_records({}, 1, 0, -2));
}

TEST(TFRecords, GoThroughTheirFilesInOrder) {
  const Folder folder;
  const std::string large(100003, 'x');
  const std::string a = folder.write("a", testing::tfrecords_of({"one", "", large})),
                    none = folder.write("b", ""),
                    c = folder.write("c", testing::tfrecords_of({std::string("\0\xFF", 2)}));
  const Dataset dataset = Dataset::tfrecords({a, none, c});
  EXPECT_EQ(texts(dataset), (Texts{"one", "", large, std::string("\0\xFF", 2)}));
  EXPECT_EQ(dataset.element_spec(), (std::vector<TensorSpec>{{DType::uint8, {-1}}}));
  EXPECT_TRUE(dataset.with_files_sharded(2, 1).has_value());
}

TEST(TFRecords, AnyBitThatChangesIsDataLoss) {
  const Folder folder;
  const std::string good = testing::tfrecords_of({"abc"});
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = good;
      damaged[i] = char(damaged[i] ^ 1 << bit);
      const std::string file = folder.write("a", damaged);
      EXPECT_ERROR(DataLossError, "tfrecords: " + file + ": the " + (i < 12 ? "length" : "data"),
                   Dataset::tfrecords({file}).make_iterator().next());
    }
}

TEST(TFRecords, CutShortIsDataLoss) {
  const Folder folder;
  const std::string good = testing::tfrecords_of({"abc", "defg"});
  const size_t first = testing::tfrecords_of({"abc"}).size();
  for (size_t size = first + 1; size < good.size(); ++size) {
    const std::string file = folder.write("a", good.substr(0, size));
    DatasetIterator it = Dataset::tfrecords({file}).make_iterator();
    EXPECT_EQ(text((*it.next())[0]), "abc");
    EXPECT_ERROR(DataLossError, file, it.next());
  }
  // A length that no memory could hold, with the right checksum.
  std::string huge = testing::tfrecords_of({std::string(8, '\x7F')}).substr(12, 12);
  const std::string file = folder.write("a", huge);
  EXPECT_ERROR(DataLossError, "the file ends at byte 12",
               Dataset::tfrecords({file}).make_iterator().next());
  EXPECT_ERROR(NotFoundError, "tfrecords: cannot read " + (folder / "none"),
               Dataset::tfrecords({folder / "none"}).make_iterator().next());
}

}  // namespace
}  // namespace tutti
