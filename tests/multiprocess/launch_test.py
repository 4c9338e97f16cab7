#!/usr/bin/env python3
"""Groups from the environment, in all the ways that a job can start, or not."""
import os
import re
import socket
import sys

sys.dont_write_bytecode = True
from harness import (LONG, Failed, Job, arguments, check, expect_no_growth, free_addresses, limit, run_cases,  # noqa: E402
                     tf_config)


def finish(job, ok, codes=0):
    """Waits for the end, where `ok` workers are well and all processes have exited with `codes`."""
    job.wait_for_end()
    for event in job.find("wrong"):
        raise Failed(f"{event.text}: {job.story()}")
    check(len(job.find("ok")) == ok, f"not {ok} workers were well: {job.story()}")
    check(all(process.returncode == codes for process in job.processes), f"other exit codes: {job.story()}")
    job.expect_nothing_left()


def launched(options, workers, case, *more):
    with Job(options) as job:
        job.launch(workers, [job.program("launch_worker"), case, *more])
        finish(job, workers)
        return job


def joins_under_tutti_run(options):
    for workers in (1, 2, 3, 4, 7):
        said = sorted(event.text for event in launched(options, workers, "join").find("ok"))
        backend = "shm" if workers > 1 else "in_process"
        check(said == [f"{backend} {rank} of {workers}" for rank in range(workers)], f"they said {said}")


def joins_without_a_launcher(options):
    with Job(options) as job:
        job.start_directly(4, [job.program("launch_worker"), "join"], {"TUTTI_TOKEN": "sesame"})
        finish(job, 4)


def a_lone_process_is_a_group_of_one(options):
    with Job(options) as job:
        job.start([job.program("launch_worker"), "alone"])
        job.all_started()
        finish(job, 1)


def two_groups_alternate_and_fail_apart(options):
    launched(options, 3, "alternate")


def the_end_of_a_chain_is_to_blame(options):
    launched(options, 3, "chain")


def groups_are_made_and_left_many_times(options):
    with Job(options) as job:
        job.launch(5, [job.program("launch_worker"), "recreate", "200" if LONG else "50"])
        finish(job, 5)
        return expect_no_growth(job, 5, None if options.sanitized else 1024)


def tensors_outlive_their_group(options):
    launched(options, 3, "outlive")


def bits_do_not_depend_on_the_backend(options):
    cases = 0
    for workers in (3, 4):
        hashes = {}
        with Job(options) as job:
            job.launch(workers, [job.program("launch_worker"), "bits", "0"])
            finish(job, workers)
            events = job.find("bits")
        with Job(options) as job:
            job.start([job.program("launch_worker"), "bits", str(workers)])
            job.all_started()
            finish(job, 1)
            events += job.find("bits")
        for event in events:
            hashes.setdefault(event.subject, []).append(event.text)
        for case, found in hashes.items():
            # Each rank, of processes and of threads, in private memory and in the window.
            check(len(found) == 4 * workers, f"{case}: {len(found)} results")
            check(len(set(found)) == 1, f"{case} with {workers} ranks: different bits {set(found)}")
        check(len({found[0] for found in hashes.values()}) == len(hashes), "different cases have the same bits")
        cases += len(hashes)
    return f"{cases} cases"


def expect_error(job, kind, *words):
    job.wait_for_end()
    errors = job.find("error")
    check(errors and all(event.subject == kind and all(word in event.text for word in words) for event in errors),
          f"expected {kind} with {words}: {job.story()}")
    return errors


def a_wrong_tf_config_is_an_error(options):
    two = ["127.0.0.1:5000", "127.0.0.1:5001"]
    for config, words in [
            ("{", ["TF_CONFIG"]),
            ('{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}}', ["TF_CONFIG", "task"]),
            (tf_config(two, 2), ["TF_CONFIG", "2"]),
            (tf_config(two, 0).replace('"type": "worker"', '"type": "poet"'), ["TF_CONFIG", "poet"]),
            ('{"cluster": 3, "task": {"type": "worker", "index": 0}}', ["TF_CONFIG", "3"])]:
        with Job(options) as job:
            job.start([job.program("launch_worker"), "join"], {"TF_CONFIG": config})
            job.all_started()
            expect_error(job, "InvalidArgumentError", *words)
            job.expect_nothing_left()


