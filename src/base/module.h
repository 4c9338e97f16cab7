// SPDX-License-Identifier: Apache-2.0
// Modules: parts of Tutti that need a heavy library (gRPC, CUDA, NCCL), and the transports between
// hosts. Each is a shared library in the folder tutti beside libtutti.so, with one C entry point,
// loaded when first needed. A program that needs none of them loads none, and a machine that lacks
// one runs the rest. A module holds copies of base/error.cc and base/world.cc, and nothing else of
// the library: it is told what it needs of the settings.
#pragma once

#include <string>

namespace tutti::base {

// What a module hands out. Each defines, with default visibility:
//   extern "C" const tutti::base::Module* tutti_module();
struct Module {
  const char* version;  // of the Tutti it was built with; another one is refused
  const void*
      interface;  // what it offers; the type is the module's own, named by the code that loads it
};

// The module `name`, from libtutti_<name>.so in TUTTI_MODULE_PATH, or in the folder tutti beside
// libtutti.so. Loaded once and never unloaded. UnavailableError, with the remedy, if it cannot be
// loaded.
const Module& load_module(const std::string& name);

}  // namespace tutti::base
