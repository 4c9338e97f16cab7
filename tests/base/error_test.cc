// SPDX-License-Identifier: Apache-2.0
#include <tutti/error.h>

#include <type_traits>

#include "support/expect.h"

namespace tutti {
namespace {

// Catches by the exact class: a base class, or a sibling, would be a wrong answer.
template <class E>
void expect_class(ErrorCode code) {
  try {
    throw_error(code, "the text");
  } catch (const Error& e) {
    EXPECT_EQ(typeid(e), typeid(E));
    EXPECT_EQ(e.code(), code);
    EXPECT_STREQ(e.what(), "the text");
  }
  EXPECT_EQ(E("x").code(), code);
  static_assert(std::is_base_of_v<Error, E> && std::is_base_of_v<std::runtime_error, E>);
}

TEST(ThrowError, ThrowsTheClassOfTheCode) {
  expect_class<InvalidArgumentError>(ErrorCode::invalid_argument);
  expect_class<FailedPreconditionError>(ErrorCode::failed_precondition);
  expect_class<UnavailableError>(ErrorCode::unavailable);
  expect_class<DeadlineExceededError>(ErrorCode::deadline_exceeded);
  expect_class<AbortedError>(ErrorCode::aborted);
  expect_class<CancelledError>(ErrorCode::cancelled);
  expect_class<UnimplementedError>(ErrorCode::unimplemented);
  expect_class<OutOfRangeError>(ErrorCode::out_of_range);
  expect_class<NotFoundError>(ErrorCode::not_found);
  expect_class<AlreadyExistsError>(ErrorCode::already_exists);
  expect_class<DataLossError>(ErrorCode::data_loss);
  expect_class<ResourceExhaustedError>(ErrorCode::resource_exhausted);
  expect_class<UnauthenticatedError>(ErrorCode::unauthenticated);
  expect_class<InternalError>(ErrorCode::internal);
}

}  // namespace
}  // namespace tutti
