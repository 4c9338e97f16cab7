// Variables in files; see safetensors.h for the format.
#pragma once

#include <tutti/variable.h>

#include <map>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// The variables by their names, which must differ. Mirrored variables are saved once; those
// synchronised on read as what reading gives. In cross-replica context.
void save_variables(const std::string& path, const std::vector<Variable>& variables,
                    const std::map<std::string, std::string>& metadata = {});

// Assigns every variable from the file, and returns its metadata. First everything is checked:
// after an error all variables are as they were. NotFoundError where a variable is not in the file,
// InvalidArgumentError where dtype or shape differ.
std::map<std::string, std::string> load_variables(const std::string& path,
                                                  const std::vector<Variable>& variables);

}  // namespace tutti

#pragma GCC visibility pop
