// SPDX-License-Identifier: Apache-2.0
#include "cluster/tf_config.h"

#include "cluster/environment.h"
#include "cluster/membership.h"
#include "support/expect.h"

namespace tutti {
namespace {

using ::testing::StartsWith;

class TFConfigTest : public ::tutti::testing::EnvironmentTest {};

constexpr const char* kConfig = R"({
  "cluster": {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222"]},
  "task": {"type": "ps", "index": 0}})";

const ClusterSpec kConfigured{
    {{"ps", {"ps0:2222", "ps1:2222"}}, {"worker", {"worker0:2222", "worker1:2222"}}}};

// C233
TEST_F(TFConfigTest, GivesTheClusterAndTheTask) {
  set("TF_CONFIG", kConfig);
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(), kConfigured);
  EXPECT_EQ(resolver.task_type(), "ps");
  EXPECT_EQ(resolver.task_id(), 0);
  EXPECT_EQ(resolver.rpc_layer(), "");
}

// C233
TEST_F(TFConfigTest, MayBeSparse) {
  set("TF_CONFIG", R"({"cluster": {"ps": ["ps0:2222"], "worker": {"1": "worker1:2222"}},
                       "task": {"type": "worker", "index": 1}})");
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.cluster_spec(),
            ClusterSpec({{"ps", {"ps0:2222"}}, {"worker", {{1, "worker1:2222"}}}}));
  EXPECT_EQ(resolver.master(), "worker1:2222");
}

// C233
TEST_F(TFConfigTest, MasterIsTheAddressOfItsOwnTask) {
  set("TF_CONFIG", kConfig);
  EXPECT_EQ(TFConfigClusterResolver().master(), "ps0:2222");
}

// C233
TEST_F(TFConfigTest, MasterIsTheAddressOfTheTaskGiven) {
  set("TF_CONFIG", kConfig);
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.master("worker", 1), "worker1:2222");
  EXPECT_EQ(resolver.master({}, 1), "ps1:2222");
  EXPECT_EQ(resolver.master("worker", 1, "grpc"), "grpc://worker1:2222");
  EXPECT_ERROR(InvalidArgumentError, "no task 2", resolver.master("worker", 2));
  EXPECT_ERROR(InvalidArgumentError, "no job \"gardener\"", resolver.master("gardener", 0));
}

// C233
TEST_F(TFConfigTest, SessionMasterGoesFirst) {
  set("TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}, "session_master": "c:1",
                       "rpc_layer": "grpc", "task": {"type": "worker", "index": 0}})");
  EXPECT_EQ(TFConfigClusterResolver().master(), "c:1");
  EXPECT_EQ(TFConfigClusterResolver().master("worker", 1), "c:1");
}

// C233
TEST_F(TFConfigTest, RpcLayerIsAPrefix) {
  set("TF_CONFIG", R"({"cluster": {"worker": ["a:1", "b:1"]}, "rpc_layer": "grpc",
                       "task": {"type": "worker", "index": 0}})");
  EXPECT_EQ(TFConfigClusterResolver().rpc_layer(), "grpc");
  EXPECT_EQ(TFConfigClusterResolver().master(), "grpc://a:1");
  EXPECT_EQ(TFConfigClusterResolver({.rpc_layer = "other"}).master(), "other://a:1");
  EXPECT_EQ(TFConfigClusterResolver({.rpc_layer = ""}).master(), "a:1");
}

// C233
TEST_F(TFConfigTest, ArgumentsGoBeforeIt) {
  set("TF_CONFIG", kConfig);
  TFConfigClusterResolver resolver({.task_type = "worker", .task_id = 1});
  EXPECT_EQ(resolver.task_type(), "worker");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.master(), "worker1:2222");
  resolver.set_task_type("ps");
  resolver.set_task_id(0);
  resolver.set_rpc_layer("grpc");
  EXPECT_EQ(resolver.task_type(), "ps");
  EXPECT_EQ(resolver.task_id(), 0);
  EXPECT_EQ(resolver.master(), "grpc://ps0:2222");
}

// C233
TEST_F(TFConfigTest, ATaskTypeThatIsANumberBecomesText) {
  set("TF_CONFIG", R"({"task": {"type": 7, "index": 0}})");
  EXPECT_EQ(TFConfigClusterResolver().task_type(), "7");
}

// C233
TEST_F(TFConfigTest, AnIndexThatIsTextBecomesANumber) {
  set("TF_CONFIG", R"({"task": {"type": "worker", "index": "1"}})");
  EXPECT_EQ(TFConfigClusterResolver().task_id(), 1);
}

// C233
TEST_F(TFConfigTest, IsNothingIfItIsNotSet) {
  for (const char* text : {"", "{}", R"({"cluster": {}})", R"({"environment": "cloud"})"}) {
    set("TF_CONFIG", text);
    const TFConfigClusterResolver resolver;
    EXPECT_FALSE(resolver.cluster_spec());
    EXPECT_EQ(resolver.task_type(), "");
    EXPECT_EQ(resolver.task_id(), std::nullopt);
    EXPECT_EQ(resolver.master(), "");
  }
  unset("TF_CONFIG");
  EXPECT_FALSE(TFConfigClusterResolver().cluster_spec());
  EXPECT_EQ(TFConfigClusterResolver().master(), "");
}

