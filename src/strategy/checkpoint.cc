// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/checkpoint.h>
#include <tutti/error.h>
#include <tutti/safetensors.h>
#include <tutti/strategy.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "observe/timeline.h"
#include "strategy/context.h"
#include "strategy/workers.h"

namespace tutti {

namespace {

namespace fs = std::filesystem;
using detail::Workers;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";
// Follows the name of a damaged file that a save has put aside, before a number.
constexpr std::string_view kAside = ".damaged.";
// What begins like this is ours: variables have other names.
constexpr std::string_view kReserved = "tutti.";
constexpr const char* kStep = "tutti.step";

// Before any variable is touched: each of them must be readable and writable from here.
void check_context(const char* what, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables)
    strategy::require_cross_replica(variable.strategy(), what);
}

// The workers that save or load these variables together.
const Workers& workers_of(const std::vector<Variable>& variables) {
  const Strategy& strategy = variables.empty() ? get_strategy() : variables[0].strategy();
  return detail::WorkersOf::of(strategy.extended());
}

// What the variables hold, all workers together.
TensorFile contents(const char* what, const std::vector<Variable>& variables) {
  TensorFile file;
  for (const Variable& variable : variables)
    if (!file.tensors.emplace(variable.name(), variable.read_value()).second)
      throw InvalidArgumentError(
          fmt::format("{}: two variables are called \"{}\"; give them names that differ", what,
                      variable.name()));
  return file;
}

void check_contents(const char* what, const std::string& path, const TensorFile& file,
                    const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    const auto found = file.tensors.find(variable.name());
    if (found == file.tensors.end())
      throw NotFoundError(
          fmt::format("{}: {} has no variable \"{}\"", what, path, variable.name()));
    const Tensor& tensor = found->second;
    if (tensor.dtype() != variable.dtype() || !(tensor.shape() == variable.shape()))
      throw InvalidArgumentError(fmt::format("{}: \"{}\" is {}{} in {}, and the variable is {}{}",
                                             what, variable.name(), name(tensor.dtype()),
                                             tensor.shape().to_string(), path,
                                             name(variable.dtype()), variable.shape().to_string()));
  }
}

// From the chief's file to the variables of all workers.
void assign(const Workers& workers, const TensorFile& file,
            const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    const auto found = file.tensors.find(variable.name());
    const Tensor mine = found != file.tensors.end()
                            ? found->second
                            : Tensor::zeros(variable.shape(), variable.dtype());
    variable.assign(workers.from_chief(mine));
  }
}

// The chief's metadata, everywhere.
std::map<std::string, std::string> shared(const Workers& workers,
                                          const std::map<std::string, std::string>& metadata) {
  const auto count = size_t(std::stoull(workers.from_chief(std::to_string(metadata.size()))));
  std::map<std::string, std::string> result;
  auto mine = metadata.begin();
  for (size_t i = 0; i < count; ++i) {
    const bool here = mine != metadata.end();
    const std::string key = workers.from_chief(here ? mine->first : std::string());
    result[key] = workers.from_chief(here ? mine->second : std::string());
    if (here) ++mine;
  }
  return result;
}

std::string name_of(int64_t step) { return fmt::format("{}{:012}{}", kPrefix, step, kSuffix); }

// The step that a file of this name is of.
std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = -1;
  if (name.starts_with(kPrefix))
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return step >= 0 && name == name_of(step) ? std::optional(step) : std::nullopt;
}

struct Listing {
  std::vector<int64_t> steps;      // that there are files of, the newest first
  std::vector<std::string> aside;  // damaged files
};

// Nothing if there is no folder yet. UnavailableError if there is one that cannot be listed: what
// it holds is not known.
Listing list(const char* what, const std::string& folder) {
  Listing all;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (const auto step = step_of(name)) all.steps.push_back(*step);
    const size_t aside = name.rfind(kAside);
    if (aside != name.npos && step_of(name.substr(0, aside))) all.aside.push_back(name);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw UnavailableError(
        fmt::format("{}: cannot list {}: {}; the chief must be able to read this folder", what,
                    folder, error.message()));
  std::ranges::sort(all.steps, std::greater());
  std::ranges::sort(all.aside);
  return all;
}

