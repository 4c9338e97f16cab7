// SPDX-License-Identifier: Apache-2.0
#include <tutti/cluster.h>

#include <sstream>
#include <type_traits>

#include "support/expect.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const ClusterSpec kCluster{{{"chief", {"a:1"}},
                            {"worker", {"b:1", "c:1"}},
                            {"ps", {"d:1", "e:1"}},
                            {"evaluator", {"f:1"}}}};
const ClusterSpec kWorkers{{{"worker", {"127.0.0.1:1", "127.0.0.1:2"}}}};
const ClusterSpec kSparse{{{"worker", {{1, "b:1"}, {3, "d:1"}}}}};

TEST(ClusterSpec, IsMadeAsTheContractDoes) {
  const ClusterSpec cluster{{{"worker", {"127.0.0.1:1"}}}};
  EXPECT_THAT(cluster.jobs(), ElementsAre("worker"));
  EXPECT_EQ(cluster.num_tasks("worker"), 1);
  EXPECT_EQ(cluster.task_address("worker", 0), "127.0.0.1:1");
}

TEST(ClusterSpec, IsFalseIfItIsEmpty) {
  EXPECT_FALSE(ClusterSpec());
  EXPECT_FALSE(ClusterSpec::from_json("{}"));
  EXPECT_TRUE(kWorkers);
}

TEST(ClusterSpec, SortsItsJobs) {
  EXPECT_THAT(kCluster.jobs(), ElementsAre("chief", "evaluator", "ps", "worker"));
  EXPECT_TRUE(kCluster.contains("ps"));
  EXPECT_FALSE(kCluster.contains("gardener"));
}

TEST(ClusterSpec, KnowsTheTasksOfAJob) {
  EXPECT_EQ(kCluster.num_tasks("worker"), 2);
  EXPECT_THAT(kCluster.task_indices("worker"), ElementsAre(0, 1));
  EXPECT_EQ(kCluster.task_address("worker", 1), "c:1");
  EXPECT_THAT(kCluster.job_tasks("worker"), ElementsAre("b:1", "c:1"));
}

TEST(ClusterSpec, PadsTheHolesOfASparseJob) {
  EXPECT_EQ(kSparse.num_tasks("worker"), 2);
  EXPECT_THAT(kSparse.task_indices("worker"), ElementsAre(1, 3));
  EXPECT_EQ(kSparse.task_address("worker", 3), "d:1");
  EXPECT_THAT(kSparse.job_tasks("worker"), ElementsAre(std::nullopt, "b:1", std::nullopt, "d:1"));
}

TEST(ClusterSpec, MayHoldAJobWithoutTasks) {
  const ClusterSpec cluster{{{"worker", {}}, {"chief", {"a:1"}}}};
  EXPECT_EQ(cluster.num_tasks("worker"), 0);
  EXPECT_THAT(cluster.job_tasks("worker"), ElementsAre());
  EXPECT_EQ(cluster.to_string(), R"({"chief":["a:1"],"worker":[]})");
}

TEST(ClusterSpec, TakesAddressesThatAreComputed) {
  const std::vector<std::string> addresses{"a:1", "b:1"};
  EXPECT_EQ(ClusterSpec({{"worker", addresses}}), ClusterSpec({{"worker", {"a:1", "b:1"}}}));
  std::map<std::string, ClusterSpec::Tasks> jobs;
  jobs["worker"] = std::map<int, std::string>{{0, "a:1"}, {1, "b:1"}};
  EXPECT_EQ(ClusterSpec(jobs), ClusterSpec({{"worker", addresses}}));
}

TEST(ClusterSpec, IsEqualByContent) {
  const ClusterSpec pairs{{{"worker", {{1, "127.0.0.1:2"}, {0, "127.0.0.1:1"}}}}};
  EXPECT_EQ(pairs, kWorkers);
  EXPECT_EQ(ClusterSpec(kCluster.as_dict()), kCluster);
  EXPECT_NE(kWorkers, kCluster);
  EXPECT_NE(kSparse, ClusterSpec({{"worker", {"b:1", "d:1"}}}));
}

TEST(ClusterSpec, PrintsItsJobsSorted) {
  const ClusterSpec cluster{{{"worker", {"b:1", "c:1"}}, {"ps", {{1, "e:1"}}}, {"chief", {"a:1"}}}};
  EXPECT_EQ(cluster.to_string(), R"({"chief":["a:1"],"ps":{"1":"e:1"},"worker":["b:1","c:1"]})");
  std::ostringstream text;
  text << cluster;
  EXPECT_EQ(text.str(), cluster.to_string());
}

TEST(ClusterSpec, ReadsWhatItPrints) {
  for (const ClusterSpec& cluster : {ClusterSpec(), kCluster, kWorkers, kSparse})
    EXPECT_EQ(ClusterSpec::from_json(cluster.to_string()), cluster);
}

