// SPDX-License-Identifier: Apache-2.0
// Notices between the processes of a job.
#include "group/net/control_plane.h"

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
    return std::make_unique<ControlPlane>(std::make_unique<testing::PostedTransport>(office, rank),
                                          rank, 2, [](int) { return true; });
  }

  const std::shared_ptr<testing::PostOffice> office = std::make_shared<testing::PostOffice>();
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

}  // namespace
}  // namespace tutti::group
