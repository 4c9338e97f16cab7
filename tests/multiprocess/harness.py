# SPDX-License-Identifier: Apache-2.0
"""Starts jobs of several processes, hears what they report, and leaves nothing behind."""
import argparse
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid

# In the environment of all that we start, and of nothing else.
MARK = "TUTTI_TEST_MARK=" + uuid.uuid4().hex
# In sanitized builds. The search for leaks may crash beside gRPC's threads, which are there to the end.
ASAN_OPTIONS = "detect_leaks=0:handle_segv=0:handle_abort=0:disable_coredump=0"
LONG = os.environ.get("TUTTI_LONG_TESTS", "") not in ("", "0", "OFF")
# What programs other than ours put in /dev/shm.
FOREIGN = re.compile(r"^(mpich|vader|ompi|sm_segment|open_mpi|psm|ucx|cuda|nccl|sem\.)")


class Event:
    def __init__(self, line):
        name, rank, pid, nanoseconds, self.subject, self.text = line.split("\t")
        self.name, self.rank, self.pid, self.time = name, int(rank), int(pid), int(nanoseconds) / 1e9

    def __repr__(self):
        return f"{self.name} of rank {self.rank} at {self.time:.3f}: {self.subject} {self.text}"


class Failed(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Failed(what)


def marked_processes():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if MARK.encode() in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
    return found


def kill_marked():
    for pid in marked_processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def limit(seconds):
    """Ends this driver and all that it started after `seconds`."""

    def expire():
        print(f"the driver is not done after {seconds:.0f} s", flush=True)
        kill_marked()
        os._exit(1)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()

    def stop(number, _):
        kill_marked()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--build", type=os.path.abspath, default=os.path.join(top, "build", "dev"),
                        help="the build folder")
    parser.add_argument("--sanitized", action="store_true",
                        help="the build is instrumented: slower, and with memory habits of its own")
    return parser


