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
CONFIGS = LOGS.parent.parent.parent / "configs"
MODEL = ["--execute", "model", "--config", CONFIGS / "deepseek-v4-flash.json", "--step-table",
         CONFIGS / "step-table-h200.json", "--max-sequences", "128", "--jitter", "3000", "--prefix-interval", "512",
         "--prefix-states", "8192"]
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
        self.assertIn("compiler", report["provenance"]["build"])

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

    def test_the_timeline_is_a_chrome_trace(self):
        timeline = self.folder / "timeline.json"
        done = run("replay", CONVERSATION, *MODEL, "--limit", "100", "--timeline", timeline)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads(timeline.read_text())
        self.assertEqual(set(trace), {"displayTimeUnit", "traceEvents", "otherData"})
        needed = {"M": {"pid", "name", "args"}, "X": {"pid", "tid", "name", "ts", "dur", "args"},
                  "C": {"pid", "name", "ts", "args"}, "b": {"cat", "id", "pid", "name", "ts"},
                  "e": {"cat", "id", "pid", "name", "ts"}, "n": {"cat", "id", "pid", "name", "ts"}}
        processes, phases, slices = {}, {}, {}
        for event in trace["traceEvents"]:
            phase = event["ph"]
            self.assertLessEqual(needed[phase], set(event))
            phases.setdefault(phase, set()).add(event["pid"])
            if phase == "M":
                processes[event["args"]["name"]] = event["pid"]
                continue
            self.assertGreaterEqual(event["ts"], 0)
            self.assertTrue(all(isinstance(value, (int, float)) for value in event["args"].values())
                            if phase in "XC" else True)
            if phase in "be":
                slices.setdefault(event["id"], []).append((phase, event["name"]))
        # A track a request, one of steps, one a counter; whatever begins ends, innermost first.
        self.assertEqual(set(processes), {"requests", "steps", "cache"})
        self.assertEqual(phases["X"], {processes["steps"]})
        self.assertEqual(phases["C"], {processes["cache"]})
        self.assertEqual(phases["b"], {processes["requests"]})
        self.assertEqual(len(slices), 100)
        for events in slices.values():
            open_slices = []
            for phase, name in events:
                if phase == "b":
                    open_slices.append(name)
                else:
                    self.assertEqual(open_slices.pop(), name)
            self.assertEqual(open_slices, [])
            begun = [name for phase, name in events if phase == "b"]
            self.assertEqual(begun, ["request", "queued", "prefill", "decode"][:len(begun)])

    def test_overload_is_refused_in_time_and_passes(self):
        report, lines = self.folder / "report.json", self.folder / "requests.jsonl"
        done = run("replay", CONVERSATION, *MODEL, "--speed", "2", "--max-waiting", "64", "--json", report,
                   "--requests", lines)
        self.assertEqual(done.returncode, 0, done.stderr)
        served = json.loads(report.read_text())["run"]
        requests, overload = served["requests"], served["overload"]
        self.assertEqual(requests["arrived"], 1000)
        self.assertEqual(requests["finished"] + requests["rejected"], 1000)
        self.assertGreater(requests["rejected"], 200)
        self.assertEqual(requests["rejected_for"]["queue full"], requests["rejected"])
        self.assertEqual(requests["most_waiting"], 64)
        # Every queue within its bounds, at every time.
        columns = served["occupancy"]["columns"]
        greatest = [max(column) for column in zip(*served["occupancy"]["max"])]
        self.assertEqual(greatest[columns.index("waiting")], 64)
        self.assertLessEqual(greatest[columns.index("slots")], 128)
        for role in served["cache"]["roles"]:
            self.assertLessEqual(greatest[columns.index(role["role"] + " live")], role["blocks"])
            self.assertEqual(role["live_at_end"], 0)
        # Nobody who was admitted starves: a token a second from the admission on, and between any two tokens.
        self.assertGreaterEqual(requests["least_tokens_per_s"], 1)
        self.assertLess(served["latency_ms"]["itl"]["max"], 1000)
        for line in map(json.loads, lines.read_text().splitlines()):
            if line["metadata"]["outcome"] != "finished":
                self.assertEqual(line["error"]["code"], "queue full")
                continue
            metrics = {name: quantity["value"] for name, quantity in line["metrics"].items()}
            seconds = (metrics["request_latency"] - metrics["queue_time"]) / 1000
            tokens = (metrics["input_sequence_length"] - metrics["prefix_hit_tokens"] +
                      metrics["output_sequence_length"])
            self.assertGreaterEqual(tokens, seconds)
        # It passes: after the last rejection the queue drains, and whatever arrives then is served.
        self.assertLess(overload["first_rejected_ms"], overload["last_rejected_ms"])
        self.assertGreater(overload["recovery_ms"], 0)
        self.assertEqual(overload["queue_empty_ms"], overload["last_rejected_ms"] + overload["recovery_ms"])
        self.assertLess(overload["queue_empty_ms"], served["duration_ms"] + 3000)
        self.assertEqual(served["occupancy"]["mean"][-1][columns.index("waiting")], 0)
        events = served["events"]
        rejected = [row[events["columns"].index("rejected")] for row in events["counts"]]
        self.assertEqual(sum(rejected), requests["rejected"])
        self.assertEqual(sum(row[0] for row in events["counts"]), 1000)
        self.assertLess(max(i for i, count in enumerate(rejected) if count) * events["interval_ms"],
                        overload["last_rejected_ms"] + 1)

    def test_a_sweep_is_one_replay_a_size(self):
        report, page = self.folder / "report.json", self.folder / "page.html"
        limited = (*MODEL, "--limit", "300", "--slo", "ttft:5000")
        done = run("replay", CONVERSATION, *limited, "--sweep-pool", "2M,500K,2M", "--json", report, "--report", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        swept = json.loads(report.read_text())
        self.assertEqual([entry["pool_tokens"] for entry in swept["sweep"]], [500000, 2000000])
        rows = [line.split() for line in done.stdout.decode().splitlines()[-2:]]
        for row, entry, pool in zip(rows, swept["sweep"], ("500K", "2M")):
            single = run("replay", CONVERSATION, *limited, "--pool-tokens", pool, "--json", "-")
            single = json.loads(single.stdout)["run"]
            self.assertEqual(entry["hit_rate"], single["tokens"]["hit_rate"])
            self.assertEqual(entry["ttft_ms"], {key: single["latency_ms"]["ttft"][key] for key in ("p50", "p99")})
            self.assertEqual(entry["goodput_share"], single["goodput"]["share_of_arrived"])
            self.assertEqual(row[1], f"{entry['hit_rate']:.4f}")
        self.assertEqual(swept["run"]["options"]["pool_tokens"], 2000000)
        self.assertIn("Time to first token against capacity", page.read_text())
        for code, words, more in ((2, b"inf", ("--sweep-pool", "1M,inf")),
                                  (2, b"--timeline", ("--sweep-pool", "1M,2M", "--timeline", self.folder / "t"))):
            done = run("replay", CONVERSATION, *MODEL, *more)
            self.assertEqual((done.returncode, words in done.stderr), (code, True), done.stderr)
        self.assertEqual(run("replay", "-", *MODEL, "--sweep-pool", "1M", stdin=b"").returncode, 2)

    def test_the_policy_of_the_prefix_cache(self):
        rates = {}
        for policy in ("useful", "lru"):
            done = run("replay", CONVERSATION, *MODEL, "--policy", policy, "--json", "-")
            served = json.loads(done.stdout)["run"]
            self.assertEqual(served["options"]["policy"], policy)
            rates[policy] = served["tokens"]["hit_rate"]
        self.assertGreater(rates["useful"], 1.02 * rates["lru"])
        default = json.loads(run("replay", CONVERSATION, *MODEL, "--limit", "2", "--json", "-").stdout)
        self.assertEqual(default["run"]["options"]["policy"], "useful")
        done = run("replay", CONVERSATION, *MODEL, "--policy", "belady")
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"accepted when serving: useful, lru", done.stderr)
        self.assertEqual(run("replay", CONVERSATION, *MODEL, "--policy", "fifo").returncode, 2)

    def test_two_replays_are_compared(self):
        files = [self.folder / name for name in ("a.json", "b.json", "none.json", "other.json", "belady.json")]
        # At its own speed the log is more than the model's machine can do.
        for file, *arguments in ((files[0], *MODEL, "--limit", "300", "--speed", "0.5"),
                                 (files[1], *MODEL, "--limit", "300"),
                                 (files[2], "--execute", "none"), (files[3], *MODEL, "--limit", "200"),
                                 (files[4], "--execute", "none", "--policy", "belady")):
            self.assertEqual(run("replay", CONVERSATION, *arguments, "--json", file).returncode, 0)
        same = json.loads(run("compare", files[0], files[0], "--json", "-").stdout)
        self.assertEqual({entry["difference"] for entry in same["numbers"]}, {0})
        done = run("compare", files[0], files[1], "--json", self.folder / "compared.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"differs: speed: 0.5 -> 1.0", done.stdout)
        numbers = {entry["name"]: entry for entry in json.loads((self.folder / "compared.json").read_text())["numbers"]}
        self.assertTrue(numbers["TPOT p50, ms"]["beyond_noise"])
        self.assertGreater(numbers["TPOT p50, ms"]["noise"], 0)
        self.assertEqual(run("compare", files[0], files[0], "--within", "1").returncode, 0)
        done = run("compare", files[0], files[1], "--within", "10")
        self.assertEqual(done.returncode, 4)
        self.assertIn(b"TTFT p50", done.stderr)
        for other, field in ((files[2], b"execute (model, none)"), (files[3], b"log.requests (300, 200)")):
            done = run("compare", files[0], other)
            self.assertEqual(done.returncode, 4)
            self.assertIn(field, done.stderr)
        studies = run("compare", files[2], files[4])
        self.assertIn(b"policy: lru -> belady", studies.stdout)
        self.assertIn(b"hit rate at 1000000", studies.stdout)
        (self.folder / "broken").write_text("{}")
        self.assertEqual(run("compare", files[0], self.folder / "broken").returncode, 3)
        self.assertEqual(run("report", self.folder / "broken").returncode, 3)
        self.assertEqual(run("report", files[0], "--out", self.folder / "none" / "page.html").returncode, 3)

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

    def test_engines_on_devices_share_the_requests(self):
        def replay(*more):
            done = run(*self.flags, *self.small, "--limit", "40", "--pool", "64MiB", "--prefix-states", "32",
                       "--prefix-interval", "128", "--json", "-", *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertEqual(report.get("devices"), [0, 0] if "--devices" in more else None)
            return report["run"]

        one = replay()
        self.assertNotIn("route", one)
        for route in ("round-robin", "prefix", "least-loaded"):
            two = replay("--devices", "0,0", "--route", route)
            self.assertEqual(two["route"], route)
            self.assertEqual(len(two["machines"]), 2)
            self.assertEqual(sum(machine["requests"] for machine in two["machines"]), 40)
            self.assertTrue(all(machine["steps"] > 0 for machine in two["machines"]), two["machines"])
            self.assertEqual(two["outputs"]["sha256"], one["outputs"]["sha256"])

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
                (2, b"devices: 1; accepted with backend cpu: 0", (*self.flags, *self.small, "--devices", "0,1")),
                (2, b'route: "best"', (*self.flags, *self.small, "--devices", "0,0", "--route", "best")),
                (3, b"accepted with it: --devices", (*self.flags, *self.small, "--machines", "2")),
                (2, b"--devices: engines run", ("replay", CONVERSATION, "--execute", "model", "--devices", "0")),
                (2, b"--devices: engines run", ("replay", CONVERSATION, "--devices", "0,0")),
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
        self.assertEqual(run("convert-log", broken, out, "--force").returncode, 3)
        broken.unlink()
        self.assertEqual(out.read_bytes(), before)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), names)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
