// SPDX-License-Identifier: Apache-2.0
// Sources that read files.
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "base/crc32c.h"
#include "input/dataset_node.h"
#include "input/elements.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace detail {
namespace {

// A file, and the operation that reads it for the texts of errors.
class InputFile {
 public:
  InputFile(const std::string& path, const char* operation)
      : path_(path), operation_(operation), file_(std::fopen(path.c_str(), "rb"), &std::fclose) {
    struct stat status;
    if (!file_ || fstat(fileno(file_.get()), &status) != 0) fail(errno);
    if (S_ISDIR(status.st_mode)) fail(EISDIR);
    size_ = uint64_t(status.st_size);
  }
  ~InputFile() { std::free(line_); }
  InputFile(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  uint64_t offset() const { return uint64_t(ftello(file_.get())); }
  void seek(uint64_t offset) {
    if (fseeko(file_.get(), off_t(offset), SEEK_SET) != 0) fail(errno);
  }

  // The next line without its end, good until the next call; none at the end of the file.
  std::optional<std::string_view> line() {
    errno = 0;
    const ssize_t length = getline(&line_, &capacity_, file_.get());
    if (length < 0) {
      if (!std::feof(file_.get())) fail(errno);
      return {};
    }
    std::string_view text(line_, size_t(length));
    if (text.ends_with('\n')) {
      text.remove_suffix(1);
      if (text.ends_with('\r')) text.remove_suffix(1);
    }
    return text;
  }

  void read(void* target, size_t bytes) {
    errno = 0;
    const size_t got = std::fread(target, 1, bytes, file_.get());
    if (got == bytes) return;
    if (std::ferror(file_.get())) fail(errno);
    throw DataLossError(fmt::format("{}: {} ended at byte {} while it was read, and had {} before",
                                    operation_, path_, offset(), size_));
  }

 private:
  [[noreturn]] void fail(int error) const {
    throw NotFoundError(fmt::format("{}: cannot read {}: {}", operation_, path_,
                                    std::generic_category().message(error)));
  }

  std::string path_;
  const char* operation_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  uint64_t size_ = 0;
  char* line_ = nullptr;
  size_t capacity_ = 0;
};

// What a source does with one file after the other.
class Format {
 public:
  virtual ~Format() = default;
  virtual const char* operation() const = 0;
  virtual std::string numbers() const { return ""; }
  virtual int64_t record_bytes() const { return -1; }  // of every element, or -1
  // Where the first element of a file starts. DataLossError if it cannot be such a file.
  virtual uint64_t first(const InputFile& file, const std::string& path) const = 0;
  virtual std::optional<Tensors> read(InputFile& file) const = 0;
  virtual bool may_stand_at(uint64_t offset, const InputFile& file) const = 0;
};

class Lines : public Format {
 public:
  const char* operation() const override { return "text_lines"; }
  uint64_t first(const InputFile&, const std::string&) const override { return 0; }
  std::optional<Tensors> read(InputFile& file) const override {
    const std::optional<std::string_view> line = file.line();
    if (!line) return {};
    return Tensors{text_tensor(*line)};
  }
  bool may_stand_at(uint64_t offset, const InputFile& file) const override {
    return offset <= file.size();
  }
};

class Records : public Format {
 public:
  Records(int64_t record, int64_t header, int64_t footer)
      : record_(uint64_t(record)), header_(uint64_t(header)), footer_(uint64_t(footer)) {}
  const char* operation() const override { return "fixed_length_records"; }
  std::string numbers() const override {
    return fmt::format(", {}, {}, {}", record_, header_, footer_);
  }
  int64_t record_bytes() const override { return int64_t(record_); }
  uint64_t first(const InputFile& file, const std::string& path) const override {
    if (file.size() < header_ + footer_ || (file.size() - header_ - footer_) % record_ != 0)
      throw DataLossError(fmt::format(
          "fixed_length_records: {} has {} bytes, which is no header of {}, records of {} each and "
          "a footer of {}",
          path, file.size(), header_, record_, footer_));
    return header_;
  }
  std::optional<Tensors> read(InputFile& file) const override {
    if (file.offset() + footer_ >= file.size()) return {};
    const Tensor record = TensorAccess::empty(Shape{int64_t(record_)}, DType::uint8, host_device());
    file.read(record.data(), record_);
    return Tensors{record};
  }
  bool may_stand_at(uint64_t offset, const InputFile& file) const override {
    return offset >= header_ && offset <= file.size() - footer_ &&
           (offset - header_) % record_ == 0;
  }

