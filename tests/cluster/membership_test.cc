// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership.h"

#include "cluster/environment.h"
#include "support/expect.h"

namespace tutti::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MembershipTest : public ::tutti::testing::EnvironmentTest {
 protected:
  static void set_tf_config(const std::string& type, const std::string& index) {
    set("TF_CONFIG", R"({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]},
                         "task": {"type": ")" +
                         type + R"(", "index": )" + index + "}}");
  }
  static void set_torchrun() {
    set("RANK", "0");
    set("WORLD_SIZE", "2");
    set("MASTER_ADDR", "head");
    set("MASTER_PORT", "29500");
  }
  static void set_slurm() {
    set("SLURM_STEP_NUM_TASKS", "3");
    set("SLURM_PROCID", "1");
    set("SLURM_JOB_ID", "0");
    set("SLURM_STEP_NODELIST", "n[1-3]");
    set("SLURM_STEP_TASKS_PER_NODE", "1(x3)");
  }
};

const ClusterSpec kCluster{
    {{"chief", {"a:1"}}, {"worker", {"b:1", "c:1"}}, {"ps", {"d:1"}}, {"evaluator", {"e:1"}}}};

TEST_F(MembershipTest, PutsTheChiefFirst) {
  const auto chief = membership_from(kCluster, "chief", 0);
  ASSERT_TRUE(chief);
  EXPECT_THAT(chief->addresses, ElementsAre("a:1", "b:1", "c:1"));
  EXPECT_EQ(chief->rank, 0);
  EXPECT_EQ(chief->service, "a:1");
  EXPECT_TRUE(chief->serves);
  EXPECT_EQ(chief->source, "arguments");
  const auto worker = membership_from(kCluster, "worker", 1);
  ASSERT_TRUE(worker);
  EXPECT_EQ(worker->addresses, chief->addresses);
  EXPECT_EQ(worker->rank, 2);
  EXPECT_EQ(worker->service, "a:1");
  EXPECT_FALSE(worker->serves);
}

TEST_F(MembershipTest, WorkerZeroServesWithoutAChief) {
  const auto member = membership_from({{{"worker", {"b:1", "c:1"}}}}, "worker", 0);
  ASSERT_TRUE(member);
  EXPECT_EQ(member->rank, 0);
  EXPECT_EQ(member->service, "b:1");
  EXPECT_TRUE(member->serves);
}

TEST_F(MembershipTest, NoRankServesIfACoordinatorIsGiven) {
  set("TUTTI_COORDINATOR", "host:7");
  const auto member = membership_from(kCluster, "chief", 0);
  EXPECT_EQ(member->service, "host:7");
  EXPECT_FALSE(member->serves);
  set("TUTTI_COORDINATOR", "host");
  EXPECT_ERROR(InvalidArgumentError, "TUTTI_COORDINATOR=host: expected HOST:PORT",
               membership_from(kCluster, "chief", 0));
}

TEST_F(MembershipTest, IsNoneForAnEvaluatorOrALoneTask) {
  EXPECT_FALSE(membership_from(kCluster, "evaluator", 0));
  EXPECT_FALSE(membership_from({{{"worker", {"a:1", "b:1"}}}}, "evaluator", 0));
  EXPECT_FALSE(membership_from({{{"worker", {"a:1"}}}}, "worker", 0));
  EXPECT_FALSE(membership_from({{{"chief", {"a:1"}}, {"evaluator", {"b:1"}}}}, "chief", 0));
  EXPECT_FALSE(membership_from({}, "", 0));
  EXPECT_FALSE(membership_from({}, "worker", 0));
}

TEST_F(MembershipTest, RefusesATaskThatIsNoRank) {
  EXPECT_ERROR(InvalidArgumentError, "task_type is \"ps\"; expected chief, worker or evaluator",
               membership_from(kCluster, "ps", 0));
  EXPECT_ERROR(InvalidArgumentError, "task_type is \"gardener\"",
               membership_from(kCluster, "gardener", 0));
  EXPECT_ERROR(InvalidArgumentError, "task_type is \"\"", membership_from(kCluster, "", 0));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 2", membership_from(kCluster, "worker", 2));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 1",
               membership_from({{{"worker", {"127.0.0.1:1"}}}}, "worker", 1));
}

TEST_F(MembershipTest, RefusesHolesAmongTheRanks) {
  EXPECT_ERROR(InvalidArgumentError, "the job \"worker\" has a task 2, but none 1; expected tasks",
               membership_from({{{"worker", {{0, "a:1"}, {2, "c:1"}}}}}, "worker", 0));
  EXPECT_ERROR(InvalidArgumentError, "the job \"worker\" has a task 1, but none 0",
               membership_from({{{"worker", {{1, "a:1"}}}}}, "worker", 1));
}

TEST_F(MembershipTest, NamesRanksWithoutAnAddress) {
  const auto member = membership_from({{{"worker", {"a:1", "", ""}}}}, "worker", 2);
  ASSERT_TRUE(member);
  EXPECT_THAT(member->addresses, ElementsAre("a:1", "rank 1", "rank 2"));
}

