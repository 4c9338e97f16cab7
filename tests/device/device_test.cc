// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <tutti/device.h>
#include <tutti/tensor.h>

#include <optional>
#include <thread>
#include <vector>

#include "support/expect.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string cpu(int index) { return canonicalize("/cpu:" + std::to_string(index)); }

class DeviceTest : public ::testing::Test {
 protected:
  ~DeviceTest() override { set_logical_devices("CPU", 1); }
};

TEST_F(DeviceTest, AProcessStartsWithOneCpu) {
  EXPECT_THAT(list_logical_devices(), ElementsAre(cpu(0)));
  EXPECT_THAT(list_logical_devices("CPU"), ElementsAre(cpu(0)));
  EXPECT_THAT(list_logical_devices("TPU"), ElementsAre());
}

TEST_F(DeviceTest, LogicalDevicesGrowAndShrink) {
  set_logical_devices("CPU", 3);
  EXPECT_THAT(list_logical_devices("CPU"), ElementsAre(cpu(0), cpu(1), cpu(2)));
  EXPECT_EQ(Tensor::zeros({1}, DType::float32, "/cpu:2").device(), cpu(2));
  set_logical_devices("CPU", 2);
  EXPECT_THAT(list_logical_devices("CPU"), ElementsAre(cpu(0), cpu(1)));
  EXPECT_ERROR(InvalidArgumentError, cpu(2), Tensor::zeros({1}, DType::float32, "/cpu:2"));
  set_logical_devices("CPU", 4);
  EXPECT_EQ(Tensor::zeros({1}, DType::float32, "/cpu:3").device(), cpu(3));
}

TEST_F(DeviceTest, ShrinkingUnderLiveTensorsIsRefusedNamingTheDevice) {
  set_logical_devices("CPU", 3);
  std::optional<Tensor> tensor = Tensor::zeros({4}, DType::float32, "/cpu:1");
  std::optional<Tensor> view = tensor->reshape({2, 2});
  EXPECT_THAT(testing::error_of<FailedPreconditionError>([] { set_logical_devices("CPU", 1); }),
              AllOf(HasSubstr(cpu(1)), Not(HasSubstr(cpu(2)))));
  EXPECT_EQ(list_logical_devices("CPU").size(), 3u);
  EXPECT_NO_THROW(set_logical_devices("CPU", 2));

  tensor.reset();
  EXPECT_THROW(set_logical_devices("CPU", 1), FailedPreconditionError);
  view.reset();
  EXPECT_NO_THROW(set_logical_devices("CPU", 1));
}

TEST_F(DeviceTest, BorrowedTensorsKeepTheirDeviceToo) {
  set_logical_devices("CPU", 2);
  float value = 1;
  {
    const Tensor tensor = Tensor::borrow(&value, {1}, DType::float32, "/cpu:1");
    EXPECT_THROW(set_logical_devices("CPU", 1), FailedPreconditionError);
  }
  EXPECT_NO_THROW(set_logical_devices("CPU", 1));
}

TEST_F(DeviceTest, BadCountsAndTypesAreRefused) {
  EXPECT_ERROR(InvalidArgumentError, "0 devices", set_logical_devices("CPU", 0));
  EXPECT_ERROR(InvalidArgumentError, "-3 devices", set_logical_devices("CPU", -3));
  EXPECT_ERROR(InvalidArgumentError, "\"XPU\"", set_logical_devices("XPU", 2));
  EXPECT_ERROR(InvalidArgumentError, "\"\"", set_logical_devices("", 2));
  EXPECT_EQ(list_logical_devices("CPU").size(), 1u);
}

TEST_F(DeviceTest, AnUnknownDeviceIsQuotedWithTheRemedy) {
  EXPECT_THAT(
      testing::error_of<InvalidArgumentError>([] { Tensor::zeros({1}, DType::float32, "cpu:7"); }),
      AllOf(HasSubstr(cpu(7)), HasSubstr(cpu(0)), HasSubstr("set_logical_devices(\"CPU\", 8)")));
  EXPECT_ERROR(InvalidArgumentError, canonicalize("/gpu:0") + " in this process",
               device::find("/gpu:0", "x"));
  EXPECT_ERROR(InvalidArgumentError, "/job:worker/replica:0/task:0/device:CPU:0",
               device::find("/job:worker/cpu:0", "x"));
  EXPECT_ERROR(InvalidArgumentError, "x: \"/nonsense\"", device::find("/nonsense", "x"));
}