TEST(ClusterSpec, NamesTheJobItDoesNotKnow) {
  const std::string expected = "no job \"gardener\"; its jobs are: worker";
  EXPECT_ERROR(InvalidArgumentError, expected, kWorkers.num_tasks("gardener"));
  EXPECT_ERROR(InvalidArgumentError, expected, kWorkers.task_indices("gardener"));
  EXPECT_ERROR(InvalidArgumentError, expected, kWorkers.task_address("gardener", 0));
  EXPECT_ERROR(InvalidArgumentError, expected, kWorkers.job_tasks("gardener"));
  EXPECT_ERROR(InvalidArgumentError, "its jobs are: none", ClusterSpec().num_tasks("worker"));
}

TEST(ClusterSpec, NamesTheTaskItDoesNotHave) {
  EXPECT_ERROR(InvalidArgumentError, "no task 2; its tasks are: 0, 1",
               kWorkers.task_address("worker", 2));
  EXPECT_ERROR(InvalidArgumentError, "no task 2; its tasks are: 1, 3",
               kSparse.task_address("worker", 2));
  EXPECT_ERROR(InvalidArgumentError, "no task -1", kWorkers.task_address("worker", -1));
}

TEST(ClusterSpec, WantsAHostAndAPort) {
  for (const char* bad :
       {"b", "b:", ":5000", "b:0", "b:65536", "b:-1", "b:+1", "b:5000x", "b:0x50", "b:007", "b c:1",
        "http://b:1", "::1:5000", "[]:1", "[::1]", "b:99999999999999999999", "b:1 "}) {
    SCOPED_TRACE(bad);
    const std::string text = ::tutti::testing::error_of<InvalidArgumentError>([&] {
      ClusterSpec{{{"worker", {"a:1", bad}}}};
    });
    EXPECT_THAT(text, HasSubstr("task 1 of the job \"worker\" has the address \"" +
                                std::string(bad) + "\""));
    EXPECT_THAT(text, HasSubstr("expected HOST:PORT with a port from 1 to 65535"));
  }
  const ClusterSpec good{
      {{"worker", {"a:1", "10.0.0.1:65535", "[::1]:1", "[fe80::1%eth0]:1", "my_host.lan-1:80"}}}};
  EXPECT_EQ(good.num_tasks("worker"), 5);
}

TEST(ClusterSpec, MayLeaveAddressesOpen) {
  const ClusterSpec cluster{{{"worker", {"a:1", "", ""}}}};
  EXPECT_EQ(cluster.num_tasks("worker"), 3);
  EXPECT_EQ(cluster.task_address("worker", 2), "");
}

TEST(ClusterSpec, GivesAnAddressToOneTaskOnly) {
  EXPECT_ERROR(InvalidArgumentError,
               "task 0 of the job \"worker\" and task 2 of the job \"worker\" have the same "
               "address \"a:1\"",
               ClusterSpec({{"worker", {"a:1", "b:1", "a:1"}}}));
  EXPECT_ERROR(InvalidArgumentError, "the same address \"a:1\"",
               ClusterSpec({{"chief", {"a:1"}}, {"worker", {"a:1"}}}));
}

TEST(ClusterSpec, RefusesAnIndexOutOfReach) {
  EXPECT_ERROR(InvalidArgumentError, "has the index -1", ClusterSpec({{"worker", {{-1, "a:1"}}}}));
  EXPECT_ERROR(InvalidArgumentError, "has the index 2147483647",
               ClusterSpec({{"worker", {{2147483647, "a:1"}}}}));
}

TEST(ClusterSpec, RefusesAJobWithoutAName) {
  EXPECT_ERROR(InvalidArgumentError, "empty name", (ClusterSpec{{{"", {"a:1"}}}}));
}

// C235. A list does not compile; as text it is an error.
TEST(ClusterSpec, IsNormalizedFromWhatConverts) {
  EXPECT_EQ(normalize_cluster_spec({{{"worker", {"127.0.0.1:1", "127.0.0.1:2"}}}}), kWorkers);
  EXPECT_EQ(normalize_cluster_spec(kWorkers.as_dict()), kWorkers);
  EXPECT_EQ(normalize_cluster_spec(kWorkers), kWorkers);
  EXPECT_EQ(normalize_cluster_spec(ClusterSpec::from_json(kWorkers.to_string())), kWorkers);
  static_assert(!std::is_constructible_v<ClusterSpec, std::vector<std::string>>);
  EXPECT_ERROR(InvalidArgumentError, R"(got ["127.0.0.1:1"])",
               ClusterSpec::from_json(R"(["127.0.0.1:1"])"));
}

