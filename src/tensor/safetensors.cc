// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes with the length of a JSON header, the header, and the tensors'
// bytes. The header maps names to {"dtype", "shape", "data_offsets"}, and "__metadata__" to
// strings.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <tutti/error.h>
#include <tutti/safetensors.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/hash.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

using nlohmann::json;

constexpr size_t kMaxHeader = 100 << 20;  // what other readers accept
constexpr size_t kMaxDepth = 16;          // of lists and objects in it; the format itself has 3
constexpr size_t kMaxRank = 64;
constexpr const char* kMetadata = "__metadata__";
// Metadata whose key begins with kOurs is of this library, and a file that has any has a checksum.
// Each file has kFormat, so that a missing checksum is noticed even if its own key is
// damaged.
constexpr std::string_view kOurs = "tutti.";
constexpr const char* kChecksum = "tutti.checksum";
constexpr const char* kFormat = "tutti.format";
// What a file calls a DType.
constexpr const char* name_in_file(DType dtype) {
  switch (dtype) {
    case DType::boolean: return "BOOL";
    case DType::int8: return "I8";
    case DType::int16: return "I16";
    case DType::int32: return "I32";
    case DType::int64: return "I64";
    case DType::uint8: return "U8";
    case DType::uint16: return "U16";
    case DType::uint32: return "U32";
    case DType::uint64: return "U64";
    case DType::float16: return "F16";
    case DType::bfloat16: return "BF16";
    case DType::float32: return "F32";
    case DType::float64: return "F64";
  }
  return nullptr;
}
constexpr auto kNames = [] {
  std::array<const char*, detail::kDTypes.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = name_in_file(DType(i));
  return names;
}();

[[noreturn]] void damaged(const std::string& name, const std::string& why) {
  throw DataLossError(fmt::format("{} is not a valid safetensors file: {}", name, why));
}

