#!/usr/bin/env python3
"""What `dsv4rt replay` and `dsv4rt convert-log` print, write and exit with: replay_cli_test.py PROGRAM LOG_FOLDER"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, LOGS = sys.argv[1], pathlib.Path(sys.argv[2])
CONVERSATION = LOGS / "mooncake_conversation_head1000.jsonl"
SAMPLE_THAT_IS_REFUSED = LOGS / "qwen_bailian_format_sample.jsonl"


def run(*arguments, stdin=None):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, input=stdin, check=False)


class Replay(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_table_and_json_agree(self):
        report = self.folder / "report.json"
        done = run("replay", CONVERSATION, "--execute", "none", "--policy", "belady", "--json", report)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.decode().splitlines() if line.split()[1:] and "." in line[-6:]]
        rows = [row for row in rows if len(row) == 7]
        entries = json.loads(report.read_text())["capacities"]
        self.assertEqual(len(rows), 4)
        for row, entry in zip(rows, entries):
            self.assertEqual(row[:5], [str(entry[key]) for key in ("capacity_tokens", "capacity_blocks", "hit_tokens",
                                                                   "computed_tokens", "hit_requests")])
            self.assertEqual(row[5], f"{entry['hit_rate']:.4f}")
            self.assertEqual(row[6], f"{entry['lru']['hit_rate']:.4f}")
            self.assertEqual(entry["hit_tokens"] + entry["computed_tokens"], 13732944)

    def test_json_on_stdout_replaces_the_table(self):
        done = run("replay", CONVERSATION, "--pool-tokens", "4M", "--json", "-")
        report = json.loads(done.stdout)
        self.assertEqual([entry["capacity_tokens"] for entry in report["capacities"]], [4000000])
        self.assertAlmostEqual(report["capacities"][0]["hit_rate"], 0.1578, places=4)
        self.assertEqual(len(report["log"]["sha256"]), 64)
        self.assertIn("compiler", report["provenance"])

    def test_the_same_log_from_standard_input(self):
        from_file = json.loads(run("replay", CONVERSATION, "--json", "-").stdout)
        from_pipe = json.loads(run("replay", "-", "--json", "-", stdin=CONVERSATION.read_bytes()).stdout)
        self.assertEqual(from_pipe["capacities"], from_file["capacities"])
        self.assertEqual(from_pipe["log"]["sha256"], from_file["log"]["sha256"])

    def test_no_hit_rate_without_prefix_identity(self):
        done = run("replay", LOGS / "azure_llm_2023_code_head100.csv")
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"prefix identity: none", done.stdout)
        self.assertNotIn(b"0.0000", done.stdout)
        report = json.loads(run("replay", LOGS / "azure_llm_2023_code_head100.csv", "--json", "-").stdout)
        self.assertIsNone(report["capacities"])

    def test_a_log_read_in_part_has_no_digest(self):
        report = json.loads(run("replay", CONVERSATION, "--limit", "10", "--json", "-").stdout)
        self.assertEqual(report["log"]["requests"], 10)
        self.assertFalse(report["whole_log"])
        self.assertIsNone(json.loads(run("replay", "-", "--limit", "10", "--json", "-",
                                         stdin=CONVERSATION.read_bytes() * 2).stdout)["log"]["sha256"])

    def test_exit_codes(self):
        for code, words, arguments in (
                (2, b"4X", ("replay", CONVERSATION, "--pool-tokens", "4X")),
                (2, b"excludes", ("replay", CONVERSATION, "--pool-tokens", "4M", "--sweep-pool", "1M")),
                (2, b"accepted: lru, belady", ("replay", CONVERSATION, "--policy", "fifo")),
                (2, b"65536", ("replay", CONVERSATION, "--block-tokens", "65537")),
                (3, b"--execute model runs it", ("replay", CONVERSATION, "--policy", "useful")),
                (3, b"cannot open", ("replay", self.folder / "none")),
                (3, b"line 1: hash_ids", ("replay", CONVERSATION, "--block-tokens", "16")),
                (3, b"estimate", ("replay", CONVERSATION, "--tokenizer", "tokenizer.json")),
                (2, b"standard output", ("convert-log", CONVERSATION, "-", "--json", "-"))):
            done = run(*arguments)
            self.assertEqual(done.returncode, code, (arguments, done.stderr))
            self.assertIn(words, done.stderr + done.stdout, arguments)

    def test_bad_records_are_counted(self):
        done = run("replay", SAMPLE_THAT_IS_REFUSED, "--skip-bad", "--json", "-")
        self.assertEqual(done.returncode, 0)
        report = json.loads(done.stdout)
        self.assertEqual(report["log"]["skipped"], {"block_ids": 2})
        self.assertIsNone(report["capacities"][0]["hit_rate"])

    def test_estimates_are_said_on_stderr_and_in_the_output(self):
        chat = b'[{"conversations":[{"from":"human","value":"a b"},{"from":"gpt","value":"c"}]}]'
        done = run("replay", "-", stdin=chat)
        self.assertIn(b"estimated", done.stderr)
        self.assertIn(b"estimated from words", done.stdout)

    def test_the_same_model_run_gives_the_same_bytes(self):
        configs = LOGS.parent.parent.parent / "configs"
        flags = ["--execute", "model", "--config", configs / "deepseek-v4-flash.json",
                 "--step-table", configs / "step-table-h200.json", "--pool-tokens", "4M", "--max-sequences", "128",
                 "--jitter", "3000", "--slo", "ttft:2000", "--limit", "200", "--prefix-interval", "512"]

        def replay(name, *more):
            files = {kind: self.folder / f"{name}.{kind}" for kind in ("requests", "timeline", "metrics", "json")}
            done = run("replay", CONVERSATION, *flags, *more, *(part for kind, file in files.items()
                                                                for part in (f"--{kind}", file)))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"TTFT", done.stdout)
            report = json.loads(files["json"].read_text())
            json.loads(files["timeline"].read_text())
            self.assertEqual(len(files["requests"].read_text().splitlines()), 200)
            kept = {key: value for key, value in report["run"].items() if not key.startswith("wall_")}
            return report, kept, files["requests"].read_bytes(), files["timeline"].read_bytes()

        first, second = replay("first"), replay("second")
        self.assertEqual(first[1:], second[1:])
        other = replay("other", "--seed", "1")
        self.assertNotEqual(first[2], other[2])
        self.assertEqual(first[0]["execute"], "model")

    def test_a_model_run_says_what_it_needs(self):
        done = run("replay", CONVERSATION, "--execute", "model")
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"--config", done.stderr)

    def test_a_pool_is_given_in_bytes_or_in_tokens(self):
        configs = LOGS.parent.parent.parent / "configs"
        flags = ("replay", CONVERSATION, "--execute", "model", "--config", configs / "deepseek-v4-flash.json",
                 "--step-table", configs / "step-table-h200.json", "--limit", "20")
        memory = json.loads(run(*flags, "--pool", "40GiB", "--json", "-").stdout)["run"]["memory"]
        self.assertLessEqual(memory["cache_bytes"], 40 << 30)
        self.assertGreater(memory["cache_bytes"], (40 << 30) - (1 << 24))
        again = json.loads(run(*flags, "--pool-tokens", memory["pool_tokens"], "--json", "-").stdout)["run"]["memory"]
        self.assertEqual(again, memory)
        for code, words, arguments in (
                (2, b"excludes", (*flags, "--pool", "40GiB", "--pool-tokens", "4M")),
                (2, b"--pool", (*flags, "--pool", "40X")),
                (5, b"does not fit 1048576 bytes", (*flags, "--pool", "1MiB")),
                (2, b"--pool-tokens", ("replay", CONVERSATION, "--pool", "40GiB")),
                (2, b"scale_lengths", (*flags, "--scale-lengths", "2"))):
            done = run(*arguments)
            self.assertEqual(done.returncode, code, (arguments, done.stderr))
            self.assertIn(words, done.stderr + done.stdout, arguments)


class RealReplay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.checkpoint = cls.folder / "tiny"
        config = LOGS.parent.parent.parent / "configs" / "tiny.json"
        done = run("gen-checkpoint", "--config", config, "--out", cls.checkpoint, "--layers", "0-2")
        assert done.returncode == 0, done.stderr
        cls.flags = ["replay", CONVERSATION, "--execute", "real", "--checkpoint", cls.checkpoint, "--layers", "0-2",
                     "--threads", "1", "--step-tokens", "256", "--max-sequences", "16"]
        cls.small = ["--scale-lengths", "0.0078125", "--max-context", "1024"]

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_clients_in_a_closed_loop_get_the_same_answers_twice(self):
        def replay(name, *more):
            files = {kind: self.folder / f"{name}.{kind}" for kind in ("requests", "timeline", "metrics", "json")}
            done = run(*self.flags, *self.small, "--limit", "60", "--concurrency", "8", "--pool", "64MiB",
                       "--prefix-states", "32", "--prefix-interval", "128", "--draft", "2", "--accept", "0.7",
                       "--reserve", "prompt", *more,
                       *(part for kind, file in files.items() for part in (f"--{kind}", file)))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"s of measured time", done.stdout)
            lines = [json.loads(line) for line in files["requests"].read_text().splitlines()]
            digests = {line["metadata"]["session_num"]: line["metadata"]["output_sha256"] for line in lines}
            json.loads(files["timeline"].read_text())
            report = json.loads(files["json"].read_text())
            return report, digests

        report, digests = replay("first")
        self.assertEqual(report["execute"], "real")
        self.assertEqual(len(digests), 60)
        run_report = report["run"]
        self.assertEqual(run_report["mode"], "real")
        self.assertEqual(run_report["outputs"]["requests"], 60)
        self.assertLessEqual(run_report["memory"]["cache_bytes"], 64 << 20)
        self.assertGreater(run_report["tokens"]["drafts_accepted"], 0)
        again, same = replay("second")
        self.assertEqual(same, digests)
        for part in ("requests", "tokens", "steps"):
            timed = ("least_tokens_per_s", "longest_ms", "busy_ms")
            self.assertEqual({key: value for key, value in again["run"][part].items() if key not in timed},
                             {key: value for key, value in run_report[part].items() if key not in timed})
        self.assertNotEqual(replay("other", "--seed", "1")[1], digests)

    def test_an_interrupt_ends_it_with_the_report_so_far(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            name = signal.Signals(number).name
            folder = self.folder / name
            folder.mkdir()
            report, requests = folder / "report.json", folder / "requests.jsonl"
            # To its end it would take a minute.
            arguments = [PROGRAM, *self.flags, "--scale-lengths", "0.03125", "--max-context", "8192", "--json", report,
                         "--requests", requests]
            process = subprocess.Popen([str(part) for part in arguments], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE)
            try:
                # Its file is begun when the replay begins.
                deadline = time.monotonic() + 60
                while not any(folder.iterdir()) and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(0.2)
                process.send_signal(number)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
            self.assertEqual(process.returncode, 0, (name, err))
            self.assertIn(b"(stopped)", out)
            result = json.loads(report.read_text())["run"]
            self.assertTrue(result["stopped"])
            totals = result["requests"]
            self.assertGreater(totals["aborted"], 0)
            self.assertEqual(totals["arrived"], totals["finished"] + totals["rejected"] + totals["aborted"])
            outcomes = [json.loads(line)["metadata"]["outcome"] for line in requests.read_text().splitlines()]
            self.assertEqual(len(outcomes), totals["arrived"])
            self.assertEqual(outcomes.count("aborted"), totals["aborted"])
            for role in result["cache"]["roles"]:
                self.assertEqual(role["live_at_end"], 0)

    def test_requests_that_do_not_fit_are_rejected_and_counted(self):
        done = run(*self.flags, "--scale-lengths", "0.0078125", "--max-context", "100", "--limit", "40", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        totals = json.loads(done.stdout)["run"]["requests"]
        self.assertGreater(totals["rejected_for"]["too long"], 0)
        self.assertGreater(totals["finished"], 0)
        self.assertEqual(totals["finished"] + totals["rejected"], 40)

    def test_it_says_what_it_needs(self):
        for code, words, arguments in (
                (2, b"--checkpoint", ("replay", CONVERSATION, "--execute", "real")),
                (2, b"--config", (*self.flags, *self.small, "--config", "config.json")),
                (2, b"--checkpoint", ("replay", CONVERSATION, "--execute", "model", "--checkpoint", self.checkpoint)),
                (3, b"none", ("replay", CONVERSATION, "--execute", "real", "--checkpoint", self.folder / "none")),
                (5, b"does not fit 102400 bytes", (*self.flags, *self.small, "--pool", "100KiB"))):
            done = run(*arguments)
            self.assertEqual(done.returncode, code, (arguments, done.stderr))
            self.assertIn(words, done.stderr + done.stdout, arguments)


class Conversion(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_conversion_is_complete_or_absent(self):
        out = self.folder / "native.jsonl"
        done = run("convert-log", CONVERSATION, out, "--json", self.folder / "summary.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.folder / "summary.json").read_text())["log"]["requests"], 1000)
        self.assertEqual(run("convert-log", CONVERSATION, "-").stdout, out.read_bytes())
        again = self.folder / "again.jsonl"
        run("convert-log", out, again)
        self.assertEqual(again.read_bytes().split(b"\n")[1:], out.read_bytes().split(b"\n")[1:])
        # A failure leaves what was there, and nothing half-written beside it.
        before, names = out.read_bytes(), sorted(path.name for path in self.folder.iterdir())
        broken = self.folder / "broken"
        broken.write_bytes(CONVERSATION.read_bytes()[:100000])
        self.assertEqual(run("convert-log", broken, out).returncode, 3)
        broken.unlink()
        self.assertEqual(out.read_bytes(), before)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), names)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
