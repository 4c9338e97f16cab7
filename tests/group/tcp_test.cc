// SPDX-License-Identifier: Apache-2.0
// What the transport "tcp" keeps beyond transport_test.cc: which connections it accepts, and when
// it cuts one off.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <sstream>

#include "group/transports.h"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using group::Endpoint;
using ::testing::HasSubstr;

std::unique_ptr<Endpoint> open(std::chrono::nanoseconds timeout = kGiveUp,
                               const std::string& host = "127.0.0.1") {
  return module_of("tcp").open({.host = host, .timeout = timeout});
}

void nothing() {}

TEST(Tcp, WritesNothingOfAMessageThatIsTooLong) {
  const auto ranks = connected("tcp", 2);
  const auto sent = message(100'000, 5);
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
  }
}

TEST(Tcp, BringsWhatWasSentBeforeTheEnd) {
  auto ranks = connected("tcp", 2);
  const auto sent = message(100'000, 6);
  EXPECT_EQ(finish(ranks[1]->send(0, 1, sent.data(), sent.size()), *ranks[1], ranks), State::over);
  ranks[1].reset();
  std::vector<std::byte> got(sent.size());
  EXPECT_EQ(finish(ranks[0]->receive(1, 1, got.data(), got.size()), *ranks[0], ranks), State::over);
  EXPECT_EQ(got, sent);
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[0]->loss(1).empty(); }));
  EXPECT_EQ(finish(ranks[0]->send(1, 1, sent.data(), sent.size()), *ranks[0], ranks),
            State::failed);
  // A receive is not over: a rank that waits for it asks for the loss.
  auto* const never = ranks[0]->receive(1, 1, got.data(), got.size());
  EXPECT_TRUE(ranks[0]->is_under_way(never));
  EXPECT_TRUE(ranks[0]->cancel(never));
}

TEST(Tcp, LeavesTheMemoryOfACancelledReceiveAlone) {
  const auto ranks = connected("tcp", 2);
  const auto sent = message(8 << 20, 7);
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

TEST(Tcp, CutsOffASendThatIsNotTaken) {
  const auto ranks = connected("tcp", 2);
  const auto sent = message(64 << 20, 8);
  auto* const going = ranks[0]->send(1, 1, sent.data(), sent.size());
  auto* const behind = ranks[0]->send(1, 1, sent.data(), 5);
  ASSERT_NE(going, nullptr);
  EXPECT_TRUE(ranks[0]->cancel(behind));  // of which nothing went: no reason to cut
  EXPECT_EQ(ranks[0]->loss(1), "");
  EXPECT_TRUE(ranks[0]->cancel(going));
  EXPECT_EQ(ranks[0]->loss(1), "it does not take what is sent to it");
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[1]->loss(0).empty(); }));
}

TEST(Tcp, DoesNotFillTheMemoryWithMessagesThatAreNotReceived) {
  const auto ranks = connected("tcp", 2);
  const auto sent = message(8 << 20, 9);
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

TEST(Tcp, BringsAnAwaitedMessageThoughOthersFillTheMemory) {
  const auto ranks = connected("tcp", 2);
  const auto unasked = message(8 << 20, 10), asked = message((8 << 20) + 1, 11);
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

TEST(Tcp, WaitsWithoutALimitIfTold) {
  const auto one = open(std::chrono::nanoseconds::max());
  const auto other = open(std::chrono::nanoseconds::max());
  const std::vector<std::string> addresses{one->address(), other->address()};
  auto first = std::async(std::launch::async, [&] { return one->connect(addresses, 0, nothing); });
  EXPECT_NE(other->connect(addresses, 1, nothing), nullptr);
  EXPECT_NE(first.get(), nullptr);
}

// A connection of a stranger that knows where a rank listens.
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

TEST(Tcp, SendsStrangersAwayAndAcceptsNoConnectionAfterwards) {
  std::vector<std::unique_ptr<Endpoint>> ends;
  std::vector<std::string> addresses;
  for (int r = 0; r < 2; ++r) {
    ends.push_back(open());
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

TEST(Tcp, NamesTheRankThatDoesNotCall) {
  const auto end = open(50ms), other = open(50ms);
  try {
    end->connect({end->address(), other->address()}, 0, nothing);
    FAIL() << "connected to no rank";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has not called rank 0 in 0.05 s"));
    EXPECT_THAT(error.what(), HasSubstr("TUTTI_INTERFACES"));
  }
}

TEST(Tcp, NamesTheRankThatCannotBeReached) {
  std::string gone;
  { gone = open()->address(); }
  const auto end = open();
  try {
    end->connect({gone, end->address()}, 1, nothing);
    FAIL() << "connected to no rank";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 cannot be reached from rank 1 at 127.0.0.1:"));
    EXPECT_THAT(error.what(), HasSubstr("refused"));
  }
}

TEST(Tcp, StopsWaitingIfTheJobHasFailed) {
  const auto end = open(), other = open();
  EXPECT_THROW(end->connect({end->address(), other->address()}, 0,
                            [] { throw AbortedError("rank 1 is lost"); }),
               AbortedError);
}

TEST(Tcp, RefusesAnAddressThatIsNotOfThisHost) {
  EXPECT_THROW(open(kGiveUp, "192.0.2.1"), UnavailableError);
  EXPECT_THROW(open(kGiveUp, "no such host"), UnavailableError);
  try {
    module_of("tcp").open({.interfaces = "eth7,eth8"});
    FAIL() << "listens on no interface";
  } catch (const UnavailableError& error) {
    EXPECT_STREQ(error.what(),
                 "TUTTI_INTERFACES: none of eth7,eth8 is up with an IPv4 address on this host");
  }
}

TEST(Tcp, TakesIPv6) {
  Peers ranks;
  try {
    ranks = connected("tcp", 2, "::1");
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
}  // namespace tutti::testing
