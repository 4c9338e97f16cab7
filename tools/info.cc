// SPDX-License-Identifier: Apache-2.0
// tutti info: what Tutti has here, and why it lacks what it lacks.
#include <fmt/format.h>
#include <hwy/highway.h>
#include <tutti/device.h>
#include <tutti/error.h>
#include <tutti/version.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/module.h"
#include "base/settings.h"
#include "base/topology.h"
#include "build.h"
#include "command.h"
#include "device/gpu.h"
#include "group/net/registry.h"
#include "layout.h"

namespace tutti::tools {

namespace {

struct Module {
  const char* name;
  const char* purpose;
  const char* library;  // the Debian package that it needs to be loaded
  const char* headers;  // the ones that it needs to be built
  std::function<void()> load;
};

struct Backend {
  std::string name;
  std::string module;  // empty: built in
  std::string purpose;
  std::string launcher = {};  // if it serves this one's jobs only
};

std::vector<Module> modules() {
  const auto other = [](const char* name, const char* purpose, const char* library,
                        const char* headers) -> Module {
    return {name, purpose, library, headers, [name] { base::load_module(name); }};
  };
  std::vector<Module> all{other("cluster", "coordination of processes", "libgrpc++1.51",
                                "libgrpc++-dev protobuf-compiler-grpc")};
  for (const auto& transport : group::transports())
    for (const auto& module : transport.kind.modules)
      all.push_back({module.name, module.purpose, module.library, module.headers,
                     [&] { group::load(transport.kind, module); }});
  all.push_back(other("cuda", "GPUs", "NVIDIA's driver", "the CUDA toolkit"));
  all.push_back(other("nccl", "collectives between GPUs", "NCCL (libnccl.so.2)",
                      "the CUDA toolkit and NCCL"));
  return all;
}

std::vector<Backend> backends() {
  std::vector<Backend> all{{"in_process", "", "ranks are threads of one process"},
                           {"shm", "", "ranks are processes on one host"}};
  for (const auto& transport : group::transports())
    for (const auto& module : transport.kind.modules)
      all.push_back({std::string(transport.name), module.name, module.ranks, module.launcher});
  all.push_back({"nccl", "nccl", "ranks with a GPU each"});
  return all;
}

// Empty if the module can be loaded.
std::string why_off(const Module& module) {
  try {
    module.load();
    return "";
  } catch (const std::exception& error) {
    const std::string what = error.what();
    if (what.find(fmt::format("libtutti_{}.so: cannot open", module.name)) != std::string::npos)
      return fmt::format(
          "it is not installed: install the package that holds it (docs/install.md), or build "
          "Tutti "
          "with {}",
          module.headers);
    return fmt::format("{} (it needs {})", what, module.library);
  }
}

// What is wrong with the folder that TUTTI_MODULE_PATH names; empty: nothing.
std::string wrong_module_path() {
  namespace fs = std::filesystem;
  const char* const path = std::getenv("TUTTI_MODULE_PATH");
  if (!path || !*path) return "";
  std::error_code error;
  if (!fs::is_directory(path, error))
    return fmt::format("TUTTI_MODULE_PATH={}: there is no such folder", path);
  for (const auto& entry : fs::directory_iterator(path, error))
    if (const std::string name = entry.path().filename();
        name.starts_with("libtutti_") && name.ends_with(".so"))
      return "";
  return fmt::format(
      "TUTTI_MODULE_PATH={}: {}", path,
      error ? error.message() : "this folder holds no module of Tutti (libtutti_*.so)");
}

nlohmann::json collect() {
  nlohmann::json result;
  const std::string wrong_path = wrong_module_path();
  result["version"] = version();
  for (const auto& [what, value] : kBuild) result["build"][what] = value;
  result["cores"] = base::topology().cores;
  result["last_level_cache"] = base::topology().last_level_cache;
  auto& vectors = result["vector_instructions"] = nlohmann::json::array();
  // The best has the lowest bit.
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left; left &= left - 1)
    vectors.push_back(hwy::TargetName(left & -left));
  try {
    result["devices"] = list_logical_devices();
    if (list_logical_devices("GPU").empty())
      result["no_gpu"] = wrong_path.empty() ? device::why_no_gpus() : wrong_path;
  } catch (const InvalidArgumentError&) {  // of a setting, which is told below
    result["devices"] = list_logical_devices("CPU");
  }

  if (!wrong_path.empty()) result["modules_error"] = wrong_path;
  auto& shown = result["modules"] = nlohmann::json::array();
  std::map<std::string, bool> loaded{{"", true}};
  for (const Module& module : modules()) {
    const std::string reason = wrong_path.empty() ? why_off(module) : wrong_path;
    loaded[module.name] = reason.empty();
    shown.push_back({{"name", module.name},
                     {"purpose", module.purpose},
                     {"loaded", reason.empty()},
                     {"reason", reason}});
  }
  for (const Backend& backend : backends())
    result["backends"].push_back({{"name", backend.name},
                                  {"purpose", backend.purpose},
                                  {"available", loaded.at(backend.module)},
                                  {"module", backend.module},
                                  {"launcher", backend.launcher}});