TEST(ClusterSpec, QuotesWhatIsWrongInJson) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"worker": )", "not valid JSON: parse error at line 1"},
      {"", "not valid JSON"},
      {R"({"worker": 5})", "the job \"worker\" is 5; expected a list of addresses"},
      {R"({"worker": "a:1"})", "the job \"worker\" is \"a:1\"; expected a list of addresses"},
      {R"({"worker": null})", "the job \"worker\" is null"},
      {R"({"worker": ["a:1", 5]})", "task 1 of the job \"worker\" has the address 5"},
      {R"({"worker": {"0": ["a:1"]}})", "task 0 of the job \"worker\" has the address [\"a:1\"]"},
      {R"({"worker": {"x": "a:1"}})", "has the index \"x\"; expected a whole number"},
      {R"({"worker": {"-1": "a:1"}})", "has the index \"-1\"; expected a whole number"},
      {R"({"worker": {"1048576": "a:1"}})", "expected a whole number from 0 to 1048575"},
      {R"({"worker": {"1": "a:1", "01": "b:1"}})", "has the index 1 twice"},
      {R"({"worker": {"1": "a:1", "1": "b:1"}})", "the key \"1\" appears twice"},
      {R"({"worker": ["a:1"], "worker": ["b:1"]})", "the key \"worker\" appears twice"},
      {R"({"worker": [[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]})", "nested more than 16 deep"},
  };
  for (const auto& each : cases) {
    const auto &text = each.first, &expected = each.second;
    SCOPED_TRACE(text);
    EXPECT_ERROR(InvalidArgumentError, expected, ClusterSpec::from_json(text));
    EXPECT_ERROR(InvalidArgumentError, "ClusterSpec::from_json: ", ClusterSpec::from_json(text));
  }
}

TEST(ClusterSpec, ShortensWhatItQuotes) {
  const std::string text = ::tutti::testing::error_of<InvalidArgumentError>(
      [] { kWorkers.num_tasks(std::string(9999, 'x')); });
  EXPECT_LT(text.size(), 200u);
  EXPECT_THAT(text, HasSubstr("xxx…\""));
  EXPECT_ERROR(InvalidArgumentError, R"("a\x0a\"b\\")", kWorkers.num_tasks("a\n\"b\\"));
}

TEST(Validation, AcceptsTheJobsOfTraining) {
  validate_cluster_spec(ClusterSpec());
  validate_cluster_spec(kCluster);
  for (const std::string& job : kCluster.jobs()) validate_cluster_spec(kCluster, job, 0);
  validate_cluster_spec(kSparse, "worker", 3);
}

TEST(Validation, NamesAJobThatIsNotExpected) {
  EXPECT_ERROR(InvalidArgumentError,
               "names the job \"gardener\"; expected chief, worker, evaluator or ps",
               validate_cluster_spec({{{"gardener", {"a:1"}}, {"worker", {"b:1"}}}}));
  EXPECT_ERROR(InvalidArgumentError,
               "task_type is \"gardener\"; expected chief, worker, evaluator or ps",
               validate_cluster_spec(kWorkers, "gardener", 0));
}

// C236
TEST(Validation, WantsTheTaskInTheCluster) {
  EXPECT_ERROR(InvalidArgumentError,
               "task_type is \"chief\", which the cluster does not have; its jobs are: worker",
               is_chief(kWorkers, "chief", 0));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 2, but the tasks of the job \"worker\" are: 0, 1",
               is_chief(kWorkers, "worker", 2));
  EXPECT_ERROR(InvalidArgumentError, "task_id is -1", is_chief(kWorkers, "worker", -1));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 0, but the tasks of the job \"worker\" are: 1, 3",
               is_chief(kSparse, "worker", 0));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 0, but the tasks of the job \"worker\" are: none",
               is_chief({{{"worker", {}}}}, "worker", 0));
  EXPECT_ERROR(InvalidArgumentError, "its jobs are: none", is_chief({}, "worker", 0));
}

TEST(Validation, LetsAnEvaluatorStandAside) {
  EXPECT_TRUE(is_chief(kWorkers, "evaluator", 0));
  EXPECT_ERROR(InvalidArgumentError, "task_id is -1", is_chief(kWorkers, "evaluator", -1));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 1", is_chief(kCluster, "evaluator", 1));
}

// C238
TEST(Validation, RefusesASecondChiefOrEvaluator) {
  EXPECT_ERROR(InvalidArgumentError, "the cluster has 2 chiefs; expected 1 at most",
               id_in_cluster({{{"chief", {"a:1", "b:1"}}}}, "chief", 1));
  EXPECT_ERROR(InvalidArgumentError, "the cluster has 2 evaluators; expected 1 at most",
               validate_cluster_spec({{{"evaluator", {"a:1", "b:1"}}}}));
}

