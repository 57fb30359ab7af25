"""tools/bench/compare_builds.py: what it concludes from rounds of figures, with programs that print given ones."""

import importlib.util
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv.pop(1))
SPEC = importlib.util.spec_from_file_location("compare_builds", SCRIPT)
compare_builds = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare_builds)


class Conclusions(unittest.TestCase):
    def test_interval_is_the_sign_tests(self):
        # Known order statistics: none below 6 values, the extremes for 6, the 6th from either end for 20.
        self.assertIsNone(compare_builds.median_interval([1.0] * 5))
        self.assertEqual(compare_builds.median_interval([3, 1, 2, 6, 5, 4]), (1, 6))
        self.assertEqual(compare_builds.median_interval(list(range(1, 21))), (6, 15))

    def test_verdicts(self):
        below = [0.99 + 0.001 * i for i in range(20)]
        self.assertEqual(compare_builds.verdict(below, 1.02), "ok")
        self.assertEqual(compare_builds.verdict([ratio + 0.1 for ratio in below], 1.02), "SLOWER")
        self.assertEqual(compare_builds.verdict([ratio + 0.02 for ratio in below], 1.02), "undecided")
        self.assertEqual(compare_builds.verdict([0.5] * 3, 1.02), "undecided")

    def test_one_slow_figure_decides(self):
        self.assertEqual(compare_builds.exit_code(["ok", "ok"]), 0)
        self.assertEqual(compare_builds.exit_code(["ok", "undecided"]), 3)
        self.assertEqual(compare_builds.exit_code(["undecided", "SLOWER"]), 1)


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, prefill, decode, layer="csa", code=0):
        path = self.folder / name
        row = f'{{"layer": "{layer}", "prefill_ms": {prefill}, "decode_ms": {decode}}}'
        path.write_text(f"#!/bin/sh\necho \"$*\" >>{self.folder}/calls\necho '{row}'\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def compare(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                              check=False)

    def test_a_slower_build_is_told_from_an_equal_one(self):
        base = self.program("base", 10, 1)
        equal = self.compare(base, self.program("new", 10, 1), "--rounds", 6, "--", "--threads", 2)
        self.assertEqual(equal.returncode, 0, equal)
        self.assertIn("csa   decode_ms", equal.stdout)
        self.assertEqual((self.folder / "calls").read_text().splitlines(), ["--json --threads 2"] * 12)
        slower = self.compare(base, self.program("new", 10, 1.05), "--rounds", 6)
        self.assertEqual(slower.returncode, 1, slower)
        self.assertRegex(slower.stdout, r"decode_ms +1\.000 +1\.050 +1\.050 +1\.050 \.\. 1\.050 +SLOWER")
        self.assertEqual(self.compare(base, self.folder / "new", "--rounds", 5).returncode, 3)

    def test_one_program_with_arguments_of_each_side(self):
        program = self.program("one", 10, 1)
        program.write_text(program.read_text().replace('"decode_ms": 1', "\"decode_ms\": '$3'"))
        done = self.compare(program, program, "--rounds", 6, "--limit", 1.2, "--base-argument=--steps",
                            "--base-argument=10", "--new-argument=--steps", "--new-argument=13", "--", "--last")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stdout, r"decode_ms +10\.000 +13\.000 +1\.300 .* SLOWER")
        self.assertEqual(set((self.folder / "calls").read_text().splitlines()),
                         {"--json --steps 10 --last", "--json --steps 13 --last"})
        self.assertEqual(self.compare(program, program, "--base-argument=x", "--new-argument=x").returncode, 2)

    def test_lanes_are_pinned_and_pooled(self):
        base, new = self.program("base", 10, 1), self.program("new", 10, 1)
        for path in (base, new):
            path.write_text(path.read_text().replace("$*", "$(taskset -pc $$ | sed 's/.*: //')"))
        processor = min(os.sched_getaffinity(0))
        pooled = self.compare(base, new, "--rounds", 3, "--lanes", f"{processor}:{processor}")
        self.assertEqual(pooled.returncode, 0, pooled)
        self.assertIn("of 6 rounds", pooled.stdout)
        self.assertEqual((self.folder / "calls").read_text().splitlines(), [str(processor)] * 12)

    def test_sigterm_ends_it_with_the_rounds_so_far(self):
        base, new = self.program("base", 10, 1), self.program("new", 10, 2)
        with subprocess.Popen([sys.executable, "-B", str(SCRIPT), str(base), str(new), "--rounds", "100000"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            for line in running.stderr:
                if line.startswith("round 8,"):
                    running.send_signal(signal.SIGTERM)
                    break
            out, _ = running.communicate(timeout=30)
        self.assertEqual(running.returncode, 1)
        self.assertRegex(out, r"decode_ms .* SLOWER")

    def test_failures_and_wrong_usage(self):
        base = self.program("base", 10, 1)
        for arguments, text in (((base, self.program("broken", 1, 1, code=4)), "exit code 4"),
                                ((base, self.program("other", 1, 1, layer="hca")), "different figures"),
                                ((base, self.folder / "none"), "no such program"),
                                ((base, base), "with itself"),
                                ((base, self.program("new", 10, 1), "--rounds", 0), "--rounds"),
                                ((base, self.folder / "new", "--lanes", "0;1"), "form"),
                                ((base, self.folder / "new", "--lanes", "100000"), "processor 100000"),
                                ((base, self.folder / "new", "--limit", "nan"), "--limit")):
            with self.subTest(text):
                done = self.compare(*arguments)
                self.assertEqual(done.returncode, 2, done)
                self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
