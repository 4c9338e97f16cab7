#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers that mpirun has started: they need no TF_CONFIG, and may have MPI move their data."""
import os
import shutil
import sys

sys.dont_write_bytecode = True
from harness import Job, arguments, check, free_addresses, limit, run_cases  # noqa: E402

LAUNCHERS = {
    "openmpi": ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["-bind-to", "none"],
}


def is_here(kind):
    return shutil.which(f"mpirun.{kind}") is not None


def has(options, kind):
    return (is_here(kind) and os.path.exists(os.path.join(options.build, "src/tutti", f"libtutti_mpi_{kind}.so")))


def start(job, kind, ranks, command, environment):
    # Open MPI closes what its ranks inherit, so the exit code has to do for reports.
    launcher = job.start(["env", "-u", "TUTTI_TEST_REPORT", f"mpirun.{kind}", *LAUNCHERS[kind], "-n", str(ranks), *command],
                         {"TUTTI_TIMEOUT": "30", "OMPI_MCA_orte_tmpdir_base": job.folder.name, **environment})
    job.all_started()
    job.wait_for_end()
    return launcher


def expect_success(options, kind, backend, ranks, name, words):
    with Job(options) as job:
        launcher = start(job, kind, ranks, [job.program(name), *words], {"TUTTI_BACKEND": backend})
        check(launcher.returncode == 0, f"{ranks} ranks failed: {job.story()}")
        return job.output(launcher)


def without_module(job):
    """The environment of a Tutti that has no module for MPI."""
    folder = os.path.join(job.folder.name, "modules")
    os.mkdir(folder)
    for name in ("cluster", "tcp"):
        os.symlink(os.path.join(job.build, "src/tutti", f"libtutti_{name}.so"), os.path.join(folder, f"libtutti_{name}.so"))
    return {"TUTTI_MODULE_PATH": folder, "TUTTI_JOIN_TIMEOUT": "30"}


def one_host_without_a_module_under(kind):
    def case(options):
        for ranks in (2, 4):
            with Job(options) as job:
                # A script between mpirun and a rank is no obstacle.
                launcher = start(job, kind, ranks, ["sh", "-c", '"$0"; exit $?', job.program("contract_group")], without_module(job))
                check(launcher.returncode == 0 and job.output(launcher).count("ok ") == ranks, f"{ranks} ranks failed: {job.story()}")
                job.expect_nothing_left()

    case.__name__ = f"one_host_without_a_module_under_{kind}"
    return case


def several_hosts_without_a_module_under(kind):
    # As far as a rank can tell.
    elsewhere = ["env", "-u", "OMPI_COMM_WORLD_LOCAL_SIZE", "-u", "MPI_LOCALNRANKS"]

    def case(options):
        with Job(options) as job:
            launcher = start(job, kind, 2, [*elsewhere, job.program("contract_group")], without_module(job))
            said = job.output(launcher)
            check(launcher.returncode != 0 and "set TUTTI_COORDINATOR=HOST:PORT for all ranks" in said and
                  "started ranks on several hosts" in said, f"no remedy: {job.story()}")
        with Job(options) as job:
            launcher = start(job, kind, 2, [*elsewhere, job.program("contract_group")],
                             {**without_module(job), "TUTTI_COORDINATOR": free_addresses(1)[0]})
            check(launcher.returncode == 0 and job.output(launcher).count("ok ") == 2, f"two ranks failed: {job.story()}")

    case.__name__ = f"several_hosts_without_a_module_under_{kind}"
    return case


def mixture_under(kind, backend):
    def case(options):
        expect_success(options, kind, backend, 3, "multiprocess_worker", ["7", "400", "none", "-1", "0"])

    case.__name__ = f"{kind}_with_backend_{backend or 'auto'}"
    return case


def contract_under(kind, backend):
    def case(options):
        for ranks in (2, 3, 4):
            output = expect_success(options, kind, backend, ranks, "contract_group", [])
            check(output.count("ok ") == ranks, f"not all of {ranks} ranks came to their end: {output}")

    case.__name__ = f"the_contract_under_{kind}_with_backend_{backend or 'auto'}"
    return case


def main():
    options = arguments(__doc__).parse_args()
    limit(600)
    if not any(map(is_here, LAUNCHERS)):
        print("skipped: neither Open MPI nor MPICH is here")
        return 77
    kinds = [kind for kind in LAUNCHERS if has(options, kind)]
    return run_cases([case_under(kind) for case_under in (one_host_without_a_module_under, several_hosts_without_a_module_under)
                      for kind in filter(is_here, LAUNCHERS)] +
                     [case_under(kind, backend) for case_under in (mixture_under, contract_under) for kind in kinds
                      for backend in ("", "tcp", "ucx", "mpi")], options)


if __name__ == "__main__":
    sys.exit(main())