// C233
TEST_F(TFConfigTest, MasterIsEmptyForASingleTask) {
  set("TF_CONFIG", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})");
  EXPECT_EQ(TFConfigClusterResolver().master(), "");
}

// C233
TEST_F(TFConfigTest, AcceleratorsAreCountedPerTask) {
  EXPECT_EQ(TFConfigClusterResolver().num_accelerators(), 0);
  const TFConfigClusterResolver resolver({.num_accelerators = {{"GPU", 2}, {"TPU", 8}}});
  EXPECT_EQ(resolver.num_accelerators(), 2);
  EXPECT_EQ(resolver.num_accelerators("TPU"), 8);
  EXPECT_EQ(resolver.num_accelerators("NPU"), 0);
  EXPECT_ERROR(InvalidArgumentError, "num_accelerators has -1 of type \"GPU\"",
               TFConfigClusterResolver({.num_accelerators = {{"GPU", -1}}}));
}

TEST_F(TFConfigTest, IsReadAfreshEveryTime) {
  const TFConfigClusterResolver resolver;
  EXPECT_FALSE(resolver.cluster_spec());
  set("TF_CONFIG", kConfig);
  EXPECT_EQ(resolver.cluster_spec(), kConfigured);
  set("TF_CONFIG", R"({"task": {"type": "chief", "index": 0}})");
  EXPECT_FALSE(resolver.cluster_spec());
  EXPECT_EQ(resolver.task_type(), "chief");
}

TEST_F(TFConfigTest, QuotesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"cluster", "not valid JSON: parse error at line 1, column 1"},
      {R"({"cluster": {"worker": ["a:1", ]}})", "not valid JSON: parse error at line 1"},
      {R"([1])", "expected an object with \"cluster\" and \"task\", got [1]"},
      {R"({"cluster": ["a:1"]})", "cluster: expected an object"},
      {R"({"cluster": {"worker": ["a:1", "b"]}})",
       "cluster: task 1 of the job \"worker\" has the address \"b\"; expected HOST:PORT"},
      {R"({"cluster": {"worker": ["a:1", ""]}})",
       "cluster: task 1 of the job \"worker\" has the address \"\"; expected HOST:PORT"},
      {R"({"cluster": {"worker": ["a:1", "b:70000"]}})", "\"b:70000\"; expected HOST:PORT"},
      {R"({"cluster": {"worker": ["a:1", "a:1"]}})", "have the same address \"a:1\""},
      {R"({"cluster": {}, "cluster": {}})", "the key \"cluster\" appears twice"},
      {R"({"task": 5})", "\"task\" is 5; expected an object like"},
      {R"({"task": {"type": ["worker"]}})", "the task's \"type\" is [\"worker\"]; expected chief"},
      {R"({"task": {"index": -1}})", "the task's \"index\" is -1; expected a whole number"},
      {R"({"task": {"index": 1.5}})", "the task's \"index\" is 1.5; expected a whole number"},
      {R"({"task": {"index": true}})", "the task's \"index\" is true; expected a whole number"},
      {R"({"task": {"index": "one"}})", "the task's \"index\" is \"one\"; expected a whole number"},
      {R"({"task": {"index": 4294967296}})", "the task's \"index\" is 4294967296; expected"},
      {R"({"rpc_layer": 5})", "\"rpc_layer\" is 5; expected a string"},
      {R"({"session_master": {}})", "\"session_master\" is {}; expected a string"},
  };
  for (const auto& each : cases) {
    const auto &text = each.first, &expected = each.second;
    SCOPED_TRACE(text);
    EXPECT_ERROR(InvalidArgumentError, expected, cluster::parse_tf_config(text));
    EXPECT_THAT(
        ::tutti::testing::error_of<InvalidArgumentError>([&] { cluster::parse_tf_config(text); }),
        StartsWith("TF_CONFIG: "));
  }
}

// Whether the jobs are known matters to those that train, not to those that ask for the task.
TEST_F(TFConfigTest, WithUnknownJobsStillAnswers) {
  set("TF_CONFIG", R"({"cluster": {"gardener": ["a:1", "b:1"], "worker": ["c:1"]},
                       "task": {"type": "gardener", "index": 1}})");
  const TFConfigClusterResolver resolver;
  EXPECT_EQ(resolver.task_type(), "gardener");
  EXPECT_EQ(resolver.task_id(), 1);
  EXPECT_EQ(resolver.cluster_spec().num_tasks("gardener"), 2);
  EXPECT_EQ(resolver.master(), "b:1");
  EXPECT_ERROR(InvalidArgumentError, "TF_CONFIG: the cluster names the job \"gardener\"; expected",
               cluster::membership_from_environment());
}

TEST_F(TFConfigTest, IsAnErrorInEveryAnswer) {
  set("TF_CONFIG", "{");
  const TFConfigClusterResolver resolver;
  EXPECT_ERROR(InvalidArgumentError, "TF_CONFIG", resolver.cluster_spec());
  EXPECT_ERROR(InvalidArgumentError, "TF_CONFIG", resolver.task_type());
  EXPECT_ERROR(InvalidArgumentError, "TF_CONFIG", resolver.task_id());
  EXPECT_ERROR(InvalidArgumentError, "TF_CONFIG", resolver.rpc_layer());
  EXPECT_ERROR(InvalidArgumentError, "TF_CONFIG", resolver.master());
}

}  // namespace
}  // namespace tutti
