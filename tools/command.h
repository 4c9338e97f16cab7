// SPDX-License-Identifier: Apache-2.0
// The subcommands of `tutti`, one file each. A new one is a file, a line here and a line in
// main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace tutti::tools {

// Each gets its arguments as a program of its own would, its name first, and returns the exit code.
int run(int argc, char** argv);
int info(int argc, char** argv);
int bench(int argc, char** argv);
int simulate(int argc, char** argv);
int timeline(int argc, char** argv);

inline constexpr int kUsageError = 2;

// A command line, described by hand: CLI11 would not name what follows the options.
class CommandLine : public CLI::App {
 public:
  CommandLine(const std::string& command, const std::string& arguments, const std::string& purpose)
      : CLI::App(purpose, command), arguments(arguments) {
    struct Form : CLI::Formatter {
      std::string usage;
      std::string make_usage(const CLI::App*, std::string) const override { return usage; }
      // Breaks the text to fit a terminal of 80 columns.
      std::string make_option_desc(const CLI::Option* option) const override {
        std::istringstream words(option->get_description());
        std::string text;
        size_t column = 0;
        for (std::string word; words >> word; column += word.size() + 1) {
          if (column + word.size() > 80 - get_column_width())
            text += '\n', column = 0;
          else if (column)
            text += ' ';
          text += word;
        }
        return text;
      }
    };
    const auto form = std::make_shared<Form>();
    form->usage = "usage: " + command + " " + arguments + "\n";
    formatter(form);
  }

  const std::string arguments;
};

// Parts of a page of the manual, as groff reads it, to the standard output: its head; the rest of a
// subcommand's, made of its help; the environment variables.
void begin_page(const std::string& name, const std::string& purpose);
void describe(const CommandLine& app);
void describe_settings();

// Parses. Returns an exit code if nothing is left to do: help or the manual was asked for, or the
// command line is wrong; the output is then written.
inline std::optional<int> parse(CommandLine& app, int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--man") {
    describe(app);
    return 0;
  }
  try {
    app.parse(argc, argv);
    return {};
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s\n%s", app.get_name().c_str(), error.what(), app.help().c_str());
    return kUsageError;
  }
}

}  // namespace tutti::tools
