// SPDX-License-Identifier: Apache-2.0
// Every environment variable of Tutti's own: read here, and nowhere else. Those of launchers are
// read in src/cluster.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/costs.h"

namespace tutti::base {

struct Settings {
  int threads = 0;                      // TUTTI_THREADS; 0: one per core
  std::chrono::nanoseconds timeout;     // TUTTI_TIMEOUT; 0: never
  std::chrono::nanoseconds warn_after;  // TUTTI_WARN_AFTER; 0: never
  std::string timeline;                 // TUTTI_TIMELINE; empty: off
  std::string log_level;                // TUTTI_LOG
  std::string backend;                  // TUTTI_BACKEND; empty: chosen automatically
  std::string host_id;                  // TUTTI_HOST_ID; empty: detected
  std::string interfaces;               // TUTTI_INTERFACES; empty: that of this worker's address
  std::string module_path;              // TUTTI_MODULE_PATH; empty: tutti beside libtutti.so
  std::string record_dir;               // TUTTI_RECORD_DIR; empty: none
  int stragglers = 0;                   // TUTTI_STRAGGLERS; 0: never
  Costs costs;                          // TUTTI_COSTS

  std::string coordinator;                     // TUTTI_COORDINATOR; empty: the chief's address
  std::string token;                           // TUTTI_TOKEN
  std::string tls_certificate;                 // TUTTI_TLS_CERTIFICATE; empty: no TLS
  std::string tls_key;                         // TUTTI_TLS_KEY
  std::string tls_authority;                   // TUTTI_TLS_CA
  std::chrono::nanoseconds join_timeout;       // TUTTI_JOIN_TIMEOUT
  std::chrono::nanoseconds heartbeat_timeout;  // TUTTI_HEARTBEAT_TIMEOUT
};

// The settings of this process, read from the environment on the first call, which also warns of
// unknown_settings(). InvalidArgumentError, naming the variable, if a value cannot be understood.
const Settings& settings();

// Reads the environment afresh.
Settings read_settings();

// settings() does not warn in this process: its workers have the same variables, and one of them
// does.
void leave_unknown_settings_to_workers();

// A text for each variable in the environment that looks like a setting and is none.
std::vector<std::string> unknown_settings();

// The transports that TUTTI_BACKEND may name, from the table that the build generates.
std::span<const std::string_view> transport_names();

struct SettingDoc {
  const char* name;
  const char* default_value;
  const char* meaning;
};
// One entry per variable: what docs/settings.md and `tutti info` print.
std::span<const SettingDoc> setting_docs();

}  // namespace tutti::base
