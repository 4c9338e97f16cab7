#include <tutti/dtype.h>

#include "base/half.h"

namespace tutti {

namespace {
struct Info {
  std::string_view name;
  size_t size;
};
constexpr Info kInfo[] = {{"bool", 1},   {"int8", 1},    {"int16", 2},    {"int32", 4},
                          {"int64", 8},  {"uint8", 1},   {"uint16", 2},   {"uint32", 4},
                          {"uint64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4},
                          {"float64", 8}};
}  // namespace

std::string_view name(DType dtype) { return kInfo[size_t(dtype)].name; }
size_t size_of(DType dtype) { return kInfo[size_t(dtype)].size; }
bool is_floating(DType dtype) { return dtype >= DType::float16; }
bool is_integer(DType dtype) { return dtype >= DType::int8 && dtype <= DType::uint64; }
std::ostream& operator<<(std::ostream& os, DType dtype) { return os << name(dtype); }

float16::float16(float value) : bits(base::float16_from_float(value)) {}
float16::operator float() const { return base::float_from_float16(bits); }
bfloat16::bfloat16(float value) : bits(base::bfloat16_from_float(value)) {}
bfloat16::operator float() const { return base::float_from_bfloat16(bits); }

}  // namespace tutti
