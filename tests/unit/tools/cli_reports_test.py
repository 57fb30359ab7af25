#!/usr/bin/env python3
"""What commands say of where a report comes from, what an interrupt leaves, and what plan counts:
cli_reports_test.py PROGRAM SOURCE_FOLDER"""

import hashlib
import json
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
CONFIGS = SOURCE / "configs"
TINY, FLASH = CONFIGS / "tiny.json", CONFIGS / "deepseek-v4-flash.json"
STEP_TABLE = CONFIGS / "step-table-h200.json"
LOG = SOURCE / "tests" / "data" / "logs" / "mooncake_synthetic_head200.jsonl"
GIB = 1 << 30


def run(*arguments, **more):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, check=False, **more)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def headers_sha256(folder):
    """As Provenance::add_checkpoint says."""
    digest = hashlib.sha256()
    names = ["config.json", "model.safetensors.index.json"]
    for path in [folder / name for name in names if (folder / name).exists()] + sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + str(len(data)).encode() + b"\n")
        digest.update(data[:8 + struct.unpack("<Q", data[:8])[0]] if path.suffix == ".safetensors" else data)
    return digest.hexdigest()


def bytes_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


class WithCheckpoint(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.checkpoint, cls.trace = cls.folder / "ck", cls.folder / "t.safetensors"
        for made in (run("gen-checkpoint", "--config", TINY, "--out", cls.checkpoint, "--max-shard-size", "1MB"),
                     run("gen-trace", "--config", TINY, "--out", cls.trace, "--prefill", "64", "--decode", "2")):
            assert made.returncode == 0, made.stderr

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def report(self, *arguments, code=0):
        done = run(*arguments, "--json", "-")
        self.assertEqual(done.returncode, code, (arguments, done.stderr))
        return json.loads(done.stdout)


class Provenance(WithCheckpoint):
    def test_every_report_says_where_it_comes_from(self):
        checkpoint = {"path": str(self.checkpoint), "headers_sha256": headers_sha256(self.checkpoint),
                      "bytes": bytes_of(self.checkpoint)}

        def file(path):
            return {"path": str(path), "sha256": sha256(path), "bytes": path.stat().st_size}

        model = ("--execute", "model", "--config", FLASH, "--step-table", STEP_TABLE)
        saved = self.folder / "saved.json"
        self.assertEqual(run("replay", LOG, *model, "--json", saved).returncode, 0)
        real = ("--execute", "real", "--checkpoint", self.checkpoint, "--limit", "2", "--scale-lengths", "0.01",
                "--max-context", "2048", "--pool-tokens", "8192", "--max-sequences", "2", "--prefix-states", "4",
                "--concurrency", "1", "--step-tokens", "256")
        for arguments, inputs in (
                (("version",), []),
                (("doctor",), []),
                (("doctor", "--kernels", "--config", TINY), [file(TINY)]),
                (("plan", "--config", TINY), [file(TINY)]),
                (("plan", "--checkpoint", self.checkpoint), [checkpoint]),
                (("inspect", TINY), [file(TINY)]),
                (("inspect", self.checkpoint), [checkpoint]),
                (("run", "--checkpoint", self.checkpoint, "--trace", self.trace), [checkpoint, file(self.trace)]),
                (("bench", "--checkpoint", self.checkpoint, "--prefill", "16", "--context", "16", "--decode-steps",
                  "1"), [checkpoint]),
                (("bench", "--checkpoint", self.checkpoint, "--whole-step", "1x64", "--decode-steps", "1"),
                 [checkpoint]),
                (("bench", "--checkpoint", self.checkpoint, "--whole-prefill", "16"), [checkpoint]),
                (("replay", LOG), [file(LOG)]),
                (("replay", LOG, *model), [file(FLASH), file(STEP_TABLE), file(LOG)]),
                (("replay", LOG, *model, "--sweep-pool", "2M,4M"), [file(FLASH), file(STEP_TABLE), file(LOG)]),
                (("replay", LOG, *real), [checkpoint, file(LOG)]),
                (("convert-log", LOG, self.folder / "n.jsonl", "--force"), [file(LOG)]),
                (("compare", saved, saved), [file(saved), file(saved)])):
            with self.subTest(command=arguments[0], arguments=arguments):
                made = self.report(*arguments)["provenance"]
                self.assertEqual(list(made), ["version", "commit", "build", "cpu", "gpu", "argv", "inputs"])
                self.assertEqual(made["argv"], ["dsv4rt", *map(str, arguments), "--json", "-"])
                self.assertEqual(made["inputs"], inputs)
                self.assertIsNone(made["gpu"])
                self.assertRegex(made["version"], r"^\d+\.\d+\.\d+$")
                self.assertRegex(made["commit"], r"^([0-9a-f]{12}(-dirty)?|unknown)$")
                self.assertEqual(list(made["build"]), ["type", "compiler", "flags", "backends"])
                self.assertTrue(made["build"]["compiler"])
                self.assertNotIn("prefix-map", made["build"]["flags"])
                self.assertEqual(list(made["cpu"]), ["name", "isa", "threads"])

    def test_standard_input_has_the_digest_of_what_was_read(self):
        made = json.loads(run("replay", "-", "--json", "-", input=LOG.read_bytes()).stdout)["provenance"]["inputs"]
        self.assertEqual(made, [{"path": "-", "sha256": sha256(LOG), "bytes": LOG.stat().st_size}])

    def test_headers_tell_checkpoints_apart(self):
        other = self.folder / "bf16"
        self.assertEqual(run("gen-checkpoint", "--config", TINY, "--encoding", "bf16", "--out", other).returncode, 0)
        made = self.report("inspect", other)["provenance"]["inputs"][0]
        self.assertEqual(made["headers_sha256"], headers_sha256(other))
        self.assertNotEqual(made["headers_sha256"], headers_sha256(self.checkpoint))

    def test_reports_differ_by_program_and_machine_not_by_arguments(self):
        reports = [self.folder / "a.json", self.folder / "b.json"]
        for path, text in zip(reports, ("4M", "4000000")):
            self.assertEqual(run("replay", LOG, "--pool-tokens", text, "--json", path).returncode, 0)
        self.assertNotIn(b"provenance", run("compare", *reports).stdout)
        changed = json.loads(reports[1].read_text())
        changed["provenance"]["build"]["type"] = "Debug"
        reports[1].write_text(json.dumps(changed))
        self.assertIn(b"differs: provenance.build.type: ", run("compare", *reports).stdout)

    def test_a_step_table_names_the_commit(self):
        table = self.folder / "table.json"
        done = run("bench", "--checkpoint", self.checkpoint, "--layers", "0", "--step-table", table, "--whole-step",
                   "1x64,2x64", "--whole-prefill", "16,32", "--decode-steps", "1", "--repeats", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        made = json.loads(table.read_text())["provenance"]
        program = self.report("version")["provenance"]
        self.assertEqual((made["commit"], made["version"]), (program["commit"], program["version"]))


class Metrics(WithCheckpoint):
    def test_a_run_leaves_the_counts_of_its_engine(self):
        metrics = self.folder / "metrics.txt"
        arguments = ("run", "--checkpoint", self.checkpoint, "--trace", self.trace, "--metrics", metrics)
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        samples = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines() if not line.startswith("#"))
        self.assertEqual(samples['dsv4rt_steps_total{outcome="committed"}'], "3")
        self.assertEqual(samples['dsv4rt_step_tokens_total{outcome="accepted"}'], "66")
        self.assertEqual(run(*arguments).returncode, 2)
        self.assertEqual(run(*arguments, "--force").returncode, 0)


class Interrupts(WithCheckpoint):
    """Every command here would take minutes."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.long, cls.prompt = cls.folder / "long.safetensors", cls.folder / "prompt.safetensors"
        for path, prefill, decode in ((cls.long, "64", "20000"), (cls.prompt, "16000", "0")):
            made = run("gen-trace", "--config", TINY, "--out", path, "--prefill", prefill, "--decode", decode)
            assert made.returncode == 0, made.stderr

    def interrupted(self, arguments, number=signal.SIGINT, times=1, until=b"bench: |run: "):
        """Sends signals when the work has said how far it is: code, stdout, stderr."""
        command = [PROGRAM, *map(str, arguments), "--threads", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            said = b""
            while not re.search(until, said):
                byte = process.stderr.read(1)
                self.assertTrue(byte, said)
                said += byte
            for _ in range(times):
                if times > 1:
                    time.sleep(0.2)  # amid the next layer, which takes seconds
                process.send_signal(number)
            out, err = process.communicate(timeout=120)
            return process.returncode, out, said + err
        finally:
            process.kill()

    def test_run(self):
        run_long = ("run", "--checkpoint", self.checkpoint, "--trace", self.long, "--progress")
        for number in (signal.SIGINT, signal.SIGTERM):
            report = self.folder / f"{number}.json"
            code, out, err = self.interrupted((*run_long, "--json", report), number)
            self.assertEqual(code, 0, err)
            made = json.loads(report.read_text())
            self.assertTrue(made["stopped"])
            done = made["prefill_tokens"] + made["decode_tokens"]
            self.assertLess(done, 20064)
            for layer in made["layers"]:
                self.assertIn(layer["tokens"] - done, range(65))
            self.assertIn(b"not checked", out)
            self.assertRegex(err, rb"warning: stopped after \d+ of 20064 tokens\n")
            self.assertFalse(list(self.folder.glob(".dsv4rt-*")))

    def test_run_stops_between_the_layers_of_a_step(self):
        report = self.folder / "layers.json"
        code, _, err = self.interrupted(("run", "--checkpoint", self.checkpoint, "--trace", self.prompt, "--progress",
                                            "--json", report), until=rb"run: 0 of 16000 tokens, layer 1 of 4\n")
        self.assertEqual(code, 0, err)
        made = json.loads(report.read_text())
        self.assertEqual((made["prefill_tokens"], made["steps"], made["stopped"]), (0, 0, True))
        tokens = [layer["tokens"] for layer in made["layers"]]
        self.assertEqual(tokens[0], 16000)
        self.assertEqual(tokens[3], 0)

    def test_a_run_that_could_not_be_compared_has_failed(self):
        for flag in ("--check", "--digest", "--prefix-cache"):
            code, out, err = self.interrupted(("run", "--checkpoint", self.checkpoint, "--trace", self.long,
                                                  "--progress", flag))
            self.assertEqual(code, 1, err)
            self.assertIn(b"before " + flag.encode() + b" could be done", err)
            self.assertIn(b"prefill ms", out)

    def test_a_second_signal_ends_at_once(self):
        report = self.folder / "second.json"
        code, out, err = self.interrupted(("run", "--checkpoint", self.checkpoint, "--trace", self.prompt,
                                              "--progress", "--json", report), times=2, until=rb"layer 1 of 4\n")
        self.assertEqual(code, -signal.SIGINT, err)
        self.assertEqual(out, b"")
        self.assertFalse(report.exists())
        self.assertFalse(list(self.folder.glob(".dsv4rt-*")))

    def test_bench_of_layers(self):
        report = self.folder / "bench.json"
        code, out, err = self.interrupted(("bench", "--checkpoint", self.checkpoint, "--prefill", "256", "--context",
                                              "256", "--decode-steps", "100000", "--progress", "--json", report),
                                             until=rb"bench: 30 of \d+ layer runs\n")
        self.assertEqual(code, 0, err)
        made = json.loads(report.read_text())
        self.assertTrue(made["stopped"])
        self.assertGreater(made["layers"][0]["prefill_ms"], 0)
        self.assertNotIn(b"check:", out)

    def test_bench_that_has_timed_nothing_yet(self):
        code, out, err = self.interrupted(("bench", "--checkpoint", self.checkpoint, "--prefill", "256", "--context",
                                              "256", "--decode-steps", "100000", "--progress", "--json", "-"),
                                             until=rb"bench: 1 of \d+ layer runs\n")
        self.assertEqual(code, 0, err)
        layers = json.loads(out)["layers"]
        self.assertEqual([layer["decode_ms"] for layer in layers], [None] * 4)

    def test_bench_of_whole_steps_and_prompts(self):
        for flags, key in ((("--whole-step", "1x64,1x100000", "--decode-steps", "3000"), "steps"),
                           (("--whole-prefill", "64,16000"), "prefills")):
            code, out, err = self.interrupted(("bench", "--checkpoint", self.checkpoint, *flags, "--progress",
                                                  "--json", "-"))
            self.assertEqual(code, 0, err)
            made = json.loads(out)
            self.assertTrue(made["stopped"])
            self.assertEqual(len(made[key]), 1)

    def test_half_a_step_table_is_none(self):
        table = self.folder / "half.json"
        code, out, err = self.interrupted(("bench", "--checkpoint", self.checkpoint, "--step-table", table,
                                              "--whole-step", "1x64,1x128", "--decode-steps", "3000",
                                              "--whole-prefill", "16"), until=rb"step table: 1 of 3")
        self.assertEqual(code, 1, err)
        self.assertIn(b"decode", out)
        self.assertIn(b"stopped after 1 of 3 points", err)
        self.assertFalse(table.exists())

    def test_without_a_terminal_progress_is_quiet(self):
        flags = ("--checkpoint", self.checkpoint, "--threads", "1")
        self.assertNotIn(b"layer", run("run", *flags, "--trace", self.trace).stderr.replace(b"4 layers", b""))
        self.assertNotIn(b"bench:", run("bench", *flags, "--prefill", "16", "--context", "16", "--decode-steps",
                                        "1").stderr)
        self.assertFalse(self.report("run", *flags, "--trace", self.trace)["stopped"])


class Devices(WithCheckpoint):
    def test_engines_are_timed_alone_and_together(self):
        flags = ("bench", "--checkpoint", self.checkpoint, "--devices", "0,0,0", "--threads", "1", "--decode-steps",
                 "3")
        done = run(*flags, "--batch", "2", "--context", "40")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"check: all engines give the same outputs, alone and together, byte for byte", done.stdout)
        made = self.report(*flags, "--whole-step", "1x16,2x40")
        self.assertEqual([(step["batch"], step["context"]) for step in made["steps"]], [(1, 16), (2, 40)])
        self.assertIs(made["deterministic"], True)
        self.assertEqual(made["linear_precision"], "exact")
        for step in made["steps"]:
            self.assertEqual([engine["device"] for engine in step["engines"]], [0, 0, 0])
            for when in ("alone", "together"):
                for engine in step["engines"]:
                    self.assertAlmostEqual(engine[f"{when}_tokens_per_s"], step["batch"] / engine[f"{when}_ms"] * 1e3)
            self.assertAlmostEqual(step["together_tokens_per_s"],
                                   sum(engine["together_tokens_per_s"] for engine in step["engines"]))
            self.assertAlmostEqual(step["times_one_engine"],
                                   step["together_tokens_per_s"] / step["one_engine_tokens_per_s"])

    def test_contexts_are_those_of_one_engine(self):
        flags = ("bench", "--checkpoint", self.checkpoint, "--layers", "0", "--threads", "1", "--decode-steps", "2",
                 "--whole-step", "1x1048576,1x40")
        contexts = [[step["context"] for step in self.report(*flags, *devices)["steps"]]
                    for devices in ((), ("--devices", "0"))]
        self.assertLess(contexts[0][0], 1048576)
        self.assertEqual(contexts[0], contexts[1])

    def test_what_does_not_go_together(self):
        flags = ("bench", "--checkpoint", self.checkpoint)
        for words, arguments in (
                (b"threads: -3", ("--devices", "0,0", "--threads", "-3")),
                (b"threads: 2048", ("--devices", "0,0", "--threads", "2048")),
                (b"devices: 1; accepted with backend cpu: 0", ("--devices", "0,1")),
                (b"--devices: accepted without", ("--devices", "0,0", "--whole-prefill", "16")),
                (b"--devices: accepted without", ("--devices", "0,0", "--stages")),
                (b"--devices: accepted without", ("--devices", "0,0", "--step-table", self.folder / "t.json")),
                (b"batch: 0; accepted: 1", ("--devices", "0,0", "--batch", "0")),
                (b"a decode shape of 2 x 8..16 tokens; accepted: sequences of one length",
                 ("--step-table", self.folder / "t.json", "--whole-step", "2x8..16"))):
            done = run(*flags, *arguments)
            self.assertEqual(done.returncode, 2, (arguments, done.stderr))
            self.assertIn(words, done.stderr, arguments)


class Plan(WithCheckpoint):
    def test_an_engine_takes_what_was_planned(self):
        for encoding in ("fp8", "bf16", "nvfp4"):
            for layers in ("0-3", "1-2"):
                checkpoint = self.folder / f"{encoding}{layers}"
                made = run("gen-checkpoint", "--config", TINY, "--encoding", encoding, "--layers", layers, "--out",
                           checkpoint)
                self.assertEqual(made.returncode, 0, made.stderr)
                engine = self.report("run", "--checkpoint", checkpoint, "--layers", layers, "--trace", self.trace,
                                     "--threads", "2")
                parts = engine["memory_parts"]
                limits = ("--layers", layers, "--threads", "2", "--sequences", "1", "--max-context", "66",
                          "--max-step-tokens", "64")
                for source in (("--checkpoint", checkpoint), ("--config", checkpoint / "config.json"),
                               ("--config", TINY, "--weights", encoding)):
                    plan = self.report("plan", *source, *limits)
                    with self.subTest(encoding=encoding, layers=layers, source=source):
                        self.assertEqual(plan["weight_bytes"], parts["weights"])
                        self.assertEqual(plan["cache_bytes"], parts["cache"])
                        self.assertEqual(plan["workspace_bytes"], parts["workspace"])
                        self.assertEqual(plan["scratch_bytes"], parts["scratch"])
                        self.assertEqual(plan["total_bytes"], engine["memory_bytes"])

    def test_sequences_that_fit(self):
        flags = ("plan", "--config", FLASH, "--device-memory", "141GiB", "--beside", "100GiB", "--context", "32Ki")
        plan = self.report(*flags)
        sequences = plan["sequences_that_fit"]
        self.assertLessEqual(plan["total_bytes"], 141 * GIB)
        self.assertEqual(plan["other_bytes"], 100 * GIB)
        self.assertEqual(plan["max_context_tokens"], 32768)
        self.assertEqual(plan["pool_tokens"], sequences * 32768)
        for more, fits in ((0, True), (1, False)):
            other = self.report("plan", "--config", FLASH, "--other", "100GiB", "--max-context", "32768", "--sequences",
                                sequences + more)
            self.assertEqual(other["total_bytes"] <= 141 * GIB, fits)
            self.assertNotIn("sequences_that_fit", other)
        table = run(*flags).stdout.decode()
        self.assertIn(f"sequences that fit: {sequences} of 32768 tokens\n", table)
        self.assertIn(f"attention weights of 43 layers, fp8: {plan['weight_bytes']} ", table)

    def test_what_does_not_fit_is_told_with_its_numbers(self):
        done = run("plan", "--config", FLASH, "--memory", "105GiB", "--other", "100GiB", "--context", "32Ki")
        self.assertEqual(done.returncode, 5, done.stderr)
        weights = self.report("plan", "--config", FLASH)["weight_bytes"]
        for words in (f"--memory {105 * GIB} ", f"--other {100 * GIB} ", f"weights {weights} ", "workspace ",
                      "scratch ", "one sequence of 32768 tokens takes ", "CSA_KV ", "more than there is"):
            self.assertIn(words, done.stderr.decode())

    def test_ranks_of_context_parallelism(self):
        """What goes from rank to rank, against what the layers of V4-Flash have: 21 with rows every 4 tokens."""
        flags = ("plan", "--config", FLASH, "--max-context", "131072", "--max-step-tokens", "65536")
        alone, plan = self.report(*flags), self.report(*flags, "--cp", "2")
        for part in ("cache_bytes", "weight_bytes", "scratch_bytes"):
            self.assertEqual(alone[part], plan[part])
        self.assertGreater(plan["workspace_bytes"], alone["workspace_bytes"] + 65536 // 4 * 652)
        self.assertNotIn("context_parallel", alone)
        context = plan["context_parallel"]
        self.assertEqual((context["ranks"], context["prompt_tokens"], context["steps"]), (2, 65536, 1))
        self.assertEqual(context["output_bytes"], [43 * 32768 * 8192] * 2)
        every, one = context["cache_on_every_rank"], context["cache_on_rank_0"]
        # Of a half of the tokens: 652 bytes every 4 tokens, 584 every 128.
        finished = 32768 // 4 * 652 * 21 + 32768 // 128 * 584 * 20
        for entry in (*every, one[0]):
            self.assertAlmostEqual(entry["finished_row_bytes"] / finished, 1, delta=0.01)
        # Who has the third quarter lacks the first alone.
        self.assertAlmostEqual(one[1]["finished_row_bytes"] / finished, 0.5, delta=0.01)
        self.assertEqual(one[0], every[0])
        self.assertLess(one[1]["received_bytes"], every[1]["received_bytes"] / 2)
        for entry in (*every, *one):
            self.assertEqual(entry["received_bytes"], entry["window_bytes"] + entry["projection_bytes"] +
                             entry["finished_row_bytes"])
            self.assertAlmostEqual(entry["bytes_per_token"], entry["received_bytes"] / 65536)
        table = run(*flags, "--cp", "2").stdout.decode()
        self.assertIn("2 ranks: a prompt of 65536 tokens, steps: 1, dealt out: 1", table)
        for entry in (every[0], one[1]):
            self.assertIn(f" {entry['received_bytes']} ", table)

        # In steps the others lack nothing but of the last, and a last one that is too short is nobody's to share.
        steps = self.report(*flags[:-1], "1000", "--cp", "4", "--prompt", "3100")["context_parallel"]
        self.assertEqual((steps["steps"], steps["dealt_out_steps"]), (4, 3))
        self.assertEqual(steps["cache_on_rank_0"], steps["cache_on_every_rank"])
        steps = self.report(*flags[:-1], "1000", "--cp", "4", "--prompt", "3Ki")["context_parallel"]
        self.assertEqual((steps["steps"], steps["dealt_out_steps"]), (4, 3))
        steps = self.report(*flags[:-1], "1000", "--cp", "4", "--prompt", "4000")["context_parallel"]
        self.assertEqual(steps["dealt_out_steps"], 4)
        for one, every in zip(steps["cache_on_rank_0"][1:], steps["cache_on_every_rank"][1:]):
            self.assertLess(one["received_bytes"], every["received_bytes"])
            self.assertGreater(one["received_bytes"], every["received_bytes"] * 3 // 4)

    def test_the_quantization_of_the_config_counts(self):
        config = json.loads(TINY.read_text())

        def plan(quantization, code=0):
            path = self.folder / "c.json"
            path.write_text(json.dumps({**config, "quantization_config": quantization}))
            if code == 0:
                return self.report("plan", "--config", path)["weight_encoding"]
            done = run("plan", "--config", path)
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stderr

        self.assertEqual(plan(None), "bf16")
        self.assertEqual(plan({"quant_method": "fp8"}), "fp8")
        self.assertEqual(plan({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "nvfp4")
        self.assertIn(b"quant_method \"awq\"", plan({"quant_method": "awq"}, 3).replace(b"'", b'"'))
        self.assertIn(b"weight_block_size", plan({"quant_method": "fp8", "weight_block_size": [64, 64]}, 3))
        self.assertIn(b"is no object", plan([1], 3))

    def test_flags_that_do_not_go_together(self):
        for code, words, arguments in (
                (2, b"accepted: one of them", ()),
                (2, b"excludes", ("--config", TINY, "--checkpoint", self.checkpoint)),
                (2, b"--memory", ("--config", TINY, "--context", "1Ki")),
                (2, b"excludes", ("--config", TINY, "--memory", "1GiB", "--context", "1Ki", "--sequences", "3")),
                (2, b"layers 0 to 3", ("--config", TINY, "--layers", "2-9")),
                (2, b"accepted: bf16, fp8, nvfp4", ("--config", TINY, "--weights", "int4")),
                (3, b"--tp", ("--checkpoint", self.checkpoint, "--tp", "2")),
                (2, b"--tp and --cp: accepted: one of them", ("--config", TINY, "--tp", "2", "--cp", "2")),
                (2, b"--cp: 0; accepted: 1 to 1024", ("--config", TINY, "--cp", "0")),
                (2, b"--prompt: what one rank gives to none", ("--config", TINY, "--prompt", "100")),
                (2, b"--prompt: 200; accepted: up to 100 tokens",
                 ("--config", TINY, "--cp", "2", "--max-context", "100", "--prompt", "200")),
                (3, b"layers.1.attn", ("--checkpoint", self.folder / "one"))):
            if "one" in str(arguments):
                run("gen-checkpoint", "--config", TINY, "--layers", "0", "--out", self.folder / "one")
            done = run("plan", *arguments)
            self.assertEqual(done.returncode, code, (arguments, done.stderr))
            self.assertIn(words, done.stderr, arguments)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
