#include <fmt/format.h>
#include <tutti/checkpoint.h>
#include <tutti/error.h>
#include <tutti/safetensors.h>

#include "strategy/context.h"

namespace tutti {

namespace {

// Before any variable is touched: each of them must be readable and writable from here.
void check_context(const char* what, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables)
    strategy::require_cross_replica(variable.strategy(), what);
}

}  // namespace

void save_variables(const std::string& path, const std::vector<Variable>& variables,
                    const std::map<std::string, std::string>& metadata) {
  check_context("save_variables", variables);
  TensorFile file{.tensors = {}, .metadata = metadata};
  for (const Variable& variable : variables)
    if (!file.tensors.emplace(variable.name(), variable.read_value()).second)
      throw InvalidArgumentError(fmt::format(
          "save_variables: two variables are called \"{}\"; give them names that differ",
          variable.name()));
  write_safetensors(path, file);
}

std::map<std::string, std::string> load_variables(const std::string& path,
                                                  const std::vector<Variable>& variables) {
  check_context("load_variables", variables);
  const TensorFile file = read_safetensors(path);
  for (const Variable& variable : variables) {
    const auto found = file.tensors.find(variable.name());
    if (found == file.tensors.end())
      throw NotFoundError(
          fmt::format("load_variables: {} has no variable \"{}\"", path, variable.name()));
    const Tensor& tensor = found->second;
    if (tensor.dtype() != variable.dtype() || !(tensor.shape() == variable.shape()))
      throw InvalidArgumentError(
          fmt::format("load_variables: \"{}\" is {}{} in {}, and the variable is {}{}",
                      variable.name(), name(tensor.dtype()), tensor.shape().to_string(), path,
                      name(variable.dtype()), variable.shape().to_string()));
  }
  for (const Variable& variable : variables) variable.assign(file.tensors.at(variable.name()));
  return file.metadata;
}

}  // namespace tutti
