// SPDX-License-Identifier: Apache-2.0
#include <tutti/device.h>

#include <vector>

#include "support/expect.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeviceSpec, ParsesEveryPart) {
  const DeviceSpec spec = DeviceSpec::parse("/job:worker/replica:1/task:2/device:GPU:3");
  EXPECT_EQ(spec.job, "worker");
  EXPECT_EQ(spec.replica, 1);
  EXPECT_EQ(spec.task, 2);
  EXPECT_EQ(spec.type, "GPU");
  EXPECT_EQ(spec.index, 3);
  EXPECT_EQ(DeviceSpec::parse(""), DeviceSpec{});
  EXPECT_EQ(DeviceSpec::parse("/"), DeviceSpec{});
}

// A name, and how it prints once it has been parsed.
TEST(DeviceSpec, PrintsWhatItParsed) {
  const std::vector<std::pair<const char*, const char*>> table = {
      {"", ""},
      {"/", ""},
      {"cpu:1", "/device:CPU:1"},
      {"/cpu:1", "/device:CPU:1"},
      {"/CPU:1", "/device:CPU:1"},
      {"/device:CPU:1", "/device:CPU:1"},
      {"device:cpu:1", "/device:CPU:1"},
      {"/device:gpu:0", "/device:GPU:0"},
      {"gpu", "/device:GPU:*"},
      {"/gpu:*", "/device:GPU:*"},
      {"/device:GPU", "/device:GPU:*"},
      {"/device:GPU:*", "/device:GPU:*"},
      {"tpu:2", "/device:TPU:2"},
      {"Custom:3", "/device:CUSTOM:3"},
      {"epu:4", "/device:EPU:4"},
      // Only "cpu" and "gpu" change their case in the long form.
      {"/device:xyz:0", "/device:xyz:0"},
      {"/device:Gpu:0", "/device:Gpu:0"},
      {"/job:muu", "/job:muu"},
      {"/job:*/task:1", "/task:1"},
      {"/replica:*/task:*", ""},
      {"/device:GPU:2/job:muu", "/job:muu/device:GPU:2"},
      {"/task:7/replica:3", "/replica:3/task:7"},
      {"job:a_1/cpu:0", "/job:a_1/device:CPU:0"}};
  for (const auto& [name, printed] : table)
    EXPECT_EQ(DeviceSpec::parse(name).to_string(), printed) << name;
}

TEST(DeviceSpec, RefusesWhatIsNoDeviceNameAndSaysWhy) {
  struct Bad {
    const char *name, *why;
  };
  const Bad table[] = {{"/foo:0", "unknown part \"foo:0\""},
                       {"nonsense", "unknown part \"nonsense\""},
                       {"/job", "unknown part \"job\""},
                       {"/device", "unknown part \"device\""},
                       {"/Job:a", "unknown part"},
                       {"/job:", "not a job name"},
                       {"/job:1a", "\"1a\" is not a job name"},
                       {"/job:a-b", "\"a-b\" is not a job name"},
                       {"/job:a b", "not a job name"},
                       {"/replica:x", "replica \"x\" is not a whole number"},
                       {"/task:", "task \"\" is not a whole number"},
                       {"/task:-1", "task \"-1\" is not a whole number"},
                       {"/task:1.5", "task \"1.5\""},
                       {"/cpu:0x1", "index \"0x1\""},
                       {"/cpu:+1", "index \"+1\""},
                       {"/cpu: 1", "index \" 1\""},
                       {"/cpu:", "index \"\""},
                       {"/cpu:1:2", "index \"1:2\""},
                       {"/cpu:99999999999", "index \"99999999999\""},
                       {"/device:", "\"\" is not a device type"},
                       {"/device:0", "\"0\" is not a device type"},
                       {"/device:C PU:0", "not a device type"},
                       {"/device:CPU:", "index \"\""},
                       {"/cpu:0/cpu:0", "two device types"},
                       {"/cpu:0/device:CPU:0", "two device types"}};
  for (const Bad& bad : table)
    EXPECT_THAT(testing::error_of<InvalidArgumentError>([&] { DeviceSpec::parse(bad.name); }),
                AllOf(HasSubstr("\"" + std::string(bad.name) + "\" is not a device name"),
                      HasSubstr(bad.why)));
}

