#!/usr/bin/env python3
"""Tables of GPU runs from lines as the benchmarks print them: bench_tables_test.py FOLDER_OF_THE_SCRIPT"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1])
import bench_tables  # noqa: E402

ATTEND = """decode csa flash           B=30  rows/token    640      19.50 us  floor     3.50  ratio  5.57  error 1.0e-03
decode csa flash           B=31  rows/token    640      25.30 us  floor     3.60  ratio  7.03  error 1.0e-03
decode csa flash           B=64  rows/token    640      28.90 us  floor     7.50  ratio  3.85  error 1.0e-03
"""
LINEAR = """# wo_b: 33.6 MB of weights, 4 sets, packed at 1.20 GB/s
wo_b            exact    T   128      25.70 us  floor     8.50  ratio  3.02     800 GB/s     300 TFLOP/s  nodes 1
"""
SELECTION = ("fp8    B    1 n   32768 tokens     1 | op    16.20 us (2 nodes) scan     6.20 floor    1.00 ratio  6.20 "
             "top-k   10.00 | right\n"
             "mxfp4  B   32 n 1024..32768 tokens    32 | op    29.67 us (1 nodes) scan    16.44 floor    6.46 "
             "ratio  2.55 top-k   13.30 | right\n")
BOUNDARY = "a state out of the rings 1 launch      5.10 us  floor   1.90  x2.68\n"
STEPS = {"steps": [{"batch": 32, "context": 32768, "captured_ms": 4.0, "eager_ms": 4.3, "floor_ms": 1.4},
                   {"batch": 33, "context": 32768, "captured_ms": 4.8, "eager_ms": 5.0, "floor_ms": 1.5},
                   {"batch": 32, "context": 32768, "captured_ms": 3.5, "eager_ms": 3.8, "floor_ms": 1.3,
                    "shortest_context": 1024}]}


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = pathlib.Path(folder.name)
        for name, text in (("attend", ATTEND), ("linear", LINEAR), ("indexer_topk", SELECTION), ("boundary", BOUNDARY)):
            (self.logs / f"bench_{name}_gpu.log").write_text(text)
        (self.logs / "whole_step.json").write_text(json.dumps(STEPS))

    def run_script(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = bench_tables.main([str(self.logs), *map(str, arguments)])
        return code, out.getvalue(), err.getvalue()

    def test_every_kind_of_line_is_read(self):
        cases = bench_tables.read_logs(self.logs)
        self.assertEqual(set(cases), {
            "attend decode csa flash B=30", "attend decode csa flash B=31", "attend decode csa flash B=64",
            "linear wo_b exact T=128", "indexer_topk fp8 B=1 n=32768 tokens 1 scan and top-k",
            "indexer_topk fp8 B=1 n=32768 tokens 1 scan",
            "indexer_topk mxfp4 B=32 n=1024..32768 tokens 32 scan and top-k",
            "indexer_topk mxfp4 B=32 n=1024..32768 tokens 32 scan", "boundary a state out of the rings",
            "whole_step 32x32768", "whole_step 33x32768", "whole_step 32x1024..32768"})
        self.assertEqual(cases["linear wo_b exact T=128"], {"us": 25.7, "floor_us": 8.5})
        self.assertEqual(cases["whole_step 33x32768"], {"us": 4800.0, "floor_us": 1500.0})

    def test_cliffs_are_between_neighbours_alone(self):
        steps = bench_tables.cliffs(bench_tables.read_logs(self.logs))
        self.assertEqual([(a, b) for a, b, _ in steps],
                         [("attend decode csa flash B=30", "attend decode csa flash B=31"),
                          ("whole_step 32x32768", "whole_step 33x32768")])
        self.assertAlmostEqual(steps[0][2], 25.3 / 19.5)

    def test_a_loss_fails_and_is_named(self):
        saved = self.logs / "saved.json"
        self.assertEqual(self.run_script("--json", saved)[0], 0)
        self.assertEqual(self.run_script("--baseline", saved)[0], 0)
        (self.logs / "bench_linear_gpu.log").write_text(LINEAR.replace("25.70", "26.60"))
        code, out, err = self.run_script("--baseline", saved)
        self.assertEqual(code, 1)
        self.assertIn("1 cases lost more than 3%: linear wo_b exact T=128", err)
        self.assertIn("| linear wo_b exact T=128 | 25.7 | 26.6 | 1.035 |", out)
        self.assertEqual(self.run_script("--baseline", saved, "--tolerance", "0.04")[0], 0)

    def test_nothing_to_read_or_compare_is_an_error(self):
        other = self.logs / "other.json"
        other.write_text('{"cases": {"attend something": {"us": 1, "floor_us": 1}}}')
        self.assertEqual(self.run_script("--baseline", other)[0], 2)
        other.write_text('{"steps": []}')
        self.assertEqual(self.run_script("--baseline", other)[0], 2)
        for path in self.logs.glob("*_gpu.log"):
            path.write_text("WRONG\n")
        (self.logs / "whole_step.json").unlink()
        self.assertEqual(self.run_script()[0], 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
