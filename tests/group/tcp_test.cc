// SPDX-License-Identifier: Apache-2.0
// What the transport "tcp" keeps beyond transport_test.cc: when it makes connections, which it
// accepts, and when it cuts one off.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <numeric>
#include <sstream>
#include <thread>

#include "group/transports.h"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using group::Endpoint;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Endpoint> open(std::chrono::nanoseconds timeout = kGiveUp,
                               const std::string& host = "127.0.0.1") {
  return module_of("tcp").open({.host = host, .timeout = timeout});
}

void nothing() {}

// One message, after which the two ranks are connected.
void meet(const Peers& ranks, int one, int other) {
  const int number = 7;
  int heard = 0;
  auto* const coming = ranks[size_t(other)]->receive(one, 3, &heard, sizeof(int));
  auto* const going = ranks[size_t(one)]->send(other, 3, &number, sizeof(int));
  EXPECT_EQ(finish(going, *ranks[size_t(one)], ranks), State::over);
  EXPECT_EQ(finish(coming, *ranks[size_t(other)], ranks), State::over);
  EXPECT_EQ(heard, 7);
}

std::vector<int> new_peers(const std::unique_ptr<Transport>& rank) {
  std::vector<int> peers;
  for (const Transport::Connection& made : rank->new_connections()) peers.push_back(made.rank);
  std::ranges::sort(peers);
  return peers;
}

// Whether the bytes of large messages have connections of their own.
class TcpSends : public ::testing::TestWithParam<bool> {
 protected:
  TcpSends() {
    if (GetParam()) meet_in_bulk(ranks);
  }
  Peers ranks = connected("tcp", 2, "127.0.0.1", GetParam());
};
INSTANTIATE_TEST_SUITE_P(, TcpSends, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "InBulk" : "InTurn"; });

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

TEST_P(TcpSends, BringWhatWasSentBeforeTheEnd) {
  const auto sent = message(300'000, 6);
  auto* const going = ranks[1]->send(0, 1, sent.data(), sent.size());
  State state = State::under_way;
  // Nothing is read meanwhile, if the system takes it all.
  for (int i = 0; i < 100'000 && state == State::under_way; ++i)
    state = ranks[1]->advance(going, 1);
  if (state == State::under_way) state = finish(going, *ranks[1], ranks);
  EXPECT_EQ(state, State::over);
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

TEST_P(TcpSends, LeaveTheMemoryOfACancelledReceiveAlone) {
  const auto sent = message(64 << 20, 7);  // more than is read at once
  std::vector<std::byte> got(sent.size());
  auto* const coming = ranks[1]->receive(0, 1, got.data(), got.size());
  EXPECT_FALSE(ranks[1]->is_coming(coming));
  auto* const going = ranks[0]->send(1, 1, sent.data(), sent.size());
  ASSERT_TRUE(eventually(ranks, [&] { return got[0] == sent[0] && got[1] == sent[1]; }));
  ASSERT_TRUE(ranks[1]->is_under_way(coming));
  EXPECT_TRUE(ranks[1]->is_coming(coming));
  EXPECT_TRUE(ranks[1]->cancel(coming));
  const std::vector<std::byte> before = got;
  EXPECT_EQ(finish(going, *ranks[0], ranks), State::over);
  int number = 9, heard = 0;
  EXPECT_EQ(finish(ranks[0]->send(1, 1, &number, sizeof(int)), *ranks[0], ranks), State::over);
  EXPECT_EQ(finish(ranks[1]->receive(0, 1, &heard, sizeof(int)), *ranks[1], ranks), State::over);
  EXPECT_EQ(heard, 9);
  EXPECT_EQ(got, before);
}

TEST_P(TcpSends, CutOffASendThatIsNotTaken) {
  const auto sent = message(64 << 20, 8);
  meet(ranks, 0, 1);
  auto* const going = ranks[0]->send(1, 1, sent.data(), sent.size());
  auto* const behind = ranks[0]->send(1, 1, sent.data(), 5);
  ASSERT_NE(going, nullptr);
  EXPECT_TRUE(ranks[0]->cancel(behind));  // all of it went, or nothing: no reason to cut
  EXPECT_EQ(ranks[0]->loss(1), "");
  EXPECT_TRUE(ranks[0]->cancel(going));
  EXPECT_EQ(ranks[0]->loss(1), "it does not take what is sent to it");
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[1]->loss(0).empty(); }));
}

