#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strangers at the ports of the coordination service and of a rank, while a job computes: they get nothing and disturb nothing."""
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
from attack import KINDS  # noqa: E402
from harness import ASAN_OPTIONS, LONG, Failed, Job, arguments, check, free_addresses, limit, run_cases, tf_config  # noqa: E402

RANKS = 3
TOKEN = "sesame"
ATTACK_SECONDS = 60 if LONG else 5
MOST_KIB, MOST_DESCRIPTORS = 64 << 10, 300  # that the attackers may cost the process with the service


def connect(address):
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.settimeout(2)
    return connection


def say(address, data):
    """Sends what it can, and returns what comes back until the service has had enough of us, or for two seconds."""
    heard = b""
    with connect(address) as connection:
        try:
            connection.sendall(data)
            while received := connection.recv(1 << 16):
                heard += received
        except OSError:  # closed, or nothing more
            pass
    return heard


def garbage(address):
    for size in (1, 24, 1000, 100_000):
        say(address, os.urandom(size))


def http_request(address):
    heard = say(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    check(TOKEN.encode() not in heard, "the token is told")


def broken_http2(address):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = b"\0\0\0\x04\0\0\0\0\0"
    say(address, preface + settings + b"\xff\xff\xff\x01\x05\0\0\0\x01" + os.urandom(1000))  # a giant header
    say(address, preface + settings + b"\0\x40\0\0\0\0\0\0\x01" + os.urandom(1 << 14))  # data of no stream
    say(address, preface + os.urandom(1000))


def tls_hello(address):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with connect(address) as connection, context.wrap_socket(connection):
            raise Failed("a handshake of TLS went well without TLS")
    except OSError:
        pass


def giant(address):
    for start in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"):
        with connect(address) as connection:
            try:
                connection.sendall(start)
                for _ in range(64):
                    connection.sendall(b"x" * (1 << 20))
            except OSError:
                pass


def half_open(address):
    """Connections that say nothing; they stay as long as the caller keeps them."""
    return [connect(address) for _ in range(100)]


class Computing:
    """A job that all-reduces until it is told to stop, and whose results are checked on every rank."""

    def __init__(self, job, chief, environment):
        self.job, self.chief, self.asked, self.last = job, chief, 0, -1
        job.wait("workers that are ready", lambda: len(job.find("ready")) == RANKS)
        self.environment = environment

    def tell(self, line):
        try:
            self.chief.stdin.write(line + "\n")
            self.chief.stdin.flush()
        except OSError:
            raise Failed(f"the chief has ended: {self.job.story()}")

    def expect_progress(self, after):
        for _ in range(2):
            self.asked += 1
            self.tell("count")
            self.job.wait(f"progress after {after}", self.answered)
            now = int(self.job.find("count")[-1].subject)
            check(now > self.last, f"no progress after {after}")
            self.last = now

    def answered(self):
        check(not self.job.find("error"), self.job.story())
        return len(self.job.find("count")) == self.asked

    def stop(self):
        self.tell("stop")
        self.job.wait("the end of the job", lambda: len(self.job.find("ok")) == RANKS)
        check(not self.job.find("wrong") and not self.job.find("error"), self.job.story())


def module(options):
    return os.path.join(options.build, "src/tutti/libtutti_cluster.so")


def disturb(job, computing, address):
    for attack in (garbage, http_request, broken_http2, tls_hello, giant):
        attack(address)
        computing.expect_progress(attack.__name__)
    held = half_open(address)
    computing.expect_progress("half-open connections")
    # More than one client at once, with what is nearly right.
    attempts = [([1, RANKS, "wrong"], "UnauthenticatedError"),
                ([1, RANKS, ""], "UnauthenticatedError"),
                ([1, RANKS, TOKEN + "x"], "UnauthenticatedError"),
                ([1, RANKS, TOKEN, "9.9.9"], "FailedPreconditionError"),
                ([1, RANKS + 1, TOKEN], "FailedPreconditionError"),
                ([1, RANKS, TOKEN], "FailedPreconditionError")]  # that rank is there already
    clients = [(job.start([job.program("stranger"), "join", address, *map(str, who)], computing.environment,
                          stdout=subprocess.PIPE, text=True), expected) for who, expected in attempts]
    for client, expected in clients:
        said = client.communicate(timeout=60)[0]
        check(said.startswith(expected) and TOKEN not in said, f"a stranger heard: {said}")
    computing.expect_progress("strangers with wrong tokens")
    for connection in held:
        connection.close()
    computing.expect_progress("half-open connections closed")
    return len(attempts)


def strangers_at_a_service_of_its_own(options):
    with Job(options) as job:
        environment = {"TUTTI_TOKEN": TOKEN, "TUTTI_TEST_MODULE": module(options)}
        pipes = {"stdin": subprocess.PIPE, "text": True}
        service = job.start([job.program("stranger"), "serve", str(RANKS)], environment,
                            stdout=subprocess.PIPE, **pipes)
        address = service.stdout.readline().strip()
        check(":" in address, f"no service: {job.output(service)}")

        def refused():
            service.stdin.write("\n")
            service.stdin.flush()
            return int(service.stdout.readline())

        addresses = free_addresses(RANKS)
        workers = [job.start([job.program("launch_worker"), "loop"],
                             {**environment, "TUTTI_COORDINATOR": address, "TF_CONFIG": tf_config(addresses, rank)},
                             **pipes) for rank in range(RANKS)]
        computing = Computing(job, workers[0], environment)
        check(refused() == 0, "a worker was refused before any came")
        joins = disturb(job, computing, address)
        count = refused()
        check(count >= joins, f"{count} were refused, expected {joins}")
        job.all_started()
        computing.stop()
        service.stdin.close()
        job.wait_for_end()
        check([process.returncode for process in workers + [service]] == [0] * (RANKS + 1), job.story())
        job.expect_nothing_left()
        return f"{computing.last} operations, {count} refused"


def strangers_at_the_chief(options):
    with Job(options) as job:
        environment = {"TUTTI_TOKEN": TOKEN, "TUTTI_TEST_MODULE": module(options)}
        addresses = free_addresses(RANKS)
        workers = [job.start([job.program("launch_worker"), "loop"],
                             {**environment, "TF_CONFIG": tf_config(addresses, rank)},
                             stdin=subprocess.PIPE, text=True) for rank in range(RANKS)]
        computing = Computing(job, workers[0], environment)
        disturb(job, computing, addresses[0])
        job.all_started()
        computing.stop()
        job.wait_for_end()
        check([process.returncode for process in workers] == [0] * RANKS, job.story())
        job.expect_nothing_left()
        return f"{computing.last} operations"


class Usage:
    """Watches the memory and the descriptors of a process."""

    def __init__(self, pid):
        self.pid, self.over = pid, threading.Event()
        self.first = self.most = self.now()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def now(self):
        with open(f"/proc/{self.pid}/status") as status:
            kib = next((int(line.split()[1]) for line in status if line.startswith("VmRSS:")), 0)
        return kib, len(os.listdir(f"/proc/{self.pid}/fd"))

    def watch(self):
        try:
            while not self.over.wait(0.05):
                self.most = tuple(map(max, self.most, self.now()))
        except OSError:  # it has ended
            pass

    def expect_bounded(self):
        self.over.set()
        self.thread.join()
        kib, descriptors = (most - first for most, first in zip(self.most, self.first))
        check(kib <= MOST_KIB and descriptors <= MOST_DESCRIPTORS,
              f"the process with the service grew by {kib} KiB and {descriptors} descriptors")
        return f"grew by {kib} KiB and {descriptors} descriptors"


def attack(job, address):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attack.py")
    return [job.start([sys.executable, script, kind, address, str(ATTACK_SECONDS)]) for kind in KINDS]


def last_out(job, computing, attackers):
    """The job makes progress until the attack is over."""
    while any(attacker.poll() is None for attacker in attackers):
        computing.expect_progress("an attack")
        job.pause(0.2)
    for attacker in attackers:
        check(attacker.returncode == 0, job.output(attacker))


def attacked_environment(options):
    # A heartbeat that is late by more than three quarters of this fails the job.
    environment = {"TUTTI_TOKEN": TOKEN, "TUTTI_TEST_MODULE": module(options),
                   "TUTTI_HEARTBEAT_TIMEOUT": "10" if options.sanitized else "2"}
    if options.sanitized:  # which keeps what was freed, 256 MiB of it by default
        environment["ASAN_OPTIONS"] = ASAN_OPTIONS + ":quarantine_size_mb=4"
    return environment


def attackers_at_a_service_of_its_own(options):
    """The attackers are there before the workers join."""
    with Job(options, 120) as job:
        environment = attacked_environment(options)
        pipes = {"stdin": subprocess.PIPE, "text": True}
        service = job.start([job.program("stranger"), "serve", str(RANKS)], environment,
                            stdout=subprocess.PIPE, **pipes)
        address = service.stdout.readline().strip()
        usage = Usage(service.pid)
        attackers = attack(job, address)
        addresses = free_addresses(RANKS)
        started = time.monotonic()
        workers = [job.start([job.program("launch_worker"), "loop"],
                             {**environment, "TUTTI_COORDINATOR": address, "TF_CONFIG": tf_config(addresses, rank)},
                             **pipes) for rank in range(RANKS)]
        computing = Computing(job, workers[0], environment)
        joined = time.monotonic() - started
        check(attackers[-1].poll() is None or options.sanitized, f"the workers took {joined:.1f} s to join")
        last_out(job, computing, attackers)
        job.all_started()
        computing.stop()
        grown = usage.expect_bounded()
        service.stdin.close()
        job.wait_for_end()
        check([process.returncode for process in workers + [service]] == [0] * (RANKS + 1), job.story())
        job.expect_nothing_left()
        return f"{grown}, joined in {joined:.1f} s, {computing.last} operations; " + told(job, attackers)


def attackers_at_the_chief(options):
    """The chief has few descriptors, and writes a checkpoint meanwhile."""
    with Job(options, 120) as job:
        environment = attacked_environment(options)
        addresses = free_addresses(RANKS)

        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        workers = [job.start([job.program("launch_worker"), "loop"],
                             {**environment, "TF_CONFIG": tf_config(addresses, rank)},
                             stdin=subprocess.PIPE, text=True, preexec_fn=few_descriptors) for rank in range(RANKS)]
        computing = Computing(job, workers[0], environment)
        computing.expect_progress("the start")
        usage = Usage(workers[0].pid)
        attackers = attack(job, addresses[0])
        job.pause(ATTACK_SECONDS / 2)
        computing.tell("save")
        job.wait("a checkpoint", lambda: len(job.find("saved")) == RANKS)
        folder = os.path.join(job.scratch, "checkpoints")
        check(os.listdir(folder) == ["step-000000000001.safetensors"], f"{os.listdir(folder)} instead of a checkpoint")
        shutil.rmtree(folder)
        check(attackers[-1].poll() is None or options.sanitized, "the checkpoint came after the attack")
        last_out(job, computing, attackers)
        job.all_started()
        grown = usage.expect_bounded()
        computing.stop()
        job.wait_for_end()
        check([process.returncode for process in workers] == [0] * RANKS, job.story())
        job.expect_nothing_left()
        return f"{grown}, {computing.last} operations; " + told(job, attackers)


def listener_of(pid):
    """Where a process listens for TCP connections."""
    files = (os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))
    sockets = {os.readlink(file) for file in files if os.path.lexists(file)}
    with open("/proc/net/tcp") as table:
        for fields in (line.split() for line in table.readlines()[1:]):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                host, port = fields[1].split(":")
                return socket.inet_ntoa(bytes.fromhex(host)[::-1]) + ":" + str(int(port, 16))
    raise Failed(f"process {pid} listens nowhere")


