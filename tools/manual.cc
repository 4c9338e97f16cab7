// SPDX-License-Identifier: Apache-2.0
// Pages of the manual, in groff's language.
#include <fmt/format.h>
#include <tutti/version.h>

#include <cctype>

#include "base/settings.h"
#include "command.h"

namespace tutti::tools {

namespace {

// As it stands: no minus becomes a hyphen, and no line a request.
std::string literal(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (result.empty() || result.back() == '\n')
      if (c == '.' || c == '\'' || c == ' ') result += "\\&";
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  return result;
}

std::string upper(std::string text) {
  for (char& c : text) c = char(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

void begin_page(const std::string& name, const std::string& purpose) {
  fmt::print(".\\\" SPDX-License-Identifier: Apache-2.0\n.TH {} 1 \"\" \"Tutti {}\" Tutti\n",
             literal(upper(name)), version());
  fmt::print(".SH NAME\n{} \\- {}\n", literal(name), literal(purpose));
}

void describe(const CommandLine& app) {
  fmt::print(".SH SYNOPSIS\n.B {}\n{}\n", app.get_name(), literal(app.arguments));
  fmt::print(".SH DESCRIPTION\n");
  // Paragraphs; an indented one is an example.
  std::string text = app.get_description();
  while (!text.empty()) {
    const size_t end = std::min(text.find("\n\n"), text.size());
    std::string paragraph = text.substr(0, end);
    text.erase(0, end + 2);
    while (paragraph.ends_with('\n')) paragraph.pop_back();
    const bool example = paragraph.starts_with("  ");
    fmt::print("{}{}\n{}", example ? ".EX\n" : "", literal(paragraph), example ? ".EE\n" : "");
    if (!text.empty()) fmt::print(".PP\n");
  }
  fmt::print(".SH OPTIONS\n");
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty() || !option->nonpositional()) continue;
    std::string names;
    for (const std::string& name : option->get_snames())
      names += fmt::format("{}\\-{}", names.empty() ? "" : ", ", name);
    for (const std::string& name : option->get_lnames())
      names += fmt::format("{}\\-\\-{}", names.empty() ? "" : ", ", literal(name));
    const std::string value = literal(option->get_option_text());
    fmt::print(".TP\n\\fB{}\\fR{}{}\n{}\n", names, value.empty() ? "" : " ", value,
               literal(option->get_description()));
  }
  fmt::print(".SH SEE ALSO\n.BR tutti (1)\n");
}

void describe_settings() {
  fmt::print(".SH ENVIRONMENT\nThe command and the library read these variables.\n");
  for (const base::SettingDoc& setting : base::setting_docs())
    fmt::print(".TP\n.B {}\n{}{}\n", setting.name, literal(setting.meaning),
               *setting.default_value
                   ? fmt::format(" (by default {})", literal(setting.default_value))
                   : "");
}

}  // namespace tutti::tools