TEST_F(MembershipTest, NeedsAnAddressForTheService) {
  EXPECT_ERROR(InvalidArgumentError, "a cluster of 2 ranks, but no address for the coordination",
               membership_from({{{"worker", {"", ""}}}}, "worker", 0));
}

TEST_F(MembershipTest, IsNoneInAnEmptyEnvironment) { EXPECT_FALSE(membership_from_environment()); }

TEST_F(MembershipTest, ComesFromTFConfig) {
  set_tf_config("worker", "0");
  const auto member = membership_from_environment();
  ASSERT_TRUE(member);
  EXPECT_THAT(member->addresses, ElementsAre("a:1", "b:1", "c:1"));
  EXPECT_EQ(member->rank, 1);
  EXPECT_EQ(member->source, "TF_CONFIG");
  set_tf_config("evaluator", "0");
  EXPECT_FALSE(membership_from_environment());
}

TEST_F(MembershipTest, NamesTFConfigIfItIsWrong) {
  const auto text = [] {
    return ::tutti::testing::error_of<InvalidArgumentError>([] { membership_from_environment(); });
  };
  set_tf_config("gardener", "0");
  EXPECT_THAT(text(), HasSubstr("TF_CONFIG: task_type is \"gardener\""));
  set_tf_config("worker", "2");
  EXPECT_THAT(text(), HasSubstr("TF_CONFIG: task_id is 2"));
  set_tf_config("ps", "0");
  EXPECT_THAT(text(), HasSubstr("task_type is \"ps\""));
  set("TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}})");
  EXPECT_THAT(text(), HasSubstr("TF_CONFIG: there is a \"cluster\", but no \"task\""));
  set("TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}})");
  EXPECT_THAT(text(), HasSubstr("no \"task\" with \"type\" and \"index\""));
  set("TF_CONFIG", "{");
  EXPECT_THAT(text(), HasSubstr("TF_CONFIG: not valid JSON"));
}

TEST_F(MembershipTest, AClusterOfOneIsALoneProcess) {
  set_torchrun();
  set("TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})");
  EXPECT_FALSE(membership_from_environment());
}

TEST_F(MembershipTest, ComesFromTorchrun) {
  set_torchrun();
  const auto member = membership_from_environment();
  ASSERT_TRUE(member);
  EXPECT_THAT(member->addresses, ElementsAre("head:29500", "rank 1"));
  EXPECT_EQ(member->rank, 0);
  EXPECT_EQ(member->service, "head:29500");
  EXPECT_TRUE(member->serves);
  EXPECT_EQ(member->source, "torchrun");
}

TEST_F(MembershipTest, ComesFromSlurm) {
  set_slurm();
  const auto member = membership_from_environment();
  ASSERT_TRUE(member);
  EXPECT_THAT(member->addresses, ElementsAre("n1:12000", "n2:12000", "n3:12000"));
  EXPECT_EQ(member->rank, 1);
  EXPECT_EQ(member->service, "n1:12000");
  EXPECT_FALSE(member->serves);
  EXPECT_EQ(member->source, "Slurm");
}

TEST_F(MembershipTest, ComesFromMpirun) {
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_RANK", "3");
  auto member = membership_from_environment();
  ASSERT_TRUE(member);
  EXPECT_EQ(member->service, "");  // MPI will tell
  EXPECT_FALSE(member->serves);
  set("TUTTI_COORDINATOR", "host:7");
  member = membership_from_environment();
  ASSERT_TRUE(member);
  EXPECT_THAT(member->addresses, ElementsAre("rank 0", "rank 1", "rank 2", "rank 3"));
  EXPECT_EQ(member->rank, 3);
  EXPECT_EQ(member->service, "host:7");
  EXPECT_EQ(member->source, "Open MPI");
}

TEST_F(MembershipTest, RefusesLoopbackBesideOtherAddresses) {
  const ClusterSpec mixed({{"worker", {"10.0.0.1:5000", "127.0.0.1:5000"}}});
  EXPECT_ERROR(InvalidArgumentError,
               "the cluster has rank 1 at 127.0.0.1:5000 and rank 0 at 10.0.0.1:5000: "
               "127.0.0.1:5000 is reached from its own host only; give every rank the address that "
               "the other hosts know it by",
               membership_from(mixed, "worker", 0));
}

TEST_F(MembershipTest, TakesTheFirstSourceThereIs) {
  set("TUTTI_COORDINATOR", "host:7");
  set_tf_config("chief", "0");
  set_torchrun();
  set_slurm();
  set("PMI_SIZE", "3");
  set("PMI_RANK", "1");
  const auto source = [] { return membership_from_environment()->source; };
  EXPECT_EQ(source(), "TF_CONFIG");
  set("TF_CONFIG", R"({"environment": "cloud"})");
  EXPECT_EQ(source(), "torchrun");
  unset("WORLD_SIZE");
  EXPECT_EQ(source(), "Slurm");
  unset("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(source(), "MPICH");
  unset("PMI_SIZE");
  EXPECT_FALSE(membership_from_environment());
}

}  // namespace
}  // namespace tutti::cluster
