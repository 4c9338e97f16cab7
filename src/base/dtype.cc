// SPDX-License-Identifier: Apache-2.0
#include <tutti/dtype.h>

#include "base/half.h"

namespace tutti {

std::string_view name(DType dtype) {
  (void)size_of(dtype);  // which throws for a value that is not a DType
  return detail::kDTypes[size_t(dtype)].name;
}
std::ostream& operator<<(std::ostream& os, DType dtype) { return os << name(dtype); }

float16::float16(float value) : bits(base::float16_from_float(value)) {}
float16::operator float() const { return base::float_from_float16(bits); }
bfloat16::bfloat16(float value) : bits(base::bfloat16_from_float(value)) {}
bfloat16::operator float() const { return base::float_from_bfloat16(bits); }

}  // namespace tutti
