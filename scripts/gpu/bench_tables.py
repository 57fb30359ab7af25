#!/usr/bin/env python3
"""Tables of a GPU run: bench_tables.py LOGS [--json FILE] [--markdown FILE] [--baseline FILE] [--tolerance PART]

Reads what the benchmarks printed (LOGS/bench_*_gpu.log) and the reports of whole steps (LOGS/whole_*.json) and writes
one table: time, floor and their ratio, microseconds. A second table shows cliffs: cases that differ by up to four
sequences alone. With --baseline, a file that --json wrote before, every time is compared; the exit code is 1 when a
case has become slower by more than PART (0.03), 2 when there is nothing to read or to compare.
"""

import argparse
import json
import pathlib
import re
import sys

NUMBER = r"(\d+(?:\.\d+)?)"
LINE = re.compile(rf"^(?P<case>\S.*?)\s+{NUMBER} us\s+floor\s+{NUMBER}\b")
SELECTION = re.compile(
    rf"^(?P<case>\S+ +B +\d+ +n +\d+(?:\.\.\d+)? +tokens +\d+) \| op +{NUMBER} us .*? scan +{NUMBER} floor +{NUMBER}")
COUNTS = re.compile(r"\s+(?:\d+ launch|rows/token\s+\d+)$")
SEQUENCES = re.compile(r"\bB[= ]+(\d+)\b|^whole_step\w* (\d+)x")
MOST_NEIGHBOUR = 4


def words(text):
    return re.sub(r"\b([BTn])\s+(\d)", r"\1=\2", " ".join(text.split()))


def read_log(program, text):
    """{case: {us, floor_us}} of what a benchmark printed."""
    cases = {}
    for line in text.splitlines():
        selection = SELECTION.match(line)
        if selection:
            name = f"{program} {words(selection['case'])}"
            cases[f"{name} scan and top-k"] = {"us": float(selection[2]), "floor_us": float(selection[4])}
            cases[f"{name} scan"] = {"us": float(selection[3]), "floor_us": float(selection[4])}
            continue
        match = LINE.match(line)
        if match:
            name = f"{program} {words(COUNTS.sub('', match['case']))}"
            cases[name] = {"us": float(match[2]), "floor_us": float(match[3])}
    return cases


def read_report(name, report):
    """The same of a report of `dsv4rt bench --whole-step` or `--whole-prefill`."""
    cases = {}
    for step in report.get("steps", []):
        shortest = f"{step['shortest_context']}.." if "shortest_context" in step else ""
        case = f"{name} {step['batch']}x{shortest}{step['context']}"
        cases[case] = {"us": 1e3 * (step["captured_ms"] or step["eager_ms"]), "floor_us": 1e3 * step["floor_ms"]}
    for prefill in report.get("prefills", []):
        case = f"{name} {prefill['tokens']}"
        cases[case] = {"us": 1e3 * prefill["prefill_ms"], "floor_us": 1e3 * prefill["floor_ms"]}
    return cases


def read_logs(folder):
    cases = {}
    for path in sorted(folder.glob("bench_*.log")):
        cases.update(read_log(path.stem.removeprefix("bench_").removesuffix("_gpu"), path.read_text(errors="replace")))
    for path in sorted(folder.glob("whole_*.json")):
        cases.update(read_report(path.stem, json.loads(path.read_text())))
    return cases


def cliffs(cases):
    """(case, case with a few more sequences, ratio of their times), the steepest first."""
    families = {}
    for name, values in cases.items():
        found = SEQUENCES.search(name)
        if found:
            count = found[1] or found[2]
            family = name[:found.start()] + found[0].replace(count, "*") + name[found.end():]
            families.setdefault(family, []).append((int(count), name, values["us"]))
    steps = []
    for members in families.values():
        members.sort()
        for (few, name, time), (more, larger, larger_time) in zip(members, members[1:]):
            if more - few <= MOST_NEIGHBOUR and time > 0:
                steps.append((name, larger, larger_time / time))
    return sorted(steps, key=lambda step: -step[2])


def compare(cases, baseline, tolerance):
    """(case, before, now, ratio) of all in both, the greatest loss first, and whether any lost too much."""
    both = [(name, baseline[name]["us"], cases[name]["us"]) for name in cases if name in baseline]
    ratios = [(name, before, now, now / before) for name, before, now in both if before > 0]
    rows = sorted(ratios, key=lambda row: -row[3])
    return rows, any(ratio > 1 + tolerance for *_, ratio in rows)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def shown(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def markdown(cases, compared):
    parts = [table(("case", "us", "floor", "ratio"),
                   [(name, shown(v["us"]), shown(v["floor_us"]) if v["floor_us"] else "-",
                     f"{v['us'] / v['floor_us']:.2f}" if v["floor_us"] else "-") for name, v in cases.items()])]
    steps = cliffs(cases)
    if steps:
        parts.append(table(("from", "to", "time"), [(a, b, f"x{ratio:.2f}") for a, b, ratio in steps]))
    if compared is not None:
        rows = [(name, shown(before), shown(now), f"{ratio:.3f}") for name, before, now, ratio in compared]
        parts.append(table(("case", "before", "now", "ratio"), rows))
    return "\n".join(parts)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, help="write the cases, for a later --baseline")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables here instead of to standard output")
    parser.add_argument("--baseline", type=pathlib.Path, help="compare with what --json wrote")
    parser.add_argument("--tolerance", type=float, default=0.03, help="loss that is accepted, a part of the time")
    options = parser.parse_args(arguments)
    try:
        cases = read_logs(options.logs)
        baseline = json.loads(options.baseline.read_text())["cases"] if options.baseline else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"bench_tables.py: {error!r}", file=sys.stderr)
        return 2
    if not cases:
        print(f"bench_tables.py: {options.logs} holds no times of benchmarks", file=sys.stderr)
        return 2
    rows, lost = compare(cases, baseline, options.tolerance) if baseline is not None else (None, False)
    if rows == []:
        print("bench_tables.py: the baseline has none of the cases that were measured", file=sys.stderr)
        return 2
    text = markdown(cases, rows)
    if options.markdown:
        options.markdown.write_text(text)
    else:
        print(text, end="")
    if options.json:
        options.json.write_text(json.dumps({"unit": "us", "cases": cases}, indent=1) + "\n")
    if baseline is not None:
        missing = sorted(set(baseline) - set(cases))
        if missing:
            print(f"{len(missing)} cases of the baseline were not measured", file=sys.stderr)
        losers = [name for name, *_, ratio in rows if ratio > 1 + options.tolerance]
        if losers:
            print(f"{len(losers)} cases lost more than {options.tolerance:.0%}: {', '.join(losers)}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
