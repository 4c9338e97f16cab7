// SPDX-License-Identifier: Apache-2.0
// Where ranks are, and what moves data between them.
#include "job/discovery.h"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/settings.h"
#include "job/host_board.h"
#include "support/expect.h"

namespace tutti::group {
namespace {

using ::testing::ElementsAre;

Hello on(const std::string& host, std::vector<int> cores) {
  return {.memory = {.host = host, .machine = "boot of " + host, .cores = std::move(cores)},
          .local = host};
}

TEST(Hello, IsTheSameAfterItsJourney) {
  Hello hello = on("a \"host\"", {0, 3});
  hello.memory.inode = uint64_t(-1);
  hello.memory.dumpable = true;
  hello.preferred = "ucx";
  hello.timeline = {.enabled = true, .epoch = -5, .run = "1f-2", .clock = "time:[1]"};
  const Hello back = from_bytes(to_bytes(hello));
  EXPECT_EQ(to_bytes(back), to_bytes(hello));
  EXPECT_EQ(back.memory.host, "a \"host\"");
  EXPECT_EQ(back.memory.inode, uint64_t(-1));
  EXPECT_THAT(back.memory.cores, ElementsAre(0, 3));
  EXPECT_EQ(back.timeline.epoch, -5);
  const std::string bytes = to_bytes(hello);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(from_bytes(std::string_view(bytes).substr(0, size)), DataLossError);
}

TEST(HostBoard, ShowsTheTablesOfOneRankToAnother) {
  HostBoard first, second;
  EXPECT_EQ(first.sharing().host, second.sharing().host);
  const std::string place = first.sharing().place;
  const std::vector<std::vector<std::string>> tables{{"a", std::string("b\0c", 3), ""},
                                                     std::vector<std::string>(500, "text")};
  for (const std::vector<std::string>& table : tables) {
    first.show(table);
    EXPECT_EQ(second.read(place, std::chrono::seconds(60), [] {}), table);
  }
  const auto speaker = first.pulse(0), other = second.pulse(2);
  EXPECT_TRUE(speaker->is_speaker());
  EXPECT_FALSE(other->is_speaker());
  const auto now = std::chrono::steady_clock::now();
  other->beat(now);
  EXPECT_THAT(speaker->living(now), ElementsAre(2));
  std::thread late([&] { first.show(tables[0]); });
  EXPECT_EQ(second.read(place, std::chrono::seconds(60), [] {}), tables[0]);
  late.join();
  EXPECT_ERROR(AbortedError, "the job has failed", second.read(place, std::chrono::seconds(60), [] {
    throw AbortedError("the job has failed");
  }));
}

TEST(HostBoard, LetsTheOthersGoOnIfItHasNoRoom) {
  HostBoard first, second;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  first.show({std::string(64 << 20, 'x')});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  const std::string place = first.sharing().place;
  EXPECT_EQ(second.read(place, std::chrono::seconds(60), [] {}), std::nullopt);
  EXPECT_EQ(first.pulse(0), nullptr);
}

TEST(HostBoard, FindsNothingInMemoryThatItCannotOpen) {
  HostBoard board;
  EXPECT_EQ(board.read("1 9999 1 4096 0", std::chrono::seconds(60), [] {}), std::nullopt);
}

TEST(Discovery, PlacesRanksByHost) {
  const std::vector<Hello> hellos{on("a", {0, 1}), on("b", {0}), on("a", {1}), on("b", {0})};
  const Placement first = place_ranks(hellos, 0);
  EXPECT_THAT(first.hosts, ElementsAre("a", "b", "a", "b"));
  EXPECT_THAT(first.local, ElementsAre(0, 2));
  EXPECT_FALSE(first.crowded);
  EXPECT_TRUE(place_ranks(hellos, 1).crowded);
}

TEST(Discovery, CountsTwoCoresForEachRankOfAMachine) {
  // Bound to their own cores or not.
  EXPECT_TRUE(have_two_cores({on("a", {0, 1}), on("a", {2, 3})}, 0));
  EXPECT_TRUE(have_two_cores({on("a", {0, 1, 2, 3}), on("a", {0, 1, 2, 3})}, 1));
  EXPECT_FALSE(have_two_cores({on("a", {0, 1, 2}), on("a", {0, 1, 2})}, 0));
  EXPECT_FALSE(have_two_cores({on("a", {0}), on("a", {1, 2, 3})}, 0)) << "bound to one core";
  const std::vector<Hello> hosts{on("a", {0, 1}), on("b", {0}), on("b", {0})};
  EXPECT_TRUE(have_two_cores(hosts, 0));
  EXPECT_FALSE(have_two_cores(hosts, 1));
}

TEST(Discovery, TriesToShareMemoryWithAllIfTheBackendIsShm) {
  std::vector<Hello> hellos{on("a", {0}), on("b", {0})};
  hellos[0].backend = "shm";
  EXPECT_THAT(place_ranks(hellos, 0).local, ElementsAre(0, 1));
}

TEST(Discovery, ChoosesTheTransportThatAllRanksPrefer) {
  const std::string other(transports().back().name), first(transports()[0].name);
  std::vector<Hello> hellos(3);
  EXPECT_EQ(choose_transport(hellos).name, first);
  for (Hello& hello : hellos) hello.preferred = other;
  EXPECT_EQ(choose_transport(hellos).name, other);
  hellos[1].preferred = "";
  EXPECT_EQ(choose_transport(hellos).name, first);
  hellos[1].preferred = other;
  for (Hello& hello : hellos) hello.backend = first;
  EXPECT_EQ(choose_transport(hellos).name, first);
  hellos[2].backend = "nccl";
  EXPECT_ERROR(InvalidArgumentError,
               "TUTTI_BACKEND is \"" + first + "\" on rank 0 and \"nccl\" on rank 2",
               choose_transport(hellos));
}

TEST(Discovery, UcxIsPreferredWithAnRdmaDevice) {
  const RegisteredTransport* const ucx = find_transport("ucx");
  ASSERT_NE(ucx, nullptr);
  unsetenv("UCX_TLS");
  unsetenv("UCX_NET_DEVICES");
  EXPECT_FALSE(ucx->kind.is_preferred({.devices = "eth0"}));
  EXPECT_TRUE(ucx->kind.is_preferred({.devices = "ib0,mlx5_0:1"}));
  EXPECT_FALSE(ucx->kind.is_preferred({.interfaces = "eth0", .devices = "ib0,mlx5_0:1"}));
  EXPECT_TRUE(ucx->kind.is_preferred({.interfaces = "mlx5_0:1"}));
  setenv("UCX_TLS", "tcp", 1);
  EXPECT_TRUE(ucx->kind.is_preferred({.devices = "eth0"}));
  unsetenv("UCX_TLS");
}

TEST(TransportTable, HasTheNamesThatTheSettingsAccept) {
  std::vector<std::string_view> names;
  for (const RegisteredTransport& transport : transports()) names.push_back(transport.name);
  EXPECT_THAT(names, ::testing::ElementsAreArray(base::transport_names()));
  EXPECT_EQ(find_transport(""), nullptr);
  EXPECT_EQ(find_transport("shm"), nullptr);
}

}  // namespace
}  // namespace tutti::group
