// SPDX-License-Identifier: Apache-2.0
#include <tutti/device.h>
#include <tutti/regroup.h>
#include <tutti/values.h>

#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "base/context.h"
#include "support/cpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using testing::cpu;
using ::testing::ElementsAre;

// What gmock takes for a list.
template <class C>
auto listed(const C& components) {
  return std::vector<std::decay_t<decltype(components[0])>>(components.begin(), components.end());
}

class ValuesTest : public ::testing::Test {
 protected:
  ValuesTest() { set_logical_devices("CPU", 3); }
};

TEST_F(ValuesTest, HoldMoveOnlyComponents) {
  std::vector<std::unique_ptr<int>> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(std::make_unique<int>(i));
  PerReplica<std::unique_ptr<int>> value(std::move(parts));
  const PerReplica<std::unique_ptr<int>> moved = std::move(value);
  EXPECT_EQ(moved.size(), 3u);
  EXPECT_EQ(*moved[2], 2);
  EXPECT_THAT(listed(moved.map([](const auto& p) { return *p + 1; })), ElementsAre(1, 2, 3));
}

TEST_F(ValuesTest, HoldBools) {
  const PerReplica<bool> value{true, false, true};
  const bool& second = value[1];
  EXPECT_FALSE(second);
  EXPECT_THAT(listed(value), ElementsAre(true, false, true));
  EXPECT_THAT(listed(value.map([](bool b) { return !b; })), ElementsAre(false, true, false));
  EXPECT_THAT(listed(PerReplica<bool>(std::vector<bool>{true, false})), ElementsAre(true, false));
  const Mirrored<bool> equal{true, true};
  EXPECT_TRUE(equal.get());
}

TEST_F(ValuesTest, HoldTypesWithoutADefault) {
  struct NoDefault {
    explicit NoDefault(int v) : value(v) {}
    int value;
    int doubled() const { return 2 * value; }
  };
  const PerReplica<NoDefault> value{NoDefault(3), NoDefault(4)};
  EXPECT_THAT(listed(value.map(&NoDefault::value)), ElementsAre(3, 4));
  EXPECT_THAT(listed(value.map(&NoDefault::doubled)), ElementsAre(6, 8));
  const PerReplica<NoDefault> made = PerReplica<int>{5, 6}.map([](int v) { return NoDefault(v); });
  EXPECT_EQ(made[1].value, 6);
}

TEST_F(ValuesTest, MapProjectsMembers) {
  struct Result {
    float loss;
    Tensor gradient;
  };
  const PerReplica<Result> results{{1.5f, Tensor::scalar(1, "/cpu:0")},
                                   {2.5f, Tensor::scalar(2, "/cpu:1")}};
  EXPECT_THAT(listed(results.map(&Result::loss)), ElementsAre(1.5f, 2.5f));
  const PerReplica<Tensor> gradients = results.map(&Result::gradient);
  EXPECT_THAT(gradients.devices(), ElementsAre(cpu(0), cpu(1)));
  const Mirrored<int> mirrored = Mirrored<int>{7, 7}.map([](int v) { return v + 1; });
  EXPECT_THAT(listed(mirrored), ElementsAre(8, 8));
}

TEST_F(ValuesTest, DevicesAreThoseOfTheComponentsInOrder) {
  const Tensor a = Tensor::scalar(1, "/cpu:1"), b = Tensor::scalar(2, "/cpu:0");
  EXPECT_THAT((PerReplica<Tensor>{a, b, a}).devices(), ElementsAre(cpu(1), cpu(0), cpu(1)));
  EXPECT_THAT((Mirrored<Value>{a, b}).devices(), ElementsAre(cpu(1), cpu(0)));
  EXPECT_TRUE(PerReplica<Tensor>().devices().empty());
}

TEST_F(ValuesTest, AComponentPastTheEndIsOutOfRange) {
  const PerReplica<int> value{1, 2};
  EXPECT_ERROR(OutOfRangeError, "component 2 of a distributed value with 2", value[2]);
  EXPECT_ERROR(OutOfRangeError, "component 0", PerReplica<int>()[0]);
  EXPECT_TRUE(PerReplica<int>().empty());
}

