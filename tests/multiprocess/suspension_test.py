#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are suspended for longer than the heartbeat timeout, and for longer than the deadline of an operation.

  suspension_test.py [--build DIR] [--only TEXT]
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from harness import LONG, Failed, Job, arguments, check, kill_marked, limit, run_cases  # noqa: E402

RANKS = 3
TIMEOUT = 1.5  # of heartbeats and of operations
LONGER = TIMEOUT + 1
BACKENDS = ("shm", "tcp")


class Suspended(Job):
    """A job that goes on until it is told, to be suspended on the way."""

    def __init__(self, options, backend):
        super().__init__(options)
        self.launcher = self.launch(RANKS, [self.program("multiprocess_worker"), "1", "until", "stop", "-1", "0"], {
            "TUTTI_BACKEND": backend, "TUTTI_HEARTBEAT_TIMEOUT": str(TIMEOUT), "TUTTI_TIMEOUT": str(TIMEOUT)})
        self.wait("workers that are ready", lambda: len(self.find("ready")) == RANKS)
        self.pause(0.2)

    def ranks(self):
        return [event.pid for event in sorted(self.find("ready"), key=lambda event: event.rank)]

    def state(self, pid):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]

    def until_all(self, pids, stopped):
        while any((self.state(pid) in "Tt") != stopped for pid in pids):
            check(time.monotonic() < self.deadline, f"not {'stopped' if stopped else 'running'}: {self.story()}")
            time.sleep(0.01)

    def expect_done(self):
        self.enough()
        self.wait_for_end()
        for event in self.find("wrong") + self.find("error"):
            raise Failed(f"{event}: {self.story()}")
        check(self.launcher.returncode == 0 and len(self.find("done")) == RANKS, f"not all are done: {self.story()}")
        self.expect_nothing_left()


def suspended(options, backends, suspend, resume):
    for backend in BACKENDS if LONG else backends:
        with Suspended(options, backend) as job:
            suspend(job)
            job.pause(LONGER)
            resume(job)
            job.expect_done()


def send(job, pids, number):
    for pid in pids:
        os.kill(pid, number)
    job.until_all(pids, number != signal.SIGCONT)


def a_job_survives_ctrl_z(options):
    """`tutti run` gets SIGTSTP and passes it on."""

    def suspend(job):
        os.kill(job.launcher.pid, signal.SIGTSTP)
        job.until_all([job.launcher.pid, *job.ranks()], True)

    def resume(job):
        os.kill(job.launcher.pid, signal.SIGCONT)

    suspended(options, BACKENDS[:1], suspend, resume)


def a_job_survives_when_all_ranks_stop_while_the_launcher_runs(options):
    suspended(options, BACKENDS[1:], lambda job: send(job, job.ranks(), signal.SIGSTOP),
              lambda job: send(job, job.ranks(), signal.SIGCONT))


def a_job_survives_a_frozen_cgroup(options):
    for top, name, frozen, thawed in (("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
                                      ("/sys/fs/cgroup", "cgroup.freeze", "1", "0")):
        try:
            cgroup = tempfile.mkdtemp(prefix="tutti_test_", dir=top)
        except OSError:
            continue
        if os.path.exists(os.path.join(cgroup, name)):
            break
        os.rmdir(cgroup)
    else:
        processes = lambda job: [job.launcher.pid, *job.ranks()]  # noqa: E731
        suspended(options, BACKENDS[:1], lambda job: send(job, processes(job), signal.SIGSTOP),
                  lambda job: send(job, processes(job), signal.SIGCONT))
        return "with signals to all processes: no cgroup of our own can be frozen here"

    def write(name, text):
        with open(os.path.join(cgroup, name), "w") as file:
            file.write(text)

    def suspend(job):
        for pid in [job.launcher.pid, *job.ranks()]:
            write("cgroup.procs", str(pid))
        write(name, frozen)

    def resume(_):
        write(name, thawed)

    try:
        suspended(options, BACKENDS[:1], suspend, resume)
    finally:
        resume(None)  # what is frozen cannot even be killed
        kill_marked()
        while subprocess.run(["rmdir", cgroup], stderr=subprocess.DEVNULL).returncode:
            time.sleep(0.01)


def a_rank_that_does_not_come_back_is_named(options):
    cases = [("shm", 1, True), ("tcp", 2, False)]
    if LONG:
        cases += [("shm", 2, False), ("tcp", 1, True)]
    for backend, culprit, dead in cases:
        with Suspended(options, backend) as job:
            pids = job.ranks()
            send(job, pids, signal.SIGSTOP)
            job.pause(LONGER)
            if dead:
                os.kill(pids[culprit], signal.SIGKILL)
            others = pids[:culprit] + pids[culprit + 1:]
            send(job, others, signal.SIGCONT)
            back = time.monotonic()
            job.wait("the others' errors", lambda: len(job.find("error")) == RANKS - 1)
            for event in job.find("error"):
                text = event.text.split(" the last operations of rank")[0]
                check(re.search(rf"\brank {culprit}\b", text), f"does not name rank {culprit}: {event}")
                late = event.time - back
                check(late <= (1 if dead else TIMEOUT + 1) * (3 if options.sanitized else 1),
                      f"named after {late:.2f} s: {event}")


CASES = [a_job_survives_ctrl_z, a_job_survives_when_all_ranks_stop_while_the_launcher_runs,
         a_job_survives_a_frozen_cgroup, a_rank_that_does_not_come_back_is_named]


def main():
    parser = arguments("Suspends jobs for longer than the heartbeat timeout, and resumes them.")
    parser.add_argument("--only", default="", help="the cases whose names contain this")
    options = parser.parse_args()
    limit(300 * (3 if options.sanitized else 1))
    return run_cases([case for case in CASES if options.only.replace(" ", "_") in case.__name__], options)


if __name__ == "__main__":
    sys.exit(main())
