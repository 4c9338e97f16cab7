// SPDX-License-Identifier: Apache-2.0
#include <tutti/destinations.h>
#include <tutti/device.h>

#include <vector>

#include "support/cpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using testing::cpu;
using ::testing::ElementsAre;

// As a caller of reduce meets it.
std::vector<std::string> devices_of(const Destinations& destinations) {
  EXPECT_EQ(destinations.size(), destinations.devices().size());
  return destinations.devices();
}

class DestinationsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { set_logical_devices("CPU", 3); }

  const Tensor on0_ = Tensor::of({1}, "/cpu:0"), on1_ = Tensor::of({2}, "/cpu:1");
  const IndexedSlices slices_{Tensor::of({1}, "/cpu:1"), Tensor::of({0}, "/cpu:1")};
};

TEST_F(DestinationsTest, AreMadeFromNames) {
  EXPECT_THAT(devices_of("/cpu:1"), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of(std::string("cpu:1")), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of(std::string_view("/device:CPU:1")), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of({"/cpu:1", "/cpu:0"}), ElementsAre(cpu(1), cpu(0)));
  EXPECT_THAT(devices_of({"/cpu:0", "/cpu:1", "/cpu:2"}).size(), 3u);
  EXPECT_THAT(devices_of(std::vector<std::string>{"/cpu:0", "/cpu:1"}),
              ElementsAre(cpu(0), cpu(1)));
  EXPECT_THAT(devices_of(list_logical_devices("CPU")).size(), 3u);
  EXPECT_THAT(Destinations({"/cpu:0", "/cpu:1"}).devices(), ElementsAre(cpu(0), cpu(1)));
}

TEST_F(DestinationsTest, AreMadeFromWhateverHasADevice) {
  EXPECT_THAT(devices_of(on1_), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of(slices_), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of(Value(on1_)), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of(Value(slices_)), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of(PerReplica<Tensor>{on1_, on0_}), ElementsAre(cpu(1), cpu(0)));
  EXPECT_THAT(devices_of(PerReplica<Value>{Value(slices_), Value(on0_)}),
              ElementsAre(cpu(1), cpu(0)));
  EXPECT_THAT(devices_of(Mirrored<Tensor>{on0_, on1_}), ElementsAre(cpu(0), cpu(1)));
  EXPECT_THAT(devices_of(Mirrored<IndexedSlices>{slices_}), ElementsAre(cpu(1)));
}

TEST_F(DestinationsTest, NamesAreResolvedInTheCurrentScope) {
  const DeviceScope scope("/cpu:1");
  EXPECT_THAT(devices_of("/task:0"), ElementsAre(cpu(1)));
  EXPECT_THAT(devices_of("/cpu:0"), ElementsAre(cpu(0)));
}

TEST_F(DestinationsTest, EmptyOnesAreRefused) {
  EXPECT_ERROR(InvalidArgumentError, "the device name is empty", Destinations(""));
  EXPECT_ERROR(InvalidArgumentError, "the device name is empty", devices_of({"/cpu:0", ""}));
  EXPECT_ERROR(InvalidArgumentError, "no device", Destinations(std::vector<std::string>{}));
  EXPECT_ERROR(InvalidArgumentError, "no device", Destinations(PerReplica<Tensor>{}));
  EXPECT_ERROR(InvalidArgumentError, "no device", Destinations(Mirrored<Value>{}));
  EXPECT_ERROR(InvalidArgumentError, "holds nothing", Destinations(Tensor()));
  EXPECT_ERROR(InvalidArgumentError, "holds nothing", (Destinations(PerReplica<Tensor>{on0_, {}})));
  EXPECT_ERROR(InvalidArgumentError, "holds nothing", Destinations(IndexedSlices{}));
}

TEST_F(DestinationsTest, UnknownOnesAreNamed) {
  EXPECT_ERROR(InvalidArgumentError, "destinations: there is no device " + canonicalize("/gpu:0"),
               Destinations("/gpu:0"));
  EXPECT_ERROR(InvalidArgumentError, canonicalize("/cpu:7"), devices_of({"/cpu:0", "/cpu:7"}));
  EXPECT_ERROR(InvalidArgumentError, "\"/nonsense\"", Destinations("/nonsense"));
  EXPECT_ERROR(InvalidArgumentError, "\"cpu 0\"", Destinations("cpu 0"));
}

TEST_F(DestinationsTest, AListNamesADeviceOnce) {
  EXPECT_ERROR(InvalidArgumentError, cpu(1) + " twice", devices_of({"/cpu:1", "cpu:1"}));
  EXPECT_ERROR(InvalidArgumentError, cpu(0) + " twice",
               Destinations(std::vector<std::string>{"/cpu:0", "/cpu:1", "/device:CPU:0"}));
}

TEST_F(DestinationsTest, ADistributedValueKeepsADeviceItHasTwice) {
  EXPECT_THAT(devices_of(PerReplica<Tensor>{on1_, on0_, on1_}),
              ElementsAre(cpu(1), cpu(0), cpu(1)));
  EXPECT_THAT(devices_of(Mirrored<Tensor>{on1_, on1_}), ElementsAre(cpu(1), cpu(1)));
}

TEST_F(DestinationsTest, MatchAsSets) {
  const Destinations both{"/cpu:0", "/cpu:1"};
  EXPECT_TRUE(both.matches(both));
  EXPECT_TRUE(both.matches({"cpu:1", "cpu:0"}));
  EXPECT_TRUE(both.matches(PerReplica<Tensor>{on1_, on0_, on1_}));
  EXPECT_TRUE((Destinations(PerReplica<Tensor>{on1_, on0_, on1_}).matches(both)));
  EXPECT_FALSE(both.matches("/cpu:0"));
  EXPECT_FALSE(Destinations("/cpu:0").matches(both));
  EXPECT_FALSE(both.matches({"/cpu:0", "/cpu:2"}));
}

}  // namespace
}  // namespace tutti
