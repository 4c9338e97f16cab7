#include "job/job.h"

#include <fmt/format.h>
#include <tutti/version.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/descriptors.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/module.h"
#include "base/settings.h"
#include "cluster/checks.h"
#include "cluster/coordination.h"
#include "cluster/membership.h"
#include "gpu/nccl.h"
#include "group/net/backend.h"
#include "group/shm/shm.h"
#include "job/announcement.h"
#include "job/clocks.h"
#include "job/interfaces.h"
#include "job/terminate.h"
#include "observe/timeline.h"

namespace tutti::group {

namespace {

using cluster::ClusterModule;
using cluster::Coordination;
using cluster::Failure;
using cluster::Membership;
using cluster::Service;

// How long the chief stays for those who are not done yet, where it runs the service.
constexpr std::chrono::seconds kLinger{5};
// How long a worker on a network stays for what it has sent.
constexpr std::chrono::seconds kFarewell{1};
// And where somebody does not answer, so that the others hear of it: they listen more often.
constexpr std::chrono::milliseconds kLastWords{200};
constexpr std::chrono::milliseconds kProgress{50};
// Descriptors of a process whatever the number of ranks, to join (gRPC's, the shared memory) and
// then to connect (the transport's, and some for the moment).
constexpr int kToJoin = 10, kToConnect = 6, kOfUcx = 24;

// Settings say "for ever" as 0.
std::chrono::nanoseconds join_timeout() {
  const std::chrono::nanoseconds timeout = base::settings().join_timeout;
  return timeout.count() ? timeout : std::chrono::nanoseconds::max();
}

// Addresses of UCX are any bytes.
std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", uint8_t(c));
  return text;
}
std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += char(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

int port_of(const std::string& address) {
  return std::atoi(address.c_str() + address.rfind(':') + 1);
}

std::string machine_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// The module for the MPI that started this process.
const MpiModule& mpi_module(const Membership& membership) {
  const char* const name = membership.source == "MPICH" ? "mpi_mpich" : "mpi_openmpi";
  if (membership.source != "MPICH" && membership.source != "Open MPI")
    throw FailedPreconditionError(
        "TUTTI_BACKEND=mpi: this program was not started by mpirun, so MPI does not know the other "
        "ranks; start it by mpirun, or leave TUTTI_BACKEND empty");
  const auto& module = *static_cast<const MpiModule*>(base::load_module(name).interface);
  if (module.size() != int(membership.addresses.size()) || module.rank() != membership.rank)
    throw FailedPreconditionError(fmt::format(
        "{} started {} ranks, but the MPI library that was found ({}) sees {}: they are of "
        "different kinds; use the mpirun that belongs to it",
        membership.source, membership.addresses.size(), module.version(), module.size()));
  return module;
}

class Job {
 public:
  explicit Job(const Membership& membership) : given_(membership), membership_(membership) {
    const nlohmann::json own_timeline = timeline();  // where it cannot be had, nobody is joined yet
    if (membership_.service.empty()) meet_under_mpirun();
    const base::Settings& settings = base::settings();
    const bool ucx = size() > 1 && wants_ucx();
    // A process has one for each rank, a pidfd or a connection; UCX and MPI may do without.
    const int to_ranks =
        ucx || settings.backend == "ucx" || settings.backend == "mpi" ? 0 : size() - 1;
    expect_descriptors(kToJoin + kToConnect + to_ranks + (membership_.serves ? size() + 1 : 0));
    const cluster::Job job = description();
    if (job.token.empty() && !cluster::is_loopback(membership_.service))
      base::log_once(base::LogLevel::warning,
                     fmt::format("anybody who reaches {} can join this job: set TUTTI_TOKEN to the "
                                 "same secret on all workers",
                                 membership_.service));
    if (membership_.serves && !service_) service_ = module().serve(job, membership_.service);
    // Nothing else would serve there.
    if (by_mpirun() && !membership_.serves && membership_.rank == 0) try {
        service_ = module().serve(job, membership_.service);
      } catch (const UnavailableError&) {  // a service runs there, or it is another host's
      }
    if (service_) base::close_port_in_children(port_of(service_->address()));
    const int port = port_of(membership_.service);
    const std::vector<int> before = base::sockets_to(port);
    link_ = module().join(job, membership_.service, membership_.rank, join_timeout());
    std::vector<int> sockets = base::sockets_to(port);
    std::erase_if(sockets, [&](int fd) { return std::ranges::find(before, fd) != before.end(); });
    base::close_in_children(sockets);
    link_->on_failure([this](const Failure&) { alarm_.store(true, std::memory_order_release); });

    const bool alone =
        settings.backend == "tcp" || settings.backend == "ucx" || settings.backend == "mpi";
    std::string host = settings.host_id.empty() ? this_host() : settings.host_id;
    const std::string machine = host;
    if (alone) host += fmt::format(" rank {}", membership_.rank);
    nlohmann::json hello = nlohmann::json::parse(shm_hello(host));
    hello["local"] = machine;
    hello["stragglers"] = settings.stragglers;
    hello["timeline"] = own_timeline;
    hello["backend"] = settings.backend;
    hello["ucx"] = ucx;
    const std::vector<std::string> hellos =
        link_->exchange("processes", hello.dump(), join_timeout());
    std::vector<nlohmann::json> parsed;
    for (const std::string& text : hellos) parsed.push_back(nlohmann::json::parse(text));
    try {
      expect_nccl_if_required();
      look_around(hellos, parsed);
      align_timelines(parsed);
    } catch (const Error& error) {
      give_up(error);
      throw;
    }
    announcement_.reset();  // all have come
  }

  int stragglers() const { return stragglers_; }

  std::unique_ptr<Backend> new_group(const std::string& purpose) {
    const int number = groups_++;
    const auto introduced = [&](const std::string& mine) {
      const std::vector<std::string> all =
          link_->exchange(fmt::format("group {}", number), mine + "\n" + purpose, join_timeout());
      for (size_t r = 0; r < all.size(); ++r)
        if (const std::string theirs = all[r].substr(all[r].find('\n') + 1); theirs != purpose)
          throw InvalidArgumentError(fmt::format(
              "group {} of this job is for {} on rank {}, and for {} on rank {}: all workers make "
              "their strategies and groups in the same order",
              number + 1, purpose, membership_.rank, theirs, r));
      return all;
    };
    if (surroundings_) {
      std::vector<int> everybody;
      for (int r = 0; r < size(); ++r) everybody.push_back(r);
      const NetworkBackend::Plan plan(surroundings_, everybody);
      const Introduction& mine = plan.introduction();
      std::vector<Introduction> all;
      for (const std::string& text : introduced(fmt::format("{} {}", mine.block, mine.id)))
        all.push_back({std::stoull(text), std::stoull(text.substr(text.find(' ') + 1))});
      return plan.finish(all);
    }
    Block* const mine = neighbourhood_.blocks->make(*neighbourhood_.reach, size());
    const uint64_t place = neighbourhood_.reach->place(mine, Block::bytes(size()));
    const std::vector<std::string> places = introduced(std::to_string(place));
    std::vector<int> everybody;
    std::vector<Block*> blocks;
    for (int r = 0; r < size(); ++r) {
      everybody.push_back(r);
      blocks.push_back(
          static_cast<Block*>(neighbourhood_.reach->find(r, std::stoull(places[size_t(r)]))));
    }
    return std::make_unique<WindowBackend>("shm", neighbourhood_, everybody, membership_.rank,
                                           blocks);
  }

  bool is(const Membership& other) const {
    return given_.addresses == other.addresses && given_.rank == other.rank;
  }
  std::string name() const {
    return fmt::format("rank {} of {} ({})", given_.rank, size(), membership_.addresses[0]);
  }
  std::optional<Failure> failure() const {
    const std::shared_ptr<Coordination> link = this->link();
    if (!link) return {};
    std::optional<Failure> failure = link->failure();
    if (failure && link->silence() == std::chrono::nanoseconds::max())
      if (const std::string why = isolation(); !why.empty())
        failure = {membership_.rank, ErrorCode::unavailable,
                   fmt::format("rank {} ({}) {}", membership_.rank,
                               membership_.addresses[size_t(membership_.rank)], why)};
    return failure;
  }

  void report(Failure failure) {
    if (failure.rank < 0 && failure.code != ErrorCode::invalid_argument)
      failure.rank = culprit(failure.text);
    std::lock_guard lock(reporting_);
    const std::shared_ptr<Coordination> link = this->link();
    // Every call of a group that has failed says the same again.
    if (!link || failure.text == std::exchange(reported_, failure.text)) return;
    link->report(failure);
  }

  void abort(const std::string& reason) {
    const std::shared_ptr<Coordination> link = this->link();
    if (!link) return;
    link->abort({membership_.rank, ErrorCode::aborted,
                 fmt::format("rank {} failed: {}", membership_.rank, reason)});
    alarm_.store(true, std::memory_order_release);  // not only when the link's thread comes to it
  }

  JobLayout layout() {
    const nlohmann::json mine = {{"machine", machine_name()},
                                 {"named", !base::settings().host_id.empty()}};
    JobLayout result{.ranks = {},
                     .rank = membership_.rank,
                     .source = membership_.source,
                     .service = membership_.service,
                     .network = surroundings_ ? surroundings_->control->transport().name() : ""};
    const auto all =
        link_->exchange(fmt::format("layout {}", layouts_++), mine.dump(), join_timeout());
    for (size_t r = 0; r < all.size(); ++r) {
      const auto place = nlohmann::json::parse(all[r]);
      result.ranks.push_back({.address = membership_.addresses[r],
                              .machine = place.at("machine"),
                              .host = hosts_[r],
                              .named = place.at("named")});
    }
    return result;
  }

  // Says goodbye, and stays for the others where they need the service.
  void leave() {
    bool complete = !alarm_.load();
    if (surroundings_) {
      ControlPlane& control = *surroundings_->control;
      progress_ = {};
      // What was sent last may still be on its way to those who are about to leave, too.
      control.transport().flush(kFarewell);
      complete = complete && !control.misses_a_rank();
      if (complete)
        meet_to_leave();
      else if (control.misses_a_rank())
        linger(control.transport(), kLastWords);
      control.transport().progress();
      control.dispatch();  // the last words of the others
      control.close();
    }
    leave_service();
    if (service_)
      complete ? service_->wait_until_empty(kLinger) : service_->wait_until_quiet(kLinger);
    service_.reset();
    if (mpi_ && !alarm_.load()) mpi_->finalize();
  }

 private:
  int size() const { return int(membership_.addresses.size()); }

  // Tells the others why this rank does not take part, and stays until they know if it serves.
  void give_up(const Error& error) {
    const std::string& address = membership_.addresses[size_t(membership_.rank)];
    progress_ = {};
    link_->abort({membership_.rank, error.code(),
                  fmt::format("rank {} ({}): {}", membership_.rank, address, error.what())});
    leave_service();
    if (service_) service_->wait_until_quiet(kLinger);
  }

  // Threads that wait in a group may ask for the job's failure until the process ends.
  std::shared_ptr<Coordination> link() const {
    std::lock_guard lock(link_mutex_);
    return link_;
  }
  void leave_service() {
    std::shared_ptr<Coordination> left;  // its end may take time
    std::lock_guard lock(link_mutex_);
    left.swap(link_);
  }

  void expect_descriptors(int more) const {
    base::expect_descriptors(more, fmt::format("this job of {} ranks", size()));
  }

  // "waited 2 s for rank 1 (ADDRESS), which waits for rank 2 (ADDRESS); ..." is rank 2's fault.
  int culprit(std::string_view text) const {
    int found = -1;
    size_t end = 0;  // of the name that was found
    for (size_t open = text.find('('); open != text.npos; open = text.find('(', open + 1)) {
      const size_t length = text.find_first_of(",)", open) - open - 1;
      const auto rank = std::ranges::find(membership_.addresses, text.substr(open + 1, length));
      if (rank == membership_.addresses.end()) continue;
      if (found >= 0 && !text.substr(end, open - end).starts_with("), which waits for ")) break;
      found = int(rank - membership_.addresses.begin());
      end = open + 1 + length;
    }
    return found >= 0 ? found : membership_.rank;
  }

  void meet_to_leave() {
    try {
      link_->exchange("farewell", "", kFarewell);
    } catch (const Error&) {
    }
  }
  static void linger(Transport& transport, std::chrono::nanoseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    for (auto now = until - time; now < until; now = std::chrono::steady_clock::now()) {
      transport.sleep(nullptr, until - now);
      transport.progress();
    }
  }

  static const ClusterModule& module() {
    return *static_cast<const ClusterModule*>(base::load_module("cluster").interface);
  }

  cluster::Job description() const {
    const base::Settings& settings = base::settings();
    return {.addresses = membership_.addresses,
            .token = settings.token,
            .version = std::string(version()),
            .certificate = settings.tls_certificate,
            .key = settings.tls_key,
            .authority = settings.tls_authority,
            .heartbeat_timeout = settings.heartbeat_timeout,
            .chief_serves = settings.coordinator.empty(),
            .on_refused = [](const std::string& refused) {
              base::log(base::LogLevel::warning, "the coordination service refused " + refused);
            }};
  }

  bool by_mpirun() const {
    return membership_.source == "Open MPI" || membership_.source == "MPICH";
  }

  void meet_under_mpirun() {
    try {
      mpi_ = &mpi_module(membership_);
    } catch (const UnavailableError& error) {
      if (base::settings().backend == "mpi") throw;
      return meet_on_this_host(error.what());
    }
    meet_by_mpi();
  }

  // Without a module for MPI, ranks of one host still find the first.
  void meet_on_this_host(const std::string& missing) {
    if (membership_.host_job.empty())
      throw UnavailableError(fmt::format(
          "{} started ranks on several hosts, which cannot find each other: {}; or set "
          "TUTTI_COORDINATOR=HOST:PORT for all ranks, to an address of rank 0's host that the "
          "others reach",
          membership_.source, missing));
    constexpr const char* kHost = "127.0.0.1";
    if (membership_.serves) {
      service_ = module().serve(description(), cluster::address_of(kHost, 0));
      membership_.service = service_->address();
      const size_t colon = membership_.service.rfind(':');
      announcement_.emplace(membership_.host_job, std::stoi(membership_.service.substr(colon + 1)));
    } else {
      membership_.service =
          cluster::address_of(kHost, find_announced(membership_.host_job, join_timeout()));
    }
  }

  // MPI tells all where the first rank serves.
  void meet_by_mpi() {
    const std::vector<std::string> hosts = mpi_->all_gather(machine_name());
    for (size_t r = 0; r < hosts.size(); ++r) membership_.addresses[r] = hosts[r];
    std::string service, trouble;
    if (membership_.serves) try {
        const bool one_host = std::set(hosts.begin(), hosts.end()).size() == 1;
        const std::string host =
            one_host ? "127.0.0.1" : outside_address(base::settings().interfaces);
        if (host.empty())
          throw UnavailableError(
              "no network interface is up for the coordination service; TUTTI_INTERFACES names "
              "those to use");
        service_ = module().serve(description(), cluster::address_of(host, 0));
        service = service_->address();
      } catch (const Error& error) {
        trouble = error.what();  // the others wait to hear it
      }
    constexpr char kTrouble = '!';
    const std::string said = mpi_->all_gather(trouble.empty() ? service : kTrouble + trouble)[0];
    if (said.starts_with(kTrouble))
      throw UnavailableError("rank 0 cannot run the coordination service: " + said.substr(1));
    membership_.service = said;
  }

  // Finds out where everybody is, and how to get there.
  void look_around(const std::vector<std::string>& hellos,
                   const std::vector<nlohmann::json>& parsed) {
    Surroundings around{.rank = membership_.rank,
                        .addresses = membership_.addresses,
                        .hosts = {},
                        .machines = {},
                        .control = nullptr,
                        .neighbourhood = {},
                        .crowded = false,
                        .alarm = &alarm_,
                        .failure = [this] { return failure(); },
                        .isolation = [this] { return isolation(); }};
    const size_t me = size_t(membership_.rank);
    for (const nlohmann::json& hello : parsed) {
      around.hosts.push_back(hello.at("host"));
      around.machines.push_back(hello.at("local"));
    }
    hosts_ = around.hosts;
    // It makes for an operation more, so it must be the same everywhere.
    stragglers_ = parsed[0].at("stragglers");
    if (const int mine = parsed[me].at("stragglers"); mine != stragglers_)
      base::log_once(base::LogLevel::warning,
                     fmt::format("TUTTI_STRAGGLERS is {} here and {} on rank 0, which counts", mine,
                                 stragglers_));
    Neighbours neighbours{.rank = 0,
                          .ranks = {},
                          .addresses = {},
                          .hellos = {},
                          .alarm = around.alarm,
                          .failure = around.failure};
    std::set<int> cores;
    size_t on_this_machine = 0;
    for (size_t r = 0; r < hellos.size(); ++r) {
      if (parsed[r].at("machine") == parsed[me].at("machine")) {
        ++on_this_machine;
        for (const int core : parsed[r].at("cores")) cores.insert(core);
      }
      if (around.hosts[r] != around.hosts[me] && base::settings().backend != "shm") continue;
      if (r == me) neighbours.rank = int(neighbours.hellos.size());
      neighbours.ranks.push_back(int(r));
      neighbours.addresses.push_back(membership_.addresses[r]);
      neighbours.hellos.push_back(hellos[r]);
    }
    around.crowded = on_this_machine > cores.size();
    expect_descriptors(kToConnect + int(neighbours.hellos.size()) - 1);
    if (neighbours.hellos.size() > 1) neighbourhood_ = shm_neighbourhood(neighbours);
    if (neighbours.hellos.size() == hellos.size()) return;
    around.neighbourhood = neighbourhood_;
    std::vector<int> remote;
    for (size_t r = 0; r < hosts_.size(); ++r)
      if (hosts_[r] != hosts_[me]) remote.push_back(int(r));
    around.control = std::make_shared<ControlPlane>(transport(parsed), membership_.rank, size(),
                                                    std::move(remote));
    base::close_in_children(around.control->transport().sockets());
    surroundings_ = std::make_shared<const Surroundings>(std::move(around));
    // Nobody else does while the program computes, and what it has sent may still be on this side.
    progress_ = std::jthread([this](std::stop_token stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      while (!pause_.wait_for(lock, stop, kProgress, [&] { return stop.stop_requested(); })) {
        if (stop.stop_requested()) return;
        surroundings_->control->pump();
        if (link_->silence().count()) surroundings_->control->probe();
      }
    });
  }

  // A rank that hears neither another host nor the service, if that is elsewhere, suspects itself
  // before it accuses. With one other host alone it cannot tell which of the two is cut off.
  std::string isolation() const {
    const std::shared_ptr<Coordination> link = this->link();
    if (!link || !surroundings_ || cluster::is_loopback(membership_.service) ||
        surroundings_->control->hears_other_hosts())
      return {};
    if (link->silence().count())
      return "hears neither the coordination service nor any other host: the network of its own "
             "host is cut off";
    const std::string& own = membership_.addresses[size_t(membership_.rank)];
    const bool service_is_here = own.substr(0, own.rfind(':')) ==
                                 membership_.service.substr(0, membership_.service.rfind(':'));
    if (!service_is_here || std::set(hosts_.begin(), hosts_.end()).size() < 3) return {};
    return "hears no other host: the network of its own host is cut off";
  }

  // What the others must know of this rank's timeline; null without one.
  nlohmann::json timeline() const {
    observe::name_timeline_after(membership_.rank);
    if (!observe::timeline_enabled()) return nullptr;
    std::error_code ignored;
    const auto wall = std::chrono::system_clock::now().time_since_epoch().count();
    return {{"epoch", observe::timeline_epoch_ns()},
            {"host", machine_name()},
            {"run", fmt::format("{:x}-{:x}", wall, getpid())},
            // With the boot, what processes with the same steady clock have in common.
            {"clock", std::filesystem::read_symlink("/proc/self/ns/time", ignored).string()}};
  }

  // Says in every timeline how its clock stands to that of the first rank that has one. Between
  // hosts that takes measuring, by one rank of each.
  void align_timelines(const std::vector<nlohmann::json>& hellos) {
    struct Part {
      int rank;
      nlohmann::json timeline;
      std::string clock;
    };
    std::vector<Part> parts;
    for (size_t r = 0; r < hellos.size(); ++r) {
      const nlohmann::json& timeline = hellos[r].at("timeline");
      if (!timeline.is_null())
        parts.push_back({int(r), timeline,
                         hellos[r].at("machine").get<std::string>() + " " +
                             timeline.at("clock").get<std::string>()});
    }
    if (parts.empty()) return;
    const Part& first = parts[0];
    std::map<std::string, int> askers;  // by clock; all ranks find the same
    for (const Part& part : parts)
      if (part.clock != first.clock) askers.try_emplace(part.clock, part.rank);
    std::map<std::string, ClockDifference> differences{{first.clock, {0, 0}}};
    if (!askers.empty()) {
      const Patience patience{base::settings().join_timeout, base::settings().warn_after};
      const std::unique_ptr<Backend> group = new_group("the clocks of timelines");
      ClockDifference mine{0, 0};
      for (const auto& [clock, rank] : askers) {
        if (rank == membership_.rank) mine = ask_clock(*group, first.rank, patience);
        if (first.rank == membership_.rank) answer_clock(*group, rank, patience);
      }
      const std::vector<std::string> all = link_->exchange(
          "clocks", nlohmann::json{mine.add_ns, mine.error_ns}.dump(), join_timeout());
      for (const auto& [clock, rank] : askers) {
        const auto told = nlohmann::json::parse(all[size_t(rank)]);
        differences[clock] = {told[0], told[1]};
      }
    }
    for (const Part& part : parts)
      if (part.rank == membership_.rank) {
        const ClockDifference& difference = differences.at(part.clock);
        const int64_t epochs =
            first.timeline.at("epoch").get<int64_t>() - part.timeline.at("epoch").get<int64_t>();
        observe::describe_timeline({.rank = part.rank,
                                    .ranks = size(),
                                    .host = part.timeline.at("host"),
                                    .job = first.timeline.at("run"),
                                    .add_ns = difference.add_ns + epochs,
                                    .error_ns = difference.error_ns});
      }
  }

  // Those of this worker's address, or what the settings name: "eth0", "ib0,mlx5_0:1". Empty: UCX
  // finds some by itself.
  std::string network_devices() const {
    if (const std::string& named = base::settings().interfaces; !named.empty()) return named;
    if (std::getenv("UCX_NET_DEVICES")) return {};
    const std::string own = interface_of(membership_.addresses[size_t(membership_.rank)]);
    return own.empty() ? "" : devices_of(own);
  }

  // Where there is something faster than TCP, or UCX was told what to use.
  bool wants_ucx() const {
    const auto is_set = [](const char* name) {
      const char* const value = std::getenv(name);
      return value && *value;
    };
    if (!is_set("UCX_TLS") && !is_set("UCX_NET_DEVICES") &&
        network_devices().find(':') == std::string::npos)
      return false;
    try {
      ucx_module();
      return true;
    } catch (const Error&) {
      return false;  // then it is TCP
    }
  }

  // What moves messages between hosts, the same on all ranks. `hellos` are theirs.
  std::unique_ptr<Transport> transport(const std::vector<nlohmann::json>& hellos) {
    const std::string backend = hellos[0].at("backend");
    bool ucx = true;
    for (size_t r = 0; r < hellos.size(); ++r) {
      if (const std::string other = hellos[r].at("backend"); other != backend)
        throw InvalidArgumentError(fmt::format(
            "TUTTI_BACKEND is \"{}\" on rank 0 and \"{}\" on rank {}: set it to the same "
            "on all workers",
            backend, other, r));
      ucx = ucx && hellos[r].at("ucx").get<bool>();
    }
    if (backend == "mpi") {
      mpi_ = &mpi_module(membership_);
      return mpi_->transport();
    }
    if (backend == "ucx" || backend == "tcp") ucx = backend == "ucx";
    const std::string name = ucx ? "ucx" : "tcp";
    expect_descriptors(ucx ? kOfUcx : kToConnect + size() - 1);
    endpoint_ = ucx ? ucx_module().open(network_devices()) : open_tcp();
    std::vector<std::string> addresses;
    for (const std::string& text :
         link_->exchange(name, to_hex(endpoint_->address()), join_timeout()))
      addresses.push_back(from_hex(text));
    return endpoint_->connect(addresses, membership_.rank, [this] {
      if (const auto failure = link_->failure()) throw_error(failure->code, failure->text);
    });
  }

  static const UcxModule& ucx_module() {
    // UCX reads these when it is loaded. It would catch signals, and log to stdout what become our
    // errors.
    setenv("UCX_ERROR_SIGNALS", "", 0);
    setenv("UCX_LOG_LEVEL", "fatal", 0);
    setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
    // What TCP takes at once: with UCX's own 64k, a message of as much comes in two.
    setenv("UCX_TCP_RX_SEG_SIZE", "72k", 0);
    return *static_cast<const UcxModule*>(base::load_module("ucx").interface);
  }

  std::unique_ptr<Endpoint> open_tcp() {
    const auto& tcp = *static_cast<const TcpModule*>(base::load_module("tcp").interface);
    const std::string& own = membership_.addresses[size_t(membership_.rank)];
    const std::string& named = base::settings().interfaces;
    std::string host;
    if (!named.empty()) {
      host = outside_address(named);
      if (host.empty())
        throw UnavailableError(fmt::format(
            "TUTTI_INTERFACES: none of {} is up with an IPv4 address on this host", named));
    } else {
      host = own_address(own);
      // The others may know one that this host does not, as behind a translation.
      if (host.empty()) host = outside_address("");
    }
    if (host.empty()) host = "127.0.0.1";
    return tcp.open(host, join_timeout());
  }

  const Membership given_;
  Membership membership_;  // with what was found out since
  std::unique_ptr<Service> service_;
  std::optional<Announcement> announcement_;  // of it, until all have joined
  mutable std::mutex link_mutex_;
  std::shared_ptr<Coordination> link_;
  std::atomic<bool> alarm_{false};
  std::mutex reporting_;
  std::string reported_;  // the last
  const MpiModule* mpi_ = nullptr;
  std::unique_ptr<Endpoint> endpoint_;
  Neighbourhood neighbourhood_;                       // of those on this host
  std::shared_ptr<const Surroundings> surroundings_;  // where there is more than one host
  std::vector<std::string> hosts_;                    // the name of each rank's
  int stragglers_ = 0;                                // rank 0's setting
  int groups_ = 0, layouts_ = 0;
  std::condition_variable_any pause_;
  std::jthread progress_;  // where there is more than one host
};

std::mutex job_mutex;

// Never destroyed: groups in static variables may outlive any order of destruction.
std::atomic<Job*> joined = nullptr;

// Locks may be held by threads that a forked child does not have.
std::optional<Failure> failure_of_child() {
  if (!base::is_forked_child()) return {};
  return Failure{-1, ErrorCode::failed_precondition, std::string(kForkedChild)};
}

// The job of this process, joined by the first call. Under job_mutex.
Job& this_job(const Membership& membership) {
  Job* job = joined.load();
  if (job && !job->is(membership))
    throw FailedPreconditionError(fmt::format(
        "this process is {} already, and cannot become rank {} of {} ({}): a process takes part in "
        "one job",
        job->name(), membership.rank, membership.addresses.size(), membership.addresses[0]));
  if (!job) {
    // Without a launcher a worker ends as any program does.
    if (std::getenv("TUTTI_LAUNCHER"))
      publish_uncaught_exceptions(membership.rank, [](const char* text) { abort_job(text); });
    job = std::make_unique<Job>(membership).release();
    joined = job;
    // Registered after the module was loaded, so before its own statics are destroyed.
    std::atexit([] {
      if (!base::is_forked_child()) joined.load()->leave();
    });
  }
  return *job;
}

// Under tutti run stdout is a pipe, which stdio fills before it writes: a line would come late, and
// be lost in a crash. As on a terminal, a line goes out when it ends. From the library's loading
// on, whether or not the program joins a job.
[[gnu::constructor]] void write_whole_lines() {
  struct stat out {};
  if (!std::getenv("TUTTI_LAUNCHER") || fstat(STDOUT_FILENO, &out) != 0 || !S_ISFIFO(out.st_mode))
    return;
  std::fflush(stdout);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace

JobGroup join(const std::optional<Membership>& membership, const std::string& purpose) {
  if (!membership) {
    expect_nccl_if_required();
    return {std::move(make_in_process(1)[0]), 0};
  }
  if (const auto failure = failure_of_child()) throw_error(failure->code, failure->text);
  std::lock_guard lock(job_mutex);
  Job& job = this_job(*membership);
  try {
    return {job.new_group(purpose), job.stragglers()};
  } catch (const Error& error) {
    job.report({-1, error.code(), error.what()});
    throw;
  }
}

std::optional<Failure> job_failure() {
  if (const auto failure = failure_of_child()) return failure;
  const Job* const job = joined.load();  // whoever makes a group meanwhile may wait for others
  return job ? job->failure() : std::nullopt;
}

void report_failure(const Failure& failure) {
  if (base::is_forked_child()) return;
  if (Job* const job = joined.load()) job->report(failure);
}

void abort_job(const std::string& reason) {
  if (base::is_forked_child()) return;
  if (Job* const job = joined.load()) job->abort(reason);
}

JobLayout layout_from_environment() {
  const std::optional<Membership> membership = cluster::membership_from_environment();
  if (!membership) return {};
  if (const auto failure = failure_of_child()) throw_error(failure->code, failure->text);
  std::lock_guard lock(job_mutex);
  return this_job(*membership).layout();
}

}  // namespace tutti::group
