#!/usr/bin/env python3
"""Prints dsv4rt against transformers from two files of JSON lines; exit status 1 when a target is missed.

Every figure of dsv4rt is compared with the better of the BF16 and the FP32 run of transformers. Memory is the peak RSS
minus the RSS of the process before the layer was built (baseline_rss_bytes), so that neither the interpreter nor torch
counts against transformers; the ratio of the whole peaks is printed too.
"""
import argparse
import json
import sys

DECODE_MIN_SPEEDUP = 2.0
PREFILL_MIN_SPEEDUP = 0.5
MEMORY_MAX_RATIO = 0.5
MIB = 1 << 20


def read(path, engine):
    rows = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.lstrip().startswith("{"):
                row = json.loads(line)
                if row.get("engine") == engine:
                    rows.append(row)
    if not rows:
        sys.exit(f"{path}: no line with engine {engine}")
    return rows


def net_bytes(row):
    return row["peak_rss_bytes"] - row.get("baseline_rss_bytes", 0)


def same_workload(ours, theirs):
    for key in ("prefill_tokens", "decode_context", "threads"):
        if key in ours and key in theirs and ours[key] != theirs[key]:
            sys.exit(f"different workloads: {key} is {ours[key]} for dsv4rt and {theirs[key]} for transformers")


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transformers")
    parser.add_argument("dsv4rt")
    parser.add_argument("--require-layers", default="csa,hca", help="kinds that must have been measured")
    options = parser.parse_args()
    theirs, ours = read(options.transformers, "transformers"), read(options.dsv4rt, "dsv4rt")

    print("Measured (ms, MiB):")
    table = [["engine", "layer", "dtype", "prefill", "decode", "peak", "net peak"]]
    for row in theirs + ours:
        table.append([row["engine"], row["layer"], row["dtype"], f"{row['prefill_ms']:.1f}", f"{row['decode_ms']:.2f}",
                      f"{row['peak_rss_bytes'] / MIB:.0f}", f"{net_bytes(row) / MIB:.0f}"])  # fmt: skip
    print_table(table)

    missed = []
    table = [["layer", "dsv4rt", "prefill speed", "decode speed", "net memory", "whole memory"]]
    for layer in options.require_layers.split(","):
        if not any(row["layer"] == layer for row in ours):
            missed.append(f"{layer}: not measured by dsv4rt")
    for mine in ours:
        peers = [row for row in theirs if row["layer"] == mine["layer"]]
        if not peers:
            missed.append(f"{mine['layer']}: not measured by transformers")
            continue
        for peer in peers:
            same_workload(mine, peer)
        label = f"{mine['layer']} {mine['dtype']}"
        prefill = min(row["prefill_ms"] for row in peers) / mine["prefill_ms"]
        decode = min(row["decode_ms"] for row in peers) / mine["decode_ms"]
        memory = net_bytes(mine) / min(net_bytes(row) for row in peers)
        whole = mine["peak_rss_bytes"] / min(row["peak_rss_bytes"] for row in peers)
        table.append([mine["layer"], mine["dtype"], *(f"{ratio:.2f}x" for ratio in (prefill, decode, memory, whole))])
        if not prefill >= PREFILL_MIN_SPEEDUP:
            missed.append(f"{label}: prefill {prefill:.2f}x, needs >= {PREFILL_MIN_SPEEDUP}x")
        if not decode >= DECODE_MIN_SPEEDUP:
            missed.append(f"{label}: decode {decode:.2f}x, needs >= {DECODE_MIN_SPEEDUP}x")
        if not max(memory, whole) <= MEMORY_MAX_RATIO:
            missed.append(f"{label}: memory {memory:.2f}x net, {whole:.2f}x whole, needs <= {MEMORY_MAX_RATIO}x")
    print(f"\ndsv4rt relative to the better of transformers' dtypes (targets: prefill >= {PREFILL_MIN_SPEEDUP}x, "
          f"decode >= {DECODE_MIN_SPEEDUP}x, memory <= {MEMORY_MAX_RATIO}x):")  # fmt: skip
    print_table(table)
    for text in missed:
        print(f"MISSED {text}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
