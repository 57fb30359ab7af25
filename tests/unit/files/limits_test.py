#!/usr/bin/env python3
"""Commands under limits of the system: limits_test.py PROGRAM HEAP_SHIM SOURCE_FOLDER [--all]

Each command runs with less and less memory (what heap_shim.c lets it hold, and its address space), descriptors, and
bytes in a file, and once more after each kind as if nothing had been. Under a limit it must end with the results of a
run without one, or with an exit code of docs/cli.md, a message, and every file that it writes absent or whole. Without
--all some limits of each kind are taken.
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

from small_inputs import make_small_inputs

PROGRAM, SHIM, SOURCE = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
ALL = "--all" in sys.argv[4:]
CONFIG = SOURCE / "configs" / "tiny.json"
FLASH = SOURCE / "configs" / "deepseek-v4-flash.json"
STEP_TABLE = SOURCE / "configs" / "step-table-h200.json"
LOG = SOURCE / "tests" / "data" / "logs" / "mooncake_synthetic_head200.jsonl"
TYPED = {1, 3, 5}
RESERVE_BYTES = 3 << 20  # tools/dsv4rt/memory_reserve.cpp


def limited(kind, limit):
    return lambda: resource.setrlimit(kind, (limit, limit))


def run(arguments, folder, budget=None, peak=None, before=None):
    environment = dict(os.environ)
    if budget is not None or peak is not None:
        environment["LD_PRELOAD"] = SHIM
    if budget is not None:
        environment["DSV4RT_HEAP_BUDGET"] = str(budget)
    if peak is not None:
        environment["DSV4RT_HEAP_PEAK"] = str(peak)
    return subprocess.run([PROGRAM, *map(str, arguments)], cwd=folder, env=environment, capture_output=True,
                          check=False, timeout=120, preexec_fn=before)


def sizes(folder):
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


class Limits(unittest.TestCase):
    refused = 0
    runs = 0

    @classmethod
    def setUpClass(cls):
        cls.inputs = tempfile.TemporaryDirectory()
        cls.given = pathlib.Path(cls.inputs.name)
        make_small_inputs(run, CONFIG, cls.given)
        model = ("--config", FLASH, "--step-table", STEP_TABLE, "--limit", "50")
        made = run(("replay", LOG, *model, "--json", "r.json"), cls.given)
        assert made.returncode == 0, made.stderr
        cls.commands = {
            "gen-checkpoint": ("--config", CONFIG, "--layers", "0-1", "--out", "out", "--max-shard-size", "1MB"),
            "gen-trace": ("--config", CONFIG, "--layers", "0-1", "--out", "t.st", "--prefill", "6", "--decode", "1"),
            "run": ("--checkpoint", cls.given / "ck", "--trace", cls.given / "t.st", "--layers", "0-1", "--threads",
                    "2", "--digest", "--json", "r.json"),
            "inspect": (cls.given / "ck", "--layers", "0-2", "--tensors", "--json", "i.json"),
            "plan": ("--config", FLASH, "--json", "p.json"),
            "replay": (LOG, *model, "--requests", "q", "--timeline", "t", "--metrics", "m", "--json", "j.json"),
            "report": (cls.given / "r.json", "--out", "page.html"),
            "convert-log": (LOG, "n.jsonl", "--json", "j.json"),
        }

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.runs} runs under limits, {cls.refused} of them refused")
        cls.inputs.cleanup()

    def under(self, command, expected, **limits):
        """Runs it under limits, judges what it leaves and tells whether it was refused."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = run((command, *self.commands[command]), folder, **limits)
            type(self).runs += 1
            said = done.stderr.decode(errors="replace")
            found = sizes(folder)
            if done.returncode == 0:
                self.assertEqual(set(found), set(expected), said)
                return False
            type(self).refused += 1
            self.assertIn(done.returncode, TYPED, said)
            self.assertIn("error: ", said)
            self.assertEqual([path for path in found if "partial" in path], [], said)
            self.assertLessEqual(set(found), set(expected), said)
            if any(path.startswith("out/") for path in expected):
                self.assertEqual(found, {}, said)
            return True

    def without(self, command, peak=None):
        with tempfile.TemporaryDirectory() as name:
            done = run((command, *self.commands[command]), name, peak=peak)
            self.assertEqual(done.returncode, 0, done.stderr)
            return sizes(pathlib.Path(name))

    def sweep(self, limits, least_refused, run_under):
        """`run_under(command, expected, limit)` for all; each command is refused `least_refused` times or more."""
        for command in self.commands:
            expected = self.without(command)
            refused = 0
            for limit in limits:
                with self.subTest(command=command, limit=limit):
                    refused += run_under(command, expected, limit)
            self.assertGreaterEqual(refused, least_refused, command)

    def test_heap(self):
        for command in self.commands:
            with tempfile.TemporaryDirectory() as name:
                file = pathlib.Path(name) / "peak"
                expected = self.without(command, file)
                peak = int(file.read_text())
            refused = 0
            # What lies between the reserve and the most that the command takes, down to nothing but the reserve.
            points = 400 if ALL else 12
            for point in range(points):
                budget = RESERVE_BYTES + (peak - RESERVE_BYTES) * point // points
                with self.subTest(command=command, budget=budget, peak=peak):
                    refused += self.under(command, expected, budget=budget)
            self.assertGreater(refused, 0, command)

    def test_address_space(self):
        limits = [mib << 20 for mib in (range(20, 400, 5) if ALL else (48, 96, 160))]

        def under(command, expected, limit):
            probe = subprocess.run([PROGRAM, "version"], capture_output=True, check=False,
                                   preexec_fn=limited(resource.RLIMIT_AS, limit))
            if probe.returncode == 127:
                return False  # the loader finds no room for the libraries
            return self.under(command, expected, before=limited(resource.RLIMIT_AS, limit))

        self.sweep(limits, 0, under)

    def test_descriptors(self):
        self.sweep(range(4, 16) if ALL else (4, 5, 6, 8), 1,
                   lambda command, expected, limit: self.under(command, expected,
                                                               before=limited(resource.RLIMIT_NOFILE, limit)))

    def test_file_size(self):
        limits = [0, *(1 << bit for bit in range(0, 24))] if ALL else [0, 100, 4096]
        self.sweep(limits, 1,
                   lambda command, expected, limit: self.under(command, expected,
                                                               before=limited(resource.RLIMIT_FSIZE, limit)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
