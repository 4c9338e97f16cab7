// SPDX-License-Identifier: Apache-2.0
// Variables in files (see safetensors.h for the format), and checkpoints to go on from.
//
// On several workers all of them call these functions; the chief alone reads and writes files, so
// no file system need be shared, and what goes wrong there is an error on every worker.
#pragma once

#include <tutti/input.h>
#include <tutti/variable.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tutti::detail {
class Workers;
}

#pragma GCC visibility push(default)

namespace tutti {

// The variables by their names, which must differ. Mirrored variables are saved once; those
// synchronised on read as what reading gives. In cross-replica context.
void save_variables(const std::string& path, const std::vector<Variable>& variables,
                    const std::map<std::string, std::string>& metadata = {});

// Assigns every variable from the file, and returns its metadata. First everything is checked:
// after an error all variables are as they were. NotFoundError if a variable is not in the file,
// InvalidArgumentError if dtype or shape differ.
std::map<std::string, std::string> load_variables(const std::string& path,
                                                  const std::vector<Variable>& variables);

// All that a training program needs to go on where it was, in a folder of files. A job that is
// killed at any moment, and started again with the same program, ends as if nothing had happened:
//
//   Checkpoint checkpoint("checkpoints", variables, {&input});
//   for (int64_t step = checkpoint.restore().value_or(0); step < steps; ++step) {
//     ... input.get_next() ...
//     if ((step + 1) % 100 == 0) checkpoint.save(step + 1);
//   }
class Checkpoint {
 public:
  // `folder` is made if it is not there. The variables are of one strategy. The inputs must
  // outlive this object, and have been started. After a save the `keep` newest files up to that
  // step are left. InvalidArgumentError for no variables, and for names that begin with "tutti.".
  Checkpoint(std::string folder, std::vector<Variable> variables,
             std::vector<InputIterator*> inputs = {}, int keep = 2);

  // Writes folder/step-N.safetensors, whole or not at all: the variables, where the inputs stand,
  // and `metadata`. Before that it removes what a killed save left, and renames the damaged files
  // that restore has met to step-N.safetensors.damaged.K: those are never deleted.
  // InvalidArgumentError for a negative step; UnavailableError, naming the file or the folder, if
  // the system refuses.
  void save(int64_t step, const std::map<std::string, std::string>& metadata = {});

  // Goes back to the newest file that is whole, and returns its step; none if the folder holds no
  // checkpoint or is not there. Damaged files, and those without a checksum, are passed over with a
  // warning; DataLossError that names them if there is no other. UnavailableError if the folder
  // cannot be listed. Also into another number of workers, except for inputs whose workers have
  // data of their own: those are an InvalidArgumentError. After an error all variables and inputs
  // are as they were.
  std::optional<int64_t> restore();
  // Of the file that restore found.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::string path_of(int64_t step) const;
  void put_aside(int64_t step) const;
  void restore_inputs(const detail::Workers& workers, const std::map<std::string, Tensor>& tensors);
  void check_inputs(const std::string& path, const std::map<std::string, Tensor>& tensors,
                    size_t workers) const;

  std::string folder_;
  std::vector<Variable> variables_;
  std::vector<InputIterator*> inputs_;
  int keep_;
  std::map<std::string, std::string> metadata_;
  std::vector<int64_t> damaged_;  // that restore has passed over
};

}  // namespace tutti

#pragma GCC visibility pop
