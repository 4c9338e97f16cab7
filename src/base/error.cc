// SPDX-License-Identifier: Apache-2.0
#include <tutti/dtype.h>
#include <tutti/error.h>

namespace tutti {

void throw_error(ErrorCode code, const std::string& what) {
  switch (code) {
    case ErrorCode::invalid_argument: throw InvalidArgumentError(what);
    case ErrorCode::failed_precondition: throw FailedPreconditionError(what);
    case ErrorCode::unavailable: throw UnavailableError(what);
    case ErrorCode::deadline_exceeded: throw DeadlineExceededError(what);
    case ErrorCode::aborted: throw AbortedError(what);
    case ErrorCode::cancelled: throw CancelledError(what);
    case ErrorCode::unimplemented: throw UnimplementedError(what);
    case ErrorCode::out_of_range: throw OutOfRangeError(what);
    case ErrorCode::not_found: throw NotFoundError(what);
    case ErrorCode::already_exists: throw AlreadyExistsError(what);
    case ErrorCode::data_loss: throw DataLossError(what);
    case ErrorCode::resource_exhausted: throw ResourceExhaustedError(what);
    case ErrorCode::unauthenticated: throw UnauthenticatedError(what);
    case ErrorCode::internal: break;
  }
  throw InternalError(what);
}

void detail::throw_not_a(const char* type, int value) {
  throw InvalidArgumentError(std::to_string(value) + " is not a " + type);
}

}  // namespace tutti
