// SPDX-License-Identifier: Apache-2.0
#include <dlpack/dlpack.h>
#include <tutti/device.h>
#include <tutti/tensor.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "support/expect.h"

// What DLPack 1.0 adds, as the document lays it out.
#ifndef DLPACK_MAJOR_VERSION
struct DLPackVersion {
  uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};
#endif

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint8_t kBoolCode = 6;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct TypeRow {
  DType dtype;
  uint8_t code, bits;
};
constexpr TypeRow kTypes[] = {{DType::boolean, kBoolCode, 8},   {DType::int8, kDLInt, 8},
                              {DType::int16, kDLInt, 16},       {DType::int32, kDLInt, 32},
                              {DType::int64, kDLInt, 64},       {DType::uint8, kDLUInt, 8},
                              {DType::uint16, kDLUInt, 16},     {DType::uint32, kDLUInt, 32},
                              {DType::uint64, kDLUInt, 64},     {DType::float16, kDLFloat, 16},
                              {DType::bfloat16, kDLBfloat, 16}, {DType::float32, kDLFloat, 32},
                              {DType::float64, kDLFloat, 64}};

// A tensor of another library's: float32[2, 3] unless a test changes it. Counts its deletions, and
// unlike the real ones survives them.
template <class Managed>
struct Foreign {
  Foreign() {
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
    managed.dl_tensor = {.data = bytes,
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = shape,
                         .strides = strides,
                         .byte_offset = 0};
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 0};
  }

  DLTensor& tensor() { return managed.dl_tensor; }
  float* floats() { return reinterpret_cast<float*>(bytes); }

  alignas(64) std::byte bytes[64] = {};
  int64_t shape[2] = {2, 3}, strides[2] = {3, 1};
  Managed managed{};
  int deleted = 0;
};

template <class Managed>
class DLPackTest : public ::testing::Test {
 protected:
  static Managed* exported(const Tensor& tensor) {
    if constexpr (std::is_same_v<Managed, DLManagedTensor>)
      return tensor.to_dlpack();
    else
      return tensor.to_dlpack_versioned();
  }

  // It is refused, and stays the caller's.
  static void expect_refused(Foreign<Managed>& foreign, const std::string& text) {
    EXPECT_THAT(
        testing::error_of<InvalidArgumentError>([&] { Tensor::from_dlpack(&foreign.managed); }),
        HasSubstr(text));
    EXPECT_EQ(foreign.deleted, 0) << text;
  }
};
using ManagedTypes = ::testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
TYPED_TEST_SUITE(DLPackTest, ManagedTypes);

TYPED_TEST(DLPackTest, EveryTypeGoesOutAndComesBackWithoutACopy) {
  for (const TypeRow& row : kTypes) {
    SCOPED_TRACE(name(row.dtype));
    const Tensor original = Tensor::full({2, 3}, 1, row.dtype);
    TypeParam* const managed = this->exported(original);
    const DLTensor& tensor = managed->dl_tensor;
    EXPECT_EQ(tensor.dtype.code, row.code);
    EXPECT_EQ(tensor.dtype.bits, row.bits);
    EXPECT_EQ(tensor.dtype.lanes, 1);
    EXPECT_EQ(tensor.data, original.data());
    const Tensor back = Tensor::from_dlpack(managed);
    EXPECT_EQ(back.data(), original.data());
    EXPECT_EQ(back.dtype(), row.dtype);
    EXPECT_EQ(back.shape(), original.shape());
  }
}

TYPED_TEST(DLPackTest, ExportsACompactTensorOnTheCpu) {
  set_logical_devices("CPU", 2);
  TypeParam* const managed = this->exported(Tensor::zeros({2, 3, 4}, DType::int16, "/cpu:1"));
  const DLTensor& tensor = managed->dl_tensor;
  EXPECT_EQ(tensor.device.device_type, kDLCPU);
  EXPECT_EQ(tensor.device.device_id, 0);
  ASSERT_EQ(tensor.ndim, 3);
  EXPECT_THAT(std::vector<int64_t>(tensor.shape, tensor.shape + 3), ElementsAre(2, 3, 4));
  EXPECT_THAT(std::vector<int64_t>(tensor.strides, tensor.strides + 3), ElementsAre(12, 4, 1));
  EXPECT_EQ(tensor.byte_offset, 0u);
  managed->deleter(managed);
}

TYPED_TEST(DLPackTest, ScalarsAndEmptyTensorsTravel) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0, 2}, Shape{1, 1}}) {
    const Tensor back = Tensor::from_dlpack(this->exported(Tensor::zeros(shape, DType::int8)));
    EXPECT_EQ(back.shape(), shape);
  }
}

