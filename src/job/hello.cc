// SPDX-License-Identifier: Apache-2.0
#include "job/hello.h"

#include <fmt/format.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cstring>

#include "base/settings.h"
#include "group/net/registry.h"

namespace tutti::group {

namespace {

// Calls field(member) for all that travels, in its order.
template <class Fields, class Hello>
void visit(Fields& field, Hello& hello) {
  auto& [memory, local, hostname, host_is_named, stragglers, costs, backend, preferred, timeline] =
      hello;
  field(memory.host), field(memory.machine), field(memory.cores), field(memory.pid);
  field(memory.fd), field(memory.inode), field(memory.first_segment), field(memory.user);
  field(memory.dumpable);
  field(local), field(hostname), field(host_is_named), field(stragglers), field(costs);
  field(backend), field(preferred);
  field(timeline.enabled), field(timeline.epoch), field(timeline.run), field(timeline.clock);
}

template <class T>
concept Range = requires(T value) { value.resize(1); };

class Writer {
 public:
  template <class T>
  void operator()(const T& value) {
    if constexpr (Range<T>) {
      (*this)(uint32_t(value.size()));
      append(value.data(), value.size() * sizeof(*value.data()));
    } else {
      append(&value, sizeof(value));
    }
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t bytes) {
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(T& value) {
    if constexpr (Range<T>) {
      uint32_t count = 0;
      (*this)(count);
      expect(count * sizeof(*value.data()));
      value.resize(count);
      take(value.data(), count * sizeof(*value.data()));
    } else {
      take(&value, sizeof(value));
    }
  }

 private:
  void expect(size_t bytes) const {
    if (bytes > bytes_.size())
      throw DataLossError("join: a rank introduced itself with bytes that are no introduction");
  }
  void take(void* to, size_t bytes) {
    expect(bytes);
    std::memcpy(to, bytes_.data(), bytes);
    bytes_.remove_prefix(bytes);
  }
  std::string_view bytes_;
};

}  // namespace

std::string machine_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

Hello own_hello(int rank) {
  const base::Settings& settings = base::settings();
  const std::string local = settings.host_id.empty() ? this_host() : settings.host_id;
  const bool alone = find_transport(settings.backend) != nullptr;
  return {.memory = shm_hello(alone ? fmt::format("{} rank {}", local, rank) : local),
          .local = local,
          .hostname = machine_name(),
          .host_is_named = !settings.host_id.empty(),
          .stragglers = settings.stragglers,
          .costs = base::to_string(settings.costs),
          .backend = settings.backend};
}

std::string to_bytes(const Hello& hello) {
  Writer bytes;
  visit(bytes, hello);
  return bytes.take();
}

Hello from_bytes(std::string_view bytes) {
  Hello hello;
  Reader reader(bytes);
  visit(reader, hello);
  return hello;
}

}  // namespace tutti::group
