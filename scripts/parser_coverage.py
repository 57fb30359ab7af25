#!/usr/bin/env python3
"""Line coverage of every parser of input from outside, from what `llvm-cov export -format=lcov` printed:

    scripts/parser_coverage.py LCOV_FILE      exit status 1 if a parser is below the target, 2 if one is not in the file

scripts/fuzz.sh --coverage makes that file. A source that reads files, texts or arguments from outside belongs in
PARSERS.
"""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET_PERCENT = 95.0

# What comes from outside, and the sources that read it; a pattern has to match something.
PARSERS = {
    "JSON and other text": [
        "src/base/input_file.cpp",
        "src/base/json_text.cpp",
        "src/base/strict_json.cpp",
        "src/base/utf8.h",
        "src/model/json_document.cpp",
    ],
    "model config": [
        "src/model/config_*.cpp",
        "src/model/layer_schedule.cpp",
        "src/model/model_config.cpp",
    ],
    "checkpoint": [
        "src/checkpoint/attention_loader.cpp",
        "src/checkpoint/checkpoint.cpp",
        "src/checkpoint/expected_tensors.cpp",
        "src/checkpoint/file_image.cpp",
        "src/checkpoint/finite_weights.cpp",
        "src/checkpoint/memory_tensors.cpp",
        "src/checkpoint/safetensors_header.cpp",
        "src/checkpoint/safetensors_reader.cpp",
        "src/checkpoint/tensor_dtype.cpp",
        "src/checkpoint/tensor_names.cpp",
        "src/checkpoint/weight_index.cpp",
    ],
    "snapshots": ["src/engine/sequence_snapshot.cpp"],
    "arguments of the C interface": ["src/capi/*.cpp", "src/capi/c_api_structs.h"],
    "request logs": [
        "src/replay/*_parser.cpp",
        "src/replay/arrivals.cpp",
        "src/replay/block_identity.cpp",
        "src/replay/csv_line.cpp",
        "src/replay/json_element_reader.cpp",
        "src/replay/json_fields.cpp",
        "src/replay/length_scale.cpp",
        "src/replay/line_reader.cpp",
        "src/replay/log_bytes.cpp",
        "src/replay/log_format.cpp",
        "src/replay/native_log.cpp",
        "src/replay/record_errors.cpp",
        "src/replay/request_log.cpp",
        "src/replay/session_history.cpp",
        "src/replay/time_stamp.cpp",
    ],
    "step tables": ["src/replay/step_table.cpp"],
    "saved reports": ["src/report/comparison.cpp", "src/report/document.*", "src/report/saved_report.cpp"],
    "recorded traces": ["tools/lib/attention_trace.cpp", "tools/lib/trace_check.cpp", "tools/lib/trace_run.cpp"],
    "arguments of commands": [
        "src/layout/row_format.cpp",
        "src/replay/router.cpp",
        "src/replay/run_metrics.cpp",
        "tools/dsv4rt/bench_shapes.cpp",
        "tools/dsv4rt/byte_size.cpp",
    ],
}


def below_root(path):
    """The source of this tree that `path` ends in: a compiler's cache may have kept another tree's place. Or None."""
    parts = pathlib.PurePath(os.path.normpath(path)).parts
    for first in range(1, len(parts)):
        source = pathlib.PurePosixPath(*parts[first:])
        if (ROOT / source).is_file():
            return source.as_posix()
    return None


def read_lcov(path):
    """{source below the root: {line: times it was reached}}"""
    sources, lines = {}, {}
    for record in path.read_text().splitlines():
        key, _, value = record.partition(":")
        if key == "SF":
            lines = sources.setdefault(below_root(value), {})
        elif key == "DA":
            number, count = (int(part) for part in value.split(",")[:2])
            lines[number] = max(lines.get(number, 0), count)
    return sources


def ranges(numbers):
    """[3, 4, 5, 9] as "3-5, 9"."""
    found = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    measured = read_lcov(pathlib.Path(sys.argv[1]))
    all_covered, all_lines, below, unknown = 0, 0, [], []
    for kind, patterns in PARSERS.items():
        print(f"{kind}:")
        for pattern in patterns:
            sources = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
            unknown += [] if sources else [pattern]
            for source in sources:
                lines = measured.get(source, {})
                if not lines:
                    unknown += [source] if source.endswith(".cpp") else []  # a header may have declarations only
                    continue
                missed = [number for number, count in lines.items() if count == 0]
                covered = len(lines) - len(missed)
                all_covered, all_lines = all_covered + covered, all_lines + len(lines)
                percent = 100 * covered / len(lines)
                print(f"  {source:<44} {covered:5d} of {len(lines):4d} lines {percent:6.1f} %")
                if percent < TARGET_PERCENT:
                    below.append(f"{source}: {percent:.1f} %, not reached: {ranges(missed)}")
    print(f"all parsers: {all_covered} of {all_lines} lines, {100 * all_covered / max(all_lines, 1):.1f} %")
    for source in unknown:
        print(f"error: {source} is in no program that ran; mend PARSERS or the programs of scripts/fuzz.sh")
    for line in below:
        print(f"below {TARGET_PERCENT:.0f} %: {line}")
    return 2 if unknown else 1 if below else 0


sys.exit(main())
