#!/usr/bin/env python3
"""Compares the speed of one layer on the CPU in two builds: is the newer one slower?

  compare_builds.py BASE NEW [--rounds N] [--limit RATIO] [-- <argument of bench_layer>...]

BASE and NEW are two bench_layer programs. They run in turn (BASE NEW, NEW BASE, ...), so that what else the machine
does meets both, and every round gives one ratio NEW / BASE of each figure. The table has the medians of both, the
median ratio and the interval in which the true median ratio lies with 95 % confidence (order statistics of the rounds:
no distribution is assumed). Arguments behind -- go to both programs, for example `-- --threads 2 --prefill 256`.

Exit code 0: no figure is slower than the limit, with that confidence. 1: a figure is. 3: some figure is undecided, its
interval holds the limit; more rounds or a quieter machine decide. 2: wrong usage, or a program failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

FIGURES = ("prefill_ms", "decode_ms")


def measure(program, arguments):
    """One run of bench_layer: {(layer, figure): ms}."""
    done = subprocess.run([program, "--json", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        fail(f"{program}: exit code {done.returncode}")
    figures = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        for figure in FIGURES:
            figures[row["layer"], figure] = float(row[figure])
    if not figures:
        fail(f"{program}: printed no figures")
    return figures


def fail(text):
    print(f"compare_builds.py: {text}", file=sys.stderr)
    sys.exit(2)


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


def table(base, new, limit):
    """Lines and verdicts of rounds of figures, the n-th of `base` beside the n-th of `new`."""
    lines = [f"{'layer':<6}{'figure':<12}{'base':>10}{'new':>10}{'ratio':>8}  {'95 % interval':<18}"]
    verdicts = []
    for key in base[0]:
        ratios = [after[key] / before[key] for before, after in zip(base, new)]
        interval = median_interval(ratios)
        shown = f"{interval[0]:.3f} .. {interval[1]:.3f}" if interval else "too few rounds"
        verdicts.append(verdict(ratios, limit))
        lines.append(f"{key[0]:<6}{key[1]:<12}{statistics.median(row[key] for row in base):>10.3f}"
                     f"{statistics.median(row[key] for row in new):>10.3f}{statistics.median(ratios):>8.3f}"
                     f"  {shown:<18}{verdicts[-1]}")
    return lines, verdicts


def main():
    ours, theirs = sys.argv[1:], []
    if "--" in ours:
        cut = ours.index("--")
        ours, theirs = ours[:cut], ours[cut + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--limit", type=float, default=1.02, help="largest ratio that is not slower")
    options = parser.parse_args(ours)
    if options.rounds < 1:
        fail(f"--rounds: {options.rounds} is not at least 1")
    if not options.limit > 0:
        fail(f"--limit: {options.limit} is not above 0")
    for program in (options.base, options.new):
        if not os.access(program, os.X_OK):
            fail(f"{program}: no such program")

    base, new = [], []
    for number in range(options.rounds):
        for side, program in ((base, options.base), (new, options.new))[::-1 if number % 2 else 1]:
            side.append(measure(program, theirs))
        if base[-1].keys() != new[-1].keys():
            fail("the programs measured different figures")
        print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    lines, verdicts = table(base, new, options.limit)
    print("\n".join(lines))
    return exit_code(verdicts)


if __name__ == "__main__":
    sys.exit(main())
