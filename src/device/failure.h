// SPDX-License-Identifier: Apache-2.0
// What has gone wrong on a GPU. Enqueued work runs on after its caller has returned, so its error
// is kept for the next caller that waits for the GPU.
#pragma once

#include <tutti/error.h>

#include <string>

namespace tutti::device {

// Work that was enqueued on `gpu` has failed. The first error stays until it is thrown.
void fail(int gpu, ErrorCode code, const std::string& text);

// Throws the error of `gpu`, if it has one, once. Call it after waiting for the GPU.
void throw_failure(int gpu);

}  // namespace tutti::device
