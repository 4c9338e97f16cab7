// SPDX-License-Identifier: Apache-2.0
// A shared library like any other.
extern "C" __attribute__((visibility("default"))) int not_tutti_module() { return 0; }