TEST_F(DeviceTest, TheLargestIndexThereIsIsUnknownLikeAnother) {
  EXPECT_THAT(testing::error_of<InvalidArgumentError>([] { device::find("/cpu:2147483647", "x"); }),
              AllOf(HasSubstr("CPU:2147483647"), Not(HasSubstr("-2147483648"))));
}

TEST_F(DeviceTest, AScopePlacesTensorsThatNameNoDevice) {
  set_logical_devices("CPU", 3);
  EXPECT_EQ(current_device(), cpu(0));
  {
    const DeviceScope outer("/cpu:1");
    EXPECT_EQ(current_device(), cpu(1));
    EXPECT_EQ(Tensor::zeros({1}, DType::float32).device(), cpu(1));
    EXPECT_EQ(Tensor::of({1, 2}).device(), cpu(1));
    EXPECT_EQ(Tensor::zeros({1}, DType::float32, "/cpu:0").device(), cpu(0));
    {
      const DeviceScope inner("/cpu:2");
      EXPECT_EQ(Tensor::scalar(1.0f).device(), cpu(2));
    }
    EXPECT_EQ(Tensor::scalar(1.0f).device(), cpu(1));
    // A clone stays where its original is.
    EXPECT_EQ(Tensor::zeros({1}, DType::float32, "/cpu:0").clone().device(), cpu(0));
  }
  EXPECT_EQ(Tensor::scalar(1.0f).device(), cpu(0));
}

// C079
TEST_F(DeviceTest, TheInnerScopeWinsAndPartsAreMerged) {
  {
    const DeviceScope outer("/cpu:0");
    const DeviceScope inner("/gpu:0");
    EXPECT_EQ(resolve(""), canonicalize("/gpu:0"));
    EXPECT_EQ(current_device(), canonicalize("/gpu:0"));
  }
  {
    const DeviceScope outer("/job:worker");
    const DeviceScope inner("/cpu:0");
    EXPECT_EQ(resolve(""), "/job:worker/replica:0/task:0/device:CPU:0");
    EXPECT_EQ(resolve("/task:1"), "/job:worker/replica:0/task:1/device:CPU:0");
    EXPECT_EQ(resolve("/job:chief/gpu:2"), "/job:chief/replica:0/task:0/device:GPU:2");
  }
  EXPECT_EQ(resolve(""), cpu(0));
}

TEST_F(DeviceTest, AMalformedScopeChangesNothing) {
  EXPECT_ERROR(InvalidArgumentError, "\"/nonsense\"", DeviceScope("/nonsense"));
  EXPECT_EQ(current_device(), cpu(0));
}

TEST_F(DeviceTest, AScopeOnADeviceThatIsNotThereFailsWhenItIsUsed) {
  const DeviceScope scope("/gpu:0");
  EXPECT_ERROR(InvalidArgumentError, canonicalize("/gpu:0"), Tensor::zeros({1}, DType::float32));
}

TEST_F(DeviceTest, AScopeSeesDevicesThatComeAndGo) {
  set_logical_devices("CPU", 2);
  const DeviceScope scope("/cpu:1");
  EXPECT_EQ(Tensor::scalar(1.0f).device(), cpu(1));
  set_logical_devices("CPU", 1);
  EXPECT_ERROR(InvalidArgumentError, cpu(1), Tensor::scalar(1.0f));
}

TEST_F(DeviceTest, ScopesBelongToTheirThread) {
  set_logical_devices("CPU", 3);
  const DeviceScope here("/cpu:1");
  std::string there;
  std::thread([&] {
    const std::string before = current_device();
    const DeviceScope scope("/cpu:2");
    there = before + " " + current_device();
  }).join();
  EXPECT_EQ(there, cpu(0) + " " + cpu(2));
  EXPECT_EQ(current_device(), cpu(1));
}

TEST_F(DeviceTest, TheRegistryMayBeUsedFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        if (t == 0) {
          set_logical_devices("CPU", 8 + i % 2);
        } else {
          EXPECT_GE(list_logical_devices("CPU").size(), 1u);
        }
        EXPECT_EQ(Tensor::scalar(1, "/cpu:0").device(), cpu(0));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti
