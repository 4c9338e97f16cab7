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
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

using nlohmann::json;

constexpr size_t kMaxHeader = 100 << 20;  // what other readers accept
constexpr const char* kChecksum = "tutti.checksum";
// By DType.
constexpr std::array<const char*, 13> kNames{"BOOL", "I8",  "I16", "I32",  "I64", "U8", "U16",
                                             "U32",  "U64", "F16", "BF16", "F32", "F64"};

[[noreturn]] void damaged(const std::string& name, const std::string& why) {
  throw DataLossError(fmt::format("{} is not a valid safetensors file: {}", name, why));
}

[[noreturn]] void refused(const std::string& path, const char* what) {
  throw UnavailableError(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

constexpr size_t kDigits = 16;

// Where the digits of the checksum stand in a header; npos where there are none.
size_t find_digits(std::string_view header) {
  const std::string key = fmt::format("\"{}\":\"", kChecksum);
  const size_t at = header.find(key);
  return at == header.npos || header.size() - at < key.size() + kDigits ? header.npos
                                                                        : at + key.size();
}

// Of the header, with zeros for the digits of the checksum itself, and the data.
std::string checksum_of(std::string header, std::span<const std::byte> data) {
  if (const size_t at = find_digits(header); at != header.npos)
    header.replace(at, kDigits, kDigits, '0');
  return fmt::format("{:016x}",
                     base::checksum(data, base::checksum(std::as_bytes(std::span(header)))));
}

// A file descriptor that closes itself, and a temporary file that goes away unless it is kept.
struct Output {
  std::string path;
  int fd = -1;
  bool keep = false;
  ~Output() {
    if (fd >= 0) close(fd);
    if (!keep) unlink(path.c_str());
  }
  void write(const void* data, size_t bytes) {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t done = ::write(fd, at, bytes);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) refused(path, "write");
      at += done;
      bytes -= size_t(done);
    }
  }
};

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

Entry parse_entry(const std::string& file, const std::string& name, const json& value,
                  size_t data_size) {
  const auto fail = [&](const std::string& why) {
    damaged(file, fmt::format("tensor \"{}\": {}", name, why));
  };
  if (!value.is_object()) fail("its entry is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.contains(key)) fail(fmt::format("it has no {}", key));
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  const auto whole = [](const json& j) {
    return j.is_number_unsigned() && j.get<uint64_t>() <= uint64_t(INT64_MAX);
  };
  const auto known = dtype.is_string()
                         ? std::ranges::find(kNames, dtype.get_ref<const std::string&>())
                         : kNames.end();
  if (known == kNames.end()) fail("its dtype is unknown");
  if (!shape.is_array() || shape.size() > 64 || !std::ranges::all_of(shape, whole))
    fail("its shape is not a list of extents");
  if (!offsets.is_array() || offsets.size() != 2 || !whole(offsets[0]) || !whole(offsets[1]))
    fail("its data_offsets are not two numbers");
  Entry entry{.dtype = DType(known - kNames.begin()),
              .shape = {},
              .begin = offsets[0].get<size_t>(),
              .end = offsets[1].get<size_t>()};
  try {
    entry.shape = Shape(shape.get<std::vector<int64_t>>());
  } catch (const InvalidArgumentError& e) {
    fail(e.what());
  }
  if (entry.begin > entry.end || entry.end > data_size) fail("its data lies outside the file");
  size_t bytes;
  if (__builtin_mul_overflow(size_t(entry.shape.num_elements()), size_of(entry.dtype), &bytes) ||
      bytes != entry.end - entry.begin)
    fail(fmt::format("its data has {} bytes, which is not what {}{} takes", entry.end - entry.begin,
                     tutti::name(entry.dtype), entry.shape.to_string()));
  return entry;
}

}  // namespace

TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  uint64_t header_size = 0;
  if (bytes.size() < sizeof header_size) damaged(name, "it is shorter than 8 bytes");
  std::memcpy(&header_size, bytes.data(), sizeof header_size);
  if (header_size > kMaxHeader || header_size > bytes.size() - sizeof header_size)
    damaged(name, fmt::format("its header would have {} bytes", header_size));
  const auto* const text = reinterpret_cast<const char*>(bytes.data()) + sizeof header_size;
  const std::span<const std::byte> data = bytes.subspan(sizeof header_size + header_size);

  const json header = json::parse(text, text + header_size, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) damaged(name, "its header is not a JSON object");
  TensorFile file;
  std::vector<std::pair<std::string, Entry>> entries;
  for (const auto& [key, value] : header.items()) {
    if (key != "__metadata__") {
      entries.emplace_back(key, parse_entry(name, key, value, data.size()));
      continue;
    }
    if (!value.is_object()) damaged(name, "its metadata is not an object");
    for (const auto& [k, v] : value.items()) {
      if (!v.is_string()) damaged(name, "its metadata holds something else than strings");
      file.metadata[k] = v.get<std::string>();
    }
  }
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
  if (const auto found = file.metadata.find(kChecksum); found != file.metadata.end()) {
    if (found->second != checksum_of(std::string(text, header_size), data))
      damaged(name, "it does not match its checksum");
    file.metadata.erase(found);
  }
  for (const auto& [key, entry] : entries) {
    const auto is_bool = [](std::byte b) { return b <= std::byte{1}; };
    if (entry.dtype == DType::boolean &&
        !std::ranges::all_of(data.subspan(entry.begin, entry.end - entry.begin), is_bool))
      damaged(name, fmt::format("tensor \"{}\": a bool is neither 0 nor 1", key));
    // Where the current device is not the host, it goes there by way of it.
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
  Output input{.path = path, .fd = open(path.c_str(), O_RDONLY | O_CLOEXEC), .keep = true};
  if (input.fd < 0 && errno == ENOENT)
    throw NotFoundError(fmt::format("there is no file {}", path));
  if (input.fd < 0) refused(path, "open");
  struct stat info {};
  if (fstat(input.fd, &info) != 0) refused(path, "read");
  if (!S_ISREG(info.st_mode)) damaged(path, "it is not a regular file");
  std::vector<std::byte> bytes(size_t(info.st_size));
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = read(input.fd, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refused(path, "read");
    if (got == 0) damaged(path, "it became shorter while it was read");
    at += size_t(got);
  }
  return parse_safetensors(bytes, path);
}

std::string serialize_safetensors(const TensorFile& file) {
  const auto check = [](const std::string& text) {
    if (text == "__metadata__" || !is_utf8(text))
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
    header[name] = {{"dtype", kNames[size_t(tensor.dtype())]},
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
  metadata[kChecksum] = std::string(kDigits, '0');
  header["__metadata__"] = std::move(metadata);
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
  static std::atomic<int> counter = 0;  // two threads may write one file
  Output output{.path = fmt::format("{}.tmp.{}.{}", path, getpid(), ++counter)};
  output.fd = open(output.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (output.fd < 0) {
    output.keep = true;  // nothing of ours is there to remove
    refused(output.path, "create");
  }
  output.write(bytes.data(), bytes.size());
  if (fsync(output.fd) != 0) refused(output.path, "write");
  if (rename(output.path.c_str(), path.c_str()) != 0) refused(path, "write");
  output.keep = true;
  // The name lasts, too, where the machine goes down now.
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
}

}  // namespace tutti
