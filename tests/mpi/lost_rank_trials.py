"""Kills a rank at a random moment of a step, trial after trial: lost_rank_trials.py PROGRAM [--trials N] [--first N]
[--ranks N[,N]...] [--backend cpu|cuda] -- MPIEXEC [FLAG]...

Every rank that is left must say "ok" (lost_rank_trial.cpp) within the time of a trial. Exit status 1 if one did not.
Where something of a lost engine stayed for more than a second, the longest time is printed."""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

TRIAL_SECONDS = 60
OK = re.compile(r"ok(?: after ([\d.]+) s)?")


def one_trial(mpiexec, program, backend, ranks, number):
    """What was wrong, empty if nothing, and for how many seconds something of a lost engine stayed."""
    with tempfile.TemporaryDirectory(prefix="lost_rank_") as folder:
        # A process group of its own: whatever does not end is ended with it.
        process = subprocess.Popen([*mpiexec, str(ranks), program, folder, str(number), backend],
                                   start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, errors = process.communicate(timeout=TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"still running after {TRIAL_SECONDS} s", 0.0
        reports = {path.name: path.read_text().strip() for path in pathlib.Path(folder).iterdir() if path.is_file()}
        said = {rank: OK.fullmatch(text) for rank, text in reports.items()}
        wrong = [f"rank {rank}: {text}" for rank, text in sorted(reports.items()) if said[rank] is None]
        if len(reports) != ranks - 1:
            wrong.append(f"{len(reports)} of {ranks - 1} ranks have told what they saw: {errors.strip()[-2000:]}")
        return "; ".join(wrong), max((float(ok[1] or 0) for ok in said.values() if ok is not None), default=0.0)


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args(sys.argv[1:split])
    mpiexec = sys.argv[split + 1:]
    if not mpiexec:
        parser.error("the command that starts ranks must follow --, up to its flag for their number")
    rank_counts = [int(ranks) for ranks in args.ranks.split(",")]
    failed = 0
    longest = 0.0
    stayed = 0.0
    for number in range(args.first, args.first + args.trials):
        ranks = rank_counts[number % len(rank_counts)]
        begin = time.monotonic()
        wrong, late = one_trial(mpiexec, args.program, args.backend, ranks, number)
        stayed = max(stayed, late)
        longest = max(longest, time.monotonic() - begin)
        if wrong:
            failed += 1
            print(f"trial {number} of {ranks} ranks: {wrong}")
    if stayed > 0:
        print(f"what lost engines held was given back up to {stayed:.1f} s after their end")
    print(f"{args.trials - failed} of {args.trials} trials ok, the longest took {longest:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
