#!/usr/bin/env python3
"""Commands that are killed at a random moment: kill_test.py PROGRAM SOURCE_FOLDER [TRIALS]

Every command that writes is ended by SIGKILL after a random part of the time that it takes, TRIALS times (20 unless
told). What it was to write must be absent, as it was before, or whole, and the next run over what is left must succeed
or say what is in its way.
"""

import hashlib
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
TRIALS = int(sys.argv[3]) if len(sys.argv) > 3 else 20
CONFIG = SOURCE / "configs" / "tiny.json"
FLASH = SOURCE / "configs" / "deepseek-v4-flash.json"
LOG = SOURCE / "tests" / "data" / "logs" / "mooncake_synthetic_head200.jsonl"
OLD = b"what was there before"


def run(arguments, folder):
    return subprocess.run([PROGRAM, *map(str, arguments)], cwd=folder, capture_output=True, check=False, timeout=120)


def tree(folder):
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file() and ".partial" not in path.name}


class Kills(unittest.TestCase):
    random = random.Random(20261123)
    killed = 0

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.killed} processes were killed amid their work")

    def sweep(self, arguments, writes, stable=True):
        """`writes` are the files that exist before; those of a `stable` command are the same in every run."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "f"

            def begin():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                for file in writes:
                    (folder / file).write_bytes(OLD)

            begin()
            before = tree(folder)
            started = time.monotonic()
            clean = run(arguments, folder)
            takes = time.monotonic() - started
            self.assertEqual(clean.returncode, 0, clean.stderr)
            whole = tree(folder)
            for trial in range(TRIALS):
                begin()
                wait = takes * self.random.uniform(0, 1.1)
                process = subprocess.Popen([PROGRAM, *map(str, arguments)], cwd=folder, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                try:
                    process.wait(wait)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    type(self).killed += 1
                with self.subTest(command=arguments[0], trial=trial, after=wait):
                    for file, digest in tree(folder).items():
                        self.assertIn(file, whole)
                        if stable:
                            self.assertIn(digest, (before.get(file), whole[file]), file)
                    if any(file.startswith("out/") for file in whole) and len(tree(folder)) < len(whole):
                        self.assertNotIn("out/config.json", tree(folder))  # it comes last
                    # A folder that holds shards already is refused as an argument, and says so.
                    holds_shards = any((folder / "out").glob("*.safetensors"))
                    after = run(arguments, folder)
                    self.assertEqual(after.returncode, 2 if holds_shards else 0, after.stderr)

    def test_gen_checkpoint(self):
        self.sweep(("gen-checkpoint", "--config", CONFIG, "--layers", "0-3", "--out", "out", "--max-shard-size", "1MB"),
                   ())

    def test_gen_trace(self):
        self.sweep(("gen-trace", "--config", CONFIG, "--layers", "0-1", "--out", "t.st", "--prefill", "60", "--decode",
                    "4", "--force"), ("t.st",))

    def test_convert_log(self):
        self.sweep(("convert-log", LOG, "n.jsonl", "--force"), ("n.jsonl",))

    def test_replay(self):
        self.sweep(("replay", LOG, "--execute", "model", "--config", FLASH, "--step-table",
                    SOURCE / "configs" / "step-table-h200.json", "--requests", "q", "--timeline", "t", "--metrics",
                    "m", "--force"), ("q", "t", "m"), stable=False)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
