#!/usr/bin/env python3
"""Every system call on a file fails once: io_faults_test.py PROGRAM SHIM SOURCE_FOLDER [--all]

For each command and each kind of call the shim knows, the command is run with the n-th call failing. It must end with
an exit code of docs/cli.md; if that is 0 its results are those of a run without faults; otherwise every file that it
writes is absent, as it was before, or whole, and no temporary file is left. Without --all some numbers of each kind
are taken, the first and the last among them.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from small_inputs import make_small_inputs

PROGRAM, SHIM, SOURCE = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
POINTS_OF_A_KIND = 10**9 if "--all" in sys.argv[4:] else 4
CONFIG = SOURCE / "configs" / "tiny.json"
LOG = SOURCE / "tests" / "data" / "logs" / "mooncake_synthetic_head200.jsonl"
TYPED = {1, 3, 5}
KILLED = {"kill": -9, "term": -15}


def run(arguments, folder, fault=None, counts=None):
    environment = dict(os.environ, LD_PRELOAD=SHIM, ASAN_OPTIONS="verify_asan_link_order=0")
    if fault:
        environment["DSV4RT_FAULT"] = fault
    if counts:
        environment["DSV4RT_FAULT_COUNTS"] = str(counts)
    return subprocess.run([PROGRAM, *map(str, arguments)], cwd=folder, env=environment, capture_output=True,
                          check=False, timeout=60)


def tree(folder):
    """Names and digests of the files in a folder."""
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def chosen_points(count):
    if count <= POINTS_OF_A_KIND:
        return range(1, count + 1)
    return sorted({1 + i * (count - 1) // (POINTS_OF_A_KIND - 1) for i in range(POINTS_OF_A_KIND)})


class IoFaults(unittest.TestCase):
    points = 0
    failed = 0

    @classmethod
    def setUpClass(cls):
        cls.inputs = tempfile.TemporaryDirectory()
        cls.given = pathlib.Path(cls.inputs.name)
        make_small_inputs(run, CONFIG, cls.given)

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.points} points hit, {cls.failed} of them failed the command")
        cls.inputs.cleanup()

    def copy_of_inputs(self):
        shutil.rmtree(self.given / "in", ignore_errors=True)
        shutil.copytree(self.given / "ck", self.given / "in" / "ck")
        shutil.copy(self.given / "t.st", self.given / "in")
        shutil.copy(LOG, self.given / "in" / "log.jsonl")

    def sweep(self, arguments, kinds, comparable=lambda name: True):
        with tempfile.TemporaryDirectory() as name:
            folder, counts = pathlib.Path(name) / "f", pathlib.Path(name) / "counts"
            folder.mkdir()
            self.copy_of_inputs()
            clean = run(arguments, folder, counts=counts)
            self.assertEqual(clean.returncode, 0, clean.stderr)
            expected = tree(folder)
            called = dict(line.split() for line in counts.read_text().splitlines())
            for kind in kinds:
                self.assertGreater(int(called[kind]), 0, (arguments[0], kind))
                for number in chosen_points(int(called[kind])):
                    shutil.rmtree(folder)
                    folder.mkdir()
                    if kind == "shrink":
                        self.copy_of_inputs()
                    done = run(arguments, folder, fault=f"{kind}:{number}")
                    with self.subTest(command=arguments[0], kind=kind, number=number):
                        self.check(kind, done, tree(folder), expected, comparable)

    def check(self, kind, done, found, expected, comparable):
        type(self).points += 1
        said = done.stderr.decode(errors="replace")
        found = {name: digest for name, digest in found.items() if comparable(name)}
        expected = {name: digest for name, digest in expected.items() if comparable(name)}
        if done.returncode == 0:
            self.assertEqual(found, expected, said)
            return
        type(self).failed += 1
        if kind in KILLED:
            self.assertEqual(done.returncode, KILLED[kind], said)
        else:
            self.assertIn(done.returncode, TYPED, said)
            self.assertIn("error: ", said)
        left = [name for name in found if "partial" in name]
        if kind != "kill":
            self.assertEqual(left, [])
        for name, digest in found.items():
            if name not in left:
                self.assertEqual(digest, expected[name], name)
        # Without the config, which comes last, a checkpoint does not load.
        if any(name.startswith("out/") for name in expected) and len(found) < len(expected):
            self.assertNotIn("out/config.json", found)
            if kind not in KILLED:
                self.assertEqual(found, {})

    WRITING = ("open", "write", "short", "close", "rename", "fsync", "kill", "term")

    def test_gen_checkpoint(self):
        self.sweep(("gen-checkpoint", "--config", CONFIG, "--layers", "0-1", "--out", "out", "--max-shard-size", "1MB"),
                   (*self.WRITING, "stat", "read", "mkdir"))

    def test_gen_trace(self):
        self.sweep(("gen-trace", "--config", CONFIG, "--layers", "0-1", "--out", "t.st", "--prefill", "6", "--decode",
                    "1"), (*self.WRITING, "stat", "read"))

    def test_run(self):
        given = self.given / "in"
        self.sweep(("run", "--checkpoint", given / "ck", "--trace", given / "t.st", "--layers", "0-1", "--threads", "1",
                    "--digest", "--json", "r.json", "--chrome-trace", "c.json"),
                   (*self.WRITING, "stat", "read", "mmap", "shrink"), comparable=lambda name: name.endswith("partial"))

    def test_inspect(self):
        self.sweep(("inspect", self.given / "in" / "ck", "--layers", "0-2", "--tensors", "--json", "i.json"),
                   (*self.WRITING, "stat", "read", "mmap", "shrink"))

    def test_replay(self):
        self.sweep(("replay", LOG, "--execute", "model", "--config", SOURCE / "configs" / "deepseek-v4-flash.json",
                    "--step-table", SOURCE / "configs" / "step-table-h200.json", "--limit", "20", "--requests", "q",
                    "--timeline", "t", "--metrics", "m", "--json", "j.json"),
                   # SIGTERM ends a replay with the report so far. The report has wall times.
                   (*(kind for kind in self.WRITING if kind != "term"), "stat", "read"),
                   comparable=lambda name: name != "j.json")

    def test_convert_log(self):
        self.sweep(("convert-log", LOG, "n.jsonl", "--json", "j.json"), (*self.WRITING, "stat", "read"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
