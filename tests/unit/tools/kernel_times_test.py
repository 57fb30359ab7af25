#!/usr/bin/env python3
"""Time by kernel from a trace of replays: kernel_times_test.py FOLDER_OF_THE_SCRIPT"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv[1])
import kernel_times  # noqa: E402

X = "void dsv4rt::cuda::linear_splitk_kernel<16, 4, 1>(dsv4rt::cuda::LinearParams)"
ATTEND = "void dsv4rt::cuda::(anonymous namespace)::attend_kernel<(dsv4rt::cuda::RowFormat)1, 8>(dsv4rt::cuda::P)"
SCORES = "dsv4rt::cuda::score_kernel(dsv4rt::cuda::ScoreParams)"
OUT = "void dsv4rt::cuda::linear_tile_kernel<128, 2>(dsv4rt::cuda::LinearParams)"
ROUND = "void dsv4rt::cuda::(anonymous namespace)::round_input_kernel<true>(dsv4rt::cuda::RoundInputParams)"
# A layer that selects and one that does not: the kernels, each with the time that it adds.
SELECTING = ((X, 10), (SCORES, 20), (ATTEND, 30), (OUT, 5), (ROUND, 2), (OUT, 7))
OTHER = ((X, 11), (ATTEND, 31), (OUT, 6), (ROUND, 2), (OUT, 8))


def replay(correlation, layers, begin, graph=4):
    """Lines of a replay whose kernels begin before the one in front has ended; the times are in us."""
    lines, end = [], begin
    for name, us in (kernel for layer in layers for kernel in layer):
        start = max(begin, end - 3000)
        end += us * 1000
        lines.append(f"{correlation}\t{graph}\t{start}\t{end}\t{name}\n")
    return lines


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.trace = pathlib.Path(folder.name) / "trace.tsv"

    def tables_of(self, *parts):
        self.trace.write_text("".join(line for part in parts for line in part))
        return kernel_times.tables(self.trace)

    def test_names_lose_what_is_not_theirs(self):
        self.assertEqual(kernel_times.short_name(X), "linear_splitk_kernel<16, 4, 1>")
        self.assertEqual(kernel_times.short_name(ATTEND), "attend_kernel<1, 8>")
        self.assertEqual(kernel_times.short_name(SCORES), "score_kernel")
        self.assertEqual(kernel_times.short_name("memcpy"), "memcpy")

    def test_a_kernel_takes_what_its_end_comes_later(self):
        layers = (SELECTING, OTHER, SELECTING)
        first = replay(1, [[(name, 9 * us) for name, us in layer] for layer in layers], 0)
        [table] = self.tables_of(first, replay(2, layers, 10**6), replay(3, layers, 2 * 10**6))
        self.assertEqual((table["replays"], table["kernels"]), (2, 17))
        self.assertAlmostEqual(table["us"], 2 * 74 + 58)
        selecting, other = table["groups"]
        self.assertEqual((selecting["layers"], other["layers"]), (2, 1))
        self.assertAlmostEqual(selecting["us"], 74)
        self.assertEqual([kernel["name"] for kernel in other["kernels"]],
                         ["linear_splitk_kernel<16, 4, 1>", "attend_kernel<1, 8>", "linear_tile_kernel<128, 2>",
                          "round_input_kernel<true>", "linear_tile_kernel<128, 2>"])
        for kernel, (_, us) in zip(selecting["kernels"], SELECTING):
            self.assertAlmostEqual(kernel["us"], us)

    def test_kernels_come_in_any_order_and_graphs_apart(self):
        one, two = replay(7, [OTHER], 0), replay(8, [OTHER], 10**6)
        eager = (replay(number, [SELECTING], number * 10**6, graph=0) for number in (11, 12))
        tables = self.tables_of(one, reversed(two), replay(9, [SELECTING], 2 * 10**6, graph=5),
                                replay(10, [SELECTING], 3 * 10**6, graph=5), *eager)
        self.assertEqual([(table["graph"], table["us"]) for table in tables], [(4, 58), (5, 74)])

    def test_eager_steps_are_whole_prompts_not_their_halves(self):
        def step(number, layers):
            begin = number * 10**6
            tables = f"{100 * number}\t0\t{begin - 900000}\t{begin - 800000}\tapply_deltas_kernel(int)\n"
            return [tables, *replay(number, layers, begin, graph=0)]

        half = [[(name, us // 2) for name, us in layer] for layer in (SELECTING, OTHER)]
        whole = (SELECTING, OTHER)
        self.tables_of(replay(90, whole, 0),
                       *(step(number, half if number in (2, 3) else whole) for number in range(1, 6)))
        [table] = kernel_times.tables(self.trace, eager=True)
        self.assertEqual((table["graph"], table["replays"], table["kernels"]), (0, 2, 11))
        self.assertAlmostEqual(table["us"], 74 + 58)
        self.assertEqual([group["layers"] for group in table["groups"]], [1, 1])
        self.assertEqual([round(group["us"]) for group in table["groups"]], [74, 58])

    def test_what_cannot_be_read_is_said(self):
        once = "".join(replay(1, [OTHER], 0))
        for text, what, flags in (("1\t4\t0\tx\tname\n", "line 1", []), (once, "replayed twice", []),
                                  (once, "no eager step", ["--eager"])):
            self.trace.write_text(text)
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                self.assertEqual(kernel_times.main([str(self.trace), *flags]), 2)
            self.assertIn(what, err.getvalue())

    def test_the_table_is_json_too(self):
        self.tables_of(replay(1, [OTHER], 0), replay(2, [OTHER], 10**6))
        out, file = io.StringIO(), self.trace.with_suffix(".json")
        with contextlib.redirect_stdout(out):
            self.assertEqual(kernel_times.main([str(self.trace), "--json", str(file)]), 0)
        self.assertIn("1 layers of 58.0 us", out.getvalue())
        self.assertEqual(json.loads(file.read_text())[0]["groups"][0]["kernels"][1],
                         {"name": "attend_kernel<1, 8>", "us": 31.0})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
