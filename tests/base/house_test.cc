// SPDX-License-Identifier: Apache-2.0
// Rules about the source tree itself, which no compiler checks.
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "support/expect.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = TUTTI_SOURCE_DIR;

// The lowest first. A layer may include from itself and from those before it. A file belongs to
// the longest path here that it lies under.
const std::vector<std::string> kLayers = {
    "base",     "observe",    "device",         "kernels",    "cuda",         "tensor",
    "cluster",  "group/core", "group/liveness", "group/plan", "group/shm",    "group/net",
    "gpu",      "job",        "group",          "sim",        "cross_device", "input",
    "strategy", "c"};

// Where each public header is implemented.
const std::map<std::string, std::string> kPublicHeaders = {
    {"error.h", "base"},
    {"dtype.h", "base"},
    {"shape.h", "base"},
    {"reduce_op.h", "base"},
    {"version.h", "base"},
    {"span.h", "observe"},
    {"device.h", "device"},
    {"cuda.h", "device"},
    {"tensor.h", "tensor"},
    {"values.h", "tensor"},
    {"destinations.h", "tensor"},
    {"regroup.h", "tensor"},
    {"eigen.h", "tensor"},
    {"safetensors.h", "tensor"},
    {"cluster.h", "cluster"},
    {"group.h", "group"},
    {"work.h", "group"},
    {"simulation.h", "sim"},
    {"cross_device_ops.h", "cross_device"},
    {"collective_all_reduce.h", "cross_device"},
    {"collective_strategy.h", "strategy"},
    {"compat.h", "strategy"},
    {"dataset.h", "input"},
    {"input.h", "input"},
    {"checkpoint.h", "strategy"},
    {"mirrored_strategy.h", "strategy"},
    {"replica_context.h", "strategy"},
    {"strategy.h", "strategy"},
    {"strategy_extended.h", "strategy"},
    {"variable.h", "strategy"},
    {"detail/components.h", "tensor"},
    {"detail/regroup.h", "tensor"},
    {"detail/reducible.h", "tensor"},
    {"detail/group_call.h", "group/core"},
    {"gradient_reducer.h", "group"},
    {"detail/expect_alike.h", "group"},
    {"torch.h", "group"},
    {"detail/torch_tensor.h", "group"},
    {"detail/torch_module.h", "group"},
    {"detail/torch_memory.h", "group"},
    {"detail/torch_parameters.h", "group"},
    {"detail/torch_join.h", "group"},
    {"detail/torch_gradients.h", "group"},
    {"detail/replica_function.h", "input"},
    {"detail/meeting.h", "strategy"},
    {"c.h", "c"}};

// Of a folder or file under src; -1: it is in no layer.
int height(fs::path path) {
  for (; !path.empty(); path = path.parent_path()) {
    const auto found = std::ranges::find(kLayers, path.string());
    if (found != kLayers.end()) return int(found - kLayers.begin());
  }
  return -1;
}

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<fs::path> sources_under(const fs::path& folder) {
  static const std::set<std::string> extensions{".h", ".c", ".cc", ".cu", ".cuh", ".py"};
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && extensions.contains(entry.path().extension()))
      found.push_back(entry.path());
  return found;
}

// What a file includes, with its quotes or brackets.
std::vector<std::string> includes_of(const fs::path& path) {
  static const std::regex pattern(R"([ \t]*#[ \t]*include[ \t]*([<"][^>"]+[>"]).*)");
  std::vector<std::string> found;
  std::ifstream file(path);
  std::smatch match;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, match, pattern)) found.push_back(match[1]);
  return found;
}

// The name of an installed header as the table has it: "group.h", "detail/group_call.h".
std::string installed_name(const fs::path& path) {
  return fs::relative(path, kRoot / "include/tutti");
}

// The name of a public header that is included as <tutti/name.h>, or empty.
std::string public_name(const std::string& include) {
  return include.starts_with("<tutti/") ? include.substr(7, include.size() - 8) : "";
}

struct Types {
  std::set<std::string> declared, defined;  // "tutti::kernels::GpuKernels"
};

