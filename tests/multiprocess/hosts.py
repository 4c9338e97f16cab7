# SPDX-License-Identifier: Apache-2.0
"""Hosts made of network namespaces, and jobs with ranks on several of them.

Each host is a namespace with one interface, eth0, whose other end is a port of a bridge; the bridge is in a namespace
of its own, so that nothing outside is touched. The names tell whose they are, and whatever a killed driver leaves
behind is removed by the next one. Needs root.
"""
import atexit
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import harness
from harness import Job, check, kill_marked, tf_config

PREFIX = "tutti-test"
# No other process listens in our namespaces: ports below those that the kernel hands out are free there, each used once.
PORTS = itertools.count(20000)
made = set()  # the namespaces that are there
folders = set()  # and those of the jobs


def command(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(done.returncode == 0, f"{' '.join(words)} exits with {done.returncode}: {done.stdout}")
    return done.stdout


def remove(names):
    """Removes the namespaces, and ends the processes in them."""
    for name in names:
        pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        for pid in map(int, pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        made.discard(name)


def sweep():
    """Removes what drivers that are gone have left."""
    for line in command("ip", "netns", "list").splitlines():
        found = re.match(rf"{PREFIX}-(\d+)-", line)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            remove([line.split()[0]])


def obstacle():
    """Why there can be no hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "the command ip is missing (iproute2)"
    try:
        sweep()
        with Hosts(2):
            return ""
    except harness.Failed as failure:
        return f"no network namespaces: {failure}"


def limit(seconds):
    """The limit of the harness, which here also removes the hosts."""
    harness.limit(seconds + 30)

    def give_up(code):
        kill_marked()
        remove(list(made))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)

    def expire():
        print(f"the driver is not done after {seconds:.0f} s", flush=True)
        give_up(1)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: give_up(128 + number))


atexit.register(lambda: remove(list(made)))


class Hosts:
    numbers = itertools.count()

    def __init__(self, count):
        prefix = f"{PREFIX}-{os.getpid()}-{next(self.numbers)}"
        self.bridge = f"{prefix}-bridge"
        self.names = [f"{prefix}-host{k}" for k in range(count)]
        self.addresses = [f"10.73.0.{k + 1}" for k in range(count)]

    def __enter__(self):
        try:
            self.make(self.bridge)
            command("ip", "-n", self.bridge, "link", "add", "bridge", "type", "bridge")
            command("ip", "-n", self.bridge, "link", "set", "bridge", "up")
            for k, name in enumerate(self.names):
                self.make(name)
                command("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", f"port{k}", "netns",
                        self.bridge)
                command("ip", "-n", self.bridge, "link", "set", f"port{k}", "master", "bridge", "up")
                command("ip", "-n", name, "address", "add", self.addresses[k] + "/24", "dev", "eth0")
                command("ip", "-n", name, "link", "set", "lo", "up")
                command("ip", "-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        remove([name for name in [self.bridge, *self.names] if name in made])

    @staticmethod
    def make(name):
        made.add(name)
        command("ip", "netns", "add", name)

    def start(self, job, host_of, words, environment=None):
        """A rank on each of the hosts that `host_of` tells; the first serves coordination."""
        addresses = [f"{self.addresses[host]}:{next(PORTS)}" for host in host_of]
        started = []
        for rank, host in enumerate(host_of):
            settings = {
                "TF_CONFIG": tf_config(addresses, rank),
                "TUTTI_HOST_ID": f"host{host}",  # they share the machine's own
                "TUTTI_TOKEN": "sesame",
                **(environment or {}),
            }
            # It becomes the worker: same process.
            started.append(job.start(["ip", "netns", "exec", self.names[host], *words], settings))
        job.all_started()
        return started

    def sent(self, host):
        """Bytes that have left the host."""
        shown = json.loads(command("ip", "-n", self.names[host], "-s", "-j", "link", "show", "eth0"))
        return shown[0]["stats64"]["tx"]["bytes"]

    # What can happen between a host and the others.

    def cut(self, host):
        command("ip", "-n", self.bridge, "link", "set", f"port{host}", "down")

    def mend(self, host):
        command("ip", "-n", self.bridge, "link", "set", f"port{host}", "up")

    def shut(self, host):
        """The same as cut, but the host notices it."""
        command("ip", "-n", self.names[host], "link", "set", "eth0", "down")

    def open(self, host):
        command("ip", "-n", self.names[host], "link", "set", "eth0", "up")

    def lose(self, host, percent):
        """Loses a share of the packets that come in."""
        self.drop_incoming(host, f"numgen random mod 100 < {percent}")

    def drop_incoming(self, host, which):
        command("ip", "netns", "exec", self.names[host], "nft",
                "add table netdev loss; add chain netdev loss in { type filter hook ingress device eth0 priority 0; }; "
                f"add rule netdev loss in {which} counter drop")

    def deafen(self, host):
        """What it sends arrives; nothing comes in."""
        self.drop_incoming(host, "")

    def mute(self, host):
        """Nothing that it sends arrives."""
        command("ip", "netns", "exec", self.names[host], "nft",
                "add table inet mute; add chain inet mute out { type filter hook output priority 0; }; "
                "add rule inet mute out oifname eth0 drop")

    def lost(self, host):
        rules = command("ip", "netns", "exec", self.names[host], "nft", "list", "table", "netdev", "loss")
        return int(re.search(r"counter packets (\d+)", rules)[1])

    def limit_rate(self, host, rate, burst="1mb"):
        """Limits what leaves the host; a second call sets another rate. Nothing is dropped on the way."""
        command("tc", "-n", self.names[host], "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst",
                burst, "limit", "100mb")


class HostsJob(Job):
    """A job on hosts of its own, which go with it."""

    def __init__(self, options, host_of, patience=180):
        super().__init__(options, patience)
        self.host_of = host_of
        # A job that tells UCX what to use gets UCX; and UCX may not use the memory that the hosts share.
        self.network = {"UCX_TLS": "tcp"} if getattr(options, "network", "tcp") == "ucx" else {}
        self.hosts = Hosts(max(host_of) + 1)
        folders.add(self.folder.name)

    def __enter__(self):
        try:
            self.hosts.__enter__()
        except BaseException:
            self.all_started()
            super().__exit__()
            raise
        return self

    def __exit__(self, *what):
        super().__exit__(*what)
        self.hosts.__exit__()
        folders.discard(self.folder.name)

    def start_workers(self, words, environment=None):
        return self.hosts.start(self, self.host_of, words, {**self.network, **(environment or {})})

    def wait_until_ready(self):
        self.wait("workers that are ready", lambda: len(self.find("ready")) == len(self.host_of))

    def pid_of(self, rank):
        return next(event.pid for event in self.find("ready") if event.rank == rank)

    def ranks_on(self, host):
        return {rank for rank, on in enumerate(self.host_of) if on == host}

    def expect_all_well(self):
        """Expects all ranks to come to their end, with exact results."""
        self.wait_for_end()
        for event in self.find("wrong") + self.find("error"):
            raise harness.Failed(f"{event}: {self.story()}")
        codes = [process.returncode for process in self.processes]
        check(not any(codes), f"exit codes {codes}: {self.story()}")
        sent = [self.hosts.sent(host) for host in self.host_of]
        check(min(sent) > 1 << 20, f"the network was hardly used: the ranks' hosts sent {sent} bytes")
        self.expect_nothing_left()


def layout(hosts, ranks):
    """The same number of ranks on each host, contiguous."""
    return [host for host in range(hosts) for _ in range(ranks)]


def now():
    return time.monotonic()
