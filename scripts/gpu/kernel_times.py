#!/usr/bin/env python3
"""Time by kernel of captured steps, or of prompts: kernel_times.py TRACE [--eager] [--json FILE]

TRACE is what libdsv4rt_kernel_trace.so wrote (tools/bench/gpu/kernel_trace.cpp) while a program ran steps:

  CUDA_INJECTION64_PATH=build/cuda/tools/bench/gpu/libdsv4rt_kernel_trace.so DSV4RT_KERNEL_TRACE=trace.tsv \\
    build/cuda/tools/dsv4rt/dsv4rt bench --backend cuda --checkpoint DIR --whole-step 8x8192

A kernel's time is its end less that of the kernel that ended before it: kernels begin while the one before still runs.
Layers whose kernels are the same, by name, are one group; a layer ends with the second linear behind its attention
(wo_a, wo_b). Times are means over the layers of a group and all replays but the first, us. Every graph that holds
layers is one table, since each shape has a graph of its own. --eager: of the steps that are no graphs the longest,
those that take three quarters of the longest one's time or more, such as prompts beside their halves; a step begins
behind the kernel that brings block tables. Exit code 2: nothing to read.
"""

import argparse
import collections
import json
import pathlib
import re
import sys

LINEARS_BEHIND_ATTENTION = 2
BEFORE_A_STEP = "apply_deltas_kernel"


def short_name(name):
    """A kernel's own name and its template arguments, without namespaces, types and parameters."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    depth, end = 0, len(name)
    for index, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            end = index
            break
    own, bracket, arguments = name[:end].partition("<")
    arguments = re.sub(r"\([^()]*\)", "", arguments)
    return own.rpartition("::")[2] + bracket + re.sub(r"(\w+::)+", "", arguments)


def read_launches(path):
    """{(graph, correlation): [(name, start, end)]}; graph 0: no graph."""
    launches = collections.OrderedDict()
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 5 or not all(field.isdigit() for field in fields[:4]):
                raise ValueError(f"{path}: line {number}: not 'correlation, graph, start, end, name'")
            correlation, graph, start, end = map(int, fields[:4])
            launches.setdefault((graph, correlation), []).append((short_name(fields[4]), start, end))
    return launches


def by_end(kernels):
    return sorted(kernels, key=lambda kernel: kernel[2])


def replays_of(launches):
    """{graph: [[(name, start, end)] of each replay in order of ends]}"""
    replays = collections.OrderedDict()
    for (graph, _), kernels in launches.items():
        if graph != 0:
            replays.setdefault(graph, []).append(by_end(kernels))
    return replays


def eager_steps_of(launches):
    """{0: [the longest steps, as replays_of() has replays]}"""
    kernels = by_end(kernel for (graph, _), own in launches.items() if graph == 0 for kernel in own)
    steps = [[]]
    for kernel in kernels:
        if kernel[0] == BEFORE_A_STEP:
            steps.append([])
        else:
            steps[-1].append(kernel)
    steps = [step for step in steps if split_layers(step)]
    longest = max((span_of(step) for step in steps), default=0)
    return {0: [step for step in steps if span_of(step) >= 0.75 * longest]}


def span_of(kernels):
    return kernels[-1][2] - min(start for _, start, _ in kernels)


def split_layers(kernels):
    """Indices one past the last kernel of each layer."""
    ends, behind = [], None
    for index, (name, _, _) in enumerate(kernels):
        if "attend" in name:
            behind = 0
        elif "linear" in name and behind is not None:
            behind += 1
            if behind == LINEARS_BEHIND_ATTENTION:
                ends.append(index + 1)
                behind = None
    return ends


def group_times(replays):
    """[{layers, replays, us, kernels: [{name, us}]}], us of one layer."""
    groups = collections.OrderedDict()
    for kernels in replays:
        begin = 0
        for end in split_layers(kernels):
            signature = tuple(name for name, _, _ in kernels[begin:end])
            group = groups.setdefault(signature, {"count": 0, "ns": [0] * len(signature)})
            for place in range(begin, end):
                before = kernels[place - 1][2] if place > 0 else kernels[place][1]
                group["ns"][place - begin] += kernels[place][2] - before
            group["count"] += 1
            begin = end
    rows = []
    for signature, group in groups.items():
        times = [ns / group["count"] / 1e3 for ns in group["ns"]]
        rows.append({"layers": group["count"] / len(replays), "us": sum(times),
                     "kernels": [{"name": name, "us": us} for name, us in zip(signature, times)]})
    return rows


def tables(path, eager=False):
    """[{graph, replays, us, groups}] of all graphs whose replays hold layers, or of eager steps, whose graph is 0; the
    first replay of each is left out."""
    found = []
    launches = read_launches(path)
    for graph, replays in (eager_steps_of(launches) if eager else replays_of(launches)).items():
        replays = replays[1:]
        if not replays or not split_layers(replays[0]):
            continue
        spans = [span_of(kernels) for kernels in replays]
        found.append({"graph": graph, "replays": len(replays), "kernels": len(replays[0]),
                      "us": sum(spans) / len(spans) / 1e3, "groups": group_times(replays)})
    return found


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--eager", action="store_true", help="of steps that are no graphs")
    parser.add_argument("--json", type=pathlib.Path, help="the same as JSON")
    options = parser.parse_args(arguments)
    try:
        found = tables(options.trace, options.eager)
    except (OSError, ValueError) as error:
        print(f"kernel_times.py: {error}", file=sys.stderr)
        return 2
    if not found:
        what = "eager step with layers ran" if options.eager else "graph that holds layers was replayed"
        print(f"kernel_times.py: {options.trace}: no {what} twice", file=sys.stderr)
        return 2
    for table in found:
        title = f"graph {table['graph']}" if table["graph"] else "eager steps"
        print(f"{title}: {table['kernels']} kernels, {table['us']:.1f} us, {table['replays']} replays")
        for group in table["groups"]:
            print(f"  {group['layers']:g} layers of {group['us']:.1f} us")
            for kernel in group["kernels"]:
                print(f"    {kernel['us']:7.2f}  {kernel['name']}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
