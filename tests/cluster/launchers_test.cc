// SPDX-License-Identifier: Apache-2.0
#include "cluster/launchers.h"

#include "cluster/environment.h"
#include "support/expect.h"

namespace tutti::cluster {
namespace {

using ::testing::ElementsAre;

class LaunchersTest : public ::tutti::testing::EnvironmentTest {
 protected:
  static void set_torchrun(const std::string& port = "29500") {
    set_all({{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", port}});
  }
  static void set_slurm(const std::string& nodes, const std::string& tasks_per_node) {
    set_all({{"SLURM_STEP_NUM_TASKS", "5"},
             {"SLURM_PROCID", "3"},
             {"SLURM_JOB_ID", "0"},
             {"SLURM_STEP_ID", "0"},
             {"SLURM_STEP_NODELIST", nodes},
             {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node}});
  }
};

TEST_F(LaunchersTest, TorchrunNamesTheMaster) {
  set_torchrun();
  const auto launch = find_torchrun();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->rank, 2);
  EXPECT_THAT(launch->addresses, ElementsAre("head:29500", "", "", ""));
}

TEST_F(LaunchersTest, TorchrunIsNotFoundUnderTuttiRun) {
  set_torchrun();
  set("TUTTI_LAUNCHER", "0123abcd");
  EXPECT_FALSE(find_torchrun());
}

TEST_F(LaunchersTest, TorchrunsAgentKeepsThePortOfTheMaster) {
  for (const auto& [port, expected] : {std::pair("29500", "head:29501"), {"65535", "head:65534"}}) {
    set_torchrun(port);
    set("TORCHELASTIC_USE_AGENT_STORE", "True");
    EXPECT_EQ(find_torchrun()->addresses[0], expected);
    set("TORCHELASTIC_USE_AGENT_STORE", "False");
    EXPECT_EQ(find_torchrun()->addresses[0], std::string("head:") + port);
  }
}

TEST_F(LaunchersTest, TorchrunsMasterMayBeAnIpv6Address) {
  set_torchrun();
  for (const char* host : {"::1", "[::1]"}) {
    set("MASTER_ADDR", host);
    EXPECT_EQ(find_torchrun()->addresses[0], "[::1]:29500");
  }
}

TEST_F(LaunchersTest, TorchrunWithOneProcessIsNothing) {
  EXPECT_FALSE(find_torchrun());
  for (const char* size : {"", "0", "1"}) {
    set_all({{"WORLD_SIZE", size}});
    EXPECT_FALSE(find_torchrun());
  }
  set_all({{"RANK", "3"}, {"MASTER_ADDR", "head"}});
  EXPECT_FALSE(find_torchrun());
}

TEST_F(LaunchersTest, TorchrunSaysWhatIsMissing) {
  set_torchrun();
  unset("MASTER_PORT");
  EXPECT_ERROR(InvalidArgumentError,
               "WORLD_SIZE=4 says that torchrun started several processes, but MASTER_PORT is not "
               "set: start them with torchrun, or unset WORLD_SIZE",
               find_torchrun());
  set("MASTER_ADDR", "");
  EXPECT_ERROR(InvalidArgumentError, "MASTER_ADDR and MASTER_PORT are not set", find_torchrun());
  unset("RANK");
  EXPECT_ERROR(InvalidArgumentError, "RANK is not set", find_torchrun());
}

TEST_F(LaunchersTest, TorchrunQuotesWhatMakesNoSense) {
  const std::pair<const char*, const char*> cases[] = {{"RANK", "4"},
                                                       {"RANK", "-1"},
                                                       {"RANK", "one"},
                                                       {"WORLD_SIZE", "4.0"},
                                                       {"WORLD_SIZE", "999999999999"},
                                                       {"MASTER_PORT", "0"},
                                                       {"MASTER_PORT", "65536"},
                                                       {"MASTER_PORT", "http"},
                                                       {"MASTER_ADDR", "a b"},
                                                       {"MASTER_ADDR", "tcp://head"}};
  for (const auto& each : cases) {
    const auto &name = each.first, &value = each.second;
    set_torchrun();
    set(name, value);
    EXPECT_ERROR(InvalidArgumentError, std::string(name) + "=" + value + ": expected",
                 find_torchrun());
  }
}

TEST_F(LaunchersTest, SlurmDealsRanksInBlocks) {
  set_slurm("n[1-3]", "2(x2),1");
  const auto launch = find_slurm();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "Slurm");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_THAT(launch->addresses,
              ElementsAre("n1:12000", "n1:12001", "n2:12000", "n2:12001", "n3:12000"));
}

TEST_F(LaunchersTest, SlurmDealsRanksInTurn) {
  set_slurm("n[1-3]", "2(x2),1");
  set("SLURM_DISTRIBUTION", "cyclic:block");
  EXPECT_THAT(find_slurm()->addresses,
              ElementsAre("n1:12000", "n2:12000", "n3:12000", "n1:12001", "n2:12001"));
}

TEST_F(LaunchersTest, SlurmLeavesOpenWhereRanksAreIfItDoesNotSay) {
  const auto first_only = ElementsAre("n1:12000", "", "", "", "");
  set_slurm("n[1-3]", "2(x2),1");
  set("SLURM_DISTRIBUTION", "plane=2");
  EXPECT_THAT(find_slurm()->addresses, first_only);
  for (const char* counts : {"", "2(x2)", "1(x3)"}) {
    set_slurm("n[1-3]", counts);
    EXPECT_THAT(find_slurm()->addresses, first_only) << counts;
  }
}

TEST_F(LaunchersTest, SlurmsPortFollowsFromJobAndStep) {
  const auto address = [](const char* job, const char* step) {
    set_slurm("n1", "5");
    set("SLURM_JOB_ID", job);
    set("SLURM_STEP_ID", step);
    return find_slurm()->addresses[0];
  };
  EXPECT_EQ(address("7", "0"), "n1:12917");
  EXPECT_EQ(address("7", "1"), "n1:12918");
  EXPECT_EQ(address("8", "0"), "n1:13048");
  EXPECT_EQ(address("4294967295", "4294967295"), "n1:14940");
}

TEST_F(LaunchersTest, SlurmCountsOnlyAStepOfSeveralTasks) {
  EXPECT_FALSE(find_slurm());
  set_slurm("n1", "5");
  set("SLURM_STEP_NUM_TASKS", "1");
  EXPECT_FALSE(find_slurm());
  // A batch script: one process of an allocation for five.
  set_all({{"SLURM_NTASKS", "5"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}});
  EXPECT_FALSE(find_slurm());
}

TEST_F(LaunchersTest, SlurmLeavesRanksOfMpirunAlone) {
  set_slurm("n[1-5]", "1(x5)");
  set("OMPI_COMM_WORLD_SIZE", "10");
  EXPECT_FALSE(find_slurm());
  unset("OMPI_COMM_WORLD_SIZE");
  set("PMI_SIZE", "10");
  EXPECT_FALSE(find_slurm());
  set("PMI_SIZE", "5");
  EXPECT_TRUE(find_slurm()) << "srun --mpi=pmi2";
}

TEST_F(LaunchersTest, SlurmSaysWhatIsMissing) {
  set_slurm("n1", "5");
  unset("SLURM_STEP_NODELIST");
  EXPECT_ERROR(InvalidArgumentError,
               "SLURM_STEP_NUM_TASKS=5 says that srun started several processes, but "
               "SLURM_STEP_NODELIST is not set",
               find_slurm());
  unset("SLURM_PROCID");
  EXPECT_ERROR(InvalidArgumentError, "SLURM_PROCID is not set", find_slurm());
}

TEST_F(LaunchersTest, SlurmQuotesWhatMakesNoSense) {
  const std::pair<const char*, const char*> cases[] = {{"SLURM_STEP_NUM_TASKS", "five"},
                                                       {"SLURM_PROCID", "5"},
                                                       {"SLURM_JOB_ID", "x"},
                                                       {"SLURM_STEP_ID", "batch"},
                                                       {"SLURM_STEP_NODELIST", "n[1-"},
                                                       {"SLURM_STEP_NODELIST", "a b"},
                                                       {"SLURM_STEP_TASKS_PER_NODE", "5(y"}};
  for (const auto& each : cases) {
    const auto &name = each.first, &value = each.second;
    set_slurm("n1", "5");
    set(name, value);
    EXPECT_ERROR(InvalidArgumentError, std::string(name) + "=" + value + ": ", find_slurm());
  }
}

TEST_F(LaunchersTest, HostsAreExpanded) {
  const auto hosts = [](const std::string& list) { return expand_hosts("NODES", list); };
  EXPECT_THAT(hosts("n1"), ElementsAre("n1"));
  EXPECT_THAT(hosts("node[1-3,7],gpu-[01-02]"),
              ElementsAre("node1", "node2", "node3", "node7", "gpu-01", "gpu-02"));
  EXPECT_THAT(hosts("b,a"), ElementsAre("b", "a"));
  EXPECT_THAT(hosts("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(hosts("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(hosts("r[1-2]n[0,5].lan"),
              ElementsAre("r1n0.lan", "r1n5.lan", "r2n0.lan", "r2n5.lan"));
}

TEST_F(LaunchersTest, HostsThatCannotBeExpandedAreQuoted) {
  for (const char* bad :
       {"", ",", "a,,b", "a,", "n[1-2", "n1-2]", "n[[1]]", "n[]", "n[1-]", "n[-2]", "n[2-1]",
        "n[a-b]", "n[1,]", "n[0-9999999]", "n[0-999][0-999][0-999]", "n[1-99999999999999999999]"})
    EXPECT_ERROR(InvalidArgumentError, "NODES=" + std::string(bad) + ": ",
                 expand_hosts("NODES", bad));
}

TEST_F(LaunchersTest, CountsAreExpanded) {
  EXPECT_THAT(expand_counts("COUNTS", "4"), ElementsAre(4));
  EXPECT_THAT(expand_counts("COUNTS", "2(x3),1"), ElementsAre(2, 2, 2, 1));
  for (const char* bad : {"", "2(x", "2(x3", "2(x)", "(x2)", "2x3", "-1", "1,", "9(x99999999)"})
    EXPECT_ERROR(InvalidArgumentError, "COUNTS=" + std::string(bad) + ": ",
                 expand_counts("COUNTS", bad));
}

TEST_F(LaunchersTest, OpenMpiGivesARank) {
  set_all({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  const auto launch = find_mpi();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "Open MPI");
  EXPECT_EQ(launch->rank, 3);
  EXPECT_THAT(launch->addresses, ElementsAre("", "", "", ""));
}

TEST_F(LaunchersTest, MpichGivesARank) {
  set_all({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  const auto launch = find_mpi();
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->launcher, "MPICH");
  EXPECT_EQ(launch->rank, 1);
}

TEST_F(LaunchersTest, MpirunNamesAJobOfOneHost) {
  set_all({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}});
  EXPECT_EQ(find_mpi()->host_job, "") << "it may be on several";
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  EXPECT_EQ(find_mpi()->host_job, "");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  set("OMPI_MCA_ess_base_jobid", "77");
  EXPECT_EQ(find_mpi()->host_job, "77-" + std::to_string(getppid()));
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "OMPI_MCA_ess_base_jobid"}) unset(name);
  set_all({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  EXPECT_EQ(find_mpi()->host_job, "");
  set("MPI_LOCALNRANKS", "2");
  EXPECT_EQ(find_mpi()->host_job, "0-" + std::to_string(getppid()));
}

TEST_F(LaunchersTest, MpirunWithOneProcessIsNothing) {
  EXPECT_FALSE(find_mpi());
  set_all({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}});
  EXPECT_FALSE(find_mpi());
  set_all({{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}});
  EXPECT_FALSE(find_mpi());
}

TEST_F(LaunchersTest, MpirunSaysWhatIsWrong) {
  set_all({{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_ERROR(InvalidArgumentError, "OMPI_COMM_WORLD_RANK is not set", find_mpi());
  set_all({{"PMI_SIZE", "2"}, {"PMI_RANK", "2"}});
  EXPECT_ERROR(InvalidArgumentError, "PMI_RANK=2: expected a whole number from 0 to 1", find_mpi());
}

}  // namespace
}  // namespace tutti::cluster