TYPED_TEST(DLPackTest, AnExportKeepsTheMemoryAliveUntilItsDeleterRuns) {
  auto owner = std::make_shared<std::vector<float>>(6, 2.0f);
  const std::weak_ptr<void> watched = owner;
  TypeParam* const managed =
      this->exported(Tensor::borrow(owner->data(), {6}, DType::float32, {}, owner));
  owner.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(static_cast<float*>(managed->dl_tensor.data)[5], 2.0f);
  managed->deleter(managed);
  EXPECT_TRUE(watched.expired());
}

TYPED_TEST(DLPackTest, TheDeleterRunsOnceAfterTheLastHandle) {
  Foreign<TypeParam> foreign;
  Tensor tensor = Tensor::from_dlpack(&foreign.managed);
  EXPECT_EQ(tensor.data(), foreign.bytes);
  EXPECT_EQ(tensor.shape(), Shape({2, 3}));
  Tensor copy = tensor, view = tensor.reshape({6});
  TypeParam* const again = this->exported(tensor);
  foreign.floats()[5] = 9;
  tensor = copy = Tensor();
  EXPECT_EQ(foreign.deleted, 0);
  EXPECT_EQ(view.span<float>()[5], 9);
  view = Tensor();
  EXPECT_EQ(foreign.deleted, 0);
  again->deleter(again);
  EXPECT_EQ(foreign.deleted, 1);
}

TYPED_TEST(DLPackTest, ADeleterMayBeMissing) {
  Foreign<TypeParam> foreign;
  foreign.managed.deleter = nullptr;
  EXPECT_EQ(Tensor::from_dlpack(&foreign.managed).data(), foreign.bytes);
}

TYPED_TEST(DLPackTest, LandsOnTheCurrentDevice) {
  set_logical_devices("CPU", 2);
  Foreign<TypeParam> foreign;
  const DeviceScope scope("/cpu:1");
  EXPECT_EQ(Tensor::from_dlpack(&foreign.managed).device(), canonicalize("/cpu:1"));
}

TYPED_TEST(DLPackTest, CompactStridesAreAcceptedHoweverWritten) {
  Foreign<TypeParam> none;
  none.tensor().strides = nullptr;
  EXPECT_EQ(Tensor::from_dlpack(&none.managed).shape(), Shape({2, 3}));

  // The stride of an axis with one position, or of a tensor with no element, means nothing.
  Foreign<TypeParam> one;
  one.shape[0] = 1;
  one.strides[0] = 77;
  EXPECT_EQ(Tensor::from_dlpack(&one.managed).shape(), Shape({1, 3}));
  Foreign<TypeParam> empty;
  empty.shape[1] = 0;
  empty.strides[0] = empty.strides[1] = -5;
  EXPECT_EQ(Tensor::from_dlpack(&empty.managed).shape(), Shape({2, 0}));
}

TYPED_TEST(DLPackTest, StridedMemoryIsRefused) {
  const int64_t table[][2] = {{1, 2}, {6, 2}, {4, 1}, {0, 1}, {3, -1}, {3, 0}};
  for (const auto& [outer, inner] : table) {
    Foreign<TypeParam> foreign;
    foreign.strides[0] = outer;
    foreign.strides[1] = inner;
    this->expect_refused(foreign, "strided");
  }
}

TYPED_TEST(DLPackTest, TypesThatTuttiLacksAreRefused) {
  const DLDataType table[] = {{kDLComplex, 64, 1}, {kDLOpaqueHandle, 64, 1}, {kDLFloat, 8, 1},
                              {kDLInt, 4, 1},      {kDLFloat, 32, 4},        {kDLFloat, 32, 0},
                              {kDLBfloat, 32, 1},  {kBoolCode, 1, 1},        {7, 8, 1},
                              {255, 32, 1}};
  for (const DLDataType& type : table) {
    Foreign<TypeParam> foreign;
    foreign.tensor().dtype = type;
    this->expect_refused(foreign, "no DType for code " + std::to_string(type.code) + ", " +
                                      std::to_string(type.bits) + " bits, " +
                                      std::to_string(type.lanes) + " lanes");
  }
}

TYPED_TEST(DLPackTest, MemoryThatIsNotTheHostsIsRefused) {
  for (const int type : {0, 2, 4, 7, 8, 9, 10, 12, 13, 14, 99, -1}) {
    Foreign<TypeParam> foreign;
    // Other releases of DLPack know types that the enumeration here has no room for.
    std::memcpy(&foreign.tensor().device.device_type, &type, sizeof(type));
    this->expect_refused(foreign, "device type " + std::to_string(type));
  }
  for (const DLDeviceType pinned : {kDLCUDAHost, kDLROCMHost}) {
    Foreign<TypeParam> foreign;
    foreign.tensor().device = {pinned, 0};
    EXPECT_EQ(Tensor::from_dlpack(&foreign.managed).data(), foreign.bytes);
  }
}

