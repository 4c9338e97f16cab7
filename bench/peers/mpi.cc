// SPDX-License-Identifier: Apache-2.0
// MPI_Allreduce, by whichever MPI it is compiled with: mpirun -n RANKS mpi [options of measure.h]
#include <mpi.h>

#include <regex>

#include "measure.h"

namespace {

class Mpi {
 public:
  Mpi() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }

  // "Open MPI v4.1.4, package: ..." and "MPICH Version:\t4.0.2\n..."
  std::string name() const {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int size = 0;
    MPI_Get_library_version(text, &size);
    std::smatch match;
    const std::string whole(text, size_t(size));
    if (std::regex_search(whole, match, std::regex("(Open MPI|MPICH)\\D+([0-9.]+)")))
      return match.str(1) + " " + match.str(2);
    return "MPI";
  }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  void all_reduce(float* data, size_t count) {
    MPI_Allreduce(MPI_IN_PLACE, data, int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  int64_t sum(int64_t value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return value;
  }
  int64_t from_rank_0(int64_t value) {
    MPI_Bcast(&value, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    return value;
  }

 private:
  int rank_ = 0, ranks_ = 1;
};

// The rank that the launcher gave us on this host, before MPI starts its threads.
int early_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"})
    if (const char* value = std::getenv(name)) return std::atoi(value);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const peers::Options options = peers::parse(argc, argv);
  if (options.pin) peers::pin(early_rank());
  MPI_Init(&argc, &argv);
  Mpi mpi;
  peers::measure(mpi, options);
  MPI_Finalize();
}
