// The module "tcp", as the ranks of a job use it, but in one process.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <sstream>
#include <thread>

#include "base/module.h"
#include "group/net/transport.h"

namespace tutti::group {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using State = Transport::State;
using Clock = std::chrono::steady_clock;

constexpr auto kGiveUp = 60s;

const TcpModule& tcp() {
  static void* const library = dlopen(TUTTI_TEST_TCP, RTLD_NOW);
  if (!library) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<const base::Module* (*)()>(dlsym(library, "tutti_module"));
  return *static_cast<const TcpModule*>(entry()->interface);
}

void nothing() {}

// The ranks of a job.
std::vector<std::unique_ptr<Transport>> connected(int ranks,
                                                  const std::string& host = "127.0.0.1") {
  std::vector<std::unique_ptr<Endpoint>> endpoints;
  std::vector<std::string> addresses;
  for (int r = 0; r < ranks; ++r) {
    endpoints.push_back(tcp().open(host, kGiveUp));
    addresses.push_back(endpoints.back()->address());
  }
  std::vector<std::future<std::unique_ptr<Transport>>> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(std::async(std::launch::async, [&, r] {
      return endpoints[size_t(r)]->connect(addresses, r, nothing);
    }));
  std::vector<std::unique_ptr<Transport>> transports;
  for (auto& one : all) transports.push_back(one.get());
  return transports;
}

std::vector<std::byte> pattern(size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = std::byte((i * 2654435761u + seed * 97u) >> 7);
  return data;
}

// Until it is over, while all of them make progress.
State finish(Transport::Message* message, Transport& whose,
             const std::vector<std::unique_ptr<Transport>>& all) {
  const auto until = Clock::now() + kGiveUp;
  State state = whose.advance(message, 1);
  while (state == State::under_way && Clock::now() < until) {
    for (const auto& one : all)
      if (one) one->progress();
    state = whose.advance(message, 1);
  }
  return state;
}

template <class Condition>
bool eventually(const std::vector<std::unique_ptr<Transport>>& all, Condition condition) {
  const auto until = Clock::now() + kGiveUp;
  while (!condition()) {
    if (Clock::now() > until) return false;
    for (const auto& one : all)
      if (one) one->progress();
  }
  return true;
}

TEST(Tcp, BringsMessagesOfEverySizeInBothDirectionsAtOnce) {
  const auto ranks = connected(2);
  for (const size_t bytes :
       {0u, 1u, 15u, 4096u, 4097u, 16384u, 65536u, 1u << 20, (16u << 20) + 3}) {
    SCOPED_TRACE(bytes);
    const auto a = pattern(bytes, 1), b = pattern(bytes, 2);
    std::vector<std::byte> at_a(bytes), at_b(bytes);
    auto* const into_a = ranks[0]->receive(1, 7, at_a.data(), bytes);
    auto* const from_a = ranks[0]->send(1, 7, a.data(), bytes);
    auto* const from_b = ranks[1]->send(0, 7, b.data(), bytes);
    auto* const into_b = ranks[1]->receive(0, 7, at_b.data(), bytes);
    EXPECT_EQ(finish(into_a, *ranks[0], ranks), State::over);
    EXPECT_EQ(finish(into_b, *ranks[1], ranks), State::over);
    EXPECT_EQ(finish(from_a, *ranks[0], ranks), State::over);
    EXPECT_EQ(finish(from_b, *ranks[1], ranks), State::over);
    EXPECT_EQ(at_a, b);
    EXPECT_EQ(at_b, a);
  }
}

TEST(Tcp, MatchesByTagAndKeepsTheOrderOfEach) {
  const auto ranks = connected(3);
  const std::vector<int> values{10, 11, 20, 21, 12};
  const std::vector<uint64_t> tags{1, 1, 2, 2, 1};
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(finish(ranks[2]->send(0, tags[i], &values[i], sizeof(int)), *ranks[2], ranks),
              State::over);
  // Those of tag 2 come first, and one of them is asked for before it is there.
  std::vector<int> got(values.size());
  const std::vector<size_t> order{2, 0, 3, 1, 4};
  for (const size_t i : order)
    EXPECT_EQ(finish(ranks[0]->receive(2, tags[i], &got[i], sizeof(int)), *ranks[0], ranks),
              State::over);
  EXPECT_EQ(got, values);
}

TEST(Tcp, AMessageThatIsAskedForWhileItComesIsWhole) {
  const auto ranks = connected(2);
  const auto sent = pattern(8 << 20, 3);
  auto* const going = ranks[0]->send(1, 4, sent.data(), sent.size());
  ASSERT_NE(going, nullptr);  // so much does not fit into the socket
  for (int i = 0; i < 3; ++i) ranks[1]->progress();
  std::vector<std::byte> got(sent.size());
  auto* const coming = ranks[1]->receive(0, 4, got.data(), got.size());
  EXPECT_EQ(finish(going, *ranks[0], ranks), State::over);
  EXPECT_EQ(finish(coming, *ranks[1], ranks), State::over);
  EXPECT_EQ(got, sent);
}

TEST(Tcp, SaysThatAMessageIsTooLongAndGoesOn) {
  const auto ranks = connected(2);
  const auto sent = pattern(100'000, 5);
  std::vector<std::byte> got(1000);
  for (const bool early : {false, true}) {
    SCOPED_TRACE(early);
    Transport::Message* coming = early ? nullptr : ranks[1]->receive(0, 1, got.data(), got.size());
    EXPECT_EQ(finish(ranks[0]->send(1, 1, sent.data(), sent.size()), *ranks[0], ranks),
              State::over);
    for (int i = 0; early && i < 100; ++i) ranks[1]->progress();
    if (early) coming = ranks[1]->receive(0, 1, got.data(), got.size());
    EXPECT_EQ(finish(coming, *ranks[1], ranks), State::too_long);
    EXPECT_EQ(got, std::vector<std::byte>(1000)) << "written to";
    int number = 5;
    EXPECT_EQ(finish(ranks[0]->send(1, 1, &number, sizeof(int)), *ranks[0], ranks), State::over);
    int heard = 0;
    EXPECT_EQ(finish(ranks[1]->receive(0, 1, &heard, sizeof(int)), *ranks[1], ranks), State::over);
    EXPECT_EQ(heard, 5);
  }
}

TEST(Tcp, WhatWasSentBeforeTheEndStillComes) {
  auto ranks = connected(2);
  const auto sent = pattern(100'000, 6);
  EXPECT_EQ(finish(ranks[1]->send(0, 1, sent.data(), sent.size()), *ranks[1], ranks), State::over);
  ranks[1].reset();
  std::vector<std::byte> got(sent.size());
  EXPECT_EQ(finish(ranks[0]->receive(1, 1, got.data(), got.size()), *ranks[0], ranks), State::over);
  EXPECT_EQ(got, sent);
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[0]->loss(1).empty(); }));
  EXPECT_EQ(finish(ranks[0]->send(1, 1, sent.data(), sent.size()), *ranks[0], ranks),
            State::failed);
  // What can never come is not over: whoever waits for it asks for the loss.
  auto* const never = ranks[0]->receive(1, 1, got.data(), got.size());
  EXPECT_TRUE(ranks[0]->is_under_way(never));
  EXPECT_TRUE(ranks[0]->cancel(never));
}

