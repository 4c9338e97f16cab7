#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are on several hosts: what they compute, and what becomes of them when the network or a rank fails.

  hosts_test.py [--build DIR] [--only TEXT]

The hosts are network namespaces (hosts.py), so this needs root; without, it exits with 77, which is "skipped".
"""
import os
import random
import re
import shutil
import signal
import sys

sys.dont_write_bytecode = True
from harness import LONG, Failed, Job, arguments, check, run_cases  # noqa: E402
from hosts import Hosts, HostsJob, layout, limit, now, obstacle  # noqa: E402

FOREVER = 10**9
TIMEOUT = 3.0
REPEAT = 3 if LONG else 1
STEPS = 2000 if LONG else 150
SEED = random.SystemRandom().randrange(10**6) if LONG else 1
DICE = random.Random(SEED)


def slower(options):
    return 3 if options.sanitized else 1


def mixture(job, seed, steps, kind="none"):
    return [job.program("multiprocess_worker"), str(seed), str(steps), kind, "-1", "0"]


def expect_done(job):
    done = sorted(event.rank for event in job.find("done"))
    check(done == list(range(len(job.host_of))), f"the ranks {done} are done: {job.story()}")


# What is computed.


def the_mixture_is_exact(options):
    """All operations, sizes up to 4 MiB, and new groups on the way."""
    for host_of in (layout(2, 2), layout(3, 2), layout(2, 1), [0, 1, 1, 0, 1]):
        with HostsJob(options, host_of, patience=180 + STEPS / 10) as job:
            job.start_workers(mixture(job, SEED, STEPS))
            job.expect_all_well()
            expect_done(job)


def the_contract_holds(options):
    for host_of in (layout(2, 2), layout(3, 2)):
        with HostsJob(options, host_of) as job:
            job.start_workers([job.program("contract_group")])
            job.expect_all_well()


def bits_of(job, workers):
    """The hash of every case of layout_worker, which all ranks agree on."""
    job.wait_for_end()
    codes = [process.returncode for process in job.processes]
    check(not any(codes) and not job.find("error"), f"exit codes {codes}: {job.story()}")
    bits = {}
    for event in job.find("bits"):
        first = bits.setdefault(event.subject, event.text)
        check(event.text == first, f"{event.subject}: rank {event.rank} has other bits than another rank or way")
    check({event.rank for event in job.find("bits")} == set(range(workers)), f"not all have spoken: {job.story()}")
    job.expect_nothing_left()
    return bits


def bits_are_the_same_in_all_layouts(options):
    layouts = [layout(2, 3), layout(3, 2), layout(6, 1), [0, 1] * 3]
    if LONG:
        layouts += [layout(2, 2) + [2], [0, 1, 1, 1, 0], layout(7, 1), layout(2, 4), layout(4, 2), [0, 1] * 4,
                    [0, 1, 2] * 3, layout(3, 3)]
    expected = {}
    for host_of in layouts:
        workers = len(host_of)
        if workers not in expected:
            with Job(options) as job:
                job.start([job.program("layout_worker"), "threads", str(workers)])
                job.all_started()
                expected[workers] = bits_of(job, workers)
            with Job(options) as job:
                job.launch(workers, [job.program("layout_worker")])
                expect_same(bits_of(job, workers), expected[workers], "one host")
                check({event.subject for event in job.find("ready")} == {"shm"}, "not through shared memory")
        with HostsJob(options, host_of) as job:
            job.start_workers([job.program("layout_worker")])
            expect_same(bits_of(job, workers), expected[workers], f"ranks on the hosts {host_of}")
            check({event.subject for event in job.find("ready")} == {options.network}, f"not by {options.network}")
    return f"{len(expected[6])} cases"


def expect_same(bits, expected, what):
    differ = [name for name in expected if bits.get(name) != expected[name]]
    check(bits.keys() == expected.keys() and not differ, f"{what}: other bits than those of threads: {differ}")


# What goes wrong. Two hosts with two ranks each.


def broken(options, inject, expect, seconds, survivors=frozenset(range(4)), timeout=None, host_of=layout(2, 2),
           settings=None):
    """`inject(job)` breaks it; every survivor says so within `seconds`, in an error that `expect` checks."""
    seed = DICE.randrange(10**6)
    with HostsJob(options, host_of) as job:
        # Making a group has a deadline of its own, and in a part of the ranks the others notice nothing.
        words = mixture(job, seed, FOREVER, "whole" if timeout else "none")
        started = job.start_workers(words, {"TUTTI_TIMEOUT": str(timeout), **(settings or {})} if timeout else {})
        job.wait_until_ready()
        job.pause(DICE.uniform(0.1, 0.4))
        try:
            before = now()
            inject(job)
            for name in ("error", "again"):
                job.wait(f"\"{name}\" of every survivor", lambda: {event.rank for event in job.find(name)} >= survivors)
            for rank, process in enumerate(started):
                if rank not in survivors:
                    process.kill()  # it may be stopped
            job.wait_for_end()
            gone = now() - max(event.time for event in job.events)
            check(gone <= 3 * slower(options), f"it took {gone:.2f} s to leave")
            check(not job.find("wrong"), "a wrong result")
            for event in job.find("error") + job.find("again"):
                expect(job, event)
            late = max(event.time for event in job.find("error")) - before
            check(late <= seconds * slower(options), f"the last error came after {late:.2f} s")
            codes = [started[rank].returncode for rank in sorted(survivors)]
            check(set(codes) == {3}, f"exit codes {codes}")
            job.expect_nothing_left()
        except Failed as failure:
            raise Failed(f"{failure}; seed {seed}; {job.story()}") from None
    return late


def expect_error(event, classes, names):
    """Expects an error of one of the classes, with a match of `names` before the last operations."""
    check(event.subject in classes, f"none of {classes}: {event}")
    text = event.text.split(" the last operations of rank")[0]
    check(re.search(names, text), f"does not name the rank: {event}")


def a_rank_that_is_killed_is_named(options):
    def kill(culprit):
        return broken(options, lambda job: os.kill(job.pid_of(culprit), signal.SIGKILL),
                      lambda _, event: expect_error(event, {"UnavailableError"}, rf"\brank {culprit}\b"),
                      2.0, set(range(4)) - {culprit})

    return f"after {max(kill(culprit) for culprit in [3, 0, 1, 2] * REPEAT):.2f} s at most"


def a_rank_that_is_stopped_is_named(options):
    def stop(culprit):
        return broken(options, lambda job: os.kill(job.pid_of(culprit), signal.SIGSTOP),
                      lambda _, event: expect_error(event, {"DeadlineExceededError"}, rf"\bfor rank {culprit}\b"),
                      TIMEOUT + 2, set(range(4)) - {culprit}, TIMEOUT)

    culprits = [2, 3, 0, 1] * REPEAT if LONG else [2, 1]
    return f"after {max(stop(culprit) for culprit in culprits):.2f} s at most, the deadline being {TIMEOUT} s"


def hosts_that_are_parted_say_so(options):
    def expect(job, event):
        others = job.ranks_on(1 - job.host_of[event.rank])
        names = rf"\brank [{min(others)}-{max(others)}]\b"
        expect_error(event, {"DeadlineExceededError", "UnavailableError"}, names + "|coordination service")

    def part(way):
        return broken(options, lambda job: way(job.hosts, 1), expect, TIMEOUT + 3, timeout=TIMEOUT)

    ways = [Hosts.cut, Hosts.shut] * REPEAT if LONG else [Hosts.cut]
    return f"after {max(part(way) for way in ways):.2f} s at most, the deadline being {TIMEOUT} s"


def one_way_loss_is_blamed_on_the_host_that_has_it(options):
    if not shutil.which("nft"):
        return "not tried: the command nft is missing (nftables)"

    # By the deadline of an operation, and by heartbeats.
    limits = [(TIMEOUT, {}), (60, {"TUTTI_HEARTBEAT_TIMEOUT": str(TIMEOUT)})]

    def lose(way, host, timeout, settings):
        def expect(_, event):
            expect_error(event, {"DeadlineExceededError", "UnavailableError"}, rf"^[^\n]*?\brank {host}\b")
            # The operation's own description may name a rank: "recv #4 (float32[3], from rank 2): ...".
            accused = re.search(r"\brank (\d)", re.sub(r"^\w+ #\d+ \([^)]*\): ", "", event.text))[1]
            check(accused == str(host), f"accuses rank {accused}: {event}")

        return broken(options, lambda job: way(job.hosts, host), expect, TIMEOUT + 3, frozenset(range(3)), timeout,
                      layout(3, 1), settings)

    ways = [(Hosts.deafen, 2), (Hosts.deafen, 0)]
    if LONG:
        ways += [(Hosts.mute, 2), (Hosts.mute, 0), (Hosts.deafen, 1)]
    last = max(lose(way, host, *limit) for way, host in ways * REPEAT for limit in limits)
    return f"after {last:.2f} s at most, the deadline being {TIMEOUT} s"


# What only takes longer.


def slow(options, disturb):
    """The job goes on until the network has been disturbed, however fast it is."""
    for _ in range(REPEAT):
        with HostsJob(options, layout(2, 2)) as job:
            job.start_workers(mixture(job, SEED, "until"))
            job.wait_until_ready()
            result = disturb(job)
            job.enough()
            job.expect_all_well()
            expect_done(job)
    return result


def a_cut_of_a_second_is_survived(options):
    def disturb(job):
        for end, begin in ((job.hosts.cut, job.hosts.mend), (job.hosts.shut, job.hosts.open)):
            job.pause(0.2)
            end(1)
            job.pause(1)
            begin(1)

    slow(options, disturb)


def a_stall_is_survived(options):
    def disturb(job):
        job.hosts.limit_rate(1, "10gbit")
        for _ in range(3):
            job.pause(0.2)
            job.hosts.limit_rate(1, "1kbit", burst="2kb")
            job.pause(0.2)
            job.hosts.limit_rate(1, "10gbit")

    slow(options, disturb)


def loss_is_survived(options):
    if not shutil.which("nft"):
        return "not tried: the command nft is missing (nftables)"

    def disturb(job):
        for host in (0, 1):
            job.hosts.lose(host, 5)
        lost = [0, 0]
        while min(lost) <= 50:
            job.pause(0.1)
            lost = [job.hosts.lost(host) for host in (0, 1)]
        return f"{lost[0]} and {lost[1]} packets lost"

    return slow(options, disturb)


def no_more_travels_than_has_to(options):
    """Of a sum of B bytes on H hosts, 2 (H - 1) / H times B leave each, however many ranks are on it. What is for all
    gets to each host once."""
    count, times = 4_000_000, 4
    worst = {}
    for op, host_of in [("all_reduce", layout(2, 2)), ("all_reduce", layout(3, 2)), ("all_reduce", layout(2, 1)),
                        ("broadcast", layout(2, 2)), ("broadcast", layout(3, 2)), ("all_gather", layout(3, 2))]:
        with HostsJob(options, host_of) as job:
            job.start_workers([job.program("layout_worker"), "traffic", op, str(count), str(times)])
            job.expect_all_well()
            hosts = len(set(host_of))
            for host in range(hosts):
                # The root of a broadcast sends it once, and the others pass it on. First and last rank take turns.
                pass_on = (hosts - 2) / (hosts - 1)
                of_roots = ((host == host_of[0]) + (host == host_of[-1])) / 2
                least = 4 * count * times * {"all_reduce": 2 * (hosts - 1) / hosts,
                                             "broadcast": of_roots + (1 - of_roots) * pass_on,
                                             "all_gather": host_of.count(host) * (hosts - 1)}[op]
                sent = job.hosts.sent(host)
                # Chunks may not come out even.
                check(sent >= (0.95 if op == "broadcast" else 1) * least, f"{op}: host {host} sent {sent}, and should send {least:.0f}")
                worst[op] = max(worst.get(op, 0), sent / least)
    check(max(worst.values()) <= 1.05, f"a host sent more than it has to: {worst}")
    return ", ".join(f"{op} {ratio:.3f}" for op, ratio in worst.items()) + " times that at most"


UNTIMED = [the_mixture_is_exact, the_contract_holds, bits_are_the_same_in_all_layouts, no_more_travels_than_has_to,
           a_cut_of_a_second_is_survived, a_stall_is_survived, loss_is_survived]
TIMED = [a_rank_that_is_killed_is_named, a_rank_that_is_stopped_is_named, hosts_that_are_parted_say_so,
         one_way_loss_is_blamed_on_the_host_that_has_it]
BRIEF = [the_contract_holds, bits_are_the_same_in_all_layouts]


def main():
    parser = arguments("Runs jobs across hosts made of network namespaces.")
    parser.add_argument("--only", default="", help="the cases whose names contain this")
    parser.add_argument("--network", default="tcp", choices=("tcp", "ucx"), help="what moves data between the hosts")
    parser.add_argument("--brief", action="store_true", help="only what may differ between networks")
    parser.add_argument("--timed", choices=("yes", "no"), help="only the cases that check how long a failure takes, or only the others")
    options = parser.parse_args()
    reason = obstacle()
    if reason:
        print(f"skipped: {reason}")
        return 77
    limit((3000 if LONG else 900) * slower(options))
    print(f"seed {SEED}", flush=True)
    cases = {None: UNTIMED + TIMED, "yes": TIMED, "no": UNTIMED}[options.timed]
    if options.brief:
        cases = BRIEF
    return run_cases([case for case in cases if options.only.replace(" ", "_") in case.__name__], options)


if __name__ == "__main__":
    sys.exit(main())
