#!/usr/bin/env python3
"""Workers that mpirun has started: they need no TF_CONFIG, and may have MPI move their data."""
import os
import shutil
import sys

sys.dont_write_bytecode = True
from harness import Job, arguments, check, limit, run_cases  # noqa: E402

LAUNCHERS = {
    "openmpi": ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
    "mpich": ["-bind-to", "none"],
}


def has(options, kind):
    return (shutil.which(f"mpirun.{kind}") is not None
            and os.path.exists(os.path.join(options.build, "src", f"libtutti_mpi_{kind}.so")))


def expect_success(options, kind, backend, ranks, name, words):
    with Job(options) as job:
        # Open MPI closes what its ranks inherit, so the exit code has to do for reports.
        command = ["env", "-u", "TUTTI_TEST_REPORT", f"mpirun.{kind}", *LAUNCHERS[kind], "-n", str(ranks),
                   job.program(name), *words]
        launcher = job.start(command, {"TUTTI_BACKEND": backend, "TUTTI_TIMEOUT": "30",
                                       "OMPI_MCA_orte_tmpdir_base": job.folder.name})
        job.all_started()
        job.wait_for_end()
        check(launcher.returncode == 0, f"{ranks} ranks failed: {job.story()}")
        return job.output(launcher)


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
    kinds = [kind for kind in LAUNCHERS if has(options, kind)]
    if not kinds:
        print("skipped: neither Open MPI nor MPICH is here with its module")
        return 77
    return run_cases([case_under(kind, backend) for case_under in (mixture_under, contract_under) for kind in kinds
                      for backend in ("", "tcp", "ucx", "mpi")], options)


if __name__ == "__main__":
    sys.exit(main())