TEST_F(ValuesTest, ConvertIfTheComponentsDo) {
  const Tensor a = Tensor::scalar(1);
  const PerReplica<Value> value = PerReplica<Tensor>{a, a};
  EXPECT_EQ(value[1].tensor().data(), a.data());
  const PerReplica<Value> single = a;
  EXPECT_EQ(single.size(), 1u);
  const PerReplica<Value> sparse = IndexedSlices{Tensor::of({1}), Tensor::of({0})};
  EXPECT_TRUE(sparse[0].is_sparse());
  static_assert(!std::is_convertible_v<Mirrored<Tensor>, PerReplica<Value>>);
  static_assert(!std::is_convertible_v<PerReplica<Tensor>, Mirrored<Tensor>>);
}

// C073
TEST_F(ValuesTest, APerReplicaHasOneValueOnlyInsideAReplica) {
  const PerReplica<int> value{7, 8};
  EXPECT_ERROR(InvalidArgumentError, "2 components has one value only inside a replica",
               value.get());
  {
    const base::ReplicaThread replica(1);
    EXPECT_EQ(value.get(), 8);
    {
      const base::ReplicaThread inner(0);
      EXPECT_EQ(value.get(), 7);
    }
    EXPECT_EQ(value.get(), 8);
    std::thread([&] { EXPECT_THROW(value.get(), InvalidArgumentError); }).join();
  }
  EXPECT_THROW(value.get(), InvalidArgumentError);
  const base::ReplicaThread third(2);
  EXPECT_ERROR(OutOfRangeError, "component 2", value.get());
}

TEST_F(ValuesTest, AMirroredIsTheComponentOfItsReplicaOrDevice) {
  const Mirrored<Tensor> value{Tensor::scalar(10, "/cpu:0"), Tensor::scalar(11, "/cpu:1")};
  EXPECT_EQ(value.get().item<int>(), 10);
  {
    const DeviceScope scope("/cpu:1");
    EXPECT_EQ(value.get().item<int>(), 11);
    const base::ReplicaThread replica(0);  // the replica is asked before the device
    EXPECT_EQ(value.get().item<int>(), 10);
  }
  {
    const DeviceScope elsewhere("/cpu:2");
    EXPECT_EQ(value.get().item<int>(), 10);
  }
  const base::ReplicaThread replica(1);
  const Tensor& component = value;
  EXPECT_EQ(component.item<int>(), 11);
  EXPECT_ERROR(OutOfRangeError, "component 1", Mirrored<int>{7}.get());
}

// C074
TEST_F(ValuesTest, AMirroredStandsForItsComponentInOperators) {
  const Mirrored<int> v{7, 8};
  EXPECT_EQ(v + 1, 8);
  EXPECT_EQ(1 + v, 8);
  EXPECT_EQ(v - 1, 6);
  EXPECT_EQ(10 - v, 3);
  EXPECT_EQ(v * 2, 14);
  EXPECT_EQ(v / 2, 3);
  EXPECT_EQ(10.5 / v, 1.5);
  EXPECT_EQ(v % 2, 1);
  EXPECT_EQ(v & 6, 6);
  EXPECT_EQ(v | 8, 15);
  EXPECT_EQ(v ^ 3, 4);
  EXPECT_EQ(v << 1, 14);
  EXPECT_EQ(v >> 1, 3);
  EXPECT_EQ(2 << v, 256);
  EXPECT_EQ(-v, -7);
  EXPECT_EQ(+v, 7);
  EXPECT_EQ(~v, ~7);
  EXPECT_EQ(!v, false);
  EXPECT_TRUE(v < 8 && v > 6 && v <= 7 && v >= 7 && v == 7 && v != 8 && 9 > v);
  EXPECT_EQ(v * v * v % 10, 3);
  EXPECT_EQ(v + v, 14);
  const Mirrored<int> copy = v;
  EXPECT_THAT(listed(copy), ElementsAre(7, 8));
  const base::ReplicaThread replica(1);
  EXPECT_EQ(v + 1, 9);
}

TEST_F(ValuesTest, AValueIsATensorOrSlices) {
  const Value dense = Tensor::of<float>({1, 2}, "/cpu:1");
  EXPECT_FALSE(dense.is_sparse());
  EXPECT_EQ(dense.dtype(), DType::float32);
  EXPECT_EQ(dense.device(), cpu(1));
  EXPECT_THAT(dense.tensor().to_vector<float>(), ElementsAre(1, 2));
  EXPECT_ERROR(InvalidArgumentError, "is a Tensor, not IndexedSlices", dense.slices());

  const Value sparse = IndexedSlices{Tensor::of<double>({1, 2}), Tensor::of({0, 3})};
  EXPECT_TRUE(sparse.is_sparse());
  EXPECT_EQ(sparse.dtype(), DType::float64);
  EXPECT_EQ(sparse.device(), cpu(0));
  EXPECT_ERROR(InvalidArgumentError, "is IndexedSlices, not a Tensor", sparse.tensor());

  const Value copy = sparse.clone_to("/cpu:1");
  EXPECT_EQ(copy.device(), cpu(1));
  EXPECT_EQ(copy.slices().indices.device(), cpu(1));
  EXPECT_EQ(dense.clone_to("/cpu:0").device(), cpu(0));
}

