#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The digits on many workers: the same bits in every layout, and after any number of kills.

  training_test.py [--build DIR] [--repeat N] [--seed S] [--only TEXT]
"""
import os
import random
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
from harness import LONG, Job, arguments, check, marked_processes, run_cases  # noqa: E402
from hosts import HostsJob, layout, limit, obstacle  # noqa: E402


def example(options, name):
    return os.path.join(options.build, "examples", name)


def weights(job, process):
    """What stands for every bit of the weights, of a run that recognised enough digits."""
    job.wait_for_end()
    said = job.output(process)
    found = re.findall(r"weights ([0-9a-f]{16})", said)
    check(process.returncode == 0 and len(found) == 1, f"exit code {process.returncode}: {job.story()}")
    check(int(re.findall(r"accuracy +(\d+)", said)[-1]) >= 95, f"too few digits are recognised: {said}")
    return found[0]


def in_one_process(options, devices, *more):
    with Job(options) as job:
        process = job.start([example(options, "02_train_digits"), "--devices", str(devices), *more])
        job.all_started()
        return weights(job, process)


def on_workers(options, workers, devices, *more):
    with Job(options) as job:
        process = job.launch(workers, [example(options, "05_train_digits_many_workers"), "--devices", str(devices),
                                       *more])
        return weights(job, process)


def on_hosts(options, host_of, devices):
    with HostsJob(options, host_of) as job:
        first, *_ = job.start_workers([example(options, "05_train_digits_many_workers"), "--devices", str(devices)])
        result = weights(job, first)
        check(not any(process.returncode for process in job.processes), f"not all ended well: {job.story()}")
        return result


def four_replicas_have_the_same_bits_in_every_layout(options):
    expected = in_one_process(options, 4)
    for workers, devices in ((1, 4), (2, 2), (4, 1)):
        got = on_workers(options, workers, devices)
        check(got == expected, f"{workers} workers with {devices} devices: {got}, expected {expected}")
    why = obstacle()
    if why:
        return f"not on several hosts: {why}"
    got = on_hosts(options, layout(4, 1), 1)
    check(got == expected, f"4 hosts: {got}, expected {expected}")


def six_replicas_have_the_same_bits_in_every_layout(options):
    expected = in_one_process(options, 6)
    for workers, devices in ((2, 3), (3, 2), (6, 1)):
        got = on_workers(options, workers, devices)
        check(got == expected, f"{workers} workers with {devices} devices: {got}, expected {expected}")


def workers_of(launcher):
    """The ids of the processes that the launcher has started."""
    found = []
    for pid in marked_processes():
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[1] == str(launcher.pid):
                    found.append(pid)
        except OSError:
            pass
    return found


def newest_step(folder):
    steps = [int(name[5:17]) for name in os.listdir(folder) if re.fullmatch(r"step-\d{12}\.safetensors", name)]
    return max(steps, default=0)


def kills_leave_no_trace(options):
    """A random worker is killed at a random moment, once or twice; the job goes on from its last checkpoint."""
    dice = random.Random(options.seed)
    length = ["--epochs", "24"]  # 1078 steps
    expected = on_workers(options, 2, 2, *length)
    check(expected == in_one_process(options, 4, *length), "one process has other bits")
    restarts = gone_on = 0
    for attempt in range(options.repeat):
        with Job(options) as job:
            folder = os.path.join(job.folder.name, "checkpoints")
            os.mkdir(folder)
            tool = os.path.join(options.build, "tools", "tutti")
            process = job.start([tool, "run", "-n", "2", "--restarts", "3", "--",
                                 example(options, "05_train_digits_many_workers"), "--devices", "2", *length,
                                 "--checkpoint", folder])
            job.all_started()
            for _ in range(dice.choice((1, 1, 2))):
                reach = newest_step(folder) + dice.choice((0, 50, 100, 200))
                while newest_step(folder) < reach and process.poll() is None and time.monotonic() < job.deadline:
                    job.hear(0.002)
                job.pause(dice.random() * 0.3) if process.poll() is None and not job.ended else None
                victims = []
                while not victims and process.poll() is None and time.monotonic() < job.deadline:
                    victims = workers_of(process)
                if victims:
                    try:
                        os.kill(dice.choice(victims), signal.SIGKILL)
                    except ProcessLookupError:  # it fell with one that was killed before
                        pass
            got = weights(job, process)
            check(got == expected, f"kill {attempt} (seed {options.seed}): {got}, expected {expected}: {job.story()}")
            restarts += job.output(process).count("tutti run: restart")
            gone_on += job.output(process).count("going on from step")
            job.expect_nothing_left()
    check(restarts > 0, "no worker was killed")
    return f"{options.repeat} runs, {restarts} restarts, of which {gone_on} from a checkpoint"


def main():
    parser = arguments(__doc__)
    parser.add_argument("--repeat", type=int, default=10 if LONG else 3, help="runs with kills in them")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6) if LONG else 1)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    options = parser.parse_args()
    limit(900 + 180 * options.repeat)
    cases = [four_replicas_have_the_same_bits_in_every_layout, six_replicas_have_the_same_bits_in_every_layout,
             kills_leave_no_trace]
    return run_cases([case for case in cases if options.only in case.__name__], options)


if __name__ == "__main__":
    sys.exit(main())
