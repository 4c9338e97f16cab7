// SPDX-License-Identifier: Apache-2.0
// What every transport keeps: those of the table, and the one that other tests use.
#include <atomic>
#include <thread>

#include "group/hosts.h"
#include "group/transports.h"

namespace tutti::testing {
namespace {

constexpr const char* kInMemory = "in_memory";
constexpr const char* kTcpInBulk = "tcp_in_bulk";  // with connections for large messages

class Transports : public ::testing::TestWithParam<std::string> {
 protected:
  static std::string transport() { return GetParam() == kTcpInBulk ? "tcp" : GetParam(); }

  void SetUp() override {
    if (GetParam() == kInMemory) return;
    const group::TransportKind& kind = group::find_transport(transport())->kind;
    if (*kind.modules[0].launcher)
      GTEST_SKIP() << "its ranks are those of a launcher: multiprocess.mpi runs it";
    try {
      module_of(transport());
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // UCX has to complete connections before it can take them down.
  void TearDown() override {
    for (int i = 0; i < 1000; ++i) progress(ranks);
  }

  void connect(int n) {
    if (GetParam() != kInMemory) {
      ranks = connected(transport(), n, "127.0.0.1", GetParam() == kTcpInBulk);
      if (GetParam() == kTcpInBulk) meet_in_bulk(ranks);
      return;
    }
    network_ = std::make_shared<TestNetwork>();
    for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<TestTransport>(network_, r));
  }
  // Rank `r` ends.
  void lose(int r) {
    ranks[size_t(r)].reset();
    if (network_) network_->lose(r);
  }

  Transport::Message* send(int from, int to, uint64_t tag, const std::vector<std::byte>& data) {
    return ranks[size_t(from)]->send(to, tag, data.data(), data.size());
  }
  Transport::Message* receive(int at, int from, uint64_t tag, std::vector<std::byte>& data) {
    return ranks[size_t(at)]->receive(from, tag, data.data(), data.size());
  }
  State finish(int rank, Transport::Message* message) {
    return testing::finish(message, *ranks[size_t(rank)], ranks);
  }
  // One message, from one rank to the other.
  void expect_exchange(int from, int to, uint64_t tag, size_t bytes) {
    const auto sent = message(bytes, 1);
    std::vector<std::byte> got(bytes);
    auto* const coming = receive(to, from, tag, got);
    EXPECT_EQ(finish(from, send(from, to, tag, sent)), State::over);
    EXPECT_EQ(finish(to, coming), State::over);
    EXPECT_EQ(got, sent);
  }

  Peers ranks;

 private:
  std::shared_ptr<TestNetwork> network_;
};

TEST_P(Transports, BringMessagesOfEverySizeInBothDirectionsAtOnce) {
  connect(2);
  for (const size_t bytes :
       {0u, 1u, 15u, 4096u, 4097u, 16384u, 65536u, 1u << 20, (16u << 20) + 3}) {
    SCOPED_TRACE(bytes);
    const auto a = message(bytes, 1), b = message(bytes, 2);
    std::vector<std::byte> at_a(bytes), at_b(bytes);
    auto* const into_a = receive(0, 1, 7, at_a);
    auto* const from_a = send(0, 1, 7, a);
    auto* const from_b = send(1, 0, 7, b);
    auto* const into_b = receive(1, 0, 7, at_b);
    EXPECT_EQ(finish(0, into_a), State::over);
    EXPECT_EQ(finish(1, into_b), State::over);
    EXPECT_EQ(finish(0, from_a), State::over);
    EXPECT_EQ(finish(1, from_b), State::over);
    EXPECT_EQ(at_a, b);
    EXPECT_EQ(at_b, a);
  }
}

TEST_P(Transports, MatchEarlyMessagesByTagAndKeepTheOrderOfEach) {
  connect(3);
  const std::vector<int> values{10, 11, 20, 21, 12};
  const std::vector<uint64_t> tags{1, 1, 2, 2, 1};
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(finish(2, ranks[2]->send(0, tags[i], &values[i], sizeof(int))), State::over);
  // Those of tag 2 are received first, and those of tag 1 in between.
  std::vector<int> got(values.size());
  const std::vector<size_t> order{2, 0, 3, 1, 4};
  for (const size_t i : order)
    EXPECT_EQ(finish(0, ranks[0]->receive(2, tags[i], &got[i], sizeof(int))), State::over);
  EXPECT_EQ(got, values);
}

// Collectives in place receive results where their values are still on the way from.
TEST_P(Transports, WriteNothingToMemoryThatIsAwaitedButForItsMessage) {
  connect(2);
  const auto before = message(32 << 20, 1), values = message(1 << 20, 2);
  const auto other = message(20'000, 3), results = message(1 << 20, 4);
  auto memory = values;
  std::vector<std::byte> first(before.size()), second(values.size()), third(other.size());
  auto* const full = send(0, 1, 1, before);  // more than the system takes
  auto* const going = send(0, 1, 1, memory);
  auto* const awaited = receive(0, 1, 2, memory);
  auto* const ahead = send(1, 0, 3, other);
  for (int i = 0; i < 100; ++i) {
    ranks[1]->progress();
    ASSERT_EQ(ranks[0]->advance(awaited, 10), State::under_way);
  }
  EXPECT_EQ(finish(1, receive(1, 0, 1, first)), State::over);
  EXPECT_EQ(finish(1, receive(1, 0, 1, second)), State::over);
  EXPECT_EQ(second, values);
  EXPECT_EQ(finish(0, full), State::over);
  EXPECT_EQ(finish(0, going), State::over);
  auto* const back = send(1, 0, 2, results);
  EXPECT_EQ(finish(0, awaited), State::over);
  EXPECT_EQ(memory, results);
  EXPECT_EQ(finish(1, back), State::over);
  EXPECT_EQ(finish(0, receive(0, 1, 3, third)), State::over);
  EXPECT_EQ(finish(1, ahead), State::over);
  EXPECT_EQ(third, other);
}

TEST_P(Transports, KeepTheOrderOfSmallAndLargeMessagesOfOneTag) {
  connect(2);
  const std::vector<size_t> sizes{3 << 20, 4, 1 << 20, 100'000, 8, 2 << 20};
  std::vector<std::vector<std::byte>> sent;
  std::vector<Transport::Message*> going;
  for (size_t i = 0; i < sizes.size(); ++i) sent.push_back(message(sizes[i], unsigned(i)));
  for (const auto& data : sent) going.push_back(send(0, 1, 5, data));
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::byte> got(sizes[i]);
    EXPECT_EQ(finish(1, receive(1, 0, 5, got)), State::over);
    EXPECT_TRUE(got == sent[i]) << i;
  }
  for (Transport::Message* const message : going) EXPECT_EQ(finish(0, message), State::over);
}

TEST_P(Transports, BringAMessageWholeThatIsAskedForWhileItComes) {
  connect(2);
  expect_exchange(0, 1, 4, 1);
  const auto sent = message(8 << 20, 3);
  auto* const going = send(0, 1, 4, sent);
  ASSERT_NE(going, nullptr);  // no transport takes so much at once
  for (int i = 0; i < 3; ++i) ranks[1]->progress();
  std::vector<std::byte> got(sent.size());
  auto* const coming = receive(1, 0, 4, got);
  EXPECT_EQ(finish(0, going), State::over);
  EXPECT_EQ(finish(1, coming), State::over);
  EXPECT_EQ(got, sent);
}

TEST_P(Transports, SayThatAMessageIsTooLongAndGoOn) {
  connect(2);
  for (const size_t bytes : {100u, 100'000u})
    for (const bool early : {false, true}) {
      SCOPED_TRACE(std::to_string(bytes) + (early ? ", early" : ""));
      const auto sent = message(bytes, 5);
      std::vector<std::byte> got(bytes / 2);
      Transport::Message* coming = early ? nullptr : receive(1, 0, 1, got);
      auto* const going = send(0, 1, 1, sent);
      for (int i = 0; early && i < 100; ++i) progress(ranks);
      if (early) coming = receive(1, 0, 1, got);
      EXPECT_EQ(finish(1, coming), State::too_long);
      EXPECT_EQ(finish(0, going), State::over);
      expect_exchange(0, 1, 1, 4);
    }
}

TEST_P(Transports, LeaveTheMemoryOfACancelledReceiveAlone) {
  connect(2);
  const auto sent = message(100'000, 7);
  std::vector<std::byte> cancelled(sent.size()), got(sent.size());
  EXPECT_TRUE(ranks[1]->cancel(receive(1, 0, 1, cancelled)));
  auto* const coming = receive(1, 0, 1, got);
  EXPECT_EQ(finish(0, send(0, 1, 1, sent)), State::over);
  EXPECT_EQ(finish(1, coming), State::over);
  EXPECT_TRUE(got == sent);
  EXPECT_TRUE(cancelled == std::vector<std::byte>(sent.size()));
}

TEST_P(Transports, GiveBackTheMemoryOfASendThatIsNotTaken) {
  connect(2);
  expect_exchange(0, 1, 1, 1);
  const auto sent = message(64 << 20, 8);
  auto* const going = send(0, 1, 1, sent);
  ASSERT_NE(going, nullptr);
  EXPECT_TRUE(ranks[0]->cancel(going));
  EXPECT_TRUE(ranks[0]->cancel(nullptr));
}

TEST_P(Transports, NameTheLossOfAPeer) {
  connect(3);
  expect_exchange(0, 1, 1, 4);
  expect_exchange(1, 0, 1, 4);
  lose(1);
  const int number = 1;
  // A first message may still leave.
  EXPECT_TRUE(eventually(ranks, [&] {
    return finish(0, ranks[0]->send(1, 1, &number, sizeof(int))) == State::failed &&
           !ranks[0]->loss(1).empty();
  }));
  // A receive is not over: a rank that waits for it asks for the loss.
  int heard = 0;
  auto* const never = ranks[0]->receive(1, 1, &heard, sizeof(int));
  EXPECT_TRUE(ranks[0]->is_under_way(never));
  EXPECT_TRUE(ranks[0]->cancel(never));
  EXPECT_EQ(ranks[0]->loss(2), "");
  expect_exchange(0, 2, 1, 100'000);
  expect_exchange(2, 0, 1, 100'000);
}

TEST_P(Transports, DeliverWhatWasFlushedBeforeTheEnd) {
  connect(2);
  expect_exchange(1, 0, 1, 4);
  const auto sent = message(100, 6);  // which leaves at once
  EXPECT_EQ(finish(1, send(1, 0, 1, sent)), State::over);
  ranks[1]->flush(kGiveUp);
  lose(1);
  std::vector<std::byte> got(sent.size());
  EXPECT_EQ(finish(0, receive(0, 1, 1, got)), State::over);
  EXPECT_EQ(got, sent);
}

TEST_P(Transports, FlushReturnsIfThePeerTakesNothing) {
  connect(2);
  expect_exchange(0, 1, 1, 1);
  const auto sent = message(64 << 20, 9);
  auto* const going = send(0, 1, 1, sent);
  const auto start = std::chrono::steady_clock::now();
  ranks[0]->flush(std::chrono::milliseconds(50));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kGiveUp / 2);
  std::vector<std::byte> got(sent.size());
  EXPECT_EQ(finish(1, receive(1, 0, 1, got)), State::over);
  EXPECT_EQ(finish(0, going), State::over);
  EXPECT_TRUE(got == sent);
}

TEST_P(Transports, WakeASleepingThreadWhenAMessageComes) {
  connect(2);
  expect_exchange(0, 1, 1, 1);
  int heard = 0;
  auto* const coming = ranks[1]->receive(0, 1, &heard, sizeof(int));
  std::thread sleeper([&] {
    while (ranks[1]->advance(coming, 1) == State::under_way) ranks[1]->sleep(coming, kGiveUp);
  });
  const int number = 3;
  const auto start = std::chrono::steady_clock::now();
  auto* const going = ranks[0]->send(1, 1, &number, sizeof(int));
  while (ranks[0]->advance(going, 1) == State::under_way) {
  }
  sleeper.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kGiveUp / 2);
  EXPECT_EQ(heard, 3);
}

TEST_P(Transports, WakeASleepingThreadWhenAnotherTakesItsMessageIn) {
  connect(2);
  expect_exchange(0, 1, 1, 1);
  for (int i = 0; i < 20; ++i) {
    int heard = 0;
    auto* const coming = ranks[1]->receive(0, 1, &heard, sizeof(int));
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop) ranks[1]->progress();
    });
    std::thread sender([&] {
      const int number = 3;
      auto* const going = ranks[0]->send(1, 1, &number, sizeof(int));
      while (ranks[0]->advance(going, 1) == State::under_way) {
      }
    });
    const auto start = std::chrono::steady_clock::now();
    while (ranks[1]->is_under_way(coming)) ranks[1]->sleep(coming, kGiveUp);
    EXPECT_LT(std::chrono::steady_clock::now() - start, kGiveUp / 2);
    EXPECT_EQ(ranks[1]->test(coming), State::over);
    stop = true;
    other.join();
    sender.join();
  }
}

TEST_P(Transports, DoNotSleepForAMessageThatIsOver) {
  connect(2);
  int heard = 0;
  auto* const coming = ranks[1]->receive(0, 1, &heard, sizeof(int));
  const int number = 3;
  EXPECT_EQ(finish(0, ranks[0]->send(1, 1, &number, sizeof(int))), State::over);
  ASSERT_TRUE(eventually(ranks, [&] { return !ranks[1]->is_under_way(coming); }));
  const auto start = std::chrono::steady_clock::now();
  ranks[1]->sleep(coming, kGiveUp);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kGiveUp / 2);
  EXPECT_EQ(ranks[1]->test(coming), State::over);
}

std::vector<std::string> all_transports() {
  std::vector<std::string> names{kInMemory, kTcpInBulk};
  for (const auto& transport : group::transports()) names.emplace_back(transport.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, Transports, ::testing::ValuesIn(all_transports()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace tutti::testing
