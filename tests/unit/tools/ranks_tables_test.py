#!/usr/bin/env python3
"""Tables of runs on several GPUs, from logs as the programs write them, and what the script says to too few GPUs:
ranks_tables_test.py FOLDER_OF_THE_SCRIPT"""

import contextlib
import copy
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(SCRIPTS))
import ranks_tables  # noqa: E402


def layers(outputs="a"):
    return {"layers": [{"layer": i, "sha256": {"output": f"{outputs}{i}", "cache": f"c{i}"}} for i in range(3)]}


def steps(first, second, **more):
    return {"steps": [{"batch": 1, "context": 8192, "captured_ms": first, "eager_ms": 9.0, **more},
                      {"batch": 32, "context": 32768, "captured_ms": second, "eager_ms": 9.0, **more}]}


GOOD = {
    "tiny-fp8_one": layers(), "tiny-fp8_cp": layers(),
    "tiny-bf16_one": layers(), "tiny-bf16_cp": layers(), "tiny-bf16_tp": layers("b"),
    "step_one": steps(2.0, 4.0), "step_one_again": steps(2.1, 4.0),
    "step_tp": steps(1.2, 2.8, exchange_us=9.4, exchange_share=0.33),
    "prefill_one": {"prefills": [{"tokens": 65536, "prefill_ms": 1900.0}]},
    "prefill_cp": {"prefills": [{"tokens": 65536, "prefill_ms": 1000.0}]},
    "engines": {"steps": [{"batch": 1, "context": 8192, "times_one_engine": 1.99, "together_tokens_per_s": 995.0,
                           "engines": [{"alone_ms": 2.0, "together_ms": 2.01},
                                       {"alone_ms": 2.0, "together_ms": 2.02}]}]},
}
LOST = "trial 3 of 2 ranks: something\n20 of 20 trials ok, the longest took 6.1 s\n"
MEMCHECK = "========= ERROR SUMMARY: 0 errors\nlayer 0 output sha256:12\n========= ERROR SUMMARY: 0 errors\n"