// C064
TEST(Regroup, WrapsLeavesInTheWrapperAskedFor) {
  const PerReplica<int> plain = regroup(std::vector<int>{1, 2});
  EXPECT_THAT(listed(plain), ElementsAre(1, 2));
  const Mirrored<int> mirrored = regroup<Mirrored>(std::vector<int>{1, 1});
  EXPECT_THAT(listed(mirrored), ElementsAre(1, 1));
  EXPECT_THAT(listed(regroup(std::vector<bool>{true, false})), ElementsAre(true, false));
}

// C065: a map keeps its type, its order included.
TEST(Regroup, KeepsTheTypeOfAMap) {
  using Map = std::map<std::string, int, std::greater<>>;
  const auto result = regroup(std::vector<Map>{{{"a", 1}, {"b", 2}}, {{"a", 3}, {"b", 4}}});
  static_assert(std::is_same_v<decltype(result),
                               const std::map<std::string, PerReplica<int>, std::greater<>>>);
  EXPECT_EQ(result.begin()->first, "b");
  EXPECT_THAT(listed(result.at("a")), ElementsAre(1, 3));
  EXPECT_THAT(listed(result.at("b")), ElementsAre(2, 4));
}

// C067
TEST(Regroup, TurnsTuplesInsideOut) {
  const auto [first, second] =
      regroup(std::vector<std::tuple<int, std::string>>{{1, "a"}, {2, "b"}});
  EXPECT_THAT(listed(first), ElementsAre(1, 2));
  EXPECT_THAT(listed(second), ElementsAre("a", "b"));
}

// C070: a struct is a leaf, and its fields are projected.
TEST(Regroup, KeepsTheFieldsOfAStruct) {
  struct Point {
    int x, y;
  };
  const PerReplica<Point> points = regroup(std::vector<Point>{{1, 2}, {3, 4}});
  EXPECT_THAT(listed(points.map(&Point::y)), ElementsAre(2, 4));
}

TEST(Regroup, WalksNestedStructures) {
  using Nested = std::tuple<std::vector<int>, std::map<int, std::vector<std::tuple<int, bool>>>>;
  const std::vector<Nested> replicas{{{1, 2}, {{5, {{10, true}, {11, false}}}}},
                                     {{3, 4}, {{5, {{20, false}, {21, true}}}}}};
  const auto [list, map] = regroup(replicas);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_THAT(listed(list[1]), ElementsAre(2, 4));
  const std::vector<std::tuple<PerReplica<int>, PerReplica<bool>>>& inner = map.at(5);
  EXPECT_THAT(listed(std::get<0>(inner[1])), ElementsAre(11, 21));
  EXPECT_THAT(listed(std::get<1>(inner[1])), ElementsAre(false, true));
}

TEST(Regroup, OneReplicaIsWrappedToo) {
  EXPECT_THAT(listed(regroup(std::vector<int>{7})), ElementsAre(7));
}

TEST(Regroup, RaggedStructuresAreRefused) {
  using List = std::vector<int>;
  using Map = std::map<std::string, int>;
  EXPECT_ERROR(InvalidArgumentError, "replica 1 returned a list of length 1, replica 0 one of 2",
               regroup(std::vector<List>{{1, 2}, {3}}));
  EXPECT_ERROR(InvalidArgumentError, "replica 2 returned a map of size 2, replica 0 one of 1",
               regroup(std::vector<Map>{{{"a", 1}}, {{"a", 1}}, {{"a", 1}, {"b", 2}}}));
  EXPECT_ERROR(InvalidArgumentError, "replica 1 returned a map whose keys differ",
               regroup(std::vector<Map>{{{"a", 1}}, {{"b", 1}}}));
  EXPECT_ERROR(InvalidArgumentError, "replica 1",
               regroup(std::vector<std::tuple<List>>{{{1}}, {{}}}));
}

}  // namespace
}  // namespace tutti
