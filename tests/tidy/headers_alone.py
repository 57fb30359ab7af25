#!/usr/bin/env python3
"""Compiles every header alone, included twice: python3 headers_alone.py --root DIR --compiler CXX [-- <flag>...]

A header under src/, include/ or tools/ must bring what it uses and survive repetition. (Those of tests, which take
longest, have no users but the tests that compile them.) Public C headers
(c_api*.h) are also compiled as C11. Headers of device code (.cuh) are compiled by nvcc where --cuda-compiler names
it, and left out otherwise. With --compile-commands those are left out that a source of the build includes before
anything else: the build has compiled them so, and tidy.py asks for their #pragma once.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tidy
import tidy_code

C_FLAGS = ["-x", "c", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
CXX_FLAGS = ["-x", "c++", "-std=c++20", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
# Host and device passes of the front ends; PTX for one architecture, thrown away.
CUDA_FLAGS = ["-x", "cu", "-std=c++20", "--expt-relaxed-constexpr", "-arch=compute_90a", "-ptx", "-Werror=all-warnings"]
CUDA_SUFFIX = ".cuh"


def include_name(path):
    """How other files write the header in an #include; None for folders that have no such rule."""
    parts = path.parts
    return "/".join(parts[1:]) if parts[0] in ("include", "src") else path.as_posix()


def opened_headers(root, compile_commands):
    """Headers with which a C++ source of the build begins, no directive before them, as other files include them."""
    headers = set()
    for entry in json.loads(compile_commands.read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if source.suffix != ".cpp" or not source.is_relative_to(root.resolve()):
            continue
        first = next((line for line in source.read_text().splitlines() if line.lstrip().startswith("#")), "")
        found = tidy_code.INCLUDE.match(first)
        if found and found.group(1).startswith('"'):
            headers.add(found.group(1).strip('"'))
    return headers


def compile_alone(root, compiler, flags, path):
    own_folder = (root / path).parent
    command = [compiler, *flags, "-I", str(root / "include"), "-I", str(root / "src"), "-I", str(root)]
    if path.parts[0] == "tools":
        command += ["-I", str(own_folder)]
    line = f'#include "{include_name(path)}"\n'
    with tempfile.TemporaryDirectory() as folder:
        if path.suffix == CUDA_SUFFIX:  # nvcc does not read standard input
            source = pathlib.Path(folder) / "twice.cu"
            source.write_text(line * 2, encoding="utf-8")
            command += [str(source), "-o", str(source.with_suffix(".ptx"))]
        else:
            command += ["-fsyntax-only", "-"]
        run = subprocess.run(command, input=line * 2, capture_output=True, text=True, check=False)
    return run.returncode == 0, run.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--cuda-compiler", help="nvcc")
    parser.add_argument("--not-built", action="append", default=[], help="folder that this build leaves out")
    parser.add_argument("--compile-commands", type=pathlib.Path, help="of a build that is up to date")
    parser.add_argument("flags", nargs="*", help="further compiler flags")
    arguments = parser.parse_args()

    skipped = tuple(folder.rstrip("/") + "/" for folder in arguments.not_built)
    headers = [path for path in tidy.tree_files(arguments.root)
               if path.suffix in tidy_code.HEADER_SUFFIXES and path.parts[0] in ("include", "src", "tools")
               and not path.as_posix().startswith(skipped)]
    opened = opened_headers(arguments.root, arguments.compile_commands) if arguments.compile_commands else set()
    jobs = [(path, arguments.compiler, CXX_FLAGS + arguments.flags) for path in headers
            if path.suffix != CUDA_SUFFIX and include_name(path) not in opened]
    jobs += [(path, arguments.compiler, C_FLAGS) for path in headers
             if path.parts[0] == "include" and path.name.startswith("c_api")]
    if arguments.cuda_compiler:
        jobs += [(path, arguments.cuda_compiler, CUDA_FLAGS) for path in headers if path.suffix == CUDA_SUFFIX]
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda job: compile_alone(arguments.root, job[1], job[2], job[0]), jobs)
        for (path, _, flags), (passed, messages) in zip(jobs, results):
            if not passed:
                failures += 1
                print(f"{path} does not compile alone as {flags[1]}:\n{messages}")
    print(f"{len(jobs)} header compilation(s), {failures} failure(s), {len(opened)} header(s) that sources begin with")
    return 1 if failures or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
