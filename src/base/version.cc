// SPDX-License-Identifier: Apache-2.0
#include <tutti/version.h>

namespace tutti {

std::string_view version() { return TUTTI_VERSION; }

}  // namespace tutti