std::string input_name(size_t input) { return fmt::format("tutti.input.{}", input); }
std::string input_name(size_t input, size_t worker) {
  return fmt::format("tutti.input.{}.worker.{}", input, worker);
}

}  // namespace

void save_variables(const std::string& path, const std::vector<Variable>& variables,
                    const std::map<std::string, std::string>& metadata) {
  check_context("save_variables", variables);
  const observe::Span span("save_variables");
  TensorFile file = contents("save_variables", variables);
  file.metadata = metadata;
  workers_of(variables).on_chief([&] { write_safetensors(path, file); });
}

std::map<std::string, std::string> load_variables(const std::string& path,
                                                  const std::vector<Variable>& variables) {
  check_context("load_variables", variables);
  const observe::Span span("load_variables");
  const Workers& workers = workers_of(variables);
  TensorFile file;
  workers.on_chief([&] {
    file = read_safetensors(path);
    check_contents("load_variables", path, file, variables);
  });
  assign(workers, file, variables);
  return shared(workers, file.metadata);
}

Checkpoint::Checkpoint(std::string folder, std::vector<Variable> variables,
                       std::vector<InputIterator*> inputs, int keep)
    : folder_(std::move(folder)),
      variables_(std::move(variables)),
      inputs_(std::move(inputs)),
      keep_(keep) {
  const auto fail = [](const std::string& why) {
    throw InvalidArgumentError("Checkpoint: " + why);
  };
  if (keep < 1) fail(fmt::format("keep is {}, expected 1 or more", keep));
  if (variables_.empty()) fail("there are no variables");
  for (const Variable& variable : variables_) {
    if (variable.name().starts_with(kReserved))
      fail(fmt::format("a variable is called \"{}\"; names with \"{}\" are taken", variable.name(),
                       kReserved));
    if (&variable.strategy() != &variables_[0].strategy())
      fail(
          fmt::format("the variables \"{}\" and \"{}\" are of two strategies; each needs a "
                      "checkpoint of its own",
                      variables_[0].name(), variable.name()));
  }
  const Workers& workers = workers_of(variables_);
  for (const InputIterator* input : inputs_) {
    if (!input) fail("an input is null");
    if (input->has_own_data() && workers.size() == 1)
      fail("an input is of several workers, and the variables are not");
  }
}

void Checkpoint::save(int64_t step, const std::map<std::string, std::string>& metadata) {
  check_context("Checkpoint::save", variables_);
  if (step < 0)
    throw InvalidArgumentError(
        fmt::format("Checkpoint::save: the step is {}, expected 0 or more", step));
  observe::Span span("Checkpoint::save");
  span.set("step", step);
  const Workers& workers = workers_of(variables_);
  TensorFile file = contents("Checkpoint::save", variables_);
  file.metadata = metadata;
  file.metadata[kStep] = std::to_string(step);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const std::string state = inputs_[i]->save();
    if (!inputs_[i]->has_own_data()) {
      file.tensors[input_name(i)] = text_tensor(state);
      continue;
    }
    const std::vector<std::string> all = workers.from_all(state);
    for (size_t w = 0; w < all.size(); ++w) file.tensors[input_name(i, w)] = text_tensor(all[w]);
  }
  workers.on_chief([&] {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error)
      throw UnavailableError(
          fmt::format("Checkpoint::save: cannot make {}: {}", folder_, error.message()));
    std::vector<int64_t> steps = list("Checkpoint::save", folder_).steps;
    base::remove_leftovers(folder_, [](const std::string& name) { return bool(step_of(name)); });
    for (const int64_t damaged : damaged_) {
      put_aside(damaged);
      std::erase(steps, damaged);
    }
    damaged_.clear();
    write_safetensors(path_of(step), file);
    // Of the files up to this step the newest stay, with this one.
    std::erase_if(steps, [&](int64_t other) { return other >= step; });
    for (size_t i = size_t(keep_) - 1; i < steps.size(); ++i) fs::remove(path_of(steps[i]), error);
  });
}

std::string Checkpoint::path_of(int64_t step) const {
  return (fs::path(folder_) / name_of(step)).string();
}