TEST(Tcp, MemoryOfACancelledReceiveIsLeftAlone) {
  const auto ranks = connected(2);
  const auto sent = pattern(8 << 20, 7);
  std::vector<std::byte> got(sent.size());
  auto* const coming = ranks[1]->receive(0, 1, got.data(), got.size());
  auto* const going = ranks[0]->send(1, 1, sent.data(), sent.size());
  ASSERT_TRUE(eventually(ranks, [&] { return got[0] == sent[0] && got[1] == sent[1]; }));
  ASSERT_TRUE(ranks[1]->is_under_way(coming));
  EXPECT_TRUE(ranks[1]->cancel(coming));
  const std::vector<std::byte> before = got;
  EXPECT_EQ(finish(going, *ranks[0], ranks), State::over);
  int number = 9, heard = 0;
  EXPECT_EQ(finish(ranks[0]->send(1, 1, &number, sizeof(int)), *ranks[0], ranks), State::over);
  EXPECT_EQ(finish(ranks[1]->receive(0, 1, &heard, sizeof(int)), *ranks[1], ranks), State::over);
  EXPECT_EQ(heard, 9);
  EXPECT_EQ(got, before);
}

TEST(Tcp, ASendThatNobodyTakesIsCutOff) {
  const auto ranks = connected(2);
  const auto sent = pattern(64 << 20, 8);
  auto* const going = ranks[0]->send(1, 1, sent.data(), sent.size());
  auto* const behind = ranks[0]->send(1, 1, sent.data(), 5);
  ASSERT_NE(going, nullptr);
  EXPECT_TRUE(ranks[0]->cancel(behind));  // of which nothing went: no reason to cut
  EXPECT_EQ(ranks[0]->loss(1), "");
  EXPECT_TRUE(ranks[0]->cancel(going));
  EXPECT_EQ(ranks[0]->loss(1), "it does not take what is sent to it");
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[1]->loss(0).empty(); }));
}

