// SPDX-License-Identifier: Apache-2.0
// The text of the variable TF_CONFIG.
#pragma once

#include <tutti/cluster.h>

#include <optional>
#include <string>
#include <string_view>

namespace tutti::cluster {

struct TFConfig {
  ClusterSpec cluster = {};
  std::string task_type = {};
  std::optional<int> task_id = {};
  std::string rpc_layer = {};
  std::optional<std::string> session_master = {};
};

// All empty for an empty text. InvalidArgumentError, naming TF_CONFIG, if it is malformed or leaves
// an address out. Whether the jobs are known, and the task is one of theirs, is left to
// validate_cluster_spec.
TFConfig parse_tf_config(std::string_view text);

// The TF_CONFIG of this process.
TFConfig tf_config();

}  // namespace tutti::cluster
