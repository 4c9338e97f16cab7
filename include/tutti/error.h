// SPDX-License-Identifier: Apache-2.0
// The errors that Tutti throws: one class per code, all derived from Error.
//
// The text names the operation, what is wrong with it, and the values that show it. What one
// process can check is checked before anything has moved: after such an InvalidArgumentError every
// buffer is as it was. If the failure lies with another rank, a lost peer or a missed deadline,
// data was under way, and the outputs of the operation hold anything. An Error is never shared
// between threads.
#pragma once

#include <stdexcept>
#include <string>

#pragma GCC visibility push(default)

namespace tutti {

// A number for each class derived from Error.
enum class ErrorCode {
  invalid_argument,
  failed_precondition,
  unavailable,
  deadline_exceeded,
  aborted,
  cancelled,
  unimplemented,
  out_of_range,
  not_found,
  already_exists,
  data_loss,
  resource_exhausted,
  unauthenticated,
  internal,
};

// Base of all errors of Tutti. what() is the text.
class Error : public std::runtime_error {
 public:
  // Says which class it is, without a dynamic_cast.
  ErrorCode code() const noexcept { return code_; }

 protected:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}

 private:
  ErrorCode code_;
};

// An argument can never be right, whatever the state of the system: fix the call.
class InvalidArgumentError : public Error {
 public:
  explicit InvalidArgumentError(const std::string& what)
      : Error(ErrorCode::invalid_argument, what) {}
};

// The call is right but comes at the wrong time or in the wrong context.
class FailedPreconditionError : public Error {
 public:
  explicit FailedPreconditionError(const std::string& what)
      : Error(ErrorCode::failed_precondition, what) {}
};

// A peer, a device or a module cannot be reached, or the system refuses a file.
class UnavailableError : public Error {
 public:
  explicit UnavailableError(const std::string& what) : Error(ErrorCode::unavailable, what) {}
};

// A participant did not come in time; the text names it.
class DeadlineExceededError : public Error {
 public:
  explicit DeadlineExceededError(const std::string& what)
      : Error(ErrorCode::deadline_exceeded, what) {}
};

// Another participant failed, so this one cannot go on; the text names the other.
class AbortedError : public Error {
 public:
  explicit AbortedError(const std::string& what) : Error(ErrorCode::aborted, what) {}
};

// The operation's group was left before it began.
class CancelledError : public Error {
 public:
  explicit CancelledError(const std::string& what) : Error(ErrorCode::cancelled, what) {}
};

// Tutti, or the backend in use, does not do this.
class UnimplementedError : public Error {
 public:
  explicit UnimplementedError(const std::string& what) : Error(ErrorCode::unimplemented, what) {}
};

// Past the end of a sequence: an index, or an iterator with nothing left.
class OutOfRangeError : public Error {
 public:
  explicit OutOfRangeError(const std::string& what) : Error(ErrorCode::out_of_range, what) {}
};

// There is no such file, variable or entry.
class NotFoundError : public Error {
 public:
  explicit NotFoundError(const std::string& what) : Error(ErrorCode::not_found, what) {}
};

// The name is taken.
class AlreadyExistsError : public Error {
 public:
  explicit AlreadyExistsError(const std::string& what) : Error(ErrorCode::already_exists, what) {}
};

// Data is damaged and cannot be recovered.
class DataLossError : public Error {
 public:
  explicit DataLossError(const std::string& what) : Error(ErrorCode::data_loss, what) {}
};

// The system has no more memory, descriptors or threads; the text says which.
class ResourceExhaustedError : public Error {
 public:
  explicit ResourceExhaustedError(const std::string& what)
      : Error(ErrorCode::resource_exhausted, what) {}
};

// The other side does not accept this one's token or certificate, or the reverse.
class UnauthenticatedError : public Error {
 public:
  explicit UnauthenticatedError(const std::string& what)
      : Error(ErrorCode::unauthenticated, what) {}
};

// A fault of Tutti itself.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& what) : Error(ErrorCode::internal, what) {}
};

// Throws the class that belongs to `code`.
[[noreturn]] void throw_error(ErrorCode code, const std::string& what);

}  // namespace tutti

#pragma GCC visibility pop
