#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Groups from the environment, in all the ways that a job can start, or not."""
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
from harness import (LONG, Failed, Job, arguments, check, expect_no_growth, free_addresses, limit, run_cases,  # noqa: E402
                     tf_config)


def finish(job, ok, codes=0):
    """Waits for the end, at which `ok` workers are well and all processes have exited with `codes`."""
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


def workers_are_watched_while_they_compute(options):
    """C241, C242"""
    with Job(options) as job:
        started = job.start_directly(3, [job.program("launch_worker"), "health"], {"TUTTI_TOKEN": "sesame"})
        job.wait("three workers that are checked", lambda: len(job.find("checked")) == 3)
        started[1].kill()
        job.wait_for_end()
        check(len(job.find("ok")) == 2, f"not two workers are well: {job.story()}")
        codes = [process.returncode for process in job.processes]
        check(codes == [0, -9, 0], f"exit codes {codes}: {job.story()}")
        job.expect_nothing_left()


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
                      {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_JOIN_TIMEOUT": "3"})
        job.all_started()
        errors = expect_error(job, "DeadlineExceededError", "rank 2", addresses[2])
        check(len(errors) == 2, f"not all ranks failed: {job.story()}")
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
                      {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_TOKEN": token, "TUTTI_JOIN_TIMEOUT": "3"})
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
    """What moves data between processes here, whatever started them."""
    modules = os.path.join(options.build, "src/tutti")
    info = subprocess.run([os.path.join(options.build, "tools", "tutti"), "info", "--json"], check=True, stdout=subprocess.PIPE,
                          env={**os.environ, "TUTTI_MODULE_PATH": modules})
    return [backend["name"] for backend in json.loads(info.stdout)["backends"]
            if backend["available"] and not backend["launcher"] and backend["name"] not in ("in_process", "nccl")]


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


def all_ranks_go_the_way_that_rank_0_wants(options):
    """Costs that lead to different ways: without agreement, ranks would wait for messages that are never sent."""
    for first, others, expected in (("latency=1e6", "message=1e6", "whole"), ("message=1e6", "latency=1e6", "doubling")):
        with Job(options) as job:
            addresses, trace = free_addresses(4), os.path.join(job.folder.name, "trace.json")
            workers = [job.start([job.program("launch_worker"), "slow", "1"],
                                 {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_BACKEND": "tcp", "TUTTI_TIMELINE": trace,
                                  "TUTTI_COSTS": others if rank else first}) for rank in range(4)]
            job.all_started()
            finish(job, 4)
            for rank, worker in enumerate(workers):
                warned = "TUTTI_COSTS is " in job.output(worker)
                check(warned == (rank > 0), f"rank {rank}: {job.output(worker)}")
                with open(f"{trace[:-5]}.rank{rank}.json") as file:
                    ways = {event["args"].get("way") for event in json.load(file) if event["name"] == "all_reduce"}
                check(ways == {expected}, f"rank {rank} goes {ways}, expected {expected}")


def merged(job, files):
    """The spans of each operation by rank, from the one timeline that the tool makes."""
    tool = os.path.join(job.build, "tools", "tutti")
    out = os.path.join(job.folder.name, "all.json")
    done = subprocess.run([tool, "timeline", "merge", out, *files], capture_output=True, text=True)
    check(done.returncode == 0 and not done.stderr, f"tutti timeline: {done.stderr}")
    spans = {}
    with open(out) as file:
        for event in json.load(file):
            if event["ph"] == "X":
                check(event["args"]["bytes"] == 4000, f"the bytes of {event}")
                begin = event["ts"]
                spans.setdefault(event["args"]["operation"], {})[event["pid"]] = (begin, begin + event["dur"])
    return spans, float(re.search(r"clocks agree to (\S+) ms", done.stdout)[1]) * 1000


def expect_aligned(spans, ranks, error):
    """In a collective, no rank is done before all have begun."""
    check(sorted(spans) == list(range(1, 21)), f"the operations {sorted(spans)}")
    for number, by_rank in spans.items():
        check(sorted(by_rank) == list(range(ranks)), f"operation {number} of the ranks {sorted(by_rank)}")
        last, first = max(begin for begin, _ in by_rank.values()), min(end for _, end in by_rank.values())
        check(last <= first + error + 1, f"operation {number}: a rank ends {last - first} us before another begins")


def timelines_of_ranks_become_one(options):
    for backend in backends(options):
        with Job(options) as job:
            trace = os.path.join(job.folder.name, "trace.json")
            job.launch(3, [job.program("launch_worker"), "slow", "1"], {"TUTTI_TIMELINE": trace, "TUTTI_BACKEND": backend})
            finish(job, 3)
            spans, error = merged(job, [job.folder.name])
            check(error == 0, "processes of one machine have one clock")
            expect_aligned(spans, 3, error)
            check(not os.path.exists(trace), "a file that belongs to no rank")


def the_clocks_of_timelines_are_brought_together(options):
    ahead = ["unshare", "--time", "--monotonic", "1000", "--fork"]
    try:
        subprocess.run([*ahead, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "not tried: no other clocks can be had here (unshare --time, as root)"
    errors = []
    for backend in backends(options):
        with Job(options) as job:
            addresses, trace = free_addresses(3), os.path.join(job.folder.name, "trace.json")
            for rank in range(3):
                job.start([*(ahead if rank else []), job.program("launch_worker"), "slow", "1"],
                          {"TF_CONFIG": tf_config(addresses, rank), "TUTTI_TIMELINE": trace, "TUTTI_BACKEND": backend})
            job.all_started()
            finish(job, 3)
            spans, error = merged(job, [f"{trace[:-5]}.rank{rank}.json" for rank in range(3)])
            check(0 < error < 60e6, f"the clocks agree to {error} us")
            expect_aligned(spans, 3, 2 * error)
            errors.append(error)
    return f"to {max(errors):.0f} us"


def lines_come_when_they_are_printed(options):
    worker = os.path.join(options.build, "tests", "multiprocess", "launch_worker")
    programs = {"launch_worker": [worker, "print"],
                "Python": [sys.executable, "-c", "import sys; print('printed'); print('streamed'); sys.stdin.read()"]}
    for name, command in programs.items():
        with Job(options) as job:
            run = job.launch(1, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            expected, seen = b"[0] printed\n[0] streamed\n", b""
            while len(seen) < len(expected):
                ready, _, _ = select.select([run.stdout], [], [], 30)
                check(ready, f"{name}: a line is held back; so far: {seen}")
                seen += os.read(run.stdout.fileno(), 4096)
            check(seen == expected, f"{name} printed {seen}")
            run.stdin.close()
            job.wait_for_end()
            run.stdout.close()
            job.expect_nothing_left()


def a_crash_loses_no_line(options):
    for how, code in ((1, 128 + signal.SIGABRT), (2, 128 + signal.SIGSEGV), (3, 7)):
        with Job(options) as job:
            run = job.launch(1, [job.program("launch_worker"), "print", str(how)])
            job.wait_for_end()
            check(run.returncode == code, f"exits with {run.returncode}: {job.story()}")
            check("[0] printed\n[0] streamed\n" in job.output(run), f"lines are lost: {job.story()}")


def the_last_line_names_the_rank_that_left_early(options):
    for how, code in ((0, 3), (1, 128 + signal.SIGABRT)):
        for backend in backends(options):
            with Job(options) as job:
                run = job.launch(3, [job.program("launch_worker"), "leave_early", str(how)], {"TUTTI_BACKEND": backend})
                job.wait_for_end()
                last = job.output(run).strip().splitlines()[-1]
                check(re.fullmatch(r"tutti run: rank 1 \(pid \d+\) left early \(exit code 0\): all_reduce #2 "
                                   r"\(float32\[8\], SUM\): rank 1 \(127.0.0.1:\d+\) has left the group; .*", last),
                      f"{backend}: the last line is {last}")
                check(run.returncode == code, f"{backend}: exits with {run.returncode}: {job.story()}")


def the_last_line_names_a_rank_that_ends_before_it_joins(options):
    for how, code, words in (("exit 3", 3, r"exited with 3"),
                             ("kill -ABRT $$", 128 + signal.SIGABRT, r"was killed by signal 6 \(Aborted\)")):
        with Job(options) as job:
            script = f'[ "$RANK" = 1 ] && {{ {how}; }}; exec "$0" join'
            run = job.launch(3, ["sh", "-c", script, job.program("surroundings_worker")])
            job.wait_for_end()
            last = job.output(run).strip().splitlines()[-1]
            check(re.fullmatch(rf"tutti run: rank 1 \(pid \d+\) {words}; the others were stopped", last),
                  f"the last line is {last}")
            check(run.returncode == code, f"exits with {run.returncode}: {job.story()}")


def fail(options, how, backend, environment=None, prefix=()):
    """A job of three whose rank 1 fails: its output, its exit code, and the errors of the others."""
    with Job(options) as job:
        command = [*prefix, job.program("launch_worker"), "fail", str(how)]
        run = job.launch(3, command, {"TUTTI_BACKEND": backend, **(environment or {})})
        job.wait_for_end()
        job.expect_nothing_left()
        return job.output(run), run.returncode, job.find("error")


def an_exception_that_ends_a_rank_reaches_the_others(options):
    pixel = "bad pixel in image 42"
    for how, text, code in ((0, pixel, 1), (1, pixel, 9), (2, pixel, 1), (3, "an exception of type int", 1)):
        for backend in backends(options):
            output, returned, errors = fail(options, how, backend)
            what = f"case {how}, {backend}: {output}"
            check([event.subject for event in errors] == ["AbortedError"] * 2, f"{errors}, {what}")
            check(all(f"rank 1 failed: {text}" in event.text for event in errors), f"{errors}, {what}")
            check(returned == code, f"exits with {returned}, {what}")
            last = output.strip().splitlines()[-1]
            check(re.fullmatch(rf"tutti run: rank 1 \(pid \d+\) failed: {text}", last), what)
            said = "the program's own handler" if how == 1 else f"rank 1 failed: {text}"
            check(f"[1] {said}\n" in output and "terminate called" not in output, what)
            check(how == 2 or "[1] unfinished\n" in output, f"output is lost, {what}")


def an_exception_leaves_a_core_dump_if_they_are_on(options):
    if os.geteuid() and not resource.getrlimit(resource.RLIMIT_CORE)[1]:
        return "skipped: core dumps cannot be turned on"
    # Less than a page, so that no file is written.
    output, code, errors = fail(options, 0, "shm", prefix=["sh", "-c", "ulimit -c 1; exec \"$@\"", "sh"])
    check(code == 128 + signal.SIGABRT and "[1] rank 1 failed: bad pixel in image 42\n" in output, f"{code}: {output}")
    check(all(event.subject == "AbortedError" for event in errors), errors)


def group_abort_ends_the_job_with_its_reason(options):
    for backend in backends(options):
        output, code, errors = fail(options, 4, backend)
        check([event.subject for event in errors] == ["AbortedError"] * 3, f"{backend}: {errors}, {output}")
        check(all("rank 1 failed: bad pixel in image 42" in event.text for event in errors), f"{backend}: {errors}")
        check(code == 3, f"{backend} exits with {code}: {output}")
        check(re.search(r"\ntutti run: rank 1 \(pid \d+\) failed: bad pixel in image 42\n$", output), output)


def an_exception_without_a_launcher_aborts(options):
    with Job(options) as job:
        started = job.start_directly(3, [job.program("launch_worker"), "fail", "0"])
        job.wait_for_end()
        check([process.returncode for process in started] == [3, -signal.SIGABRT, 3], job.story())
        check("terminate called after throwing" in job.output(started[1]), job.story())
        check(all(event.subject == "UnavailableError" for event in job.find("error")), job.story())


def local_ranks_are_those_of_the_host(options):
    for backend in backends(options):
        with Job(options) as job:
            job.launch(3, [job.program("launch_worker"), "local"], {"TUTTI_BACKEND": backend})
            finish(job, 3)
            said = sorted(event.text for event in job.find("ok"))
            check(said == ["0 of 3", "1 of 3", "2 of 3"], f"{backend}: {said}")


def a_backend_that_cannot_be_had_is_an_error(options):
    for backend, kind, words in (("nccl", "UnavailableError", ["TUTTI_BACKEND=nccl", "no GPU", "unset TUTTI_BACKEND"]),
                                 ("gloo", "InvalidArgumentError", ["TUTTI_BACKEND=gloo", "expected one of"])):
        environment = {"TUTTI_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
        with Job(options) as job:
            job.start_directly(2, [job.program("launch_worker"), "join"], environment)
            check(len(expect_error(job, kind, *words)) == 2, f"not both workers refuse {backend}: {job.story()}")
        with Job(options) as job:
            job.start([job.program("launch_worker"), "alone"], environment)
            job.all_started()
            expect_error(job, kind, *words)
    with Job(options) as job:
        run = job.launch(2, [job.program("launch_worker"), "join"], {"TUTTI_BACKEND": "nccl", "CUDA_VISIBLE_DEVICES": ""})
        job.wait_for_end()
        last = job.output(run).strip().splitlines()[-1]
        check(re.fullmatch(r"tutti run: rank \d \(pid \d+\) exited with 3: TUTTI_BACKEND=nccl: .*no GPU.*", last),
              f"the last line is {last}")


def the_last_line_says_that_a_stuck_rank_was_stopped(options):
    with Job(options) as job:
        run = job.launch(3, [job.program("launch_worker"), "stuck"], {"TUTTI_TIMEOUT": "1"})
        job.wait_for_end()
        last = job.output(run).strip().splitlines()[-1]
        check(re.fullmatch(r"tutti run: rank 1 \(pid \d+\) kept the others waiting: .*waited 1 s for rank 1 .*; it was stopped",
                           last), f"the last line is {last}")


def a_misspelled_setting_is_warned_of_once(options):
    with Job(options) as job:
        run = job.launch(3, [job.program("launch_worker"), "join"], {"TUTTI_TIMOUT": "3", "TUTTI_TEST_X": "1"})
        finish(job, 3)
        warnings = [line for line in job.output(run).splitlines() if "not a setting" in line]
        check(len(warnings) == 1 and warnings[0].startswith("[") and "TUTTI_TIMOUT" in warnings[0] and "mean TUTTI_TIMEOUT?" in warnings[0], warnings)


CASES = [a_misspelled_setting_is_warned_of_once, a_backend_that_cannot_be_had_is_an_error,
         local_ranks_are_those_of_the_host, an_exception_that_ends_a_rank_reaches_the_others,
         an_exception_leaves_a_core_dump_if_they_are_on, group_abort_ends_the_job_with_its_reason,
         an_exception_without_a_launcher_aborts, joins_under_tutti_run, lines_come_when_they_are_printed,
         a_crash_loses_no_line, the_last_line_names_the_rank_that_left_early,
         the_last_line_names_a_rank_that_ends_before_it_joins, the_last_line_says_that_a_stuck_rank_was_stopped,
         joins_without_a_launcher,
         a_lone_process_is_a_group_of_one, two_groups_alternate_and_fail_apart, the_end_of_a_chain_is_to_blame,
         workers_are_watched_while_they_compute, groups_are_made_and_left_many_times, tensors_outlive_their_group,
         bits_do_not_depend_on_the_backend, a_wrong_tf_config_is_an_error, a_worker_that_never_starts_is_named,
         a_chief_that_never_starts_is_named, another_token_is_refused, a_port_in_use_is_an_error,
         a_slow_rank_is_reported, the_report_is_as_rank_0_wants_it,
         all_ranks_go_the_way_that_rank_0_wants, timelines_of_ranks_become_one,
         the_clocks_of_timelines_are_brought_together]

if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--only", help="the cases that match this")
    options = parser.parse_args()
    limit(600)
    sys.exit(run_cases([case for case in CASES if re.search(options.only or "", case.__name__)], options))