def attackers_at_a_rank(options):
    """Over TCP every rank listens as long as the job goes on. It has few descriptors."""
    with Job(options, 120) as job:
        environment = {**attacked_environment(options), "TUTTI_BACKEND": "tcp"}
        addresses = free_addresses(RANKS)

        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        workers = [job.start([job.program("launch_worker"), "loop"],
                             {**environment, "TF_CONFIG": tf_config(addresses, rank)},
                             stdin=subprocess.PIPE, text=True, preexec_fn=few_descriptors) for rank in range(RANKS)]
        computing = Computing(job, workers[0], environment)
        computing.expect_progress("the start")
        usage = Usage(workers[1].pid)
        attackers = attack(job, listener_of(workers[1].pid))
        last_out(job, computing, attackers)
        job.all_started()
        grown = usage.expect_bounded()
        computing.stop()
        job.wait_for_end()
        check([process.returncode for process in workers] == [0] * RANKS, job.story())
        check(re.search(r"rank 1: \d+ connections? of other programs refused", job.output(workers[1])),
              f"rank 1 does not count them: {job.output(workers[1])}")
        job.expect_nothing_left()
        return f"{grown}, {computing.last} operations; " + told(job, attackers)


def refused_workers_are_reported_by_the_chief(options):
    """The chief logs them at once, and its error names them if the right ones do not come."""
    with Job(options) as job:
        environment = {"TUTTI_TOKEN": TOKEN, "TUTTI_TEST_MODULE": module(options),
                       "TUTTI_JOIN_TIMEOUT": "15" if options.sanitized else "4"}
        addresses = free_addresses(2)
        chief = job.start([job.program("launch_worker"), "join"],
                          {**environment, "TF_CONFIG": tf_config(addresses, 0)})
        for who in ([1, 2, "wrong"], [1, 2, TOKEN, "9.9.9"], [1, 3, TOKEN], [0, 2, TOKEN]):
            client = job.start([job.program("stranger"), "join", addresses[0], *map(str, who)], environment,
                               stdout=subprocess.PIPE, text=True)
            check("Error" in client.communicate(timeout=60)[0], f"{who} was not refused")
        warnings = ("refused 127.0.0.1 (wrong token)", "127.0.0.1 (the worker runs version 9.9.9 of Tutti",
                    "127.0.0.1 (rank 1 belongs to a job of 3 ranks", f"127.0.0.1 (rank 0 ({addresses[0]}) has joined")
        while not all(warning in job.output(chief) for warning in warnings):
            check(chief.poll() is None, f"not all of {warnings} before the end: {job.story()}")
            job.pause(0.05)
        check(not job.find("error"), "the warnings came no sooner than the error")
        job.all_started()
        job.wait_for_end()
        error = job.find("error")[0]
        check(error.subject == "DeadlineExceededError" and "refused meanwhile: 127.0.0.1 (wrong token), 127" in error.text,
              f"the chief said: {error}")
        check(TOKEN not in job.output(chief) and TOKEN not in error.text, "the token is told")
        job.expect_nothing_left()


def refused_workers_are_reported_by_the_launcher(options):
    with Job(options) as job:
        script = f'case $TF_CONFIG in *\'"index":1\'*) TUTTI_TOKEN=wrong;; esac; exec {job.program("launch_worker")} join'
        launcher = job.launch(2, ["sh", "-c", script])
        job.wait_for_end()
        check("tutti run: the coordination service refused 127.0.0.1 (wrong token)\n" in job.output(launcher)
              and launcher.returncode == 3, f"it ended with {launcher.returncode}: {job.story()}")
        job.expect_nothing_left()


def told(job, attackers):
    return ", ".join(job.output(attacker).strip() for attacker in attackers)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    limit(600)
    sys.exit(run_cases([strangers_at_a_service_of_its_own, strangers_at_the_chief,
                        attackers_at_a_service_of_its_own, attackers_at_the_chief, attackers_at_a_rank,
                        refused_workers_are_reported_by_the_chief, refused_workers_are_reported_by_the_launcher],
                       options))
