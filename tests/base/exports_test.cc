// SPDX-License-Identifier: Apache-2.0
// What libtutti.so exports: the public names, and the little else that templates in headers call.
#include <cstdio>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "support/expect.h"
#include "support/reference.h"

namespace tutti {
namespace {

// Of tutti::detail: what the templates of public headers call, or derive from.
const std::set<std::string> kDetails{"Meeting",
                                     "component_on_current_device",
                                     "expect_alike",
                                     "local_replica_id",
                                     "read",
                                     "throw_arity",
                                     "throw_component_out_of_range",
                                     "throw_not_a",
                                     "throw_not_in_replica",
                                     "throw_ragged",
                                     "transpose",
                                     "write"};

// Names without the words that the demangler puts before them.
std::vector<std::string> exported_symbols() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(TUTTI_TEST_LIST_EXPORTS, "r"), &pclose);
  std::string text;
  for (int c; (c = std::fgetc(pipe.get())) != EOF;) text += char(c);
  static const std::regex line(
      R"([0-9a-f]+ \w (?:(?:vtable|typeinfo|typeinfo name|VTT|guard variable) for |\S+ thunk to )?(.*))");
  std::vector<std::string> names;
  std::istringstream lines(text);
  std::smatch match;
  for (std::string each; std::getline(lines, each);)
    if (std::regex_match(each, match, line)) names.push_back(match[1]);
  return names;
}

TEST(Exports, ArePublicNames) {
  if (TUTTI_TEST_SANITIZED) GTEST_SKIP() << "a sanitizer exports names of its own";
  // A class, which has a capital; a function; or one of two structs. Everything else is a
  // namespace.
  static const std::regex open_to_all(
      R"(tutti::(?:[A-Z].*|b?float16::.*|operator.*|[a-z_0-9]+(?:\[abi:cxx11\])?\(.*))");
  static const std::regex hidden_state(R"(tutti::\w+::(?:Impl|State|Run)::.*)");
  static const std::regex detail(R"(tutti::detail::(\w+).*)");
  const std::vector<std::string> names = exported_symbols();
  EXPECT_GT(names.size(), 300u);
  std::smatch match;
  for (const std::string& name : names) {
    if (!name.starts_with("tutti::")) {  // instances of the standard library's templates
      EXPECT_EQ(name.find("tutti::detail::"), std::string::npos) << name;
      continue;
    }
    if (std::regex_match(name, match, detail)) {
      EXPECT_TRUE(kDetails.contains(match[1])) << name;
    } else {
      EXPECT_TRUE(std::regex_match(name, open_to_all)) << name;
      EXPECT_FALSE(std::regex_match(name, hidden_state)) << name;
    }
  }
}

}  // namespace
}  // namespace tutti
