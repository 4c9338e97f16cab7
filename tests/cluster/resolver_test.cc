// SPDX-License-Identifier: Apache-2.0
#include <tutti/cluster.h>

#include "cluster/environment.h"
#include "support/expect.h"

namespace tutti {
namespace {

class ResolverTest : public ::tutti::testing::EnvironmentTest {};

const ClusterSpec kTwoWorkers{{{"worker", {"a:1", "b:1"}}}};

TEST_F(ResolverTest, ASimpleOneSaysWhatItIsTold) {
  const SimpleClusterResolver resolver(kTwoWorkers, {.task_type = "worker", .task_id = 1});
  EXPECT_EQ(resolver.cluster_spec(), kTwoWorkers);
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.master(), "b:1");
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://a:1");
}

TEST_F(ResolverTest, ASimpleOneDoesNotLookAround) {
  set("TF_CONFIG", R"({"task": {"type": "worker", "index": 1}})");
  const SimpleClusterResolver resolver(kTwoWorkers);
  EXPECT_EQ(resolver.task_type(), "");
  EXPECT_EQ(resolver.task_id(), std::nullopt);
}

TEST_F(ResolverTest, MasterNeedsToKnowTheTask) {
  EXPECT_ERROR(InvalidArgumentError, "give task_type and task_id",
               SimpleClusterResolver(kTwoWorkers).master());
  EXPECT_ERROR(InvalidArgumentError, "give task_type and task_id",
               SimpleClusterResolver(kTwoWorkers).master("worker"));
  EXPECT_EQ(SimpleClusterResolver(ClusterSpec()).master(), "");
}

TEST_F(ResolverTest, ATaskIdIsNotNegative) {
  EXPECT_ERROR(InvalidArgumentError, "task_id is -1; expected 0 or more",
               SimpleClusterResolver(kTwoWorkers, {.task_id = -1}));
  SimpleClusterResolver resolver(kTwoWorkers);
  EXPECT_ERROR(InvalidArgumentError, "task_id is -2; expected 0 or more", resolver.set_task_id(-2));
}

TEST_F(ResolverTest, MayBeOfTheUsersOwn) {
  class Own : public ClusterResolver {
   public:
    ClusterSpec cluster_spec() const override { return kTwoWorkers; }

   protected:
    std::string find_task_type() const override { return "worker"; }
    std::optional<int> find_task_id() const override { return 1; }
  };
  Own own;
  const ClusterResolver& resolver = own;
  EXPECT_EQ(resolver.master(), "b:1");
  own.set_task_id(0);
  EXPECT_EQ(resolver.master(), "a:1");
}

TEST_F(ResolverTest, TorchrunKnowsTheMasterOnly) {
  set_all({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}});
  const TorchrunClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"head:29500", "", ""}}}));
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.master("worker", 0, "grpc"), "grpc://head:29500");
  EXPECT_EQ(resolver.master({}, {}, "grpc"), "");
}

TEST_F(ResolverTest, SlurmKnowsAllTasks) {
  set_all({{"SLURM_STEP_NUM_TASKS", "3"},
           {"SLURM_PROCID", "2"},
           {"SLURM_JOB_ID", "1"},
           {"SLURM_STEP_ID", "2"},
           {"SLURM_STEP_NODELIST", "n[1-2]"},
           {"SLURM_STEP_TASKS_PER_NODE", "2,1"}});
  const SlurmClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"worker", {"n1:12133", "n1:12134", "n2:12133"}}}));
  EXPECT_EQ(resolver.task_id(), 2);
  EXPECT_EQ(resolver.master(), "n2:12133");
}

TEST_F(ResolverTest, MpiKnowsRanksButNoAddresses) {
  set_all({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}});
  const MPIClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"", ""}}}));
  EXPECT_EQ(resolver.task_id(), 1);
}

TEST_F(ResolverTest, IsEmptyWithoutItsLauncher) {
  const auto check = [](const ClusterResolver& resolver) {
    EXPECT_FALSE(resolver.cluster_spec());
    EXPECT_EQ(resolver.task_type(), "");
    EXPECT_EQ(resolver.task_id(), std::nullopt);
    EXPECT_EQ(resolver.master(), "");
  };
  check(TorchrunClusterResolver());
  check(SlurmClusterResolver());
  check(MPIClusterResolver());
}

TEST_F(ResolverTest, ArgumentsGoBeforeTheLauncher) {
  set_all({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  EXPECT_EQ(MPIClusterResolver({.task_id = 0}).task_id(), 0);
}

}  // namespace
}  // namespace tutti
