// SPDX-License-Identifier: Apache-2.0
#include "base/module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <tutti/error.h>
#include <tutti/version.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "base/settings.h"

namespace tutti::base {

namespace {

std::filesystem::path module_folder() {
  if (!settings().module_path.empty()) return settings().module_path;
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&load_module), &info) || !info.dli_fname)
    throw InternalError("cannot find the file that libtutti.so was loaded from");
  return std::filesystem::absolute(info.dli_fname).parent_path() / "tutti";
}

const Module* open(const std::string& name) {
  const std::string file = (module_folder() / fmt::format("libtutti_{}.so", name)).string();
  const auto fail = [&](const std::string& why) {
    throw UnavailableError(
        fmt::format("the module \"{}\" cannot be loaded: {}; install Tutti with it, or name its "
                    "folder in TUTTI_MODULE_PATH",
                    name, why));
  };
  void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (!library) fail(dlerror());
  auto* const entry = reinterpret_cast<const Module* (*)()>(dlsym(library, "tutti_module"));
  if (!entry) fail(fmt::format("{} is not a module of Tutti", file));
  const Module* const module = entry();
  if (module->version != version())
    fail(fmt::format("{} belongs to version {} of Tutti, and this is {}", file, module->version,
                     version()));
  return module;
}

}  // namespace

const Module& load_module(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, const Module*> loaded;
  std::lock_guard lock(mutex);
  const Module*& module = loaded[name];
  if (!module) module = open(name);
  return *module;
}

}  // namespace tutti::base
