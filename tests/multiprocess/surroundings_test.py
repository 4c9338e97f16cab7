#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A healthy job survives its surroundings: little address space, much memory, forked children, few descriptors."""
import os
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from harness import Failed, Job, arguments, check, free_addresses, limit, run_cases, tf_config  # noqa: E402


def finish(job, ok):
    """Waits for the end of all processes, of which `ok` workers are well."""
    job.wait_for_end()
    for event in job.find("wrong") + job.find("error"):
        raise Failed(f"{event.text}: {job.story()}")
    check(len(job.find("ok")) == ok, f"not {ok} workers were well: {job.story()}")
    job.expect_nothing_left()


def under(limits, command):
    return ["bash", "-c", f'{limits} && exec "$@"', "bash", *command]


def little_address_space_suffices(options):
    if options.sanitized:
        return "not tried: sanitizers reserve more than that"
    with Job(options) as job:
        job.launch(3, under("ulimit -v 4000000", [job.program("surroundings_worker"), "grow"]))
        finish(job, 3)


def the_window_of_a_large_machine_fits(options):
    """128 TiB of addresses do not hold all the memory of such machines once per rank."""
    if options.sanitized:
        return "not tried: a sanitizer's runtime must be loaded before what is preloaded"
    for workers, tebibytes in ((3, 60), (128, 2)):
        with Job(options) as job:
            job.launch(workers, [job.program("surroundings_worker"), "grow" if workers == 3 else "join"],
                       {"LD_PRELOAD": job.program("liblarge_machine.so"), "TUTTI_TEST_MEMORY_TIB": str(tebibytes)})
            finish(job, workers)


def a_killed_parent_is_named_while_its_child_lives(options):
    slowest = 0
    for backend in ("shm", "tcp"):
        for victim in (1, 0):  # rank 0 runs the coordination service
            with Job(options) as job:
                workers = job.start_directly(3, [job.program("surroundings_worker"), "fork", str(victim)],
                                             {"TUTTI_BACKEND": backend})
                job.wait("child", lambda: job.find("child") or job.find("wrong"))
                job.wait("others that wait", lambda: len(job.find("ready")) == 2)
                check(not job.find("wrong"), job.story())
                killed = time.monotonic()
                workers[victim].kill()
                job.wait("errors of the others", lambda: len(job.find("error")) == 2)
                child = job.find("child")[0].pid
                with open(f"/proc/{child}/stat") as stat:
                    check(stat.read().split()[2] == "S", f"the child is not alive: {job.story()}")
                os.kill(child, signal.SIGKILL)
                for event in job.find("error"):
                    check(event.subject == "UnavailableError" and f"rank {victim}" in event.text, job.story())
                    slowest = max(slowest, event.time - killed)
                allowed = (2 if victim == 0 else 1) * (3 if options.sanitized else 1)
                check(slowest < allowed, f"{backend}: known after {slowest:.1f} s: {job.story()}")
                job.wait_for_end()
    return f"after {1000 * slowest:.0f} ms at most"


def start_under(job, limits, workers, environment=None):
    """Starts workers, each under the limits of its rank, that only join."""
    addresses = free_addresses(workers)
    for rank in range(workers):
        job.start(under(limits(rank), [job.program("surroundings_worker"), "join"]),
                  {"TF_CONFIG": tf_config(addresses, rank), **(environment or {})})
    job.all_started()


def too_few_descriptors_are_an_error_with_the_number(options):
    for backend in ("shm", "tcp"):
        environment = {"TUTTI_BACKEND": backend}
        with Job(options) as job:
            start_under(job, lambda rank: "ulimit -n 16", 64, environment)
            job.wait_for_end()
            errors = [event for event in job.find("error") if event.subject == "ResourceExhaustedError" and re.search(
                "this job of 64 ranks needs about [0-9]+ descriptors.*ulimit -n allows 16: raise it", event.text)]
            check(len(errors) == 64, f"{backend}: {len(errors)} ranks say what is missing: {job.story()}")
            job.expect_nothing_left()
        # What it asks for is enough, and not much more than that.
        needed = {}
        for rank in (0, 1):
            with Job(options) as job:
                job.start(under("ulimit -n 16", [job.program("surroundings_worker"), "join"]),
                          {"TF_CONFIG": tf_config(free_addresses(8), rank), **environment})
                job.all_started()
                job.wait_for_end()
                needed[rank] = int(re.search("needs about ([0-9]+)", job.find("error")[0].text)[1])
        for_large_messages = 16 if backend == "tcp" else 0
        check(needed[1] - for_large_messages <= 32 and needed[0] - for_large_messages <= 44,
              f"{backend}: {needed} are asked for")
        with Job(options) as job:
            start_under(job, lambda rank: f"ulimit -n {needed[min(rank, 1)]}", 8, environment)
            finish(job, 8)


def a_process_that_is_not_dumpable_is_the_reason(options):
    user = {}
    if os.geteuid() == 0:  # root may open anything
        user = {"user": 65534, "group": 65534, "extra_groups": []}
        try:
            tool = os.path.join(options.build, "tools", "tutti")
            subprocess.run([tool, "--help"], check=True, capture_output=True, cwd="/", **user)
        except (OSError, subprocess.SubprocessError) as error:
            return f"not tried: another user cannot run the programs ({error})"
    with Job(options) as job:
        addresses = free_addresses(2)
        for rank, case in enumerate(("join", "undumpable")):
            job.start([job.program("surroundings_worker"), case], {"TF_CONFIG": tf_config(addresses, rank)}, **user)
        job.all_started()
        job.wait_for_end()
        texts = [event.text for event in job.find("error") if event.subject == "UnavailableError"]
        check(len(texts) == 2 and all(word in text for text in texts for word in (
            "rank 1", "not dumpable", "file capabilities", "PR_SET_DUMPABLE, 1", "TUTTI_BACKEND=tcp")), job.story())
        job.expect_nothing_left()


CASES = [a_process_that_is_not_dumpable_is_the_reason, too_few_descriptors_are_an_error_with_the_number, a_killed_parent_is_named_while_its_child_lives, little_address_space_suffices, the_window_of_a_large_machine_fits]

if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", help="the cases that match this")
    options = parser.parse_args()
    limit(300)
    sys.exit(run_cases([case for case in CASES if re.search(options.only or "", case.__name__)], options))
