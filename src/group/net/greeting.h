// SPDX-License-Identifier: Apache-2.0
// What a rank says at the beginning of an operation between hosts.
#pragma once

#include "group/core/operation.h"

namespace tutti::group {

struct Greeting {
  uint64_t number;
  uint64_t hash;
  Description what;
};

// The most data that travels with a greeting.
constexpr size_t kMostTold = 32 << 10;

// Where the data of a greeting begins. If only lengths move, a greeting is just the bytes before.
constexpr size_t kGreetingData = 128;
constexpr size_t kGreetingBytes = kGreetingData + kMostTold;
static_assert(sizeof(Greeting) <= kGreetingData);

// How many tensors of a list ranks show each other if their lists differ: in one notice; in all.
constexpr size_t kListedAtOnce = 64, kMostListed = 4096;

}  // namespace tutti::group
