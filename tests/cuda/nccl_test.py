#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL between processes that share one GPU: all collectives by 2 and 4 ranks, and the death of a rank.

  nccl_test.py --build FOLDER     a build folder, or a bundle of scripts/gpu-check
"""
import argparse
import os
import re
import subprocess
import sys
import time

DEADLINE = 30  # seconds, of one operation
ALIVE = 1.5  # seconds until the rank dies


def find(folder, *places):
    for place in places:
        path = os.path.join(folder, place)
        if os.access(path, os.X_OK):
            return path
    sys.exit(f"nccl_test: there is none of {', '.join(places)} in {folder}")


class Check:
    def __init__(self, build):
        self.tool = find(build, "tools/tutti", "bin/tutti")
        self.worker = find(build, "tests/cuda/nccl_worker", "bin/nccl_worker")
        self.failed = False

    def run(self, ranks, *arguments):
        environment = dict(os.environ, TUTTI_TIMEOUT=str(DEADLINE), TUTTI_WARN_AFTER="0")
        began = time.monotonic()
        done = subprocess.run([self.tool, "run", "-n", str(ranks), self.worker, *arguments], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=200)
        return done.returncode, done.stdout, time.monotonic() - began

    def expect(self, condition, what, output=""):
        print(f"{'ok    ' if condition else 'FAILED'} {what}", flush=True)
        if not condition:
            self.failed = True
            print(output, flush=True)

    def collectives(self, ranks):
        code, output, seconds = self.run(ranks)
        exact = set(re.findall(r"rank (\d+): all collectives exact over nccl", output))
        self.expect(code == 0 and len(exact) == ranks,
                    f"{ranks} ranks: all collectives exact over nccl ({len(exact)} say so, exit {code}, {seconds:.1f} s)",
                    output)

    def death(self, ranks, dying):
        _, output, seconds = self.run(ranks, "--die", str(dying))
        told = set(re.findall(rf"rank (\d+): after [\d.]+ s: .*rank {dying}\b", output))
        self.expect(told == {str(r) for r in range(ranks) if r != dying},
                    f"{ranks} ranks, rank {dying} killed: the others name it (ranks {', '.join(sorted(told))}, {seconds:.1f} s)",
                    output)
        times = [float(t) for t in re.findall(r"rank \d+: after ([\d.]+) s", output)]
        self.expect(times and max(times) < ALIVE + DEADLINE,
                    f"    within the deadline: at most {max(times, default=0) - ALIVE:.2f} s after its death", output)
        for line in re.findall(r".*after [\d.]+ s: .*", output)[:1]:
            print(f"    {line}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    check = Check(parser.parse_args().build)
    check.collectives(2)
    check.collectives(4)
    check.death(2, 1)
    check.death(4, 2)
    check.death(3, 0)
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
