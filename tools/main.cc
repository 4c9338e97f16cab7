// SPDX-License-Identifier: Apache-2.0
// The command `tutti`: finds the subcommand, or lists them if there is no such one.
#include <fmt/format.h>
#include <tutti/version.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string_view>

#include "base/settings.h"
#include "command.h"

namespace {

struct Command {
  const char* name;
  const char* purpose;
  int (*main)(int argc, char** argv);
};

constexpr Command kCommands[] = {
    {"run", "start a program as several workers, here or on other hosts", tutti::tools::run},
    {"bench", "measure a collective on this machine", tutti::tools::bench},
    {"simulate", "predict how a collective, or a job with faults, behaves on many hosts",
     tutti::tools::simulate},
    {"timeline", "put the timelines of a job's ranks together", tutti::tools::timeline},
    {"info", "show devices, cores, backends and settings", tutti::tools::info},
};

// Of the command, or with its name of a subcommand. The build asks for it.
int print_manual(std::string_view name) {
  if (name.empty()) {
    tutti::tools::begin_page("tutti", "synchronous data-parallel training: start and inspect jobs");
    std::fputs(".SH SYNOPSIS\n.B tutti\nCOMMAND [options]\n.SH COMMANDS\n", stdout);
    for (const Command& command : kCommands)
      std::printf(".TP\n.BR tutti\\-%s (1)\n%s\n", command.name, command.purpose);
    tutti::tools::describe_settings();
    return 0;
  }
  for (const Command& command : kCommands) {
    if (name != command.name) continue;
    tutti::tools::begin_page(std::string("tutti-") + command.name, command.purpose);
    char* arguments[] = {const_cast<char*>(command.name), const_cast<char*>("--man"), nullptr};
    return command.main(2, arguments);
  }
  return tutti::tools::kUsageError;
}

void print_help(std::FILE* to) {
  std::fputs("usage: tutti COMMAND [options]\n\n", to);
  for (const Command& command : kCommands)
    std::fprintf(to, "  %-10s%s\n", command.name, command.purpose);
  std::fputs("\n  tutti COMMAND --help explains one; tutti --version prints the version\n", to);
}

// The library looks for modules in a folder beside itself. Here it is a part of the command, which
// is installed elsewhere, so we name the folder; only to this process, since workers find their
// own.
void find_modules() {
  namespace fs = std::filesystem;
  if (const char* path = std::getenv("TUTTI_MODULE_PATH"); path && *path) return;
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  const std::string library =
      fmt::format("libtutti.so.{}.{}", tutti::version_major, tutti::version_minor);
  std::string_view folders = TUTTI_LIBRARY_FOLDERS;
  while (!error && !folders.empty()) {
    const std::string_view folder = folders.substr(0, folders.find(':'));
    folders.remove_prefix(std::min(folders.size(), folder.size() + 1));
    const fs::path path = (here / folder).lexically_normal();
    if (!fs::exists(path / library, error)) continue;
    setenv("TUTTI_MODULE_PATH", (path / "tutti").c_str(), 1);
    try {
      tutti::base::settings();
    } catch (const std::exception&) {
      // The code that needs the settings reports what is wrong with them.
    }
    unsetenv("TUTTI_MODULE_PATH");
    return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--version") {
    std::printf("tutti %s\n", std::string(tutti::version()).c_str());
    return 0;
  }
  if (name == "--man") return print_manual(argc > 2 ? argv[2] : "");
  if (name == "--help" || name == "-h" || name == "help") {
    print_help(stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (name != command.name) continue;
    try {
      if (name == "run") tutti::base::leave_unknown_settings_to_workers();
      find_modules();
      return command.main(argc - 1, argv + 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "tutti %s: %s\n", command.name, error.what());
      return 1;
    }
  }
  if (argc > 1) std::fprintf(stderr, "tutti: there is no command \"%s\"\n", argv[1]);
  print_help(stderr);
  return tutti::tools::kUsageError;
}
