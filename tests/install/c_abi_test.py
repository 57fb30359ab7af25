#!/usr/bin/env python3
"""The C interface's binary compatibility: c_abi_test.py CC OLDER_INCLUDE INCLUDE

Programs that were built against the older header must be served by a library of today's. Both headers become libraries
of empty functions, and abidiff (abigail-tools) compares them: functions may be added, and structs that begin with
struct_size may grow at their ends; anything else is a break. Constants keep their values.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMPILER, OLDER, TODAY = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
GROWTH = "[suppress_type]\n  type_kind = struct\n  has_data_member_inserted_at = end\n"


def text_of(include):
    """The declarations of a header and of the one with its types, without comments."""
    headers = [include / "dsv4rt" / name for name in ("c_types.h", "c_api.h")]
    return "".join(re.sub(r"//[^\n]*", "", header.read_text()) for header in headers if header.exists())


def constants(text):
    return {name: int(value) for name, value in re.findall(r"\b(DSV4RT_\w+) = (-?\d+)", text)}


def fields(text):
    """The declarations of every struct's fields, in order."""
    return {name: [" ".join(field.split()) for field in body.split(";")[:-1]]
            for body, name in re.findall(r"typedef struct \w* ?\{(.*?)\} (\w+);", text, flags=re.DOTALL)}


class Comparison(unittest.TestCase):
    def setUp(self):
        self.assertTrue(shutil.which("abidiff"), "abidiff is missing: scripts/setup.sh installs it (abigail-tools)")
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def built(self, name, text):
        """A library whose functions have the declared types."""
        source, library = self.folder / f"{name}.c", self.folder / f"{name}.so"
        text = re.sub(r'^#include "dsv4rt/.*\n', "", text.replace("#pragma once", ""), flags=re.MULTILINE)
        text = re.sub(r"DSV4RT_EXPORT ([^;{]*\));", r"\1 { __builtin_trap(); }", text)
        source.write_text("#include <stddef.h>\n#include <stdint.h>\n" + text)
        subprocess.run([COMPILER, "-g", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
        return library

    def breaks(self, older, today):
        """What would fail for a program of the older header; empty if nothing would.

        abidiff takes a field that moved to the end for one that was added there, hence the first two."""
        for name, declared in fields(older).items():
            if fields(today).get(name, [])[:len(declared)] != declared:
                return f"{name} no longer begins with {declared}"
        for name, value in constants(older).items():
            if constants(today).get(name) != value:
                return f"{name} is not {value} any more"
        suppressions = self.folder / "growth.abignore"
        suppressions.write_text(GROWTH)
        found = subprocess.run(["abidiff", "--suppressions", suppressions, "--no-added-syms",
                                self.built("older", older), self.built("today", today)],
                               capture_output=True, text=True)
        self.assertEqual(found.stderr, "")
        return found.stdout if found.returncode else ""

    def test_older_programs_are_served(self):
        older, today = text_of(OLDER), text_of(TODAY)
        self.assertEqual(self.breaks(older, today), "")
        self.assertGreater(len(re.findall("DSV4RT_EXPORT", today)), len(re.findall("DSV4RT_EXPORT", older)))
        self.assertGreaterEqual(len(fields(older)), 8)
        self.assertGreater(len(constants(older)), 10)

    def test_breaks_are_found(self):
        today = text_of(TODAY)
        for what, change in {
            "a function is gone": (r"DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_fork\([^;]*;", ""),
            "an argument is wider": (r"(dsv4rt_engine_layers\([^;]*)int32_t", r"\1int64_t"),
            "a field came before others": (r"(typedef struct dsv4rt_snapshot_options \{\s*size_t struct_size;)",
                                           r"\1 int64_t new_field;"),
            "a field changed its type": (r"(typedef struct dsv4rt_step \{\s*)uint64_t", r"\1uint32_t"),
            "fields changed places": (r"int64_t reserve_tokens;\s*int64_t earliest_truncation;",
                                      "int64_t earliest_truncation; int64_t reserve_tokens;"),
            "a constant has another value": ("DSV4RT_STALE_HANDLE = 7", "DSV4RT_STALE_HANDLE = 8"),
        }.items():
            with self.subTest(what):
                broken, count = re.subn(*change, today)
                self.assertEqual(count, 1)
                self.assertNotEqual(self.breaks(today, broken), "")
        grown = today.replace("int64_t held_by;", "int64_t held_by; int64_t more;")
        self.assertNotEqual(grown, today)
        self.assertEqual(self.breaks(today, grown), "")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