// C080
TEST(DeviceSpec, PrintsAndRefusesLikeTheReference) {
  EXPECT_EQ(DeviceSpec::parse("/replica:1/task:0/cpu:0").to_string(),
            "/replica:1/task:0/device:CPU:0");
  EXPECT_EQ((DeviceSpec{.job = "foo", .type = "CPU"}).to_string(), "/job:foo/device:CPU:*");
  EXPECT_ERROR(InvalidArgumentError, "two device types",
               DeviceSpec::parse("/job:muu/device:GPU:2/cpu:0"));
}

// C080
TEST(DeviceSpec, MergeTakesEveryPartThatTheOtherGives) {
  struct Merge {
    const char *first, *second, *merged;
  };
  const Merge table[] = {
      {"", "", ""},
      {"/job:foo/replica:0", "", "/job:foo/replica:0"},
      {"", "/task:1/gpu:2", "/task:1/device:GPU:2"},
      {"/job:foo/replica:0", "/task:1/gpu:2", "/job:foo/replica:0/task:1/device:GPU:2"},
      {"/job:foo/task:1/gpu:2", "/job:bar/task:3", "/job:bar/task:3/device:GPU:2"},
      {"/cpu:0", "/gpu:1", "/device:GPU:1"},
      {"/gpu:*", "/cpu:0", "/device:CPU:0"},
      {"/gpu:1", "/gpu:*", "/device:GPU:1"},
      {"/job:muu/device:MyFunnyDevice:2", "/task:1", "/job:muu/task:1/device:MyFunnyDevice:2"},
      {"/job:muu/gpu:1", "/device:MyFunnyDevice:0", "/job:muu/device:MyFunnyDevice:0"}};
  for (const Merge& merge : table)
    EXPECT_EQ(
        DeviceSpec::parse(merge.first).merged_with(DeviceSpec::parse(merge.second)).to_string(),
        merge.merged)
        << merge.first << " with " << merge.second;
}

// C076
TEST(Canonicalize, FillsInWhatIsMissing) {
  EXPECT_EQ(canonicalize("/job:worker/cpu:0"), "/job:worker/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(canonicalize("/job:worker/task:1/cpu:0"), "/job:worker/replica:0/task:1/device:CPU:0");
  EXPECT_EQ(canonicalize(""), "/job:localhost/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(canonicalize("gpu"), "/job:localhost/replica:0/task:0/device:GPU:0");
}

TEST(Canonicalize, MakesAllSpellingsOne) {
  for (const char* name : {"/cpu:1", "cpu:1", "CPU:1", "/device:CPU:1", "/device:cpu:1",
                           "/job:localhost/cpu:1", "/replica:0/task:0/device:CPU:1"})
    EXPECT_EQ(canonicalize(name), "/job:localhost/replica:0/task:0/device:CPU:1") << name;
}

// C077
TEST(Canonicalize, TakesWhatIsMissingFromTheFallback) {
  EXPECT_EQ(canonicalize("/job:worker/task:1", "/gpu:0"),
            "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(canonicalize("/cpu:0", "/job:worker"), "/job:worker/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(canonicalize("/job:worker/replica:0/task:1/device:CPU:0",
                         "/job:chief/replica:0/task:2/gpu:1"),
            "/job:worker/replica:0/task:1/device:CPU:0");
}

TEST(Canonicalize, RefusesATypeThatIsNotInCapitals) {
  EXPECT_ERROR(InvalidArgumentError, "\"Gpu\" is not in capitals", canonicalize("/device:Gpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "\"/foo\"", canonicalize("/foo"));
  EXPECT_ERROR(InvalidArgumentError, "\"/foo\"", canonicalize("", "/foo"));
}

TEST(HostOf, IsTheCpuOfTheSameTask) {
  EXPECT_EQ(host_of("/job:worker/replica:1/task:2/device:GPU:3"),
            "/job:worker/replica:1/task:2/device:CPU:0");
  EXPECT_EQ(host_of("/cpu:5"), "/job:localhost/replica:0/task:0/device:CPU:0");
}

TEST(LocalDevicesFromNumGpus, AreTheGpusOrElseTheCpu) {
  EXPECT_THAT(local_devices_from_num_gpus(0), ElementsAre(canonicalize("/cpu:0")));
  EXPECT_THAT(local_devices_from_num_gpus(2),
              ElementsAre(canonicalize("/gpu:0"), canonicalize("/gpu:1")));
  EXPECT_ERROR(InvalidArgumentError, "num_gpus is -1", local_devices_from_num_gpus(-1));
}

}  // namespace
}  // namespace tutti