// The classes, structs and enums of a text's namespaces. Those of unnamed namespaces and those
// within a class are left out.
Types types_in(std::string text) {
  static const std::regex noise(R"(//[^\n]*|#[^\n]*|"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])')");
  static const std::regex type(
      R"((?:template\s*<[^{]*>\s*)?(?:class|struct|enum(?:\s+class)?)\s+(?:alignas\(\w+\)\s+)?)"
      R"(([\w:]+)(?:\s+final)?(?:\s*:[^:][^{]*)?\s*)");
  static const std::regex space(R"((?:inline\s+)?namespace\s*([\w:]*)\s*)");
  text = std::regex_replace(text, noise, " ");
  Types types;
  std::vector<std::string> prefixes{""};  // of the scopes that are open here; "-": not a namespace
  size_t begin = 0;
  for (size_t end; (end = text.find_first_of("{};", begin)) != text.npos; begin = end + 1) {
    const size_t first = text.find_first_not_of(" \n", begin);
    const std::string head = text.substr(first, end - first);
    const std::string outer = prefixes.back();
    std::smatch match;
    if (outer != "-" && text[end] != '}' && std::regex_match(head, match, type))
      (text[end] == ';' ? types.declared : types.defined).insert(outer + match[1].str());
    if (text[end] == '}' && prefixes.size() > 1) prefixes.pop_back();
    if (text[end] != '{') continue;
    const bool named = outer != "-" && std::regex_match(head, match, space) && match[1].length();
    prefixes.push_back(named ? outer + match[1].str() + "::" : "-");
  }
  return types;
}

TEST(House, EveryFolderOfTheSourceIsALayer) {
  for (const auto& entry : fs::directory_iterator(kRoot / "src"))
    if (entry.is_directory()) {
      EXPECT_GE(height(entry.path().filename()), 0) << entry.path() << " is not in the list";
    }
}

