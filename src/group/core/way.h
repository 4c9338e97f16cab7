// SPDX-License-Identifier: Apache-2.0
// How an operation goes, if there are several ways. group/plan chooses; timelines and records show
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti::group {

enum class Way : uint8_t {
  only,  // there is no other
  // A reduction, within a host or between hosts.
  whole,     // each tells all of it to every other, and sums all of it
  shares,    // each sums a share, and tells the result to every other
  doubling,  // hosts tell all they know, in a logarithmic number of rounds
  halving,   // the same of a half, a quarter, ... of the data; and the results back the same way
  // Parts that ranks have for each other, between hosts.
  rounds,     // all parts get to all hosts, in a logarithmic number of rounds
  handshake,  // a part goes to the rank that it is for, with the handshake
  direct,     // the same, in a message of its own
  relay,      // a part goes to one rank of each host, which passes it on
};

constexpr std::string_view name(Way way) {
  constexpr std::array<std::string_view, 9> kNames{
      "", "whole", "shares", "doubling", "halving", "rounds", "handshake", "direct", "relay"};
  return kNames[size_t(way)];
}

}  // namespace tutti::group