class Tables(unittest.TestCase):
    def table(self, change=lambda logs: None, arguments=()):
        """(exit code, the rows of the table by what they are of) of a good run after `change`."""
        logs = {"reports": copy.deepcopy(GOOD), "status": {}, "text": {"lost": LOST, "memcheck": MEMCHECK}}
        logs["status"] = {name: 0 for name in (*GOOD, "gpu_tests", "mpi_tests", "lost", "memcheck")}
        change(logs)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for report, content in logs["reports"].items():
                (folder / f"{report}.json").write_text(json.dumps(content))
            for program, status in logs["status"].items():
                (folder / f"{program}.status").write_text(f"{status}\n")
            for program, text in logs["text"].items():
                (folder / f"{program}.log").write_text(text)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                code = ranks_tables.main([name, "--markdown", str(folder / "table.md"), *arguments])
            rows = [[cell.strip() for cell in line.strip("|\n").split("|")]
                    for line in (folder / "table.md").read_text().splitlines()[2:]]
            self.assertEqual(len(rows), len(out.getvalue().splitlines()))
            return code, {row[0]: row[1:] for row in rows}

    def missed(self, change, arguments=()):
        code, rows = self.table(change, arguments)
        self.assertEqual(code, 1)
        return {what for what, row in rows.items() if row[2] == "MISSED"}

    def test_a_good_run(self):
        code, rows = self.table()
        self.assertEqual(code, 0)
        self.assertFalse([what for what, row in rows.items() if row[2] == "MISSED"])
        self.assertEqual(rows["decode 1 x 8192"],
                         ["2.000 ms on one GPU (later 2.100), 1.200 ms on 2: 0.600", "<= 0.62", "ok"])
        self.assertEqual(rows["decode 32 x 32768"][0].split()[-1], "0.700")
        self.assertEqual(rows["sum of the ranks' outputs"][0], "9.4 us a layer, 33.0 % of the step")
        self.assertEqual(rows["prefill 65536"],
                         ["1900.0 ms on one GPU, 1000.0 ms on 2: 1.900 times as fast", ">= 1.85", "ok"])
        self.assertIn("1.990 times one engine; a step takes up to 1.010 times as long", rows["2 engines, 1 x 8192"][0])
        self.assertEqual(rows["lost ranks"], ["20 of 20 trials ok, the longest took 6.1 s", "20 of 20", "ok"])

    def test_every_target_can_be_missed(self):
        def set_to(report, key, number, value):
            def change(logs):
                logs["reports"][report][key][0 if number == 0 else number].update(value)
            return change
        self.assertEqual(self.missed(set_to("step_tp", "steps", 0, {"captured_ms": 1.3})), {"decode 1 x 8192"})
        self.assertEqual(self.missed(set_to("step_tp", "steps", 1, {"captured_ms": 2.9})), {"decode 32 x 32768"})
        self.assertEqual(self.missed(set_to("step_tp", "steps", 1, {"captured_ms": 0})),
                         {"decode, tp 2", "decode 32 x 32768"})
        self.assertEqual(self.missed(set_to("prefill_cp", "prefills", 0, {"prefill_ms": 1040.0})), {"prefill 65536"})
        self.assertEqual(self.missed(set_to("engines", "steps", 0, {"times_one_engine": 1.97})),
                         {"2 engines, 1 x 8192"})
        self.assertEqual(self.missed(set_to("tiny-bf16_tp", "layers", 1, {"sha256": {"output": "b1", "cache": "d"}})),
                         {"tiny-bf16, tp 2"})
        self.assertEqual(self.missed(set_to("tiny-bf16_cp", "layers", 1, {"sha256": {"output": "b1", "cache": "c1"}})),
                         {"tiny-bf16, cp 2"})
        self.assertEqual(self.missed(lambda logs: logs["reports"]["tiny-fp8_cp"]["layers"].pop()), {"tiny-fp8, cp 2"})
        for name, text, what in (("lost", LOST.replace("20 of", "19 of"), "lost ranks"),
                                 ("memcheck", MEMCHECK.replace("0 errors", "1 error"), "memcheck"),
                                 ("memcheck", MEMCHECK.split("\n", maxsplit=1)[0], "memcheck")):
            self.assertEqual(self.missed(lambda logs, name=name, text=text: logs["text"].update({name: text})), {what})

    def test_what_failed_or_was_not_run_is_missed(self):
        for name, what in (("gpu_tests", "tests of several GPUs"), ("mpi_tests", "tests of ranks on the CPU"),
                           ("tiny-bf16_tp", "tiny-bf16, tp 2"), ("step_tp", "decode, tp 2"),
                           ("prefill_one", "prefill, cp 2"), ("engines", "2 engines"), ("lost", "lost ranks"),
                           ("memcheck", "memcheck")):
            self.assertEqual(self.missed(lambda logs, name=name: logs["status"].pop(name)), {what})
            self.assertEqual(self.missed(lambda logs, name=name: logs["status"].update({name: 4})), {what})

    def test_four_ranks_have_targets_of_their_own(self):
        def four(logs):
            logs["reports"]["step_tp"] = steps(0.9, 3.9, exchange_us=9.4, exchange_share=0.33)
            logs["reports"]["prefill_cp"]["prefills"][0]["prefill_ms"] = 540.0
            logs["text"]["memcheck"] = 2 * MEMCHECK
            engine = logs["reports"]["engines"]["steps"][0]
            engine["engines"] *= 2
            engine["times_one_engine"] = 3.97
        code, rows = self.table(four, ("--ranks", "4"))
        self.assertEqual(code, 0, rows)
        self.assertEqual(rows["decode 1 x 8192"][1:], ["<= 0.45", "ok"])
        self.assertEqual(rows["decode 32 x 32768"][1:], ["", ""])
        self.assertEqual(rows["prefill 65536"][1:], [">= 3.5", "ok"])

    def test_parts_ask_for_their_own_results(self):
        self.assertEqual(self.missed(lambda logs: logs["status"].clear(), ("--parts", "build,lost")), {"lost ranks"})


class Script(unittest.TestCase):
    def run_with(self, gpus, *arguments):
        with tempfile.TemporaryDirectory() as name:
            shown = pathlib.Path(name) / "nvidia-smi"
            shown.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {i}: some'\n" for i in range(gpus)))
            shown.chmod(0o755)
            (pathlib.Path(name) / "mpirun").symlink_to(shown)
            environment = {**os.environ, "PATH": f"{name}:{os.environ['PATH']}", "LD_LIBRARY_PATH": name}
            return subprocess.run([SCRIPTS / "ranks.sh", "--build-dir", name + "/build", *arguments], text=True,
                                  capture_output=True, env=environment, check=False)

    def test_too_few_gpus_are_refused(self):
        for gpus, ranks in ((0, 2), (1, 2), (3, 4)):
            done = self.run_with(gpus, "--ranks", str(ranks))
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(f"{ranks} ranks need {ranks} GPUs, and this machine shows {gpus}; nothing was run",
                          done.stderr)
            self.assertEqual(done.stdout, "")

    def test_enough_gpus_are_not(self):
        done = self.run_with(2, "--parts", "check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("holds no build", done.stderr)

    def test_options_are_checked(self):
        for arguments, words in ((("--ranks", "3"), "2, 4 or 8"), (("--parts", "build,all"), "'all' is none of"),
                                 (("--trials", "0"), "above 0"), (("--what",), "unknown option"),
                                 (("--ranks",), "needs a value")):
            done = self.run_with(2, *arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
