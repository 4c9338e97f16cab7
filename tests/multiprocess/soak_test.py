#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many operations of all kinds between four processes: all results exact, and nothing grows."""
import random
import sys

sys.dont_write_bytecode = True
from harness import LONG, Failed, Job, arguments, check, expect_no_growth, limit  # noqa: E402

RANKS = 4
ALLOWED = 1024  # KiB
ALLOWED_BY_UCX = 4096  # its pools grow with the messages that wait at once, and never shrink


def main():
    parser = arguments(__doc__)
    parser.add_argument("--backend", default="", help="what TUTTI_BACKEND is set to")
    parser.add_argument("--operations", type=int, default=100_000 if LONG else 5_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6) if LONG else 1)
    options = parser.parse_args()
    if options.backend and not LONG:
        options.operations //= 5  # each takes several times as long
    patience = 300 + (5000 + options.operations) / (50 if not options.backend else 10)  # 5000 warm up
    limit(patience * (3 if options.sanitized else 1) + 30)
    print(f"seed {options.seed}, {options.operations} operations", flush=True)
    try:
        with Job(options, patience) as job:
            task = [str(options.seed), str(options.operations)]
            launcher = job.launch(RANKS, [job.program("multiprocess_worker"), *task],
                                  {"TUTTI_BACKEND": options.backend})
            job.wait_for_end()
            for event in job.find("wrong") + job.find("error"):
                raise Failed(repr(event))
            check(launcher.returncode == 0 and len(job.find("done")) == RANKS, f"it failed: {job.story()}")
            first = min(event.time for event in job.find("ready"))
            last = max(event.time for event in job.find("done"))
            allowed = ALLOWED_BY_UCX if options.backend == "ucx" else ALLOWED
            grown = expect_no_growth(job, RANKS, None if options.sanitized else allowed)
            job.expect_nothing_left()
            print(f"{options.operations} operations on {RANKS} ranks in {last - first:.1f} s, all exact; {grown}")
    except Failed as failure:
        print(f"FAIL  {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