def free_addresses(count):
    """Ports below those that the kernel hands out, so that no connection takes one before its worker listens there."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        end = max(20000, int(file.read().split()[0]))
    held = []
    while len(held) < count:
        try:
            held.append(socket.create_server(("127.0.0.1", random.randrange(10000, end))))
        except OSError:  # in use
            pass
    addresses = ["127.0.0.1:%d" % s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return addresses


def tf_config(addresses, rank):
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


def entries(folder):
    return {os.path.relpath(os.path.join(at, name), folder) for at, folders, files in os.walk(folder)
            for name in folders + files}


class Job:
    """Processes, a pipe that they report through, and folders for what they may leave."""

    def __init__(self, options, patience=180):
        self.build, self.sanitized = options.build, options.sanitized
        self.deadline = time.monotonic() + patience * (3 if options.sanitized else 1)
        self.shm = set(os.listdir("/dev/shm"))
        self.folder = tempfile.TemporaryDirectory(prefix="tutti_multiprocess_")
        self.scratch = os.path.join(self.folder.name, "scratch")  # their TMPDIR and working folder
        self.records = os.path.join(self.folder.name, "records")
        os.mkdir(self.scratch)
        self.read_end, self.write_end = os.pipe()
        self.received, self.events, self.ended = b"", [], False
        self.processes, self.outputs = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in self.pids() & set(marked_processes()):  # workers of a launcher that was killed
            os.kill(pid, signal.SIGKILL)
        os.close(self.read_end)
        if self.write_end is not None:
            os.close(self.write_end)
        for output in self.outputs:
            output.close()
        self.folder.cleanup()

    def program(self, name):
        return os.path.join(self.build, "tests", "multiprocess", name)

    def start(self, command, environment=None, **options):
        """Starts a process. Its output goes to a file, to be read at the end."""
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith("TUTTI_") or name == "TUTTI_MODULE_PATH"}
        inherited.pop("TF_CONFIG", None)
        name, value = MARK.split("=")
        if self.sanitized:
            inherited["ASAN_OPTIONS"] = ASAN_OPTIONS
        output = tempfile.TemporaryFile()
        self.outputs.append(output)
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", output)
        self.processes.append(subprocess.Popen(
            command, cwd=self.scratch, stderr=output, pass_fds=(self.write_end,),
            env={**inherited, "TMPDIR": self.scratch, name: value,
                 "TUTTI_TEST_REPORT": str(self.write_end), **(environment or {})}, **options))
        return self.processes[-1]

    def launch(self, workers, command, environment=None, **options):
        tool = os.path.join(self.build, "tools", "tutti")
        process = self.start([tool, "run", "-n", str(workers), "--"] + command, environment, **options)
        self.all_started()
        return process

    def start_directly(self, workers, command, environment=None):
        addresses = free_addresses(workers)
        started = [self.start(command, {**(environment or {}), "TF_CONFIG": tf_config(addresses, rank)})
                   for rank in range(workers)]
        self.all_started()
        return started

    def all_started(self):
        os.close(self.write_end)
        self.write_end = None

    def output(self, process):
        file = self.outputs[self.processes.index(process)]
        file.seek(0)
        return file.read().decode(errors="replace")

    def hear(self, seconds):
        """Takes in what is reported, for `seconds` at most. Returns whether there was anything."""
        if self.ended:
            return False
        ready, _, _ = select.select([self.read_end], [], [], max(0, seconds))
        if not ready:
            return False
        data = os.read(self.read_end, 1 << 16)
        self.ended = not data
        *lines, self.received = (self.received + data).split(b"\n")
        self.events += [Event(line.decode(errors="replace")) for line in lines]
        return True

    def find(self, name):
        return [event for event in self.events if event.name == name]

    def wait(self, what, condition):
        """Waits until it holds; if it cannot any more, the test has failed."""
        while not condition():
            if self.ended:
                raise Failed(f"all processes ended without {what}: {self.story()}")
            if not self.hear(self.deadline - time.monotonic()):
                raise Failed(f"no {what} in time: {self.story()}")

    def wait_for_end(self, what="the end of all processes"):
        while not self.ended:
            if not self.hear(self.deadline - time.monotonic()):
                raise Failed(f"{what} does not come: {self.story()}")
        for process in self.processes:
            try:
                process.wait(max(0.1, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failed(f"process {process.pid} does not end: {self.story()}")

    def pause(self, seconds):
        """Lets time pass, until the random moment of a fault."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not self.hear(until - time.monotonic()) and self.ended:
                raise Failed(f"all processes ended before their fault: {self.story()}")

    def put(self, what):
        """Puts a file where workers look for it."""
        open(os.path.join(self.scratch, what), "w").close()

    def enough(self):
        """Ends a multiprocess_worker of "until" steps soon."""
        self.put("enough")

    def pids(self):
        return {event.pid for event in self.events}

    def story(self):
        outputs = "\n".join(self.output(process)[-2000:] for process in self.processes)
        return "\n    ".join([""] + [repr(event) for event in self.events[-20:]] + outputs.splitlines())

    def expect_nothing_left(self):
        """Expects no process, no file but the records, and nothing in /dev/shm."""
        left = self.pids() & set(marked_processes())
        check(not left, f"processes are left: {left}")
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/comm") as file:
                    check("worker" not in file.read(), f"process {pid} is left, a zombie perhaps")
            except OSError:
                pass
        files = entries(self.scratch)
        check(not files, f"files are left: {files}")
        new = {name for name in set(os.listdir("/dev/shm")) - self.shm if not FOREIGN.match(name)}
        check(not new, f"left in /dev/shm: {new}")


def expect_no_growth(job, workers, kilobytes):
    """Compares the usage that the workers reported as "before" and "after". `kilobytes` None: descriptors only."""
    after = {event.rank: event for event in job.find("after")}
    check(len(after) == workers, f"not all said what they use: {job.story()}")
    grown = 0
    for before in job.find("before"):
        now = after[before.rank]
        check(now.text == before.text, f"rank {before.rank}: from {before.text} to {now.text} descriptors")
        grown = max(grown, int(now.subject) - int(before.subject))
    check(kilobytes is None or grown <= kilobytes, f"memory grew by {grown} KiB")
    return f"memory grew by {grown} KiB"


def run_cases(cases, options):
    """Runs functions that take the options, says how each went, and returns an exit code."""
    failures = 0
    for case in cases:
        name = case.__name__.replace("_", " ")
        started = time.monotonic()
        try:
            result = case(options) or ""
            print(f"ok    {name} ({time.monotonic() - started:.1f} s) {result}", flush=True)
        except Failed as failure:
            failures += 1
            print(f"FAIL  {name}: {failure}", flush=True)
        finally:
            kill_marked()
    return 1 if failures else 0