  auto& settings = result["settings"] = nlohmann::json::array();
  for (const base::SettingDoc& doc : base::setting_docs()) {
    const char* const value = std::getenv(doc.name);
    const bool set = value && *value;
    const bool secret = std::string_view(doc.name) == "TUTTI_TOKEN";
    settings.push_back({{"name", doc.name},
                        {"set", set},
                        {"value", !set     ? doc.default_value
                                  : secret ? "(not shown)"
                                           : value},
                        {"default", doc.default_value},
                        {"meaning", doc.meaning}});
  }
  try {
    base::read_settings();
  } catch (const std::exception& error) {
    result["settings_error"] = error.what();
  }
  return result;
}

std::string bytes_text(size_t bytes) {
  return bytes % (1 << 20) ? fmt::format("{} KiB", bytes >> 10)
                           : fmt::format("{} MiB", bytes >> 20);
}

constexpr size_t kColumns = 80;

// A line that begins with `start`, broken between words where a terminal ends; what follows is
// indented.
void print_wrapped(const std::string& start, std::string_view text, size_t indent) {
  std::string line = start;
  bool empty = true;  // nothing but the indentation so far
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      fmt::print("{}\n", line);
      line.assign(indent, ' ');
      empty = true;
    }
    line.append(empty ? "" : " ").append(word);
    empty = false;
  }
  fmt::print("{}\n", line);
}

// One of a list of things that are there or not.
void print_row(const std::string& name, bool on, const std::string& text) {
  const std::string start = fmt::format("  {:<13}{:<5}", name, on ? "on" : "off");
  print_wrapped(start, text, start.size());
}

void print_info(const nlohmann::json& info) {
  const auto text = [](const nlohmann::json& value) { return value.get<std::string>(); };
  const auto names = [](const nlohmann::json& list) {
    return fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), ", "));
  };
  fmt::print("Tutti {}\n\n", text(info["version"]));
  fmt::print("Build\n");
  for (const auto& [what, value] : kBuild) fmt::print("  {:<16}{}\n", what, *value ? value : "-");
  fmt::print("\nMachine\n");
  fmt::print("  {:<12}{}\n", "cores", info["cores"].get<int>());
  fmt::print("  {:<12}{}, the last level\n", "cache", bytes_text(info["last_level_cache"]));
  fmt::print("  {:<12}{}\n", "vectors", names(info["vector_instructions"]));
  fmt::print("\nDevices\n");
  for (const auto& device : info["devices"]) fmt::print("  {}\n", text(device));
  if (info.contains("no_gpu")) print_wrapped("  no GPU: ", text(info["no_gpu"]), 10);
  fmt::print("\nBackends\n");
  for (const auto& backend : info["backends"]) {
    const std::string module = text(backend["module"]);
    print_row(
        text(backend["name"]), backend["available"].get<bool>(),
        text(backend["purpose"]) + (module.empty() ? "" : fmt::format(" (the module {})", module)));
  }
  fmt::print("\nModules\n");
  const bool wrong_path = info.contains("modules_error");
  if (wrong_path) print_wrapped("  ", text(info["modules_error"]), 2);
  for (const auto& module : info["modules"]) {
    const std::string reason = wrong_path ? "" : text(module["reason"]);
    print_row(text(module["name"]), module["loaded"].get<bool>(),
              text(module["purpose"]) + (reason.empty() ? "" : ": " + reason));
  }
  fmt::print("\nSettings (* set in the environment)\n");
  for (const auto& setting : info["settings"]) {
    const std::string value = text(setting["value"]), standard = text(setting["default"]);
    const bool set = setting["set"].get<bool>();
    fmt::print("{} {:<26}{}{}\n", set ? '*' : ' ', text(setting["name"]),
               value.empty() ? "-" : value,
               set ? fmt::format(" (by default {})", standard.empty() ? "empty" : standard) : "");
    print_wrapped("      ", text(setting["meaning"]), 6);
  }
  if (info.contains("settings_error")) {
    fmt::print("\n");
    print_wrapped("  ", text(info["settings_error"]), 2);
  }
}

}  // namespace

int info(int argc, char** argv) {
  LayoutOptions options;
  bool& json = options.json;
  bool job = false;
  CommandLine app("tutti info", "[--job [--measure]] [--json]",
                  "Shows devices, cores, backends and settings, and why what is off is off.");
  CLI::Option* const of_job =
      app.add_flag("--job", job,
                   "the layout of a job instead: its hosts, what moves its data, and why; to be "
                   "started as every worker of it");
  app.add_flag("--measure", options.measure,
               "of --job: what messages take between its ranks, as a value for TUTTI_COSTS")
      ->needs(of_job);
  app.add_flag("--json", json, "as one JSON object");
  if (const auto code = parse(app, argc, argv)) return *code;
  if (job) return show_layout(options);
  const nlohmann::json information = collect();
  if (json)
    fmt::print("{}\n", information.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    print_info(information);
  return 0;
}

}  // namespace tutti::tools