[[noreturn]] void unreadable(const std::string& path, const char* what) {
  throw UnavailableError(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

constexpr size_t kDigits = 16;

// Where the digits of the checksum stand in a header; npos if there are none.
size_t find_digits(std::string_view header) {
  const std::string key = fmt::format("\"{}\":\"", kChecksum);
  const size_t at = header.find(key);
  return at == header.npos || header.size() - at < key.size() + kDigits ? header.npos
                                                                        : at + key.size();
}

// The checksum of the header, with zeros for its own digits, and of the data.
std::string checksum_of(std::string header, std::span<const std::byte> data) {
  if (const size_t at = find_digits(header); at != header.npos)
    header.replace(at, kDigits, kDigits, '0');
  return fmt::format("{:016x}",
                     base::checksum(data, base::checksum(std::as_bytes(std::span(header)))));
}

bool is_utf8(const std::string& text) {
  try {
    (void)json(text).dump();
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

struct Entry {
  DType dtype;
  Shape shape;
  size_t begin, end;
};

// Takes the header in as it is parsed, and refuses at once what the format has no place for. A name
// that is there twice is refused because readers disagree on which of the two counts.
class Header : public nlohmann::json_sax<json> {
 public:
  Header(const std::string& file, size_t data_size) : file_(file), data_size_(data_size) {}

  std::vector<std::pair<std::string, Entry>> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(int64_t) override { return value(); }
  bool number_unsigned(uint64_t number) override {
    return number <= uint64_t(INT64_MAX) ? value(nullptr, int64_t(number)) : value();
  }
  bool number_float(double, const std::string&) override { return value(); }
  bool string(std::string& text) override { return value(&text); }
  bool binary(json::binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(/*object=*/true); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(/*object=*/false); }
  bool end_array() override { return close(); }
  bool key(std::string& key) override {
    if (!keys_[depth_].insert(key).second)
      damaged(file_, depth_ == 1 ? fmt::format("\"{}\" is there twice", key)
                                 : fmt::format("\"{}\": \"{}\" is there twice", name_, key));
    if (depth_ <= 2) (depth_ == 1 ? name_ : field_) = std::move(key);
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception&) override {
    damaged(file_, "its header is not a JSON object");
  }

 private:
  using List = std::optional<std::vector<int64_t>>;  // none: it is no list of whole numbers

  [[noreturn]] void fail(const std::string& why) const {
    damaged(file_, fmt::format("tensor \"{}\": {}", name_, why));
  }

  // Refuses what the format does not allow at this place.
  void check_place(bool object, const std::string* text) const {
    if (depth_ == 0 && !object) damaged(file_, "its header is not a JSON object");
    if (depth_ == 1 && !object && name_ == kMetadata)
      damaged(file_, "its metadata is not an object");
    if (depth_ == 1 && !object) fail("its entry is not an object");
    if (depth_ == 2 && !text && name_ == kMetadata)
      damaged(file_, "its metadata holds something else than strings");
  }

  bool value(const std::string* text = nullptr, std::optional<int64_t> number = {}) {
    check_place(false, text);
    if (depth_ == 2 && name_ == kMetadata) metadata[field_] = *text;
    if (depth_ == 2 && field_ == "dtype" && text) dtype_ = *text;
    if (depth_ == 3) add_to_list(number);
    return true;
  }

  bool open(bool object) {
    check_place(object, nullptr);
    if (depth_ == 1) {
      dtype_.clear();
      shape_.reset();
      offsets_.reset();
    }
    if (depth_ == 2 && !object && (field_ == "shape" || field_ == "data_offsets")) {
      list_ = field_ == "shape" ? &shape_ : &offsets_;
      list_->emplace();
    }
    if (depth_ == 3) add_to_list({});
    if (++depth_ > kMaxDepth)
      damaged(file_, fmt::format("its header is nested deeper than {} levels", kMaxDepth));
    keys_[depth_].clear();
    return true;
  }

  bool close() {
    if (--depth_ == 2) list_ = nullptr;
    if (depth_ == 1 && name_ != kMetadata) entries.emplace_back(name_, entry());
    return true;
  }

  void add_to_list(std::optional<int64_t> number) {
    if (!list_) return;
    if (number && (*list_)->size() < kMaxRank) return (*list_)->push_back(*number);
    list_->reset();
    list_ = nullptr;
  }

  Entry entry() const {
    for (const char* key : {"dtype", "shape", "data_offsets"})
      if (!keys_[2].contains(key)) fail(fmt::format("it has no {}", key));
    const auto known = std::ranges::find(kNames, dtype_);
    if (known == kNames.end()) fail("its dtype is unknown");
    if (!shape_) fail("its shape is not a list of extents");
    if (!offsets_ || offsets_->size() != 2) fail("its data_offsets are not two numbers");
    Entry entry{.dtype = DType(known - kNames.begin()),
                .shape = {},
                .begin = size_t((*offsets_)[0]),
                .end = size_t((*offsets_)[1])};
    try {
      entry.shape = Shape(*shape_);
    } catch (const InvalidArgumentError& e) {
      fail(e.what());
    }
    if (entry.begin > entry.end || entry.end > data_size_) fail("its data lies outside the file");
    size_t bytes;
    if (__builtin_mul_overflow(size_t(entry.shape.num_elements()), size_of(entry.dtype), &bytes) ||
        bytes != entry.end - entry.begin)
      fail(fmt::format("its data has {} bytes, which is not what {}{} takes",
                       entry.end - entry.begin, tutti::name(entry.dtype), entry.shape.to_string()));
    return entry;
  }

  const std::string& file_;
  const size_t data_size_;
  size_t depth_ = 0;
  std::string name_, field_;  // the keys of the first and second level that values belong to
  std::array<std::set<std::string>, kMaxDepth + 1> keys_;  // of the open object at each level
  std::string dtype_;
  List shape_, offsets_;
  List* list_ = nullptr;  // the one that is being read
};

}  // namespace

TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  uint64_t header_size = 0;
  if (bytes.size() < sizeof header_size) damaged(name, "it is shorter than 8 bytes");
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  if (header_size > kMaxHeader || header_size > bytes.size() - sizeof header_size)
    damaged(name, fmt::format("its header would have {} bytes", header_size));
  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_size;
  const std::span<const std::byte> data = bytes.subspan(sizeof header_size + header_size);

  Header header(name, data.size());
  json::sax_parse(text, text + header_size, &header);
  auto& entries = header.entries;
  // The tensors fill the data, without gaps and without overlaps.
  std::ranges::sort(entries, {},
                    [](const auto& e) { return std::pair(e.second.begin, e.second.end); });
  size_t at = 0;
  for (const auto& [key, entry] : entries) {
    if (entry.begin != at)
      damaged(name, fmt::format("there is a gap or an overlap before tensor \"{}\"", key));
    at = entry.end;
  }
  if (at != data.size())
    damaged(name, fmt::format("{} bytes follow its last tensor", data.size() - at));
  TensorFile file{.tensors = {}, .metadata = std::move(header.metadata)};
  if (const auto found = file.metadata.find(kChecksum); found != file.metadata.end()) {
    if (found->second != checksum_of(std::string(text, header_size), data))
      damaged(name, "it does not match its checksum");
    file.metadata.erase(found);
  } else if (const auto ours = file.metadata.lower_bound(std::string(kOurs));
             ours != file.metadata.end() && ours->first.starts_with(kOurs)) {
    damaged(name, fmt::format("it has \"{}\" and no checksum", ours->first));
  }
  file.metadata.erase(kFormat);
  for (const auto& [key, entry] : entries) {
    const auto is_bool = [](std::byte b) { return b <= std::byte{1}; };
    if (entry.dtype == DType::boolean &&
        !std::ranges::all_of(data.subspan(entry.begin, entry.end - entry.begin), is_bool))
      damaged(name, fmt::format("tensor \"{}\": a bool is neither 0 nor 1", key));
    // If the current device is not the host, the tensor goes there by way of the host.
    detail::Device& device = device::current();
    detail::Device& host = device.in_host_memory() ? device : device::find("/cpu:0", "safetensors");
    const Tensor tensor = detail::TensorAccess::empty(entry.shape, entry.dtype, host);
    if (entry.end > entry.begin)
      std::memcpy(detail::TensorAccess::data(tensor), data.data() + entry.begin,
                  entry.end - entry.begin);
    file.tensors.emplace(key, &host == &device ? tensor : detail::clone_to(tensor, device));
  }
  return file;
}

TensorFile read_safetensors(const std::string& path) {
  const struct Input {
    int fd;
    ~Input() { close(fd); }
  } input{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const int fd = input.fd;
  if (fd < 0 && errno == ENOENT) throw NotFoundError(fmt::format("there is no file {}", path));
  if (fd < 0) unreadable(path, "open");
  struct stat info {};
  if (fstat(fd, &info) != 0) unreadable(path, "read");
  if (!S_ISREG(info.st_mode)) damaged(path, "it is not a regular file");
  std::vector<std::byte> bytes(size_t(info.st_size));
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = read(fd, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) unreadable(path, "read");
    if (got == 0) damaged(path, "it became shorter while it was read");
    at += size_t(got);
  }
  return parse_safetensors(bytes, path);
}

std::string serialize_safetensors(const TensorFile& file) {
  const auto check = [](const std::string& text) {
    if (text == kMetadata || !is_utf8(text))
      throw InvalidArgumentError(fmt::format(
          "safetensors: \"{}\" cannot be written; names are UTF-8, and \"__metadata__\" is taken",
          text));
  };
  json header = json::object();
  std::vector<Tensor> tensors;
  size_t size = 0;
  for (const auto& [name, tensor] : file.tensors) {
    check(name);
    tensors.push_back(
        detail::TensorAccess::device(tensor).in_host_memory() ? tensor : tensor.clone_to("/cpu:0"));
    header[name] = {{"dtype", name_in_file(tensor.dtype())},
                    {"shape", std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())},
                    {"data_offsets", {size, size + tensor.num_bytes()}}};
    size += tensor.num_bytes();
  }
  json metadata = json::object();
  for (const auto& [key, value] : file.metadata) {
    check(key);
    check(value);
    metadata[key] = value;
  }
  metadata[kFormat] = "1";
  metadata[kChecksum] = std::string(kDigits, '0');
  header[kMetadata] = std::move(metadata);
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // aligns the data

  const uint64_t header_size = text.size();
  std::string bytes;
  bytes.reserve(sizeof header_size + text.size() + size);
  bytes.append(reinterpret_cast<const char*>(&header_size), sizeof header_size);
  bytes += text;
  for (const Tensor& tensor : tensors)
    bytes.append(static_cast<const char*>(tensor.const_data()), tensor.num_bytes());
  const auto data = std::as_bytes(std::span(bytes)).subspan(sizeof header_size + text.size());
  const std::string digits = checksum_of(text, data);
  bytes.replace(sizeof header_size + find_digits(text), kDigits, digits);
  return bytes;
}

void write_safetensors(const std::string& path, const TensorFile& file) {
  const std::string bytes = serialize_safetensors(file);
  base::NewFile output(path);
  output.write(bytes);
  output.commit();
}

}  // namespace tutti