 private:
  uint64_t record_, header_, footer_;
};

// Each record is its length in 8 bytes, their checksum, its bytes, their checksum.
class TFRecords : public Format {
 public:
  const char* operation() const override { return "tfrecords"; }
  uint64_t first(const InputFile&, const std::string&) const override { return 0; }
  std::optional<Tensors> read(InputFile& file) const override {
    const uint64_t at = file.offset();
    if (at >= file.size()) return {};
    uint64_t length;
    file.read(&length, sizeof length);
    check(file, at, "length", &length, sizeof length);
    if (length > file.size() - file.offset())
      throw DataLossError(
          fmt::format("tfrecords: {}: the record at byte {} has {} bytes, and the "
                      "file ends at byte {}",
                      file.path(), at, length, file.size()));
    const Tensor record = TensorAccess::empty(Shape{int64_t(length)}, DType::uint8, host_device());
    if (length > 0) file.read(record.data(), length);
    check(file, at, "data", record.const_data(), length);
    return Tensors{record};
  }
  bool may_stand_at(uint64_t offset, const InputFile& file) const override {
    return offset <= file.size();
  }

 private:
  // Compares with the checksum that follows.
  static void check(InputFile& file, uint64_t at, const char* what, const void* data, size_t size) {
    uint32_t stored;
    file.read(&stored, sizeof stored);
    const uint32_t actual = std::rotr(base::crc32c(data, size), 15) + 0xA282EAD8u;
    if (stored != actual)
      throw DataLossError(
          fmt::format("tfrecords: {}: the {} of the record at byte {} has the checksum {:08x}, "
                      "expected {:08x}: the file is damaged, compressed or no TFRecord file",
                      file.path(), what, at, actual, stored));
  }
};

class FilesCursor : public Cursor {
 public:
  FilesCursor(const std::vector<std::string>& files, const Format& format, const Run& run)
      : Cursor(run), files_(files), format_(format) {}

 private:
  std::optional<Tensors> advance() override {
    for (; index_ < files_.size(); ++index_, file_.reset()) {
      if (!file_) {
        // A pipe, which has no header, cannot seek and need not.
        if (const uint64_t first = open(); first > 0) file_->seek(first);
      }
      if (std::optional<Tensors> element = format_.read(*file_)) return element;
    }
    return {};
  }
  void save_position(StateWriter& state) override {
    state.number(index_);
    state.flag(file_ != nullptr);
    if (file_) state.number(file_->offset());
  }
  void restore_position(StateReader& state) override {
    index_ = state.number_up_to(files_.size(), "the number of a file");
    if (!state.flag()) return;
    if (index_ == files_.size()) StateReader::fail("it stands in a file past the last");
    const uint64_t offset = state.number();
    open();
    if (!format_.may_stand_at(offset, *file_))
      StateReader::fail(fmt::format("it stands at byte {} of {}, which has {}", offset,
                                    files_[index_], file_->size()));
    file_->seek(offset);
  }
  uint64_t open() {
    file_ = std::make_unique<InputFile>(files_[index_], format_.operation());
    return format_.first(*file_, files_[index_]);
  }