TYPED_TEST(DLPackTest, TheByteOffsetCounts) {
  Foreign<TypeParam> foreign;
  foreign.tensor().byte_offset = 8;
  foreign.floats()[2] = 5;
  EXPECT_EQ(Tensor::from_dlpack(&foreign.managed).template span<float>()[0], 5);
  Foreign<TypeParam> misaligned;
  misaligned.tensor().byte_offset = 2;
  this->expect_refused(misaligned, "not aligned");
}

TYPED_TEST(DLPackTest, NullMemoryHoldsNoElements) {
  Foreign<TypeParam> empty;
  empty.shape[0] = 0;
  empty.tensor().data = nullptr;
  EXPECT_EQ(Tensor::from_dlpack(&empty.managed).num_elements(), 0);
  EXPECT_EQ(empty.deleted, 1);
  Foreign<TypeParam> foreign;
  foreign.tensor().data = nullptr;
  this->expect_refused(foreign, "null");
}

TYPED_TEST(DLPackTest, AbsurdShapesAreRefused) {
  for (const int ndim : {-1, std::numeric_limits<int>::min(), 65, 1 << 30}) {
    Foreign<TypeParam> foreign;
    foreign.tensor().ndim = ndim;
    this->expect_refused(foreign, std::to_string(ndim) + " axes");
  }
  Foreign<TypeParam> none;
  none.tensor().shape = nullptr;
  this->expect_refused(none, "without a shape");
  Foreign<TypeParam> negative;
  negative.shape[1] = -3;
  this->expect_refused(negative, "negative");
  Foreign<TypeParam> overflow;
  overflow.shape[0] = overflow.shape[1] = kMax;
  this->expect_refused(overflow, "2^63");

  Foreign<TypeParam> bytes_overflow;
  bytes_overflow.tensor().ndim = 1;
  bytes_overflow.tensor().strides = nullptr;
  bytes_overflow.shape[0] = kMax;
  EXPECT_THROW(Tensor::from_dlpack(&bytes_overflow.managed), Error);
  EXPECT_EQ(bytes_overflow.deleted, 0);
}

TYPED_TEST(DLPackTest, ARefusalLeavesNoTensorOnTheDevice) {
  set_logical_devices("CPU", 2);
  {
    const DeviceScope scope("/cpu:1");
    Foreign<TypeParam> foreign;
    foreign.tensor().byte_offset = 2;
    this->expect_refused(foreign, "not aligned");
  }
  EXPECT_NO_THROW(set_logical_devices("CPU", 1));
}

TYPED_TEST(DLPackTest, NullIsRefused) {
  EXPECT_ERROR(InvalidArgumentError, "null", Tensor::from_dlpack(static_cast<TypeParam*>(nullptr)));
}

using Versioned = Foreign<DLManagedTensorVersioned>;

TEST(DLPackVersioned, OnlyTheFirstMajorVersionIsUnderstood) {
  for (const uint32_t major : {0u, 2u, 0xffffffffu}) {
    Versioned foreign;
    foreign.managed.version = {major, 3};
    EXPECT_ERROR(InvalidArgumentError, "version " + std::to_string(major) + ".3",
                 Tensor::from_dlpack(&foreign.managed));
    EXPECT_EQ(foreign.deleted, 0);
  }
  Versioned newer;
  newer.managed.version = {1, 99};
  EXPECT_NO_THROW(Tensor::from_dlpack(&newer.managed));
}

TEST(DLPackVersioned, ExportsSayTheirVersion) {
  DLManagedTensorVersioned* const managed = Tensor::scalar(1).to_dlpack_versioned();
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  managed->deleter(managed);
}

TEST(DLPackVersioned, ReadOnlyMemoryStaysReadOnly) {
  Versioned foreign;
  foreign.managed.flags = 1;
  const Tensor tensor = Tensor::from_dlpack(&foreign.managed);
  EXPECT_TRUE(tensor.is_read_only());
  EXPECT_ERROR(InvalidArgumentError, "read-only", tensor.data());
  EXPECT_ERROR(InvalidArgumentError, "read-only", tensor.span<float>());
  EXPECT_EQ(tensor.const_data(), foreign.bytes);
  EXPECT_EQ(tensor.span<const float>().size(), 6u);
  EXPECT_FALSE(tensor.clone().is_read_only());

  // The older structure has no way to say it.
  EXPECT_ERROR(InvalidArgumentError, "read-only", tensor.to_dlpack());
  DLManagedTensorVersioned* const again = tensor.to_dlpack_versioned();
  EXPECT_EQ(again->flags & 1, 1u);
  EXPECT_EQ(again->dl_tensor.data, foreign.bytes);
  again->deleter(again);
}

TEST(DLPackVersioned, OtherFlagsDoNotMatter) {
  Versioned foreign;
  foreign.managed.flags = 2;  // "is a copy"
  EXPECT_FALSE(Tensor::from_dlpack(&foreign.managed).is_read_only());
}

}  // namespace
}  // namespace tutti
