// SPDX-License-Identifier: Apache-2.0
// A module for MPI: a Transport over its messages, and the rendezvous.
// MPI's own classes for C++ are long gone.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/module.h"
#include "group/net/transport.h"

namespace tutti::group {

namespace {

struct MpiMessage : Transport::Message {
  MPI_Request request;
  bool sending;
  bool failed = false;
};

MpiMessage* own(Transport::Message* message) { return static_cast<MpiMessage*>(message); }

// MPI is asked by one thread at a time: few are built for more.
std::mutex mutex;

void check(int status, const char* what) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw UnavailableError(fmt::format("mpi: {} failed: {}", what, text));
}

// A communicator of our own, so that no message of the program's is taken for one of ours.
struct World {
  World() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (!initialised) {
      int provided = 0;
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
      ours = true;
    }
    int threads = MPI_THREAD_SINGLE;
    MPI_Query_thread(&threads);
    if (threads < MPI_THREAD_SERIALIZED)
      throw FailedPreconditionError(
          "mpi: MPI was initialised for one thread only; ask for MPI_THREAD_SERIALIZED or more in "
          "MPI_Init_thread, or let Tutti initialise it");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &size);
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(communicator, MPI_TAG_UB, &bound, &found);
    most_tags = found ? *static_cast<int*>(bound) : 32767;
  }

  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0, size = 1;
  int most_tags = 32767;
  bool ours = false;  // whether this module finalises MPI
};

World& world() {
  static World instance;
  return instance;
}

// A program that initialised MPI itself may be done with it before we are.
bool is_finalized() {
  int done = 0;
  MPI_Finalized(&done);
  return done;
}

class MpiTransport : public Transport {
 public:
  const char* name() const override { return "mpi"; }

  Message* send(int to, uint64_t tag, const void* data, size_t bytes) override {
    std::lock_guard lock(mutex);
    const int n = count(bytes);
    auto* const message = new MpiMessage{{}, MPI_REQUEST_NULL, true};
    message->failed =
        is_finalized() || MPI_Isend(data, n, MPI_BYTE, to, tag_of(tag), world().communicator,
                                    &message->request) != MPI_SUCCESS;
    return message;
  }
  Message* receive(int from, uint64_t tag, void* data, size_t bytes) override {
    std::lock_guard lock(mutex);
    const int n = count(bytes);
    auto* const message = new MpiMessage{{}, MPI_REQUEST_NULL, false};
    message->failed =
        is_finalized() || MPI_Irecv(data, n, MPI_BYTE, from, tag_of(tag), world().communicator,
                                    &message->request) != MPI_SUCCESS;
    return message;
  }
  State test(Message* given) override {
    if (!given) return State::over;
    std::lock_guard lock(mutex);
    MpiMessage* const message = own(given);
    if (message->failed || is_finalized()) {
      delete message;
      return State::failed;
    }
    int done = 0;
    const int status = MPI_Test(&message->request, &done, MPI_STATUS_IGNORE);
    if (status == MPI_SUCCESS && !done) return State::under_way;
    delete message;
    if (status == MPI_SUCCESS) return State::over;
    int kind = MPI_ERR_OTHER;
    MPI_Error_class(status, &kind);
    return kind == MPI_ERR_TRUNCATE ? State::too_long : State::failed;
  }
  bool is_under_way(const Message* given) override {
    std::lock_guard lock(mutex);
    const auto* const message = static_cast<const MpiMessage*>(given);
    if (message->failed || is_finalized()) return false;
    int done = 0;
    return MPI_Request_get_status(message->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           !done;
  }
  bool cancel(Message* given) override {
    if (!given) return true;
    std::lock_guard lock(mutex);
    MpiMessage* const message = own(given);
    if (message->failed || is_finalized()) {
      const bool never_began = message->failed;
      delete message;
      return never_began;
    }
    // MPI need not be able to cancel a send. It gets a moment, and then its memory is given up.
    if (!message->sending) MPI_Cancel(&message->request);
    int done = 0;
    const timespec nap{0, 1'000'000};
    for (int i = 0; i < 200 && !done; ++i) {
      if (MPI_Test(&message->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
      if (!done) nanosleep(&nap, nullptr);
    }
    delete message;
    return done;
  }
  void progress() override {
    std::lock_guard lock(mutex);
    if (is_finalized()) return;
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world().communicator, &found, MPI_STATUS_IGNORE);
  }
  void flush(std::chrono::nanoseconds) override {}
  // MPI cannot wake a thread.
  void sleep(const Message*, std::chrono::nanoseconds at_most) override {
    const timespec nap{0, std::min<long>(at_most.count(), 20'000)};
    nanosleep(&nap, nullptr);
  }
  std::string loss(int) const override { return {}; }

 private:
  static int count(size_t bytes) {
    if (bytes > size_t(INT32_MAX))
      throw UnimplementedError(
          fmt::format("mpi: a message of {} bytes; MPI takes less than 2 GiB", bytes));
    return int(bytes);
  }
  // The lower three bits are the kind; groups take turns with the rest.
  static int tag_of(uint64_t tag) {
    const uint64_t groups = (uint64_t(world().most_tags) + 1) / 8;
    return int((tag >> 3) % groups * 8 + (tag & 7));
  }
};

int rank() {
  std::lock_guard lock(mutex);
  return world().rank;
}
int size() {
  std::lock_guard lock(mutex);
  return world().size;
}

std::vector<std::string> all_gather(const std::string& mine) {
  std::lock_guard lock(mutex);
  constexpr size_t kMost = 1024;
  std::vector<char> in(kMost), out(kMost * size_t(world().size));
  std::memcpy(in.data(), mine.data(), std::min(mine.size(), kMost - 1));
  check(MPI_Allgather(in.data(), int(kMost), MPI_CHAR, out.data(), int(kMost), MPI_CHAR,
                      world().communicator),
        "MPI_Allgather");
  std::vector<std::string> all;
  for (int r = 0; r < world().size; ++r) all.emplace_back(out.data() + size_t(r) * kMost);
  return all;
}

// MPI knows the ranks by itself.
class MpiEndpoint : public Endpoint {
 public:
  std::string address() const override { return {}; }
  std::unique_ptr<Transport> connect(const std::vector<std::string>&, int,
                                     const std::function<void()>&) override {
    return std::make_unique<MpiTransport>();
  }
};

std::unique_ptr<Endpoint> open(const TransportOptions&) { return std::make_unique<MpiEndpoint>(); }

std::string interface_in_use(const TransportOptions&) { return "what MPI chooses"; }

void finalize() {
  std::lock_guard lock(mutex);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (world().ours && !finalized) MPI_Finalize();
}

const char* library() {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  if (char* const end = std::strpbrk(text, ",\n")) *end = 0;
  return text;
}

constexpr Rendezvous kRendezvous{rank, size, all_gather, finalize, library};
constexpr TransportModule kInterface{open, interface_in_use, &kRendezvous};
constexpr base::Module kModule{TUTTI_VERSION, &kInterface};

}  // namespace

}  // namespace tutti::group

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &tutti::group::kModule;
}
