#!/usr/bin/env python3
"""What a run of scripts/gpu/ranks.sh found beside what is asked for: ranks_tables.py LOGS [--ranks N] [--parts LIST]
[--trials N] [--markdown FILE]

Reads exit statuses (LOGS/*.status), the reports of runs and benches (LOGS/*.json) and what programs printed
(LOGS/*.log). The exit code is 1 when anything that the parts ask for failed, missed its target or was not run.
"""

import argparse
import json
import pathlib
import re
import sys

# Time of one GPU that a step of so many GPUs may take, by (batch, context); gains of prompts and of engines.
STEP_TARGETS = {2: {(1, 8192): 0.62, (32, 32768): 0.70}, 4: {(1, 8192): 0.45}}
PREFILL_TARGETS = {2: 1.85, 4: 3.5}
ENGINE_SHARE = 0.99  # of n times the throughput of one engine


class Lines:
    """The table: what, found, asked for, result."""

    def __init__(self):
        self.rows = []
        self.failed = False

    def add(self, what, found, asked="", good=None):
        """good None: a figure for which nothing is asked."""
        self.rows.append((what, found, asked, "" if good is None else "ok" if good else "MISSED"))
        self.failed |= good is False

    def markdown(self):
        lines = ["| what | found | asked for | |", "|---|---|---|---|"]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self.rows]) + "\n"

    def text(self):
        widths = [max(len(row[column]) for row in self.rows) for column in range(4)]
        return "".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() + "\n"
                       for row in self.rows)


class Logs:
    def __init__(self, folder):
        self.folder = folder

    def status(self, name):
        """The exit status of a program; None if it was not run."""
        path = self.folder / f"{name}.status"
        return int(path.read_text()) if path.exists() else None

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def report(self, name):
        """The report of a program that ended well; None otherwise."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if self.status(name) == 0 and path.exists() else None


def passed(lines, logs, name, what):
    status = logs.status(name)
    lines.add(what, "not run" if status is None else f"exit {status}", "exit 0", status == 0)
    return status == 0


def check_lines(lines, logs, ranks):
    """Golden traces: caches of ranks are those of one GPU; with context parallelism outputs are too."""
    for model in ("tiny-fp8", "tiny-bf16"):
        one = logs.report(f"{model}_one")
        for kind in ("cp", "tp") if ranks == 2 and model == "tiny-bf16" else ("cp",):
            name = f"{model}, {kind} {ranks}"
            given = logs.report(f"{model}_{kind}")
            if one is None or given is None:
                lines.add(name, "not run or failed", "reference, and bytes of one GPU", False)
                continue
            keys = ("cache", "output") if kind == "cp" else ("cache",)
            differ = [f"layer {mine['layer']} {key}" for mine, theirs in zip(given["layers"], one["layers"])
                      for key in keys if mine["sha256"][key] != theirs["sha256"][key]]
            equal = not differ and len(given["layers"]) == len(one["layers"]) > 0
            lines.add(name, "within the reference's tolerance; " +
                      (f"{' and '.join(keys)} have the bytes of one GPU" if equal else "differ: " + ", ".join(differ)),
                      "reference, and bytes of one GPU", equal)


def best_ms(step):
    return step["captured_ms"] or step["eager_ms"]


def speed_lines(lines, logs, ranks):
    one, again, several = (logs.report(name) for name in ("step_one", "step_one_again", "step_tp"))
    if one is None or several is None:
        lines.add(f"decode, tp {ranks}", "not run or failed", "a captured step gives the bytes of an eager one", False)
    else:
        lines.add(f"decode, tp {ranks}", "captured and eager steps give the same bytes",
                  "a captured step gives the bytes of an eager one",
                  all(step["captured_ms"] > 0 for step in several["steps"]))
        drift = {(step["batch"], step["context"]): best_ms(step) for step in (again or one)["steps"]}
        for alone, shared in zip(one["steps"], several["steps"]):
            shape = (alone["batch"], alone["context"])
            ratio = best_ms(shared) / best_ms(alone)
            target = STEP_TARGETS.get(ranks, {}).get(shape)
            lines.add(f"decode {shape[0]} x {shape[1]}",
                      f"{best_ms(alone):.3f} ms on one GPU (later {drift[shape]:.3f}), {best_ms(shared):.3f} ms on "
                      f"{ranks}: {ratio:.3f}", f"<= {target}" if target else "",
                      None if target is None else ratio <= target)
            lines.add("  sum of the ranks' outputs", f"{shared['exchange_us']:.1f} us a layer, "
                      f"{100 * shared['exchange_share']:.1f} % of the step")
    one, several = logs.report("prefill_one"), logs.report("prefill_cp")
    if one is None or several is None:
        lines.add(f"prefill, cp {ranks}", "not run or failed", "times", False)
    else:
        for alone, shared in zip(one["prefills"], several["prefills"]):
            gain = alone["prefill_ms"] / shared["prefill_ms"]
            target = PREFILL_TARGETS.get(ranks)
            lines.add(f"prefill {alone['tokens']}", f"{alone['prefill_ms']:.1f} ms on one GPU, "
                      f"{shared['prefill_ms']:.1f} ms on {ranks}: {gain:.3f} times as fast",
                      f">= {target}" if target else "", None if target is None else gain >= target)
    engines = logs.report("engines")
    if engines is None:
        lines.add(f"{ranks} engines", "not run or failed", "times", False)
        return
    for step in engines["steps"]:
        count = len(step["engines"])
        slowest = max(engine["together_ms"] / engine["alone_ms"] for engine in step["engines"])
        lines.add(f"{count} engines, {step['batch']} x {step['context']}",
                  f"{step['together_tokens_per_s']:.0f} tokens/s, {step['times_one_engine']:.3f} times one engine; a "
                  f"step takes up to {slowest:.3f} times as long", f">= {ENGINE_SHARE * count:.2f} times one",
                  step["times_one_engine"] >= ENGINE_SHARE * count)


def lost_lines(lines, logs, trials):
    found = re.search(r"^(\d+) of (\d+) trials ok, the longest took [\d.]+ s$", logs.log("lost"), re.MULTILINE)
    good = logs.status("lost") == 0 and found is not None and found[1] == found[2] == str(trials)
    lines.add("lost ranks", found[0] if found else "not run or failed", f"{trials} of {trials}", good)


def sanitize_lines(lines, logs, ranks):
    errors = re.findall(r"ERROR SUMMARY: (\d+) errors?", logs.log("memcheck"))
    good = logs.status("memcheck") == 0 and len(errors) == ranks and set(errors) == {"0"}
    lines.add("memcheck", f"errors of each rank: {', '.join(errors) or 'not run or failed'}", f"0 in {ranks} ranks",
              good)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parts", default="test,check,speed,lost,sanitize")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args(arguments)
    logs, lines, parts = Logs(args.logs), Lines(), args.parts.split(",")
    if "test" in parts:
        passed(lines, logs, "gpu_tests", "tests of several GPUs")
        passed(lines, logs, "mpi_tests", "tests of ranks on the CPU")
    if "check" in parts:
        check_lines(lines, logs, args.ranks)
    if "speed" in parts:
        speed_lines(lines, logs, args.ranks)
    if "lost" in parts:
        lost_lines(lines, logs, args.trials)
    if "sanitize" in parts:
        sanitize_lines(lines, logs, args.ranks)
    if not lines.rows:
        print("ranks_tables.py: no part that gives results was run", file=sys.stderr)
        return 0
    print(lines.text(), end="")
    if args.markdown:
        args.markdown.write_text(lines.markdown())
    return 1 if lines.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