def a_worker_that_never_starts_is_named(options):
    with Job(options) as job:
        addresses = free_addresses(3)
        for rank in (0, 1):
            job.start([job.program("launch_worker"), "join"],
                      {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_JOIN_TIMEOUT": "1"})
        job.all_started()
        errors = expect_error(job, "DeadlineExceededError", "rank 2", addresses[2])
        check(len(errors) == 2, f"not everybody failed: {job.story()}")
        job.expect_nothing_left()


def a_chief_that_never_starts_is_named(options):
    with Job(options) as job:
        addresses = free_addresses(2)
        job.start([job.program("launch_worker"), "join"],
                  {"TF_CONFIG": tf_config(addresses, 1), "TUTTI_JOIN_TIMEOUT": "1"})
        job.all_started()
        expect_error(job, "DeadlineExceededError", addresses[0], "chief")
        job.expect_nothing_left()


def another_token_is_refused(options):
    with Job(options) as job:
        addresses = free_addresses(2)
        for rank, token in ((0, "sesame"), (1, "open")):
            job.start([job.program("launch_worker"), "join"],
                      {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_TOKEN": token, "TUTTI_JOIN_TIMEOUT": "2"})
        job.all_started()
        job.wait_for_end()
        said = sorted((event.subject, event.text) for event in job.find("error"))
        check([kind for kind, _ in said] == ["DeadlineExceededError", "UnauthenticatedError"] and
              "rank 1" in said[0][1] and "token" in said[1][1], f"{job.story()}")
        check(all("sesame" not in text for _, text in said), "the token is told")
        job.expect_nothing_left()


def a_port_in_use_is_an_error(options):
    with Job(options) as job, socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = ["127.0.0.1:%d" % taken.getsockname()[1], *free_addresses(1)]
        job.start([job.program("launch_worker"), "join"], {"TF_CONFIG": tf_config(addresses, 0)})
        job.all_started()
        expect_error(job, "UnavailableError", addresses[0], "in use")


def backends(options):
    """What moves data between processes here."""
    return ["shm", "ucx"] if os.path.exists(os.path.join(options.build, "src", "libtutti_ucx.so")) else ["shm"]


def stragglers(text):
    return [line for line in text.splitlines() if "stragglers: " in line]


def a_slow_rank_is_reported(options):
    for backend in backends(options):
        with Job(options) as job:
            run = job.launch(3, [job.program("launch_worker"), "slow", "2"],
                             {"TUTTI_STRAGGLERS": "10", "TUTTI_BACKEND": backend})
            finish(job, 3)
            lines = stragglers(job.output(run))
            check(len(lines) == 2 and all(re.search(
                r"\[0\] .*over the last 10 operations rank 2 \(.+\) was the slowest; the others waited \S+ s for it", line)
                for line in lines), f"{backend}: {lines}")


def the_report_is_as_rank_0_wants_it(options):
    for settings, expected in ((("5", ""), 4), (("", "5"), 0)):
        with Job(options) as job:
            addresses = free_addresses(2)
            workers = [job.start([job.program("launch_worker"), "slow", "1"],
                                 {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_STRAGGLERS": settings[rank]})
                       for rank in (0, 1)]
            job.all_started()
            finish(job, 2)
            first, second = (job.output(worker) for worker in workers)
            check(len(stragglers(first)) == expected and not stragglers(second), job.story())
            check("TUTTI_STRAGGLERS is" not in first and "on rank 0, which counts" in second, job.story())


CASES = [joins_under_tutti_run, joins_without_a_launcher, a_lone_process_is_a_group_of_one,
         two_groups_alternate_and_fail_apart, the_end_of_a_chain_is_to_blame, groups_are_made_and_left_many_times,
         tensors_outlive_their_group,
         bits_do_not_depend_on_the_backend, a_wrong_tf_config_is_an_error, a_worker_that_never_starts_is_named,
         a_chief_that_never_starts_is_named, another_token_is_refused, a_port_in_use_is_an_error,
         a_slow_rank_is_reported, the_report_is_as_rank_0_wants_it]

if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", help="the cases that match this")
    options = parser.parse_args()
    limit(600)
    sys.exit(run_cases([case for case in CASES if re.search(options.only or "", case.__name__)], options))
