// The job of this process: joined once, whatever the number of groups.
#pragma once

#include <memory>

#include "group/backend.h"

namespace tutti::group {

// A new group of all workers of the job that the environment describes, or of this process alone.
std::unique_ptr<Backend> backend_from_environment();

}  // namespace tutti::group
