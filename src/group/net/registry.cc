// SPDX-License-Identifier: Apache-2.0
#include "group/net/registry.h"

#include <algorithm>

#include "base/module.h"

namespace tutti::group {

const RegisteredTransport* find_transport(std::string_view name) {
  const auto all = transports();
  const auto found = std::ranges::find(all, name, &RegisteredTransport::name);
  return found == all.end() ? nullptr : &*found;
}

const TransportKind::Module* module_for(const TransportKind& kind, std::string_view launcher) {
  for (const TransportKind::Module& module : kind.modules)
    if (!*module.launcher || module.launcher == launcher) return &module;
  return nullptr;
}

const TransportModule& load(const TransportKind& kind, const TransportKind::Module& module) {
  if (kind.before_load) kind.before_load();
  return *static_cast<const TransportModule*>(base::load_module(module.name).interface);
}

}  // namespace tutti::group
