#!/usr/bin/env python3
"""What lost_rank_trials.py makes of ranks' reports, which a program in the place of mpirun writes:
lost_rank_trials_test.py SCRIPT"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(sys.argv[1])
# Called with the number of ranks, the program, the folder of reports, the trial and the backend. Rank 0 is killed.
MPIEXEC = """
import pathlib, sys
ranks, folder, trial = int(sys.argv[1]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
reports = {0: ["ok after 2.25 s", "ok after 4.50 s"], 2: ["ok", "the step took 5 s"], 3: ["ok"],
           4: ["ok after the step took 5 s", "ok"]}
for i, text in enumerate(reports.get(trial, ["ok"] * (ranks - 1))):
    (folder / str(i + 1)).write_text(text + "\\n")
"""


class LostRankTrials(unittest.TestCase):
    def run_trials(self, first, trials):
        with tempfile.TemporaryDirectory() as folder:
            mpiexec = pathlib.Path(folder) / "mpiexec.py"
            mpiexec.write_text(MPIEXEC)
            command = [sys.executable, "-B", str(SCRIPT), "program", "--ranks", "3", "--first", str(first), "--trials",
                       str(trials), "--", sys.executable, str(mpiexec)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=50)
        return done.returncode, done.stdout.splitlines()

    def test_every_rank_says_ok(self):
        status, lines = self.run_trials(10, 2)
        self.assertEqual(status, 0)
        self.assertEqual(len(lines), 1)
        self.assertRegex(lines[0], r"^2 of 2 trials ok, the longest took [\d.]+ s$")

    def test_what_was_given_back_late_is_told(self):
        status, lines = self.run_trials(0, 2)
        self.assertEqual(status, 0)
        self.assertEqual(lines[0], "what lost engines held was given back up to 4.5 s after their end")
        self.assertRegex(lines[1], r"^2 of 2 trials ok, ")

    def test_other_reports_and_none_are_failures(self):
        status, lines = self.run_trials(2, 3)
        self.assertEqual(status, 1)
        self.assertEqual(lines[0], "trial 2 of 3 ranks: rank 2: the step took 5 s")
        self.assertEqual(lines[1], "trial 3 of 3 ranks: 1 of 2 ranks have told what they saw: ")
        self.assertEqual(lines[2], "trial 4 of 3 ranks: rank 1: ok after the step took 5 s")
        self.assertRegex(lines[3], r"^0 of 3 trials ok, ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