TEST(Tcp, MessagesThatNobodyAsksForDoNotFillTheMemory) {
  const auto ranks = connected(2);
  const auto sent = pattern(8 << 20, 9);
  int notice = 0;
  auto* const ear = ranks[1]->receive(0, 99, &notice, sizeof(notice));  // as a job has it
  constexpr int kMessages = 20;
  std::vector<Transport::Message*> going;
  for (int i = 0; i < kMessages; ++i)
    going.push_back(ranks[0]->send(1, 1, sent.data(), sent.size()));
  for (int i = 0; i < 20'000; ++i)
    for (const auto& rank : ranks) rank->progress();
  EXPECT_TRUE(ranks[0]->is_under_way(going.back()));
  std::vector<std::byte> got(sent.size());
  for (int i = 0; i < kMessages; ++i) {
    std::ranges::fill(got, std::byte{0});
    EXPECT_EQ(finish(ranks[1]->receive(0, 1, got.data(), got.size()), *ranks[1], ranks),
              State::over);
    EXPECT_TRUE(got == sent) << i;
  }
  for (Transport::Message* message : going)
    EXPECT_EQ(finish(message, *ranks[0], ranks), State::over);
  EXPECT_TRUE(ranks[1]->cancel(ear));
}

TEST(Tcp, WhatIsAwaitedComesThoughWhatIsNotFillsTheMemory) {
  const auto ranks = connected(2);
  const auto unasked = pattern(8 << 20, 10), asked = pattern((8 << 20) + 1, 11);
  int notice = 0;
  auto* const ear = ranks[1]->receive(0, 99, &notice, sizeof(notice));
  std::vector<Transport::Message*> going;
  for (int i = 0; i < 8; ++i) going.push_back(ranks[0]->send(1, 1, unasked.data(), unasked.size()));
  for (Transport::Message* message : going)
    EXPECT_EQ(finish(message, *ranks[0], ranks), State::over);
  std::vector<std::byte> got(asked.size());
  auto* const last = ranks[0]->send(1, 2, asked.data(), asked.size());
  EXPECT_EQ(finish(ranks[1]->receive(0, 2, got.data(), got.size()), *ranks[1], ranks), State::over);
  EXPECT_EQ(finish(last, *ranks[0], ranks), State::over);
  EXPECT_TRUE(got == asked);
  EXPECT_TRUE(ranks[1]->cancel(ear));
}

TEST(Tcp, WaitsForEverWhereItIsTold) {
  const auto one = tcp().open("127.0.0.1", std::chrono::nanoseconds::max());
  const auto other = tcp().open("127.0.0.1", std::chrono::nanoseconds::max());
  const std::vector<std::string> addresses{one->address(), other->address()};
  auto first = std::async(std::launch::async, [&] { return one->connect(addresses, 0, nothing); });
  EXPECT_NE(other->connect(addresses, 1, nothing), nullptr);
  EXPECT_NE(first.get(), nullptr);
}

TEST(Tcp, WakesWhoSleeps) {
  const auto ranks = connected(2);
  int heard = 0;
  auto* coming = ranks[1]->receive(0, 1, &heard, sizeof(int));
  std::thread sleeper([&] {
    while (ranks[1]->advance(coming, 1) == State::under_way) ranks[1]->sleep(coming, kGiveUp);
  });
  const int number = 3;
  EXPECT_EQ(ranks[0]->send(1, 1, &number, sizeof(int)), nullptr);
  sleeper.join();
  EXPECT_EQ(heard, 3);
}

TEST(Tcp, DoesNotSleepForWhatAnotherThreadHasTakenIn) {
  const auto ranks = connected(2);
  int heard = 0;
  auto* const coming = ranks[1]->receive(0, 1, &heard, sizeof(int));
  const int number = 3;
  EXPECT_EQ(ranks[0]->send(1, 1, &number, sizeof(int)), nullptr);
  while (ranks[1]->is_under_way(coming)) ranks[1]->progress();
  const auto start = std::chrono::steady_clock::now();
  ranks[1]->sleep(coming, kGiveUp);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kGiveUp / 2);
  EXPECT_EQ(ranks[1]->test(coming), State::over);
}