// So that no save writes over it or counts it, in this process or in a later one.
void Checkpoint::put_aside(int64_t step) const {
  const std::string from = path_of(step);
  std::string to;
  std::error_code error;
  for (int n = 1; to.empty() || fs::exists(fs::symlink_status(to, error)); ++n)
    to = fmt::format("{}{}{}", from, kAside, n);
  if (std::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT)
    throw UnavailableError(fmt::format("Checkpoint::save: cannot rename the damaged {} to {}: {}",
                                       from, to, std::strerror(errno)));
}

std::optional<int64_t> Checkpoint::restore() {
  check_context("Checkpoint::restore", variables_);
  const observe::Span span("Checkpoint::restore");
  const Workers& workers = workers_of(variables_);
  TensorFile file;
  workers.on_chief([&] {
    damaged_.clear();
    Listing all = list("Checkpoint::restore", folder_);
    for (const int64_t step : all.steps) {
      const std::string path = path_of(step);
      try {
        file = read_safetensors(path);
        if (!file.metadata.contains(kStep))
          throw DataLossError(fmt::format("it has no \"{}\"", kStep));
      } catch (const DataLossError& e) {
        base::log(base::LogLevel::warning,
                  fmt::format("Checkpoint::restore: passing over {}: {}", path, e.what()));
        damaged_.push_back(step);
        continue;
      }
      check_contents("Checkpoint::restore", path, file, variables_);
      check_inputs(path, file.tensors, size_t(workers.size()));
      return;
    }
    for (const int64_t step : damaged_) all.aside.push_back(name_of(step));
    if (!all.aside.empty())
      throw DataLossError(fmt::format(
          "Checkpoint::restore: all checkpoints in {} are damaged: {}; put back a copy of one, or "
          "move them to another folder to start anew",
          folder_, fmt::join(all.aside, ", ")));
  });
  std::map<std::string, std::string> metadata = shared(workers, file.metadata);
  if (!metadata.contains(kStep)) return {};
  restore_inputs(workers, file.tensors);
  assign(workers, file, variables_);
  const int64_t step = std::stoll(metadata.at(kStep));
  metadata.erase(kStep);
  metadata_ = std::move(metadata);
  return step;
}

// On all workers or on none.
void Checkpoint::restore_inputs(const Workers& workers,
                                const std::map<std::string, Tensor>& tensors) {
  std::vector<std::string> states;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const size_t count = inputs_[i]->has_own_data() ? size_t(workers.size()) : 1;
    for (size_t w = 0; w < count; ++w) {
      const auto found = tensors.find(count > 1 ? input_name(i, w) : input_name(i));
      const std::string state =
          workers.from_chief(found != tensors.end() ? text(found->second) : std::string());
      if (count == 1 || w == size_t(workers.rank())) states.push_back(state);
    }
  }
  std::vector<std::string> before;
  for (InputIterator* const input : inputs_) before.push_back(input->save());
  const auto set = [&](const std::vector<std::string>& wanted) {
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i]->restore(wanted[i]);
  };
  try {
    workers.on_all([&] { set(states); });
  } catch (const std::exception&) {
    set(before);
    throw;
  }
}

// Whether the file knows where each input stands.
void Checkpoint::check_inputs(const std::string& path, const std::map<std::string, Tensor>& tensors,
                              size_t workers) const {
  const auto fail = [&](const std::string& why) {
    throw InvalidArgumentError(fmt::format("Checkpoint::restore: {} {}", path, why));
  };
  const auto in_file = [&](size_t i) {
    size_t count = 0;
    while (tensors.contains(input_name(i, count))) ++count;
    return count;
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const bool own_data = inputs_[i]->has_own_data(), together = tensors.contains(input_name(i));
    const size_t found = in_file(i);
    if (own_data ? found == workers : together) continue;
    if (!found && !together) fail(fmt::format("does not say where input {} was", i));
    fail(
        fmt::format("has input {} of {}, and here it is of {}: an input whose workers have data of "
                    "their own goes on with as many workers only",
                    i, found ? fmt::format("{} workers", found) : "all workers together",
                    own_data ? fmt::format("{} workers", workers) : "all workers together"));
  }
  if (tensors.contains(input_name(inputs_.size())) || in_file(inputs_.size()))
    fail(fmt::format("is of more than {} inputs", inputs_.size()));
}

}  // namespace tutti
