#!/usr/bin/env python3
"""Compares the speed of one layer on the CPU in two builds: is the newer one slower?

  compare_builds.py BASE NEW [--rounds N] [--limit RATIO] [--lanes CPUS[:CPUS...]]
                    [--base-argument=ARG...] [--new-argument=ARG...] [-- <argument of bench_layer>...]

BASE and NEW are two bench_layer programs. They run in turn (BASE NEW, NEW BASE, ...), so that what else the machine
does meets both, and every round gives one ratio NEW / BASE of each figure. The table has the medians of both, the
median ratio and the interval in which the true median ratio lies with 95 % confidence (order statistics of the rounds:
no distribution is assumed). Arguments behind -- go to both programs, for example `-- --threads 2 --prefill 256`.
--base-argument and --new-argument (once for each word) go to one of them, which may then be the same program: what do
all threads cost a step that one does as well? `--limit 1.2 --base-argument=--threads=1 --new-argument=--threads=0`.
A machine with many processors measures in several lanes side by side: `--lanes 0,1:2,3` makes N rounds on processors 0
and 1, and N on 2 and 3. Ctrl-C and SIGTERM end it with the table of the rounds so far.

Exit code 0: no figure is slower than the limit, with that confidence. 1: a figure is. 3: some figure is undecided, its
interval holds the limit; more rounds or a quieter machine decide. 2: wrong usage, or a program failed.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import statistics
import subprocess
import sys
import threading

FIGURES = ("prefill_ms", "decode_ms")
BASE, NEW = 0, 1


class Failure(Exception):
    """A program failed, or this one was called wrongly."""


def measure(program, arguments, processors):
    """One run of bench_layer: {(layer, figure): ms}."""
    pin = ["taskset", "--cpu-list", ",".join(map(str, sorted(processors)))] if processors else []
    done = subprocess.run([*pin, program, "--json", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{program}: exit code {done.returncode}")
    figures = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        for figure in FIGURES:
            figures[row["layer"], figure] = float(row[figure])
    if not figures:
        raise Failure(f"{program}: printed no figures")
    return figures


class Rounds:
    """What the lanes have measured so far; rounds[n] is a run of the base and one of the new build."""

    def __init__(self, options, arguments):
        self.options = options
        self.sides = ((options.base, [*options.base_argument, *arguments]),
                      (options.new, [*options.new_argument, *arguments]))
        self.rounds = []
        self.ended = threading.Event()

    def run_lane(self, processors):
        try:
            for number in range(self.options.rounds):
                pair = {}
                for side in (NEW, BASE) if number % 2 else (BASE, NEW):
                    if self.ended.is_set():
                        return
                    pair[side] = measure(*self.sides[side], processors)
                if self.ended.is_set():  # a signal may have ended what was measured, too
                    return
                if pair[BASE].keys() != pair[NEW].keys():
                    raise Failure("the programs measured different figures")
                self.rounds.append((pair[BASE], pair[NEW]))
                print(f"round {len(self.rounds)}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        except Failure:
            if not self.ended.is_set():
                self.ended.set()
                raise

    def run(self, lanes):
        # No exceptions out of handlers: one amid the pool's own locks would leave them held.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.ended.set())
        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
            running = [pool.submit(self.run_lane, lane) for lane in lanes]
            # Handlers run when this thread does, and a signal may have come to another one.
            while concurrent.futures.wait(running, timeout=0.2).not_done:
                pass
        for lane in running:
            lane.result()


def processors_of(text):
    """'0,1:2,3' as [{0, 1}, {2, 3}]; [None] for no text: one lane that is not pinned."""
    if text is None:
        return [None]
    try:
        lanes = [{int(processor) for processor in lane.split(",")} for lane in text.split(":")]
    except ValueError:
        raise Failure(f"--lanes: '{text}' is not of the form 0,1:2,3") from None
    for processor in set.union(*lanes) - os.sched_getaffinity(0):
        raise Failure(f"--lanes: there is no processor {processor} here")
    return lanes


def median_interval(values):
    """The narrowest pair of order statistics that holds the median with at least 95 % confidence; None: too few."""
    ordered = sorted(values)
    count = len(ordered)
    # P(fewer than k of `count` values lie below the median), summed while both tails together stay below 5 %.
    tail, term, outside = 0.0, 0.5**count, -1
    for k in range(count // 2):
        tail += term
        if 2 * tail > 0.05:
            break
        outside = k
        term = term * (count - k) / (k + 1)
    if outside < 0:
        return None
    return ordered[outside], ordered[count - 1 - outside]


def verdict(ratios, limit):
    """What the ratios of one figure say: "ok", "SLOWER" or "undecided"."""
    interval = median_interval(ratios)
    if interval is None:
        return "undecided"
    if interval[0] > limit:
        return "SLOWER"
    return "ok" if interval[1] <= limit else "undecided"


def exit_code(verdicts):
    return 1 if "SLOWER" in verdicts else 3 if "undecided" in verdicts else 0


def table(rounds, limit):
    """Lines and verdicts."""
    head = f"{'layer':<6}{'figure':<12}{'base':>10}{'new':>10}{'ratio':>8}"
    lines = [f"{head}  {'95 % interval':<18}of {len(rounds)} rounds"]
    verdicts = []
    for key in rounds[0][0]:
        base, new = ([pair[side][key] for pair in rounds] for side in (BASE, NEW))
        ratios = [after / before for before, after in zip(base, new)]
        interval = median_interval(ratios)
        shown = f"{interval[0]:.3f} .. {interval[1]:.3f}" if interval else "too few rounds"
        verdicts.append(verdict(ratios, limit))
        lines.append(f"{key[0]:<6}{key[1]:<12}{statistics.median(base):>10.3f}{statistics.median(new):>10.3f}"
                     f"{statistics.median(ratios):>8.3f}  {shown:<18}{verdicts[-1]}")
    return lines, verdicts


def compare(arguments):
    ours, theirs = arguments, []
    if "--" in ours:
        cut = ours.index("--")
        ours, theirs = ours[:cut], ours[cut + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of a lane")
    parser.add_argument("--limit", type=float, default=1.02, help="largest ratio that is not slower")
    parser.add_argument("--lanes", help="processors of lanes that measure side by side, such as 0,1:2,3")
    for side in ("base", "new"):
        parser.add_argument(f"--{side}-argument", action="append", default=[], metavar="ARG",
                            help=f"a word for the program {side.upper()} alone")
    options = parser.parse_args(ours)
    if options.rounds < 1:
        raise Failure(f"--rounds: {options.rounds} is not at least 1")
    if not options.limit > 0:
        raise Failure(f"--limit: {options.limit} is not above 0")
    for program in (options.base, options.new):
        if not os.access(program, os.X_OK):
            raise Failure(f"{program}: no such program")
    if (options.base, options.base_argument) == (options.new, options.new_argument):
        raise Failure(f"{options.base}: a program is not compared with itself")
    measured = Rounds(options, theirs)
    measured.run(processors_of(options.lanes))
    if not measured.rounds:
        raise Failure("ended before the first round")
    lines, verdicts = table(measured.rounds, options.limit)
    print("\n".join(lines))
    return exit_code(verdicts)


def main():
    try:
        return compare(sys.argv[1:])
    except Failure as failure:
        print(f"compare_builds.py: {failure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