TEST(Tcp, LosesAPeerWhoseConnectionForLargeMessagesEnds) {
  for (const int which : {0, 1}) {
    SCOPED_TRACE(which);
    const auto ranks = connected("tcp", 2, "127.0.0.1", true);
    const std::vector<int> sockets = meet_in_bulk(ranks);
    ASSERT_EQ(sockets.size(), 2u);
    const auto sent = message(64 << 20, 8);
    std::vector<std::byte> got(5);
    auto* const large = ranks[0]->send(1, 1, sent.data(), sent.size());
    auto* const other = ranks[1]->send(0, 1, sent.data(), sent.size());
    auto* const small = ranks[1]->send(0, 2, sent.data(), 5);
    ASSERT_EQ(small, nullptr) << "it has not left";
    shutdown(sockets[size_t(which)], SHUT_RDWR);
    ASSERT_TRUE(eventually(
        ranks, [&] { return !ranks[0]->loss(1).empty() && !ranks[1]->loss(0).empty(); }));
    // What goes the other way may have been taken whole before the end was seen.
    const std::vector<State> ends{finish(large, *ranks[0], ranks), finish(other, *ranks[1], ranks)};
    EXPECT_THAT(ends, Contains(State::failed));
    EXPECT_THAT(ends, Each(AnyOf(State::failed, State::over)));
    EXPECT_EQ(finish(ranks[0]->receive(1, 2, got.data(), got.size()), *ranks[0], ranks),
              State::over);
    EXPECT_EQ(got, std::vector<std::byte>(sent.begin(), sent.begin() + 5));
  }
}

TEST(Tcp, BringsWhatWasSentInBulkByARankThatDidNotReadWhatItGot) {
  auto ranks = connected("tcp", 2, "127.0.0.1", true);
  meet_in_bulk(ranks);
  const auto unread = message(64 << 20, 1), sent = message(256 << 10, 2);
  auto* const lost = ranks[0]->send(1, 1, unread.data(), unread.size());
  auto* const going = ranks[1]->send(0, 2, sent.data(), sent.size());
  EXPECT_TRUE(eventually({}, [&] { return ranks[1]->test(going) == State::over; }));
  ranks[1].reset();  // the system resets the connections that have something unread
  std::vector<std::byte> got(sent.size());
  EXPECT_EQ(finish(lost, *ranks[0], ranks), State::failed);
  EXPECT_EQ(finish(ranks[0]->receive(1, 2, got.data(), got.size()), *ranks[0], ranks), State::over);
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(eventually(ranks, [&] { return !ranks[0]->loss(1).empty(); }));
}

TEST_P(TcpSends, DoNotFillTheMemoryWithMessagesThatAreNotReceived) {
  const auto sent = message(8 << 20, 9);
  int notice = 0;
  auto* const notices = ranks[1]->receive(0, 99, &notice, sizeof(notice));  // as a job has it
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
  EXPECT_TRUE(ranks[1]->cancel(notices));
}

TEST_P(TcpSends, BringAnAwaitedMessageThoughOthersFillTheMemory) {
  const auto unasked = message(8 << 20, 10), asked = message((8 << 20) + 1, 11);
  int notice = 0;
  auto* const notices = ranks[1]->receive(0, 99, &notice, sizeof(notice));
  std::vector<Transport::Message*> going;
  for (int i = 0; i < 8; ++i) going.push_back(ranks[0]->send(1, 1, unasked.data(), unasked.size()));
  for (Transport::Message* message : going)
    EXPECT_EQ(finish(message, *ranks[0], ranks), State::over);
  std::vector<std::byte> got(asked.size());
  auto* const last = ranks[0]->send(1, 2, asked.data(), asked.size());
  EXPECT_EQ(finish(ranks[1]->receive(0, 2, got.data(), got.size()), *ranks[1], ranks), State::over);
  EXPECT_EQ(finish(last, *ranks[0], ranks), State::over);
  EXPECT_TRUE(got == asked);
  EXPECT_TRUE(ranks[1]->cancel(notices));
}

TEST(Tcp, WaitsWithoutALimitIfTold) {
  const auto one = open(std::chrono::nanoseconds::max());
  const auto other = open(std::chrono::nanoseconds::max());
  const std::vector<std::string> addresses{one->address(), other->address()};
  const auto first = one->connect(addresses, 0, nothing);
  EXPECT_NE(other->connect(addresses, 1, nothing), nullptr);
}

