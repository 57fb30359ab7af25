#!/usr/bin/env python3
"""Checks the source tree: python3 tests/tidy/tidy.py [--root DIR] [--compile-commands FILE] [--not-built DIR]...

Prints one line per finding, "file:line: [rule] message", and exits 1 if there is any.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import tidy_code
import tidy_text

SKIPPED_FOLDERS = {".git", ".cache", "build", "__pycache__"}
# Sources that their own test builds in a project of its own.
SEPARATE_PROJECTS = ("tests/install",)
DEPENDS = re.compile(r"dsv4rt_module\((.*?)\)", re.DOTALL)
KEYWORDS = {"SOURCES", "DEPENDS", "LINKS"}


def tree_files(root):
    """Paths relative to `root`: what git tracks or would track, or every file where there is no git."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, check=False) if (root / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        paths = [pathlib.PurePosixPath(name) for name in listed.stdout.decode().split("\0") if name]
        return sorted(path for path in paths if (root / path).is_file())
    found = (pathlib.PurePosixPath(path.relative_to(root).as_posix()) for path in root.rglob("*") if path.is_file())
    return sorted(path for path in found if not SKIPPED_FOLDERS.intersection(path.parts))


def declared_depends(root, module):
    """The DEPENDS of a module's dsv4rt_module() call, or None if there is none to read."""
    cmake_lists = root / "src" / module / "CMakeLists.txt"
    call = DEPENDS.search(cmake_lists.read_text()) if cmake_lists.is_file() else None
    if call is None:
        return None
    names, keyword = set(), None
    for word in call.group(1).split():
        if word in KEYWORDS:
            keyword = word
        elif keyword == "DEPENDS":
            names.add(word)
    return names


INCLUDED = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def unbuilt_sources(root, files, compile_commands, not_built):
    """C and C++ sources that no target compiles. A test that is not built is decoration."""
    compiled = set()
    for entry in json.loads(compile_commands.read_text()):
        source = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        compiled.add(source)
        if source.match("Unity/unity_*"):  # CMake's unity builds: a file that includes others
            compiled.update(pathlib.Path(path).resolve() for path in INCLUDED.findall(source.read_text()))
    exempt = tuple(folder.rstrip("/") + "/" for folder in (*SEPARATE_PROJECTS, *not_built))
    return [path for path in files
            if path.suffix in tidy_code.SOURCE_SUFFIXES and not path.as_posix().startswith(exempt)
            and (root / path).resolve() not in compiled]


def check_tree(root, compile_commands=None, not_built=()):
    """All findings as (path, line, rule, message)."""
    findings = []
    files = tree_files(root)
    depends = {}
    for path in files:
        if not tidy_text.is_text(path):
            continue
        def report(line, rule, message, path=path):
            findings.append((path.as_posix(), line, rule, message))
        try:
            text = (root / path).read_bytes().decode()
        except UnicodeDecodeError:
            report(1, "encoding", "the file is not UTF-8")
            continue
        tidy_text.check_text(path, text, report)
        if path.suffix in tidy_code.HEADER_SUFFIXES + tidy_code.SOURCE_SUFFIXES:
            module = tidy_code.module_of(path)
            if module is not None and module not in depends:
                depends[module] = declared_depends(root, module)
            tidy_code.check_code(path, text, depends.get(module), report)
    if compile_commands is not None:
        for path in unbuilt_sources(root, files, compile_commands, not_built):
            findings.append((path.as_posix(), 1, "not-built", "no target compiles this file: add it to a CMakeLists.txt"
                                                              " and configure again, or delete it"))
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--compile-commands", type=pathlib.Path, help="to check that every source is built")
    parser.add_argument("--not-built", action="append", default=[], help="folder that this build leaves out")
    arguments = parser.parse_args()
    findings = check_tree(arguments.root, arguments.compile_commands, arguments.not_built)
    for path, line, rule, message in findings:
        print(f"{path}:{line}: [{rule}] {message}")
    print(f"{len(findings)} finding(s)")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
