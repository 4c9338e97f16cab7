// SPDX-License-Identifier: Apache-2.0
// What libtutti.so exports: the public names, and the little else that templates in headers call.
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
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

struct Symbol {
  char kind;         // as nm has it
  std::string name;  // demangled
};

std::vector<Symbol> exported_symbols() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(TUTTI_TEST_LIST_EXPORTS, "r"), &pclose);
  std::string text;
  for (int c; (c = std::fgetc(pipe.get())) != EOF;) text += char(c);
  std::vector<Symbol> symbols;
  std::istringstream lines(text);
  std::string address, mangled;
  for (char kind; lines >> address >> kind >> mangled;) {
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr), &std::free);
    symbols.push_back({kind, name ? name.get() : mangled});
  }
  return symbols;
}

// What the demangler puts before the name of what the compiler has made for it.
const std::regex kMadeFor(
    R"(^(?:(?:vtable|typeinfo|typeinfo name|VTT|guard variable) for |\S+ thunk to ))");

std::vector<std::string> names_of(const std::vector<Symbol>& symbols) {
  std::vector<std::string> names;
  for (const Symbol& symbol : symbols)
    names.push_back(std::regex_replace(symbol.name, kMadeFor, ""));
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
  const std::vector<std::string> names = names_of(exported_symbols());
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

// Functions and variables; what else there is depends on the compiler. A class may change in other
// ways that break programs.
TEST(Exports, AreThoseOfTheCommittedLists) {
  if (TUTTI_TEST_SANITIZED) GTEST_SKIP() << "a sanitizer exports names of its own";
  static const std::regex string(
      "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >");
  std::set<std::string> of_c, of_cpp;
  for (const Symbol& symbol : exported_symbols())
    if (std::string("BDRT").find(symbol.kind) != std::string::npos &&
        !std::regex_search(symbol.name, kMadeFor))
      (symbol.name.starts_with("tutti_") ? of_c : of_cpp)
          .insert(std::regex_replace(symbol.name, string, "std::string"));
  for (const auto& [file, found] : {std::pair("c.symbols", of_c), {"cpp.symbols", of_cpp}}) {
    const std::string path = std::string(TUTTI_SOURCE_DIR "/tests/abi/") + file;
    if (std::getenv("TUTTI_TEST_UPDATE_SYMBOLS")) {
      std::ofstream list(path);
      for (const std::string& name : found) list << name << "\n";
    }
    std::set<std::string> listed;
    std::ifstream list(path);
    for (std::string line; std::getline(list, line);) listed.insert(line);
    std::vector<std::string> gone, added;
    std::ranges::set_difference(listed, found, std::back_inserter(gone));
    std::ranges::set_difference(found, listed, std::back_inserter(added));
    constexpr const char* kUpdate =
        "; TUTTI_TEST_UPDATE_SYMBOLS=1 base_tests --gtest_filter='Exports.*' writes the list";
    EXPECT_THAT(gone, ::testing::IsEmpty())
        << "in " << path << ", but not exported: programs that use these break, so the minor "
        << "version must rise, and with it the soname" << kUpdate;
    EXPECT_THAT(added, ::testing::IsEmpty()) << "exported, but not in " << path << kUpdate;
  }
}

}  // namespace
}  // namespace tutti
