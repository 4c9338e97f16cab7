// SPDX-License-Identifier: Apache-2.0
// Notices between the processes of a job.
#include "group/net/control_plane.h"

#include <numeric>

#include "group/hosts.h"
#include "support/expect.h"

namespace tutti::group {
namespace {

using Notice = ControlPlane::Notice;

constexpr int kBoth[] = {0, 1};

struct Heard final : ControlPlane::Listener {
  void hear(int from, const Notice& notice) override { all.emplace_back(from, notice); }
  std::span<const int> members() const override { return kBoth; }
  std::vector<std::pair<int, Notice>> all;
};

class ControlPlaneTest : public ::testing::Test {
 protected:
  std::unique_ptr<ControlPlane> plane(int rank) {
    return std::make_unique<ControlPlane>(std::make_unique<testing::TestTransport>(network, rank),
                                          rank, 2, [](int) { return true; });
  }

  const std::shared_ptr<testing::TestNetwork> network = std::make_shared<testing::TestNetwork>();
  const std::unique_ptr<ControlPlane> first = plane(0), second = plane(1);
};

TEST_F(ControlPlaneTest, HandsANoticeToItsGroup) {
  Heard heard, other;
  second->add(7, &heard);
  second->add(8, &other);
  first->tell(kBoth, {.group = 7, .code = ErrorCode::aborted, .text = "why"});
  second->pump();
  ASSERT_EQ(heard.all.size(), 1);
  EXPECT_EQ(heard.all[0].first, 0);
  EXPECT_EQ(heard.all[0].second.code, ErrorCode::aborted);
  EXPECT_EQ(heard.all[0].second.text, "why");
  EXPECT_TRUE(other.all.empty());
}

TEST_F(ControlPlaneTest, KeepsAFailureForAGroupThatIsMadeLater) {
  first->tell(kBoth, {.group = 7, .text = "early"});
  first->tell(kBoth, {.group = 7, .kind = Notice::Kind::waiting});  // is not true for long
  second->pump();
  Heard heard;
  second->add(7, &heard);
  ASSERT_EQ(heard.all.size(), 1);
  EXPECT_EQ(heard.all[0].second.text, "early");
}

TEST_F(ControlPlaneTest, CutsATextThatIsTooLong) {
  Heard heard;
  second->add(7, &heard);
  first->tell(kBoth, {.group = 7, .text = std::string(10'000, 'x')});
  second->pump();
  ASSERT_EQ(heard.all.size(), 1);
  EXPECT_EQ(heard.all[0].second.text, std::string(heard.all[0].second.text.size(), 'x'));
  EXPECT_GT(heard.all[0].second.text.size(), 4000);
}

TEST_F(ControlPlaneTest, HandsOutNumbersThatNoOtherRankHandsOut) {
  std::set<uint32_t> ids;
  for (int i = 0; i < 10; ++i) {
    ids.insert(first->new_group_id());
    ids.insert(second->new_group_id());
  }
  EXPECT_EQ(ids.size(), 20);
  EXPECT_FALSE(ids.contains(0));
}

TEST_F(ControlPlaneTest, HearsOtherHostsThatReplyToItsProbe) {
  EXPECT_TRUE(first->hears_other_hosts());
  first->probe();
  second->pump();
  first->pump();
  EXPECT_TRUE(first->hears_other_hosts());
  EXPECT_FALSE(first->misses_a_rank());
}

TEST_F(ControlPlaneTest, KnowsThatARankIsMissed) {
  first->tell(kBoth, {.group = 7, .code = ErrorCode::deadline_exceeded, .text = "rank 1 is late"});
  EXPECT_TRUE(first->misses_a_rank());
  second->pump();
  EXPECT_TRUE(second->misses_a_rank());
}

// Ranks that connect when they send, or wait for, a message.
class OnDemand : public ::testing::Test {
 protected:
  static constexpr int kRanks = 40;
  struct Member final : ControlPlane::Listener {
    void hear(int, const Notice& notice) override { heard.push_back(notice); }
    std::span<const int> members() const override { return all; }
    std::vector<int> all;
    std::vector<Notice> heard;
  };

  OnDemand() : members(kRanks) {
    std::vector<int> all(kRanks);
    std::iota(all.begin(), all.end(), 0);
    for (int r = 0; r < kRanks; ++r) {
      planes.push_back(
          std::make_unique<ControlPlane>(std::make_unique<testing::TestTransport>(network, r, true),
                                         r, kRanks, [](int) { return true; }));
      members[size_t(r)].all = all;
      planes.back()->add(7, &members[size_t(r)]);
    }
  }
  // They hang on to what they sent.
  ~OnDemand() override {
    for (const auto& plane : planes) plane->close();
  }

  void tell(int rank, const Notice& notice) {
    planes[size_t(rank)]->tell(members[size_t(rank)].all, notice);
  }
  void connect(int one, int other) {
    network->connect(one, other);
    for (const int rank : {one, other}) planes[size_t(rank)]->pump();
  }
  int count_connected(int rank) {
    int count = 0;
    for (int peer = 0; peer < kRanks; ++peer) count += planes[size_t(rank)]->is_connected(peer);
    return count;
  }

  const std::shared_ptr<testing::TestNetwork> network = std::make_shared<testing::TestNetwork>();
  std::vector<Member> members;
  std::vector<std::unique_ptr<ControlPlane>> planes;
};

TEST_F(OnDemand, ANoticeGoesToRanksThatAreConnected) {
  connect(0, 5);
  tell(0, {.group = 7, .kind = Notice::Kind::waiting});
  for (const auto& plane : planes) plane->pump();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(members[size_t(r)].heard.size(), r == 5) << r;
  EXPECT_EQ(count_connected(0), 1);
}

TEST_F(OnDemand, AFailureIsPassedOnToAllOverAFewConnectionsOfEach) {
  tell(3, {.group = 7, .code = ErrorCode::aborted, .text = "why"});
  for (int step = 0; step < 6; ++step)
    for (const auto& plane : planes) plane->pump();
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(r == 3 || !members[size_t(r)].heard.empty()) << r;
    for (const Notice& notice : members[size_t(r)].heard) EXPECT_EQ(notice.text, "why");
    EXPECT_LE(count_connected(r), 12) << r;
  }
}

TEST_F(OnDemand, ARankThatConnectsLaterHearsThatAnotherHasLeftTheGroup) {
  tell(0, {.group = 7, .kind = Notice::Kind::leaving});
  tell(0, {.group = 7, .kind = Notice::Kind::waiting});  // is not true for long
  EXPECT_EQ(count_connected(0), 0);
  connect(0, 9);
  planes[9]->pump();
  ASSERT_EQ(members[9].heard.size(), 1u);
  EXPECT_EQ(members[9].heard[0].kind, Notice::Kind::leaving);
}

TEST_F(OnDemand, AProbeAsksAFewRanks) {
  planes[0]->probe();
  for (const auto& plane : planes) plane->pump();
  planes[0]->pump();
  EXPECT_TRUE(planes[0]->hears_other_hosts());
  EXPECT_GT(count_connected(0), 5);
  EXPECT_LE(count_connected(0), 12);
}

}  // namespace
}  // namespace tutti::group