TEST(Tcp, ConnectsWithAPeerWhenAMessageIsFirstSentOrAwaited) {
  const auto ranks = connected("tcp", 7);
  for (int i = 0; i < 1000; ++i) progress(ranks);
  // Each has called the next one, to see that it can be reached.
  EXPECT_THAT(new_peers(ranks[0]), ElementsAre(1, 6));
  meet(ranks, 0, 2);
  EXPECT_THAT(new_peers(ranks[0]), ElementsAre(2));
  int heard = 0;
  auto* const awaited = ranks[0]->receive(4, 1, &heard, sizeof(int));
  EXPECT_THAT(new_peers(ranks[4]), ElementsAre(3, 5));
  ASSERT_TRUE(eventually(ranks, [&] { return new_peers(ranks[4]) == std::vector{0}; }));
  EXPECT_TRUE(eventually(ranks, [&] { return new_peers(ranks[0]) == std::vector{4}; }));
  EXPECT_TRUE(ranks[0]->cancel(awaited));
}

TEST(Tcp, MakesOneConnectionBetweenRanksThatCallEachOtherAtOnce) {
  constexpr int kRanks = 8;
  for (int round = 0; round < 10; ++round) {
    const auto ranks = connected("tcp", kRanks);
    std::vector<std::vector<int>> heard(kRanks, std::vector<int>(kRanks, -1));
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r)
      threads.emplace_back([&, r] {
        Transport& own = *ranks[size_t(r)];
        std::vector<Transport::Message*> all;
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer == r) continue;
          all.push_back(own.receive(peer, 1, &heard[size_t(r)][size_t(peer)], sizeof(int)));
          all.push_back(own.send(peer, 1, &r, sizeof(int)));
        }
        for (Transport::Message* message : all)
          while (own.advance(message, 1) == State::under_way) {
          }
      });
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < kRanks; ++r) {
      std::vector<int> all(kRanks), others;
      std::iota(all.begin(), all.end(), 0);
      std::ranges::copy_if(all, std::back_inserter(others), [&](int peer) { return peer != r; });
      EXPECT_EQ(new_peers(ranks[size_t(r)]), others) << r;
      all[size_t(r)] = -1;
      EXPECT_EQ(heard[size_t(r)], all) << r;
    }
  }
}

TEST(Tcp, RefusesASecondConnectionOfARank) {
  const auto zero = open(), one = open();
  const std::vector<std::string> addresses{zero->address(), one->address()};
  Peers ranks;
  ranks.push_back(zero->connect(addresses, 0, nothing));
  ranks.push_back(one->connect(addresses, 1, nothing));
  meet(ranks, 0, 1);
  ranks.push_back(open()->connect(addresses, 1, nothing));  // says that it is rank 1, too
  const int number = 8;
  int heard = 0;
  auto* const false_one = ranks[2]->send(0, 3, &number, sizeof(int));
  auto* const coming = ranks[0]->receive(1, 3, &heard, sizeof(int));
  for (int i = 0; i < 2000; ++i) progress(ranks);
  EXPECT_TRUE(ranks[2]->is_under_way(false_one));
  EXPECT_TRUE(ranks[0]->is_under_way(coming));
  EXPECT_TRUE(ranks[2]->cancel(false_one));
  EXPECT_TRUE(ranks[0]->cancel(coming));
  meet(ranks, 1, 0);
}