// C236
TEST(Chief, IsTheChiefOrElseWorkerZero) {
  EXPECT_TRUE(is_chief(kCluster, "chief", 0));
  EXPECT_FALSE(is_chief(kCluster, "worker", 0));
  EXPECT_FALSE(is_chief(kCluster, "worker", 1));
  EXPECT_FALSE(is_chief(kCluster, "ps", 0));
  EXPECT_TRUE(is_chief(kCluster, "evaluator", 0));
  EXPECT_TRUE(is_chief(kWorkers, "worker", 0));
  EXPECT_FALSE(is_chief(kWorkers, "worker", 1));
}

TEST(WorkerCount, CountsTheChiefAmongTheWorkers) {
  EXPECT_EQ(worker_count(kCluster, "chief"), 3);
  EXPECT_EQ(worker_count(kCluster, "worker"), 3);
  EXPECT_EQ(worker_count(kWorkers, "worker"), 2);
  EXPECT_EQ(worker_count(kCluster, "evaluator"), 1);
}

TEST(WorkerCount, CountsAnEvaluatorThatIsNotListed) {
  EXPECT_EQ(worker_count(kWorkers, "evaluator"), 1);
}

TEST(WorkerCount, RefusesAJobWithoutTasks) {
  const std::string expected = "worker_count: the job \"worker\" has no tasks";
  EXPECT_ERROR(InvalidArgumentError, expected, worker_count({{{"worker", {}}}}, "worker"));
  EXPECT_ERROR(InvalidArgumentError, expected,
               worker_count({{{"chief", {"a:1"}}, {"worker", {}}}}, "worker"));
  EXPECT_EQ(worker_count({{{"chief", {"a:1"}}, {"worker", {}}}}, "chief"), 1);
  EXPECT_ERROR(InvalidArgumentError, "the job \"evaluator\" has no tasks",
               worker_count({{{"evaluator", {}}, {"worker", {"a:1"}}}}, "evaluator"));
}

TEST(WorkerCount, RefusesPs) {
  EXPECT_ERROR(InvalidArgumentError, "task_type is \"ps\"; expected chief, worker or evaluator",
               worker_count(kCluster, "ps"));
  EXPECT_ERROR(InvalidArgumentError, "task_type is \"\"", worker_count(kCluster, ""));
}

// C238
TEST(IdInCluster, CountsFromTheChief) {
  EXPECT_EQ(id_in_cluster(kCluster, "chief", 0), 0);
  EXPECT_EQ(id_in_cluster(kCluster, "worker", 0), 1);
  EXPECT_EQ(id_in_cluster(kCluster, "worker", 1), 2);
  EXPECT_EQ(id_in_cluster(kCluster, "evaluator", 0), 0);
  EXPECT_EQ(id_in_cluster(kWorkers, "worker", 0), 0);
  EXPECT_EQ(id_in_cluster(kWorkers, "worker", 1), 1);
}

// C238
TEST(IdInCluster, RefusesPs) {
  EXPECT_ERROR(InvalidArgumentError, "task_type is \"ps\"; expected chief, worker or evaluator",
               id_in_cluster(kCluster, "ps", 0));
}

// C239
TEST(CollectiveLeader, IsTheChiefOrElseWorkerZero) {
  for (const auto& [type, id] : {std::pair("chief", 0), {"worker", 0}, {"worker", 1}, {"ps", 1}})
    EXPECT_EQ(collective_leader(kCluster, type, id), "/job:chief/replica:0/task:0");
  EXPECT_EQ(collective_leader(kWorkers, "worker", 1), "/job:worker/replica:0/task:0");
}

// C239
TEST(CollectiveLeader, IsEmptyForAnEvaluatorOrALoneProcess) {
  EXPECT_EQ(collective_leader(kCluster, "evaluator", 0), "");
  EXPECT_EQ(collective_leader(kWorkers, "evaluator", 0), "");
  EXPECT_EQ(collective_leader({}, "", 0), "");
  EXPECT_EQ(collective_leader({}, "worker", 0), "");
}

TEST(CollectiveLeader, NeedsAChiefOrAWorker) {
  EXPECT_ERROR(InvalidArgumentError, "neither a chief nor a worker",
               collective_leader({{{"ps", {"a:1"}}}}, "ps", 0));
}

TEST(CoordinationLeader, PrefersPs) {
  EXPECT_EQ(coordination_leader(kCluster), "/job:ps/replica:0/task:0");
  EXPECT_EQ(coordination_leader({{{"chief", {"a:1"}}, {"worker", {"b:1"}}}}),
            "/job:chief/replica:0/task:0");
  EXPECT_EQ(coordination_leader(kWorkers), "/job:worker/replica:0/task:0");
  EXPECT_EQ(coordination_leader({}), "");
}

}  // namespace
}  // namespace tutti
