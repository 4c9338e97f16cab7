// SPDX-License-Identifier: Apache-2.0
// The transports that this Tutti knows, whether or not their modules were built. A transport is a
// folder here and a line tutti_transport() in src/CMakeLists.txt, which generates the table.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>

#include "group/net/transport.h"

namespace tutti::group {

// What the library itself knows of a transport, without loading its module.
struct TransportKind {
  struct Module {
    const char* name;           // libtutti_<name>.so
    const char* launcher = "";  // if it serves this launcher's jobs only: "Open MPI"
    // For tutti info:
    const char* ranks;    // the ranks that it connects
    const char* purpose;  // of the module
    const char* library;  // the Debian package that it needs to be loaded
    const char* headers;  // those that it needs to be built
  };
  std::span<const Module> modules;  // one, or one for each launcher
  const char* elsewhere = "";       // why the jobs of other launchers cannot use it
  // Files that a process opens for it.
  int descriptors = 0, descriptors_per_peer = 0;
  // The most peers that it opens files for in most jobs.
  int most_peers = std::numeric_limits<int>::max();
  int files_for(int peers) const { return descriptors_per_peer * std::min(peers, most_peers); }
  // Whether a job should use it on this network if TUTTI_BACKEND is empty. Null: never.
  bool (*is_preferred)(const TransportOptions& options) = nullptr;
  // Called before its module is loaded. Null: nothing to do.
  void (*before_load)() = nullptr;
};

struct RegisteredTransport {
  std::string_view name;  // as in TUTTI_BACKEND
  const TransportKind& kind;
};

// The first is what a job uses if it prefers no other.
std::span<const RegisteredTransport> transports();

// Null: TUTTI_BACKEND names no transport.
const RegisteredTransport* find_transport(std::string_view name);

// The module for jobs of any launcher, or for those of `launcher`; null: there is none.
const TransportKind::Module* module_for(const TransportKind& kind, std::string_view launcher);

// UnavailableError, with the remedy, if it cannot be loaded.
const TransportModule& load(const TransportKind& kind, const TransportKind::Module& module);

}  // namespace tutti::group
