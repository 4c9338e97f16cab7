#!/usr/bin/env python3
"""Strangers at the port of the coordination service, while a job computes: they get nothing and disturb nothing."""
import os
import socket
import ssl
import subprocess
import sys

sys.dont_write_bytecode = True
from harness import Failed, Job, arguments, check, free_addresses, limit, run_cases, tf_config  # noqa: E402

RANKS = 3
TOKEN = "sesame"


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
    """They stay as long as the caller keeps them."""
    return [connect(address) for _ in range(100)]


class Computing:
    """A job that all-reduces until it is told to stop, and whose results are checked on every rank."""

    def __init__(self, job, chief, environment):
        self.job, self.chief, self.asked, self.last = job, chief, 0, -1
        job.wait("workers that are ready", lambda: len(job.find("ready")) == RANKS)
        self.environment = environment

    def tell(self, line):
        self.chief.stdin.write(line + "\n")
        self.chief.stdin.flush()

    def expect_progress(self, after):
        for _ in range(2):
            self.asked += 1
            self.tell("count")
            self.job.wait(f"progress after {after}", lambda: len(self.job.find("count")) == self.asked)
            now = int(self.job.find("count")[-1].subject)
            check(now > self.last, f"no progress after {after}")
            self.last = now

    def stop(self):
        self.tell("stop")
        self.job.wait("the end of the job", lambda: len(self.job.find("ok")) == RANKS)
        check(not self.job.find("wrong") and not self.job.find("error"), self.job.story())


def module(options):
    return os.path.join(options.build, "src", "libtutti_cluster.so")


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
    with Job(options, 120) as job:
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
        check(refused() == 0, "somebody was refused before anybody came")
        joins = disturb(job, computing, address)
        count = refused()
        check(count == joins, f"{count} were refused, expected {joins}")
        job.all_started()
        computing.stop()
        service.stdin.close()
        job.wait_for_end()
        check([process.returncode for process in workers + [service]] == [0] * (RANKS + 1), job.story())
        job.expect_nothing_left()
        return f"{computing.last} operations, {count} refused"


def strangers_at_the_chief(options):
    with Job(options, 120) as job:
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


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    limit(300)
    sys.exit(run_cases([strangers_at_a_service_of_its_own, strangers_at_the_chief], options))