// A connection of somebody who knows where a rank listens.
int call(const std::string& address, const void* words, size_t bytes) {
  std::istringstream parts(address);
  std::string host, port;
  parts >> host >> port;
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(uint16_t(std::stoi(port)));
  inet_pton(AF_INET, host.c_str(), &place.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof(place)) != 0) {
    close(fd);
    return -1;
  }
  EXPECT_EQ(send(fd, words, bytes, MSG_NOSIGNAL), ssize_t(bytes));
  return fd;
}

TEST(Tcp, SendsStrangersAwayAndListensToNobodyAfterwards) {
  std::vector<std::unique_ptr<Endpoint>> ends;
  std::vector<std::string> addresses;
  for (int r = 0; r < 2; ++r) {
    ends.push_back(tcp().open("127.0.0.1", kGiveUp));
    addresses.push_back(ends.back()->address());
  }
  std::vector<int> strangers;
  const std::string garbage(1000, 'x');
  // The right words with the wrong secret: that of another rank.
  std::string hello(32, '\0');
  const uint64_t mark = 0x7475'7474;
  const uint32_t to = 0, from = 1;
  std::memcpy(hello.data(), &mark, 8);
  std::memcpy(hello.data() + 24, &to, 4);
  std::memcpy(hello.data() + 28, &from, 4);
  strangers.push_back(call(addresses[0], garbage.data(), garbage.size()));
  strangers.push_back(call(addresses[0], "t", 1));  // and never a word more
  strangers.push_back(call(addresses[0], hello.data(), hello.size()));
  auto first =
      std::async(std::launch::async, [&] { return ends[0]->connect(addresses, 0, nothing); });
  const auto second = ends[1]->connect(addresses, 1, nothing);
  const auto zero = first.get();
  const int number = 4;
  int heard = 0;
  EXPECT_EQ(second->send(0, 1, &number, sizeof(int)), nullptr);
  auto* coming = zero->receive(1, 1, &heard, sizeof(int));
  while (zero->advance(coming, 1) == State::under_way) {
  }
  EXPECT_EQ(heard, 4);
  EXPECT_EQ(call(addresses[0], "t", 1), -1);
  EXPECT_EQ(call(addresses[1], "t", 1), -1);
  for (const int fd : strangers) {
    char byte;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0);
    close(fd);
  }
}

TEST(Tcp, SaysWhoDoesNotCall) {
  const auto end = tcp().open("127.0.0.1", 50ms), other = tcp().open("127.0.0.1", 50ms);
  try {
    end->connect({end->address(), other->address()}, 0, nothing);
    FAIL() << "connected to nobody";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has not called rank 0 in 0.05 s"));
    EXPECT_THAT(error.what(), HasSubstr("TUTTI_INTERFACES"));
  }
}

TEST(Tcp, SaysWhoCannotBeReached) {
  std::string gone;
  { gone = tcp().open("127.0.0.1", kGiveUp)->address(); }
  const auto end = tcp().open("127.0.0.1", kGiveUp);
  try {
    end->connect({gone, end->address()}, 1, nothing);
    FAIL() << "connected to nobody";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 cannot be reached from rank 1 at 127.0.0.1:"));
    EXPECT_THAT(error.what(), HasSubstr("refused"));
  }
}

TEST(Tcp, StopsWaitingWhereTheJobHasFailed) {
  const auto end = tcp().open("127.0.0.1", kGiveUp), other = tcp().open("127.0.0.1", kGiveUp);
  EXPECT_THROW(end->connect({end->address(), other->address()}, 0,
                            [] { throw AbortedError("rank 1 is lost"); }),
               AbortedError);
}

TEST(Tcp, RefusesAnAddressThatIsNotOfThisHost) {
  EXPECT_THROW(tcp().open("192.0.2.1", kGiveUp), UnavailableError);
  EXPECT_THROW(tcp().open("no such host", kGiveUp), UnavailableError);
}

TEST(Tcp, TakesIPv6) {
  std::vector<std::unique_ptr<Transport>> ranks;
  try {
    ranks = connected(2, "::1");
  } catch (const UnavailableError& error) {
    GTEST_SKIP() << error.what();
  }
  const int number = 6;
  int heard = 0;
  EXPECT_EQ(finish(ranks[0]->send(1, 1, &number, sizeof(int)), *ranks[0], ranks), State::over);
  EXPECT_EQ(finish(ranks[1]->receive(0, 1, &heard, sizeof(int)), *ranks[1], ranks), State::over);
  EXPECT_EQ(heard, 6);
}

}  // namespace
}  // namespace tutti::group