TEST(House, IncludesPointDownOnly) {
  int checked = 0;
  for (const fs::path& path : sources_under(kRoot / "src")) {
    const fs::path self = fs::relative(path, kRoot / "src");
    for (const std::string& include : includes_of(path)) {
      SCOPED_TRACE(path.string() + " includes " + include);
      if (const std::string header = public_name(include); !header.empty()) {
        ASSERT_TRUE(kPublicHeaders.contains(header)) << "it has no layer in the table";
        EXPECT_LE(height(kPublicHeaders.at(header)), height(self));
        ++checked;
      } else if (include[0] == '"') {
        const std::string target = include.substr(1, include.size() - 2);
        ASSERT_GE(height(target), 0) << "name the layer, too";
        EXPECT_LE(height(target), height(self));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 50);
}

// By name as it is included: a path under src, or tutti/name.h.
TEST(House, IncludesHaveNoCycles) {
  std::map<std::string, std::vector<std::string>> included;
  for (const char* folder : {"src", "include"})
    for (const fs::path& path : sources_under(kRoot / folder))
      for (const std::string& include : includes_of(path))
        included[fs::relative(path, kRoot / folder)].push_back(
            include.substr(1, include.size() - 2));
  std::set<std::string> open, done;
  const std::function<void(const std::string&)> visit = [&](const std::string& file) {
    if (done.contains(file)) return;
    ASSERT_TRUE(open.insert(file).second) << file << " includes itself";
    SCOPED_TRACE(file);
    for (const std::string& next : included[file]) ASSERT_NO_FATAL_FAILURE(visit(next));
    done.insert(file);
  };
  for (const auto& file : std::map(included)) visit(file.first);
  EXPECT_GT(done.size(), 200u);
}

TEST(House, TypesAreFoundByTheirNamespaces) {
  const Types types = types_in(R"(
namespace a::b {
struct Above;  // struct Comment;
namespace { class Hidden; }
class Here final : public Base { struct Nested; void call() { struct Local; } };
enum class Late : int;
}
namespace a {
template <class T>
class Of;
}
class Outside { };)");
  EXPECT_EQ(types.declared, (std::set<std::string>{"a::b::Above", "a::b::Late", "a::Of"}));
  EXPECT_EQ(types.defined, (std::set<std::string>{"a::b::Here", "Outside"}));
}

// A declaration without a body depends on the layer of the type as an include does.
TEST(House, ForwardDeclarationsPointDownOnly) {
  std::map<std::string, int> lowest;  // layer in which a type is defined
  std::map<fs::path, Types> sources;
  for (const fs::path& path : sources_under(kRoot / "src")) {
    const fs::path self = fs::relative(path, kRoot / "src");
    const Types& types = sources[self] = types_in(text_of(path));
    for (const std::string& type : types.defined) {
      const auto [entry, is_new] = lowest.try_emplace(type, height(self));
      if (!is_new) entry->second = std::min(entry->second, height(self));
    }
  }
  EXPECT_GT(lowest.size(), 100u);
  for (const auto& [self, types] : sources)
    for (const std::string& type : types.declared)
      if (lowest.contains(type)) {
        EXPECT_LE(lowest[type], height(self)) << self << " declares " << type;
      }
}

TEST(House, PublicHeadersIncludeDownwardAndNothingOfAThirdParty) {
  static const std::regex standard("<[a-z_]+>"), torch("<(torch|c10)/.*>"),
      of_c(R"(<std(def|int)\.h>)");
  int checked = 0;
  for (const fs::path& path : sources_under(kRoot / "include")) {
    const std::string self = installed_name(path);
    if (self == "tutti.h" || self == "eigen.h")
      continue;  // the second is the adapter to a third party
    const bool is_of_torch = self.find("torch") != self.npos;  // so are these
    ASSERT_TRUE(kPublicHeaders.contains(self)) << self << " has no layer in the table";
    for (const std::string& include : includes_of(path)) {
      SCOPED_TRACE(self + " includes " + include);
      ++checked;
      if (const std::string header = public_name(include); !header.empty()) {
        ASSERT_TRUE(kPublicHeaders.contains(header));
        EXPECT_LE(height(kPublicHeaders.at(header)), height(kPublicHeaders.at(self)));
      } else {
        EXPECT_TRUE(std::regex_match(include, standard) ||
                    (is_of_torch && std::regex_match(include, torch)) ||
                    (self == "c.h" && std::regex_match(include, of_c)))
            << "neither Tutti's nor the standard's";
      }
    }
  }
  EXPECT_GT(checked, 20);
}

TEST(House, TheUmbrellaHeaderIncludesAllPublicHeadersButCompatAndAdapters) {
  std::set<std::string> included, expected;
  for (const std::string& include : includes_of(kRoot / "include/tutti/tutti.h"))
    included.insert(public_name(include));
  static const std::set<std::string> left_out{"tutti.h", "c.h", "compat.h", "eigen.h", "torch.h"};
  for (const fs::path& path : sources_under(kRoot / "include"))
    if (const std::string name = installed_name(path);
        !left_out.contains(name) && !name.starts_with("detail/"))
      expected.insert(name);
  EXPECT_EQ(included, expected);
}

// Rows of docs/architecture.md: | `file` | `Class::function` ... |
TEST(House, TheArchitectureNamesFilesAndFunctionsThatExist) {
  static const std::regex row(R"(\| `([a-z_/]+\.(?:h|cc))` \| `([A-Za-z_:]+)`.*)");
  std::ifstream page(kRoot / "docs/architecture.md");
  int checked = 0;
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (!std::regex_match(line, match, row)) continue;
    const std::string name = match[2].str().substr(match[2].str().rfind(':') + 1);
    EXPECT_TRUE(
        std::regex_search(text_of(kRoot / match[1].str()), std::regex("\\b" + name + "\\b")))
        << line;
    ++checked;
  }
  EXPECT_GT(checked, 25);
}

// The pages of the documentation: their text without code, by their paths from the root.
std::map<fs::path, std::string> pages() {
  std::map<fs::path, std::string> found;
  for (const char* folder : {"", "docs"})
    for (const auto& entry : fs::directory_iterator(kRoot / folder)) {
      if (entry.path().extension() != ".md") continue;
      std::string& text = found[fs::relative(entry.path(), kRoot)];
      std::ifstream file(entry.path());
      bool is_code = false;
      for (std::string line; std::getline(file, line);) {
        if (line.find("```") != line.npos) is_code = !is_code;
        if (!is_code) text += line + "\n";
      }
    }
  return found;
}

// The anchors that a page's headings have on the web.
std::set<std::string> anchors_of(const std::string& text) {
  static const std::regex heading(R"((?:^|\n)#+ ([^\n]+))");
  std::set<std::string> anchors;
  for (std::sregex_iterator it(text.begin(), text.end(), heading), end; it != end; ++it) {
    std::string anchor;
    for (const char c : (*it)[1].str()) {
      if (c == ' ') anchor += '-';
      if (std::isalnum(c) || c == '-' || c == '_') anchor += char(std::tolower(c));
    }
    for (int again = 0;
         !anchors.insert(again ? anchor + "-" + std::to_string(again) : anchor).second;)
      ++again;
  }
  return anchors;
}

TEST(House, LinksOfTheDocsLeadSomewhere) {
  static const std::regex link(R"(\]\(([^()# ]*)(?:#([^() ]*))?\))");
  const std::map<fs::path, std::string> all = pages();
  int checked = 0;
  for (const auto& [page, text] : all)
    for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
      const std::string path = (*it)[1], anchor = (*it)[2];
      if (path.starts_with("https:")) continue;
      SCOPED_TRACE(page.string() + " has a link to " + path + "#" + anchor);
      const fs::path target = path.empty() ? page : (page.parent_path() / path).lexically_normal();
      EXPECT_TRUE(fs::exists(kRoot / target));
      ++checked;
      if (anchor.empty()) continue;
      ASSERT_TRUE(all.contains(target));
      EXPECT_TRUE(anchors_of(all.at(target)).contains(anchor));
    }
  EXPECT_GT(checked, 100);
}

