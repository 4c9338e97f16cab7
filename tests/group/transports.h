// SPDX-License-Identifier: Apache-2.0
// The ranks of a job in one process, connected by a transport of the table or by the tests' own.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/module.h"
#include "group/net/registry.h"

namespace tutti::group {

inline void PrintTo(Transport::State state, std::ostream* out) {
  constexpr const char* kNames[] = {"under_way", "over", "failed", "too_long"};
  *out << kNames[int(state)];
}

}  // namespace tutti::group

namespace tutti::testing {

using group::Transport;
using State = Transport::State;
using Peers = std::vector<std::unique_ptr<Transport>>;

constexpr std::chrono::seconds kGiveUp{60};

// From the build tree. std::runtime_error if it was not built.
inline const group::TransportModule& module_of(const std::string& transport) {
  const group::TransportKind& kind = group::find_transport(transport)->kind;
  if (kind.before_load) kind.before_load();
  const std::string file =
      std::string(TUTTI_TEST_MODULES) + "/libtutti_" + kind.modules[0].name + ".so";
  void* const library = dlopen(file.c_str(), RTLD_NOW);
  if (!library) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<const base::Module* (*)()>(dlsym(library, "tutti_module"));
  return *static_cast<const group::TransportModule*>(entry()->interface);
}

inline std::vector<std::byte> message(size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = std::byte((i * 2654435761u + seed * 97u) >> 7);
  return data;
}

inline void progress(const Peers& all) {
  for (const auto& one : all)
    if (one) one->progress();
}

// Until the condition holds, while all ranks make progress.
template <class Condition>
bool eventually(const Peers& all, Condition condition) {
  const auto until = std::chrono::steady_clock::now() + kGiveUp;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    progress(all);
  }
  return true;
}

inline State finish(Transport::Message* message, Transport& whose, const Peers& all) {
  State state = State::under_way;
  eventually(all, [&] { return (state = whose.advance(message, 1)) != State::under_way; });
  return state;
}

inline Peers connected(const std::string& transport, int n, const std::string& host = "127.0.0.1",
                       bool sends_in_bulk = false) {
  std::vector<std::unique_ptr<group::Endpoint>> endpoints;
  std::vector<std::string> addresses;
  for (int r = 0; r < n; ++r) {
    endpoints.push_back(module_of(transport).open(
        {.rank = r, .host = host, .timeout = kGiveUp, .sends_in_bulk = sends_in_bulk}));
    addresses.push_back(endpoints.back()->address());
  }
  std::vector<std::future<std::unique_ptr<Transport>>> all;
  for (int r = 0; r < n; ++r)
    all.push_back(std::async(
        std::launch::async, [&, r] { return endpoints[size_t(r)]->connect(addresses, r, [] {}); }));
  Peers ranks;
  for (auto& one : all) ranks.push_back(one.get());
  return ranks;
}

// Large messages, until every rank has connections for them to and from every other. Returns those
// of rank 0.
inline std::vector<int> meet_in_bulk(const Peers& ranks) {
  const auto sent = message(1 << 20, 1);
  std::vector<std::byte> got(sent.size());
  std::vector<int> sockets;
  size_t n = 0;
  EXPECT_TRUE(eventually(ranks, [&] {
    for (size_t from = 0; from < ranks.size(); ++from)
      for (size_t to = 0; to < ranks.size(); ++to) {
        if (from == to) continue;
        auto* const coming = ranks[to]->receive(int(from), 77, got.data(), got.size());
        auto* const going = ranks[from]->send(int(to), 77, sent.data(), sent.size());
        EXPECT_EQ(finish(coming, *ranks[to], ranks), State::over);
        EXPECT_EQ(finish(going, *ranks[from], ranks), State::over);
        EXPECT_TRUE(got == sent);
      }
    for (const auto& rank : ranks)
      for (const Transport::Connection& made : rank->new_connections()) {
        n += made.is_bulk;
        if (made.is_bulk && rank == ranks[0]) sockets.push_back(made.socket);
      }
    return n == 2 * ranks.size() * (ranks.size() - 1);
  }));
  return sockets;
}

}  // namespace tutti::testing
