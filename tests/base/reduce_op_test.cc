// SPDX-License-Identifier: Apache-2.0
#include "base/reduce_op.h"

#include <sstream>

#include "support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <class T>
std::string printed(T value) {
  std::ostringstream os;
  os << value;
  return os.str();
}

constexpr std::pair<ReduceOp, const char*> kOps[] = {{ReduceOp::SUM, "SUM"},
                                                     {ReduceOp::MEAN, "MEAN"},
                                                     {ReduceOp::MIN, "MIN"},
                                                     {ReduceOp::MAX, "MAX"},
                                                     {ReduceOp::PROD, "PROD"}};
static_assert(std::size(kOps) == base::kReduceOps.size());

TEST(ReduceOpNames, AreReadInAnyCase) {
  for (const auto& [op, text] : kOps) {
    std::string lower(text), mixed(text);
    for (char& c : lower) c = char(std::tolower(c));
    mixed[1] = char(std::tolower(mixed[1]));
    for (const std::string& spelling : {std::string(text), lower, mixed})
      EXPECT_EQ(reduce_op(spelling), op) << spelling;
    EXPECT_EQ(name(op), text);
    EXPECT_EQ(printed(op), text);
  }
}

TEST(ReduceOpNames, AnUnknownOneIsQuotedBesideThoseThereAre) {
  for (const char* bad : {"average", "", " SUM", "SUM ", "ReduceOp.SUM"})
    EXPECT_THAT(testing::error_of<InvalidArgumentError>([&] { reduce_op(bad); }),
                AllOf(HasSubstr("\"" + std::string(bad) + "\""), HasSubstr("ReduceOp"),
                      HasSubstr("SUM, MEAN, MIN, MAX, PROD")));
}

TEST(ResultDType, OnlyTheMeanOfIntegersChangesTheType) {
  const auto mean = [](DType dtype) {
    switch (dtype) {
      case DType::int8:
      case DType::uint8:
      case DType::int16:
      case DType::uint16: return DType::float32;
      case DType::int32:
      case DType::uint32:
      case DType::int64:
      case DType::uint64: return DType::float64;
      case DType::boolean:
      case DType::float16:
      case DType::bfloat16:
      case DType::float32:
      case DType::float64: break;
    }
    return dtype;
  };
  for (size_t i = size_t(DType::int8); i < detail::kDTypes.size(); ++i)
    for (const auto& [op, text] : kOps)
      EXPECT_EQ(result_dtype(op, DType(i)), op == ReduceOp::MEAN ? mean(DType(i)) : DType(i))
          << text << " of " << DType(i);
}

TEST(ResultDType, BoolHasMinAndMaxOnly) {
  EXPECT_EQ(result_dtype(ReduceOp::MIN, DType::boolean), DType::boolean);
  EXPECT_EQ(result_dtype(ReduceOp::MAX, DType::boolean), DType::boolean);
  for (const auto& each : {kOps[0], kOps[1], kOps[4]})
    EXPECT_ERROR(InvalidArgumentError, std::string("bool has no ") + each.second,
                 result_dtype(each.first, DType::boolean));
}

TEST(VariableAggregationNames, PrintAsTheReferenceSpellsThem) {
  EXPECT_EQ(name(VariableAggregation::NONE), "NONE");
  EXPECT_EQ(name(VariableAggregation::SUM), "SUM");
  EXPECT_EQ(printed(VariableAggregation::MEAN), "MEAN");
  EXPECT_EQ(printed(VariableAggregation::ONLY_FIRST_REPLICA), "ONLY_FIRST_REPLICA");
}

TEST(VariableAggregationNames, OnlySumAndMeanHaveAReduceOp) {
  EXPECT_EQ(reduce_op(VariableAggregation::SUM), ReduceOp::SUM);
  EXPECT_EQ(reduce_op(VariableAggregation::MEAN), ReduceOp::MEAN);
  EXPECT_ERROR(InvalidArgumentError, "VariableAggregation NONE",
               reduce_op(VariableAggregation::NONE));
  EXPECT_ERROR(InvalidArgumentError, "ONLY_FIRST_REPLICA",
               reduce_op(VariableAggregation::ONLY_FIRST_REPLICA));
}

TEST(CommunicationImplementationNames, AreReadInAnyCase) {
  EXPECT_EQ(communication_implementation("AUTO"), CommunicationImplementation::AUTO);
  EXPECT_EQ(communication_implementation("ring"), CommunicationImplementation::RING);
  EXPECT_EQ(communication_implementation("Nccl"), CommunicationImplementation::NCCL);
  EXPECT_ERROR(InvalidArgumentError, "\"gloo\" is not a CommunicationImplementation",
               communication_implementation("gloo"));
}

// C061
TEST(CommunicationOptions, HoldsBytesPerPackAndRefusesANegativeOne) {
  EXPECT_EQ(CommunicationOptions{.bytes_per_pack = 1}.bytes_per_pack, 1);
  EXPECT_NO_THROW(CommunicationOptions{.bytes_per_pack = 1}.validate("reduce"));
  EXPECT_ERROR(InvalidArgumentError, "reduce: bytes_per_pack is -1",
               CommunicationOptions{.bytes_per_pack = -1}.validate("reduce"));
}

TEST(CommunicationOptions, RefusesANegativeTimeout) {
  EXPECT_NO_THROW(CommunicationOptions{}.validate("reduce"));
  EXPECT_NO_THROW(CommunicationOptions{.timeout = 0s}.validate("reduce"));
  EXPECT_ERROR(InvalidArgumentError, "gather: the timeout is -1000000000 ns",
               CommunicationOptions{.timeout = -1s}.validate("gather"));
}

TEST(CommunicationOptions, MergeTakesWhatTheOtherSets) {
  const CommunicationOptions all{
      .bytes_per_pack = 5, .timeout = 3s, .implementation = CommunicationImplementation::RING};
  const CommunicationOptions others{
      .bytes_per_pack = 7, .timeout = 4s, .implementation = CommunicationImplementation::NCCL};
  EXPECT_EQ(all.merge(others), others);
  EXPECT_EQ(CommunicationOptions{}.merge(all), all);
  const CommunicationOptions expected{
      .bytes_per_pack = 7, .timeout = 3s, .implementation = CommunicationImplementation::RING};
  EXPECT_EQ(all.merge({.bytes_per_pack = 7}), expected);
}

TEST(CommunicationOptions, MergeNeverTakesADefault) {
  const CommunicationOptions all{
      .bytes_per_pack = 5, .timeout = 3s, .implementation = CommunicationImplementation::NCCL};
  EXPECT_EQ(all.merge({}), all);
  // No limit is a choice; only "none" is the default.
  EXPECT_EQ(all.merge({.timeout = 0s}).timeout, 0ns);
}

}  // namespace
}  // namespace tutti
