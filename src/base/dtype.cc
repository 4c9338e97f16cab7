#include <tutti/dtype.h>

#include "base/half.h"

namespace tutti {

namespace {
constexpr std::string_view kNames[] = {"bool",     "int8",    "int16",  "int32",  "int64",
                                       "uint8",    "uint16",  "uint32", "uint64", "float16",
                                       "bfloat16", "float32", "float64"};
}  // namespace

std::string_view name(DType dtype) {
  (void)size_of(dtype);  // which throws for what is not a DType
  return kNames[size_t(dtype)];
}
bool is_floating(DType dtype) { return dtype >= DType::float16 && dtype <= DType::float64; }
bool is_integer(DType dtype) { return dtype >= DType::int8 && dtype <= DType::uint64; }
std::ostream& operator<<(std::ostream& os, DType dtype) { return os << name(dtype); }

float16::float16(float value) : bits(base::float16_from_float(value)) {}
float16::operator float() const { return base::float_from_float16(bits); }
bfloat16::bfloat16(float value) : bits(base::bfloat16_from_float(value)) {}
bfloat16::operator float() const { return base::float_from_bfloat16(bits); }

}  // namespace tutti
