#include <fmt/format.h>
#include <tutti/checkpoint.h>
#include <tutti/error.h>
#include <tutti/safetensors.h>
#include <tutti/strategy.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/log.h"
#include "strategy/context.h"
#include "strategy/workers.h"

namespace tutti {

namespace {

namespace fs = std::filesystem;
using strategy::Workers;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";
constexpr const char* kStep = "tutti.step";

// Before any variable is touched: each of them must be readable and writable from here.
void check_context(const char* what, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables)
    strategy::require_cross_replica(variable.strategy(), what);
}

// Those who save or load these variables together; null: this process alone.
const Workers* workers_of(const std::vector<Variable>& variables) {
  const Strategy& strategy = variables.empty() ? get_strategy() : variables[0].strategy();
  return strategy::WorkersOf::of(strategy.extended());
}

void on_chief(const Workers* workers, const std::function<void()>& fn) {
  workers ? workers->on_chief(fn) : fn();
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
void assign(const Workers* workers, const TensorFile& file,
            const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    const auto found = file.tensors.find(variable.name());
    const Tensor mine = found != file.tensors.end()
                            ? found->second
                            : Tensor::zeros(variable.shape(), variable.dtype());
    variable.assign(workers ? workers->from_chief(mine) : mine);
  }
}

// The chief's metadata, everywhere.
std::map<std::string, std::string> shared(const Workers* workers,
                                          std::map<std::string, std::string> metadata) {
  if (!workers) return metadata;
  const auto count = size_t(std::stoull(workers->from_chief(std::to_string(metadata.size()))));
  std::map<std::string, std::string> result;
  auto mine = metadata.begin();
  for (size_t i = 0; i < count; ++i) {
    const bool here = mine != metadata.end();
    const std::string key = workers->from_chief(here ? mine->first : std::string());
    result[key] = workers->from_chief(here ? mine->second : std::string());
    if (here) ++mine;
  }
  return result;
}

std::string name_of(int64_t step) { return fmt::format("{}{:012}{}", kPrefix, step, kSuffix); }

// The steps that there are files of, the newest first.
std::vector<int64_t> steps_in(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    int64_t step = 0;
    if (name.size() <= kPrefix.size() + kSuffix.size() || !name.starts_with(kPrefix)) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
    if (name == name_of(step)) steps.push_back(step);
  }
  std::ranges::sort(steps, std::greater());
  return steps;
}

std::string input_name(size_t input) { return fmt::format("tutti.input.{}", input); }
std::string input_name(size_t input, size_t worker) {
  return fmt::format("tutti.input.{}.worker.{}", input, worker);
}

Tensor as_tensor(const std::string& bytes) { return text_tensor(bytes); }

}  // namespace

void save_variables(const std::string& path, const std::vector<Variable>& variables,
                    const std::map<std::string, std::string>& metadata) {
  check_context("save_variables", variables);
  TensorFile file = contents("save_variables", variables);
  file.metadata = metadata;
  on_chief(workers_of(variables), [&] { write_safetensors(path, file); });
}

std::map<std::string, std::string> load_variables(const std::string& path,
                                                  const std::vector<Variable>& variables) {
  check_context("load_variables", variables);
  const Workers* const workers = workers_of(variables);
  TensorFile file;
  on_chief(workers, [&] {
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
  if (keep < 1)
    throw InvalidArgumentError(fmt::format("Checkpoint: keep is {}, expected 1 or more", keep));
}

void Checkpoint::save(int64_t step, const std::map<std::string, std::string>& metadata) {
  check_context("Checkpoint::save", variables_);
  if (step < 0)
    throw InvalidArgumentError(
        fmt::format("Checkpoint::save: the step is {}, expected 0 or more", step));
  const Workers* const workers = workers_of(variables_);
  TensorFile file = contents("Checkpoint::save", variables_);
  file.metadata = metadata;
  file.metadata[kStep] = std::to_string(step);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const std::string state = inputs_[i]->save();
    if (!inputs_[i]->has_own_data()) {
      file.tensors[input_name(i)] = as_tensor(state);
      continue;
    }
    const std::vector<std::string> all = workers->from_all(state);
    for (size_t w = 0; w < all.size(); ++w) file.tensors[input_name(i, w)] = as_tensor(all[w]);
  }
  on_chief(workers, [&] {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error)
      throw UnavailableError(
          fmt::format("Checkpoint::save: cannot make {}: {}", folder_, error.message()));
    write_safetensors((fs::path(folder_) / name_of(step)).string(), file);
    const std::vector<int64_t> steps = steps_in(folder_);
    for (size_t i = size_t(keep_); i < steps.size(); ++i)
      fs::remove(fs::path(folder_) / name_of(steps[i]), error);
  });
}

std::optional<int64_t> Checkpoint::restore() {
  check_context("Checkpoint::restore", variables_);
  const Workers* const workers = workers_of(variables_);
  TensorFile file;
  on_chief(workers, [&] {
    for (const int64_t step : steps_in(folder_)) {
      const std::string path = (fs::path(folder_) / name_of(step)).string();
      try {
        file = read_safetensors(path);
      } catch (const DataLossError& e) {
        base::log(base::LogLevel::warning,
                  fmt::format("Checkpoint::restore: passing over {}: {}", path, e.what()));
        continue;
      }
      check_contents("Checkpoint::restore", path, file, variables_);
      check_inputs(path, file.tensors, workers ? size_t(workers->size()) : 1);
      return;
    }
  });
  std::map<std::string, std::string> metadata = shared(workers, file.metadata);
  if (!metadata.contains(kStep)) return {};
  // The inputs first, since what can go wrong here leaves the variables alone.
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const size_t states = inputs_[i]->has_own_data() ? size_t(workers->size()) : 1;
    for (size_t w = 0; w < states; ++w) {
      const auto found = file.tensors.find(states > 1 ? input_name(i, w) : input_name(i));
      std::string state = found != file.tensors.end() ? text(found->second) : "";
      if (workers) state = workers->from_chief(state);
      if (states == 1 || w == size_t(workers->rank())) inputs_[i]->restore(state);
    }
  }
  assign(workers, file, variables_);
  const int64_t step = std::stoll(metadata.at(kStep));
  metadata.erase(kStep);
  metadata_ = std::move(metadata);
  return step;
}

// Whether the file knows where each input stands.
void Checkpoint::check_inputs(const std::string& path, const std::map<std::string, Tensor>& tensors,
                              size_t workers) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const bool own_data = inputs_[i]->has_own_data();
    size_t found = 0;
    while (tensors.contains(input_name(i, found))) ++found;
    if (own_data ? found == workers : tensors.contains(input_name(i))) continue;
    throw InvalidArgumentError(fmt::format(
        "Checkpoint::restore: {} has input {} of {}, and here it is of {}: an input whose workers "
        "have data of their own goes on with as many workers only",
        path, i, found ? fmt::format("{} workers", found) : "all workers together",
        own_data ? fmt::format("{} workers", workers) : "all workers together"));
  }
}

}  // namespace tutti