// The reference's tree of pages is made from the lists in the README.
TEST(House, TheReadmeListsEveryPage) {
  const std::map<fs::path, std::string> all = pages();
  for (const auto& [page, text] : all)
    if (page != "README.md") {
      EXPECT_THAT(all.at("README.md"), ::testing::HasSubstr("\n- [" + page.string() + "]("));
    }
}

// A reader of a public header meets its subject first: what templates need lies in detail/.
TEST(House, PublicHeadersAreShortAndKeepTheirDetailsApart) {
  static const std::regex opened(R"(\nnamespace detail \{)");
  for (const fs::path& path : sources_under(kRoot / "include")) {
    const std::string text = text_of(path);
    EXPECT_LE(std::ranges::count(text, '\n'), 220) << path;
    if (const std::string name = installed_name(path);
        !name.starts_with("detail/") && name != "dtype.h") {
      EXPECT_FALSE(std::regex_search(text, opened)) << path;
    }
  }
}

TEST(House, PublicHeadersDefineNoMacros) {
  static const std::regex define(R"(#[ \t]*define)");
  for (const fs::path& path : sources_under(kRoot / "include"))
    EXPECT_FALSE(std::regex_search(text_of(path), define)) << path;
}

TEST(House, EveryHeaderIsGuardedByPragmaOnce) {
  for (const char* folder : {"include", "src", "tests"})
    for (const fs::path& path : sources_under(kRoot / folder))
      if (path.extension() == ".h") {
        EXPECT_THAT(text_of(path), ::testing::HasSubstr("#pragma once")) << path;
      }
}

// A folder is a program. ctest lists the suites of all of them together.
TEST(House, EverySuiteIsOfOneProgram) {
  static const std::regex test(R"((?:^|\n)TEST(?:_F|_P)?\((\w+),)");
  std::map<std::string, fs::path> folders;
  for (const fs::path& path : sources_under(kRoot / "tests")) {
    const std::string text = text_of(path);
    for (std::sregex_iterator it(text.begin(), text.end(), test), end; it != end; ++it)
      EXPECT_EQ(folders.emplace((*it)[1], path.parent_path()).first->second, path.parent_path())
          << (*it)[1];
  }
  EXPECT_GT(folders.size(), 100u);
}

TEST(House, EverySourceFileNamesItsLicense) {
  for (const char* folder : {"bench", "examples", "include", "src", "tests", "tools"})
    for (const fs::path& path : sources_under(kRoot / folder))
      if (path.string().find("/contract/") == std::string::npos) {
        const std::string text = text_of(path);
        EXPECT_LT(text.find("SPDX-License-Identifier: Apache-2.0"), 80) << path;
      }
}

TEST(House, NothingIsPutOffInAComment) {
  for (const char* folder : {"include", "src", "tests", "bench", "examples"})
    for (const fs::path& path : sources_under(kRoot / folder)) {
      const std::string text = text_of(path);
      for (const std::string word : {"TO"
                                     "DO",
                                     "FIX"
                                     "ME"})
        EXPECT_EQ(text.find(word), std::string::npos) << path << " has a " << word;
    }
}

}  // namespace
}  // namespace tutti
