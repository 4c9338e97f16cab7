// SPDX-License-Identifier: Apache-2.0
#include "group/net/registry.h"

namespace tutti::group::mpi {

// One module for each MPI, since they are not compatible.
constexpr TransportKind::Module kModules[] = {
    {.name = "mpi_openmpi",
     .launcher = "Open MPI",
     .ranks = "ranks of a job that Open MPI's mpirun started",
     .purpose = "transport by Open MPI",
     .library = "libopenmpi3",
     .headers = "libopenmpi-dev"},
    {.name = "mpi_mpich",
     .launcher = "MPICH",
     .ranks = "ranks of a job that MPICH's mpirun started",
     .purpose = "transport by MPICH",
     .library = "libmpich12",
     .headers = "libmpich-dev"}};

extern const TransportKind kKind{
    .modules = kModules,
    .elsewhere =
        "this program was not started by mpirun, so MPI does not know the other ranks; start it by "
        "mpirun, or leave TUTTI_BACKEND empty"};

}  // namespace tutti::group::mpi