  const std::vector<std::string>& files_;
  const Format& format_;
  size_t index_ = 0;
  std::unique_ptr<InputFile> file_;
};

// Every num_shards-th of the files.
std::vector<std::string> dealt(const std::vector<std::string>& files, int64_t num_shards,
                               int64_t index, const std::string& description) {
  if (int64_t(files.size()) < num_shards)
    throw OutOfRangeError(fmt::format("with_files_sharded: {} has {} files for {} shards",
                                      description, files.size(), num_shards));
  std::vector<std::string> chosen;
  for (size_t i = size_t(index); i < files.size(); i += size_t(num_shards))
    chosen.push_back(files[i]);
  return chosen;
}

// Stands for the names of many files in a description.
uint64_t hash(const std::vector<std::string>& files) {
  uint64_t sum = 0xCBF29CE484222325u;
  for (const std::string& file : files)
    for (size_t i = 0; i <= file.size(); ++i)
      sum = (sum ^ uint8_t(file.c_str()[i])) * 0x100000001B3u;
  return sum;
}

class FilesNode : public DatasetNode {
 public:
  FilesNode(std::vector<std::string> files, std::shared_ptr<const Format> format)
      : files_(std::move(files)), format_(std::move(format)) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<FilesCursor>(files_, *format_, run);
  }
  int64_t cardinality() const override { return files_.empty() ? 0 : Dataset::unknown; }
  std::optional<Specs> spec(bool) const override {
    return Specs{{DType::uint8, {format_->record_bytes()}}};
  }
  bool elements_alike() const override { return format_->record_bytes() >= 0; }
  std::string describe() const override {
    return fmt::format("{}({} files {:x}{})", format_->operation(), files_.size(), hash(files_),
                       format_->numbers());
  }
  bool reads_files() const override { return true; }
  NodePtr files_sharded(int64_t num_shards, int64_t index) const override {
    return std::make_shared<FilesNode>(dealt(files_, num_shards, index, describe()), format_);
  }

 private:
  std::vector<std::string> files_;
  std::shared_ptr<const Format> format_;
};

class ListFilesNode : public IndexedNode {
 public:
  explicit ListFilesNode(std::vector<std::string> files) : files_(std::move(files)) {}
  uint64_t size() const override { return files_.size(); }
  Tensors at(uint64_t index) const override { return {text_tensor(files_[index])}; }
  std::optional<Specs> spec(bool) const override { return Specs{{DType::uint8, {-1}}}; }
  bool elements_alike() const override { return false; }
  std::string describe() const override {
    return fmt::format("list_files({} files {:x})", files_.size(), hash(files_));
  }
  bool reads_files() const override { return true; }
  NodePtr files_sharded(int64_t num_shards, int64_t index) const override {
    return std::make_shared<ListFilesNode>(dealt(files_, num_shards, index, describe()));
  }
  NodePtr names_sharded(int64_t num_shards, int64_t index) const override {
    return files_sharded(num_shards, index);
  }

 private:
  std::vector<std::string> files_;
};

}  // namespace
}  // namespace detail

Dataset Dataset::list_files(const std::string& pattern) {
  glob_t found{};
  const int result = glob(pattern.c_str(), GLOB_NOSORT | GLOB_MARK, nullptr, &found);
  const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&found, &globfree);
  if (result != 0 && result != GLOB_NOMATCH)
    throw ResourceExhaustedError(fmt::format("list_files: cannot search for \"{}\"", pattern));
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::erase_if(files, [](const std::string& file) { return file.ends_with('/'); });
  if (files.empty())
    throw NotFoundError(fmt::format("list_files: no file matches \"{}\"", pattern));
  std::ranges::sort(files);
  return Dataset(std::make_shared<detail::ListFilesNode>(std::move(files)));
}

Dataset Dataset::text_lines(std::vector<std::string> files) {
  return Dataset(
      std::make_shared<detail::FilesNode>(std::move(files), std::make_shared<detail::Lines>()));
}

Dataset Dataset::tfrecords(std::vector<std::string> files) {
  return Dataset(
      std::make_shared<detail::FilesNode>(std::move(files), std::make_shared<detail::TFRecords>()));
}

Dataset Dataset::fixed_length_records(std::vector<std::string> files, int64_t record_bytes,
                                      int64_t header_bytes, int64_t footer_bytes) {
  detail::check_at_least(1, record_bytes, "fixed_length_records: record_bytes");
  detail::check_at_least(0, header_bytes, "fixed_length_records: header_bytes");
  detail::check_at_least(0, footer_bytes, "fixed_length_records: footer_bytes");
  return Dataset(std::make_shared<detail::FilesNode>(
      std::move(files),
      std::make_shared<detail::Records>(record_bytes, header_bytes, footer_bytes)));
}

}  // namespace tutti
