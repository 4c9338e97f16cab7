// SPDX-License-Identifier: Apache-2.0
#include <tutti/tensor.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "support/cpus.h"
#include "support/expect.h"
#include "tensor/tensor_impl.h"

namespace mine {
struct Half {
  uint16_t bits;
};
}  // namespace mine

template <>
struct tutti::dtype_of<mine::Half> {
  static constexpr DType value = DType::float16;
};

namespace tutti {
namespace {

using ::testing::AllOf;
using testing::cpu;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() { set_logical_devices("CPU", 2); }

  static Tensor read_only(const Tensor& tensor) {
    return detail::TensorAccess::wrap(std::make_shared<Tensor>(tensor),
                                      detail::TensorAccess::data(tensor), tensor.shape(),
                                      tensor.dtype(), detail::TensorAccess::device(tensor), true);
  }
};

TEST_F(TensorTest, OfCopiesItsValues) {
  std::vector<float> values{1, 2, 3};
  const Tensor tensor = Tensor::of<float>(std::span<const float>(values));
  values[0] = 9;
  EXPECT_EQ(tensor.shape(), Shape{3});
  EXPECT_EQ(tensor.dtype(), DType::float32);
  EXPECT_EQ(tensor.num_bytes(), 12u);
  EXPECT_EQ(tensor.device(), cpu(0));
  EXPECT_THAT(tensor.to_vector<float>(), ElementsAre(1, 2, 3));
  EXPECT_EQ(Tensor::of({1, 2}).dtype(), DType::int32);
  EXPECT_EQ(Tensor::of({1.0, 2.0}, "/cpu:1").device(), cpu(1));
  EXPECT_EQ(Tensor::of<float>({}).shape(), Shape{0});
  EXPECT_THAT(Tensor::of({true, false}).to_vector<bool>(), ElementsAre(true, false));
  EXPECT_EQ(Tensor::of<long long>({5}).item<int64_t>(), 5);
  EXPECT_EQ(Tensor::of<mine::Half>({mine::Half{0x3c00}}).item<float16>(), float16(1.0f));
}

TEST_F(TensorTest, ScalarHasRankZeroAndOneElement) {
  const Tensor tensor = Tensor::scalar(2.5);
  EXPECT_EQ(tensor.shape(), Shape{});
  EXPECT_EQ(tensor.num_elements(), 1);
  EXPECT_EQ(tensor.item<double>(), 2.5);
}

TEST_F(TensorTest, MemoryIsAlignedTo64Bytes) {
  for (const int64_t n : {0, 1, 3, 17, 1000, 100'003})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(Tensor::empty({n}, DType::int8).data()) % 64, 0u) << n;
}

TEST_F(TensorTest, FullFillsEveryElementOfEveryType) {
  for (size_t i = 0; i < detail::kDTypes.size(); ++i)
    for (const int64_t n : {0, 1, 2, 3, 4095, 4096, 4097, 10'000}) {
      const Tensor ones = Tensor::full({n}, 1, DType(i)), zeros = Tensor::zeros({n}, DType(i));
      EXPECT_EQ(ones.dtype(), DType(i));
      EXPECT_THAT(ones.to(DType::float64).to_vector<double>(), Each(1.0)) << DType(i) << n;
      EXPECT_THAT(zeros.to(DType::float64).to_vector<double>(), Each(0.0)) << DType(i) << n;
    }
  EXPECT_EQ(Tensor::full({2, 3}, -7, DType::int16, "/cpu:1").device(), cpu(1));
  EXPECT_TRUE(std::isnan(Tensor::full({}, NAN, DType::float32).item<float>()));
}

TEST_F(TensorTest, FullRefusesWhatAnIntegerCannotHold) {
  const std::pair<double, DType> bad[] = {
      {0.5, DType::int32}, {128, DType::int8},   {-129, DType::int8},      {-1, DType::uint8},
      {256, DType::uint8}, {NAN, DType::int64},  {INFINITY, DType::int64}, {1e30, DType::uint64},
      {2, DType::boolean}, {NAN, DType::boolean}};
  for (const auto& each : bad)
    EXPECT_ERROR(InvalidArgumentError, "full: " + std::string(name(each.second)),
                 Tensor::full({1}, each.first, each.second));
  EXPECT_EQ(Tensor::full({1}, -128, DType::int8).item<int8_t>(), -128);
  EXPECT_EQ(Tensor::full({1}, -0x1p63, DType::int64).item<int64_t>(), INT64_MIN);
}

// One more than the largest integer is a double; the largest integer itself is not.
TEST_F(TensorTest, FullRefusesThePowerOfTwoBeyondTheLargestInteger) {
  EXPECT_ERROR(InvalidArgumentError, "full: int64", Tensor::full({1}, 0x1p63, DType::int64));
  EXPECT_ERROR(InvalidArgumentError, "full: uint64", Tensor::full({1}, 0x1p64, DType::uint64));
}

TEST_F(TensorTest, AnUnknownDeviceIsQuoted) {
  EXPECT_ERROR(InvalidArgumentError, canonicalize("/gpu:0"),
               Tensor::zeros({1}, DType::float32, "/gpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "\"what\"", Tensor::scalar(1, "what"));
  EXPECT_ERROR(InvalidArgumentError, canonicalize("/cpu:9"), Tensor::scalar(1).clone_to("/cpu:9"));
}

TEST_F(TensorTest, CopiesOfAHandleShareMemory) {
  const Tensor a = Tensor::of({1, 2});
  const Tensor b = a;
  b.span<int>()[0] = 7;
  EXPECT_THAT(a.to_vector<int>(), ElementsAre(7, 2));
}

TEST_F(TensorTest, BorrowUsesTheMemoryWhereItIs) {
  std::vector<float> values{1, 2, 3, 4, 5, 6};
  const Tensor tensor = Tensor::borrow(values.data(), {2, 3}, DType::float32, "/cpu:1");
  EXPECT_EQ(tensor.data(), values.data());
  EXPECT_EQ(tensor.device(), cpu(1));
  values[4] = 50;
  EXPECT_THAT(tensor.to_vector<float>(), ElementsAre(1, 2, 3, 4, 50, 6));
  tensor.span<float>()[0] = 10;
  EXPECT_EQ(values[0], 10);
  EXPECT_NO_THROW(Tensor::borrow(values.data() + 1, {1}, DType::float32));
}

TEST_F(TensorTest, BorrowKeepsTheOwnerAliveAsLongAsAnyHandle) {
  auto owner = std::make_shared<std::vector<int>>(4, 3);
  const std::weak_ptr<void> watched = owner;
  Tensor tensor = Tensor::borrow(owner->data(), {4}, DType::int32, {}, owner);
  owner.reset();
  EXPECT_FALSE(watched.expired());
  Tensor view = tensor.reshape({2, 2});
  tensor = Tensor();
  EXPECT_FALSE(watched.expired());
  EXPECT_THAT(view.to_vector<int>(), Each(3));
  const Tensor copy = view.clone();
  view = Tensor();
  EXPECT_TRUE(watched.expired());
  EXPECT_THAT(copy.to_vector<int>(), Each(3));
}

TEST_F(TensorTest, BorrowRefusesNullAndMisalignedMemory) {
  alignas(8) char bytes[16] = {};
  EXPECT_ERROR(InvalidArgumentError, "null", Tensor::borrow(nullptr, {1}, DType::int8));
  EXPECT_NO_THROW(Tensor::borrow(nullptr, {0}, DType::int8));
  EXPECT_ERROR(InvalidArgumentError, "not aligned for float32",
               Tensor::borrow(bytes + 2, {1}, DType::float32));
  EXPECT_NO_THROW(Tensor::borrow(bytes + 2, {1}, DType::float16));
}

TEST_F(TensorTest, ClonesAreCopies) {
  const Tensor a = Tensor::of({1, 2, 3});
  const Tensor here = a.clone(), there = a.clone_to("/cpu:1"), same = a.clone_to("/cpu:0");
  a.span<int>()[0] = 9;
  EXPECT_EQ(here.device(), cpu(0));
  EXPECT_EQ(there.device(), cpu(1));
  EXPECT_EQ(there.clone().device(), cpu(1));
  for (const Tensor& copy : {here, there, same}) {
    EXPECT_NE(copy.data(), a.data());
    EXPECT_THAT(copy.to_vector<int>(), ElementsAre(1, 2, 3));
  }
  EXPECT_EQ(Tensor::zeros({0, 3}, DType::int8).clone().shape(), Shape({0, 3}));
}

TEST_F(TensorTest, ClonesLargeTensors) {
  std::vector<int32_t> values(3'000'001);
  std::iota(values.begin(), values.end(), 0);
  EXPECT_EQ(Tensor::of<int32_t>(std::span<const int32_t>(values)).clone().to_vector<int32_t>(),
            values);
}

TEST_F(TensorTest, ReshapeSeesTheSameMemory) {
  const Tensor a = Tensor::of({1, 2, 3, 4, 5, 6});
  const Tensor b = a.reshape({2, 3});
  EXPECT_EQ(b.shape(), Shape({2, 3}));
  EXPECT_EQ(b.data(), a.data());
  EXPECT_EQ(a.reshape({-1, 2}).shape(), Shape({3, 2}));
  EXPECT_EQ(a.reshape({6, -1}).shape(), Shape({6, 1}));
  EXPECT_EQ(b.reshape({-1}).shape(), Shape{6});
  EXPECT_EQ(a.reshape(std::vector<int64_t>{-1, 2}).shape(), Shape({3, 2}));
  EXPECT_EQ(a.reshape(Shape{3, 2}).shape(), Shape({3, 2}));
  EXPECT_EQ(Tensor::scalar(1).reshape({1, 1}).shape(), Shape({1, 1}));
  EXPECT_EQ(Tensor::of({1}).reshape(Shape{}).shape(), Shape{});
  EXPECT_EQ(Tensor::zeros({0}, DType::int8).reshape({3, -1}).shape(), Shape({3, 0}));
}

TEST_F(TensorTest, ReshapeRefusesWhatDoesNotFit) {
  const Tensor a = Tensor::of({1, 2, 3, 4, 5, 6});
  EXPECT_ERROR(InvalidArgumentError, "reshape: int32[6]", a.reshape({4}));
  EXPECT_ERROR(InvalidArgumentError, "[4, -1]", a.reshape({4, -1}));
  EXPECT_ERROR(InvalidArgumentError, "[0, -1]", a.reshape({0, -1}));
  EXPECT_ERROR(InvalidArgumentError, "negative", a.reshape({-1, -1}));
  EXPECT_ERROR(InvalidArgumentError, "negative", a.reshape({-2, 3}));
  EXPECT_ERROR(InvalidArgumentError, "reshape: int32[6]", a.reshape(std::vector<int64_t>{}));
  EXPECT_THROW(a.reshape({int64_t(1) << 62, 4}), InvalidArgumentError);
}

TEST_F(TensorTest, SpanGivesTheElementsInPlaceAndOnlyInTheirType) {
  const Tensor tensor = Tensor::of<float>({1, 2});
  tensor.span<float>()[1] = 5;
  EXPECT_THAT(tensor.to_vector<float>(), ElementsAre(1, 5));
  EXPECT_EQ(tensor.span<const float>().data(), tensor.data());
  EXPECT_THAT(testing::error_of<InvalidArgumentError>([&] { tensor.span<double>(); }),
              AllOf(HasSubstr("float32[2]"), HasSubstr("float64")));
  EXPECT_ERROR(InvalidArgumentError, "int32", tensor.span<const int32_t>());
  EXPECT_ERROR(InvalidArgumentError, "uint8", Tensor::of({true}).span<uint8_t>());
  EXPECT_EQ(Tensor::zeros({0}, DType::float32).span<float>().size(), 0u);
}

TEST_F(TensorTest, ItemNeedsOneElementOfItsType) {
  EXPECT_EQ(Tensor::of({7}).reshape({1, 1}).item<int>(), 7);
  EXPECT_ERROR(InvalidArgumentError, "2 elements, expected 1", Tensor::of({1, 2}).item<int>());
  EXPECT_ERROR(InvalidArgumentError, "0 elements", Tensor::of<int>({}).item<int>());
  EXPECT_ERROR(InvalidArgumentError, "int64", Tensor::of({7}).item<int64_t>());
  EXPECT_ERROR(InvalidArgumentError, "float64", Tensor::of({7}).to_vector<double>());
}

TEST_F(TensorTest, AnEmptyHandleIsAFailedPrecondition) {
  const Tensor nothing;
  EXPECT_FALSE(nothing);
  EXPECT_TRUE(Tensor::scalar(1));
  const std::function<void()> questions[] = {[&] { nothing.dtype(); },
                                             [&] { nothing.shape(); },
                                             [&] { nothing.device(); },
                                             [&] { nothing.num_elements(); },
                                             [&] { nothing.num_bytes(); },
                                             [&] { nothing.is_read_only(); },
                                             [&] { nothing.data(); },
                                             [&] { nothing.const_data(); },
                                             [&] { nothing.span<float>(); },
                                             [&] { nothing.to_vector<float>(); },
                                             [&] { nothing.item<float>(); },
                                             [&] { nothing.clone(); },
                                             [&] { nothing.clone_to("/cpu:0"); },
                                             [&] { nothing.reshape({1}); },
                                             [&] { nothing.to(DType::int8); },
                                             [&] { nothing.to_string(); },
                                             [&] { nothing.to_dlpack(); },
                                             [&] { nothing.to_dlpack_versioned(); }};
  for (size_t i = 0; i < std::size(questions); ++i) {
    SCOPED_TRACE(i);
    EXPECT_ERROR(FailedPreconditionError, "holds nothing", questions[i]());
  }
}

TEST_F(TensorTest, ReadOnlyMemoryIsNeverHandedOutForWriting) {
  const Tensor original = Tensor::of<float>({1, 2});
  const Tensor tensor = read_only(original);
  EXPECT_TRUE(tensor.is_read_only());
  EXPECT_FALSE(original.is_read_only());
  EXPECT_ERROR(InvalidArgumentError, "read-only", tensor.data());
  EXPECT_ERROR(InvalidArgumentError, "read-only", tensor.span<float>());
  EXPECT_ERROR(InvalidArgumentError, "read-only", tensor.reshape({2, 1}).data());
  EXPECT_EQ(tensor.const_data(), original.data());
  EXPECT_EQ(tensor.span<const float>().size(), 2u);
  EXPECT_THAT(tensor.to_vector<float>(), ElementsAre(1, 2));
  for (const Tensor& copy : {tensor.clone(), tensor.clone_to("/cpu:1"), tensor.to(DType::float32),
                             tensor.to(DType::float64)}) {
    EXPECT_FALSE(copy.is_read_only());
    EXPECT_NO_THROW(copy.data());
  }
}

TEST_F(TensorTest, PrintsTypeShapeAndDevice) {
  EXPECT_EQ(Tensor::zeros({3, 2}, DType::float32).to_string(), "float32[3, 2] on " + cpu(0));
  EXPECT_EQ(Tensor::scalar(true, "/cpu:1").to_string(), "bool[] on " + cpu(1));
}

}  // namespace
}  // namespace tutti
