// tutti info: what Tutti has here, and why it lacks what it lacks.
#include <fmt/format.h>
#include <hwy/highway.h>
#include <tutti/device.h>
#include <tutti/error.h>
#include <tutti/version.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/module.h"
#include "base/settings.h"
#include "base/topology.h"
#include "command.h"
#include "layout.h"

namespace tutti::tools {

namespace {

struct Backend {
  const char* name;
  const char* module;  // empty: built in
  const char* purpose;
};
constexpr Backend kBackends[] = {
    {"in_process", "", "ranks are threads of one process"},
    {"shm", "", "ranks are processes on one host"},
    {"tcp", "tcp", "ranks on several hosts"},
    {"ucx", "ucx", "ranks on several hosts, over InfiniBand, RoCE or TCP"},
    {"mpi", "mpi_openmpi", "ranks of a job that Open MPI's mpirun started"},
    {"mpi", "mpi_mpich", "ranks of a job that MPICH's mpirun started"},
    {"nccl", "nccl", "ranks with a GPU each"},
};

struct ModuleNeeds {
  const char* name;
  const char* purpose;
  const char* library;  // the Debian package that it needs to be loaded
  const char* headers;  // the ones that it needs to be built
};
constexpr ModuleNeeds kModules[] = {
    {"cluster", "coordination of processes", "libgrpc++1.51",
     "libgrpc++-dev protobuf-compiler-grpc"},
    {"tcp", "transport between hosts, by TCP", "the system alone",
     "no package, every build has it: install Tutti again"},
    {"ucx", "transport between hosts, by RDMA", "libucx0", "libucx-dev"},
    {"mpi_openmpi", "transport by Open MPI", "libopenmpi3", "libopenmpi-dev"},
    {"mpi_mpich", "transport by MPICH", "libmpich12", "libmpich-dev"},
    {"cuda", "GPUs", "NVIDIA's driver", "the CUDA toolkit"},
    {"nccl", "collectives between GPUs", "NCCL (libnccl.so.2)", "the CUDA toolkit and NCCL"},
};

// Empty where the module can be loaded.
std::string why_off(const ModuleNeeds& module) {
  try {
    base::load_module(module.name);
    return "";
  } catch (const std::exception& error) {
    const std::string what = error.what();
    if (what.find(fmt::format("libtutti_{}.so: cannot open", module.name)) != std::string::npos)
      return fmt::format("this Tutti was built without it; to build it: {}", module.headers);
    return fmt::format("{} (it needs {})", what, module.library);
  }
}

nlohmann::json collect() {
  nlohmann::json result;
  result["version"] = version();
  result["cores"] = base::topology().cores;
  result["last_level_cache"] = base::topology().last_level_cache;
  auto& vectors = result["vector_instructions"] = nlohmann::json::array();
  // The best has the lowest bit.
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left; left &= left - 1)
    vectors.push_back(hwy::TargetName(left & -left));
  try {
    result["devices"] = list_logical_devices();
  } catch (const InvalidArgumentError&) {  // of a setting, which is told below
    result["devices"] = list_logical_devices("CPU");
  }

  auto& modules = result["modules"] = nlohmann::json::array();
  std::map<std::string, bool> loaded{{"", true}};
  for (const ModuleNeeds& module : kModules) {
    const std::string reason = why_off(module);
    loaded[module.name] = reason.empty();
    modules.push_back({{"name", module.name},
                       {"purpose", module.purpose},
                       {"loaded", reason.empty()},
                       {"reason", reason}});
  }
  auto& backends = result["backends"] = nlohmann::json::array();
  for (const Backend& backend : kBackends)
    backends.push_back({{"name", backend.name},
                        {"purpose", backend.purpose},
                        {"available", loaded.at(backend.module)},
                        {"module", backend.module}});

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

void print(const nlohmann::json& info) {
  const auto text = [](const nlohmann::json& value) { return value.get<std::string>(); };
  const auto names = [](const nlohmann::json& list) {
    return fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), ", "));
  };
  fmt::print("Tutti {}\n\n", text(info["version"]));
  fmt::print("Machine\n");
  fmt::print("  {:<12}{}\n", "cores", info["cores"].get<int>());
  fmt::print("  {:<12}{}, the last level\n", "cache", bytes_text(info["last_level_cache"]));
  fmt::print("  {:<12}{}\n", "vectors", names(info["vector_instructions"]));
  fmt::print("\nDevices\n");
  for (const auto& device : info["devices"]) fmt::print("  {}\n", text(device));
  fmt::print("\nBackends\n");
  for (const auto& backend : info["backends"]) {
    const std::string module = text(backend["module"]);
    const std::string state = !backend["available"].get<bool>()
                                  ? fmt::format("off: the module {} is", module)
                              : module.empty() ? "built in"
                                               : fmt::format("in the module {}", module);
    fmt::print("  {:<12}{:<54}{}\n", text(backend["name"]), text(backend["purpose"]), state);
  }
  fmt::print("\nModules\n");
  for (const auto& module : info["modules"])
    fmt::print("  {:<12}{:<27}{}\n", text(module["name"]), text(module["purpose"]),
               module["loaded"].get<bool>() ? "on" : "off: " + text(module["reason"]));
  fmt::print("\nSettings (* set in the environment)\n");
  for (const auto& setting : info["settings"]) {
    const std::string value = text(setting["value"]);
    const std::string standard = text(setting["default"]);
    fmt::print("{} {:<26}{:<14}{}\n", setting["set"].get<bool>() ? '*' : ' ', text(setting["name"]),
               value.empty() ? "-" : value, text(setting["meaning"]));
    if (setting["set"].get<bool>())
      fmt::print("{:<28}(by default {})\n", "", standard.empty() ? "empty" : standard);
  }
  if (info.contains("settings_error")) fmt::print("\n  {}\n", text(info["settings_error"]));
}

}  // namespace

int info(int argc, char** argv) {
  bool json = false, job = false;
  CommandLine app("tutti info", "[--job] [--json]",
                  "Shows devices, cores, backends and settings, and why what is off is off.");
  app.add_flag("--job", job,
               "the layout of a job instead: its hosts, what moves its data, and why; to be "
               "started as every worker of it");
  app.add_flag("--json", json, "as one JSON object");
  if (const auto code = parse(app, argc, argv)) return *code;
  if (job) return show_layout(json);
  const nlohmann::json information = collect();
  if (json)
    fmt::print("{}\n", information.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    print(information);
  return 0;
}

}  // namespace tutti::tools