TEST(Tcp, TellsARankThatItsCallComesTooLate) {
  std::string gone;
  { gone = open()->address(); }
  std::vector<std::unique_ptr<Endpoint>> ends;
  std::vector<std::string> addresses;
  for (int r = 0; r < 3; ++r) addresses.push_back(ends.emplace_back(open())->address());
  Peers ranks;
  // Rank 0 cannot reach rank 2, which can reach rank 0.
  ranks.push_back(ends[0]->connect({addresses[0], addresses[1], gone}, 0, nothing));
  for (const int r : {1, 2}) ranks.push_back(ends[size_t(r)]->connect(addresses, r, nothing));
  int number = 5;
  EXPECT_EQ(finish(ranks[0]->send(2, 1, &number, sizeof(int)), *ranks[0], ranks), State::failed);
  EXPECT_THAT(ranks[0]->loss(2), HasSubstr("refused"));
  EXPECT_EQ(finish(ranks[2]->send(0, 1, &number, sizeof(int)), *ranks[2], ranks), State::failed);
  EXPECT_THAT(ranks[2]->loss(0), HasSubstr("refused"));
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

struct Opening {
  uint32_t mark = 0x7475'7474, to = 0, from = 1, purpose = 0;
  unsigned char nonce[16] = {};
};

bool is_closed(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

TEST(Tcp, SendsStrangersAwayAndCountsThem) {
  const auto end = open(), other = open();
  const std::string address = end->address();
  Peers zero;
  zero.push_back(end->connect({address, other->address()}, 0, nothing));
  const std::string garbage(1000, 'x');
  const Opening opening;
  const std::vector<int> strangers{call(address, garbage.data(), garbage.size()),
                                   call(address, &opening, sizeof(opening))};
  std::array<char, 48> challenge{};
  ASSERT_TRUE(eventually(zero, [&] {
    return recv(strangers[1], challenge.data(), challenge.size(), MSG_DONTWAIT) ==
           ssize_t(challenge.size());
  }));
  // Its proof sent back is none.
  ASSERT_EQ(send(strangers[1], challenge.data() + 16, 32, MSG_NOSIGNAL), 32);
  for (const int fd : strangers) {
    EXPECT_TRUE(eventually(zero, [&] { return is_closed(fd); }));
    close(fd);
  }
  EXPECT_EQ(zero[0]->refused(),
            "2 connections of other programs refused, the last of 127.0.0.1 (it does not know the "
            "secret of this rank)");
  EXPECT_EQ(zero[0]->refused(), "");
}

TEST(Tcp, TakesRanksInAlthoughThousandsOfStrangersHoldConnections) {
  std::vector<std::unique_ptr<Endpoint>> ends;
  std::vector<std::string> addresses;
  for (int r = 0; r < 2; ++r) addresses.push_back(ends.emplace_back(open())->address());
  Peers ranks;
  ranks.push_back(ends[0]->connect(addresses, 0, nothing));
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(call(addresses[0], "t", 1));  // and never a word more
    progress(ranks);
  }
  const auto are_open = std::ranges::count_if(strangers, [](int fd) { return !is_closed(fd); });
  EXPECT_LE(are_open, 130);
  EXPECT_GT(are_open, 0);
  ranks.push_back(ends[1]->connect(addresses, 1, nothing));
  meet(ranks, 0, 1);
  for (const int fd : strangers) close(fd);
}

// A place where something else than a rank listens.
struct Pretender {
  Pretender() {
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(place);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&place), size), 0);
    EXPECT_EQ(listen(fd, 0), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&place), &size), 0);
  }
  ~Pretender() { close(fd); }
  std::string address() const {
    return "127.0.0.1 " + std::to_string(ntohs(place.sin_port)) + " " + std::string(32, 'a');
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in place{};
};

TEST(Tcp, DoesNotTellItsSecretAndFindsAPretender) {
  const Pretender pretender;
  const auto end = open();
  Peers ranks;
  ranks.push_back(end->connect({end->address(), pretender.address()}, 0, nothing));
  const int fd = accept4(pretender.fd, nullptr, nullptr, SOCK_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::string heard(sizeof(Opening), '\0');
  size_t got = 0;
  ASSERT_TRUE(eventually(ranks, [&] {
    const ssize_t more = recv(fd, heard.data() + got, heard.size() - got, MSG_DONTWAIT);
    return (got += size_t(std::max<ssize_t>(more, 0))) == heard.size();
  }));
  EXPECT_THAT(heard, ::testing::Not(HasSubstr("\xaa\xaa")));
  const std::string no_challenge(48, 'c');
  ASSERT_EQ(send(fd, no_challenge.data(), no_challenge.size(), MSG_NOSIGNAL), 48);
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[0]->loss(1).empty(); }));
  EXPECT_THAT(ranks[0]->loss(1), HasSubstr("Protocol error"));
  close(fd);
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
    EXPECT_THAT(error.what(), HasSubstr("TUTTI_INTERFACES"));
  }
}

TEST(Tcp, GivesUpOnARankThatDoesNotAnswer) {
  const Pretender pretender;
  std::vector<int> queue;  // that leaves no room for another call
  for (int i = 0; i < 4; ++i) {
    queue.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(queue.back(), reinterpret_cast<const sockaddr*>(&pretender.place),
            sizeof(pretender.place));
  }
  const auto end = open(50ms), other = open();
  try {
    end->connect({end->address(), pretender.address()}, 0, nothing);
    FAIL() << "connected to no rank";
  } catch (const UnavailableError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 cannot be reached from rank 0 at 127.0.0.1:"));
    EXPECT_THAT(error.what(), HasSubstr("it does not answer"));
  }
  EXPECT_THROW(other->connect({other->address(), pretender.address()}, 0,
                              [] { throw AbortedError("rank 1 is lost"); }),
               AbortedError);
  for (const int fd : queue) close(fd);
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
