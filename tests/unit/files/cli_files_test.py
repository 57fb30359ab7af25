#!/usr/bin/env python3
"""Results, whole or refused, and texts that no terminal acts on: cli_files_test.py PROGRAM SOURCE_FOLDER"""

import json
import os
import pathlib
import pty
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
CONFIG = SOURCE / "configs" / "tiny.json"
LOG = SOURCE / "tests" / "data" / "logs" / "mooncake_synthetic_head200.jsonl"
EVIL = "a\nerror: fake line\x1b[31m\u202eb\x9b"
UNPRINTABLE = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8b-\x8f\xa8-\xae]")


def run(*arguments, **options):
    options.setdefault("capture_output", "stdout" not in options)
    return subprocess.run([PROGRAM, *map(str, arguments)], check=False, timeout=60, **options)


def start(*arguments):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def safetensors(tensors, metadata=None):
    """Bytes of a file with tensors of one byte each."""
    header = {"__metadata__": metadata} if metadata else {}
    for i, name in enumerate(tensors):
        header[name] = {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(len(tensors))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    # ---- Standard output

    def commands(self):
        checkpoint = SOURCE / "tests" / "golden" / "tiny-bf16"
        return (("version",), ("--version",), ("--help",), ("run", "--help"), ("inspect", CONFIG),
                ("plan", "--config", CONFIG), ("doctor",), ("replay", LOG), ("replay", LOG, "--json", "-"),
                ("convert-log", LOG, "-"), ("version", "--json", "-"),
                ("gen-trace", "--config", CONFIG, "--layers", "0", "--prefill", "2", "--decode", "0", "--out", "-"),
                ("bench", "--checkpoint", checkpoint, "--layers", "0", "--prefill", "8", "--repeats", "1", "--context",
                 "8", "--decode-steps", "1"),
                ("run", "--checkpoint", checkpoint, "--trace", checkpoint / "trace.safetensors", "--layers", "0"))

    def test_a_full_device_is_an_error(self):
        for command in self.commands():
            with open("/dev/full", "wb") as full:
                done = run(*command, stdout=full, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 1, (command, done.stderr))
            self.assertIn(b"standard output: cannot write", done.stderr, command)

    def test_a_closed_pipe_is_an_error(self):
        for command in self.commands():
            reader, writer = os.pipe()
            os.close(reader)
            done = run(*command, stdout=writer, stderr=subprocess.PIPE)
            os.close(writer)
            self.assertEqual(done.returncode, 1, (command, done.stderr))
            self.assertIn(b"Broken pipe", done.stderr, command)

    def test_closed_standard_output_is_not_somebodys_file(self):
        done = subprocess.run(["/bin/sh", "-c", '"$0" gen-trace --config "$1" --layers 0 --out "$2" >&-', PROGRAM,
                               str(CONFIG), str(self.folder / "t")], capture_output=True, check=False)
        self.assertEqual(done.returncode, 1)
        clean = run("gen-trace", "--config", CONFIG, "--layers", "0", "--out", self.folder / "u")
        self.assertEqual(clean.returncode, 0)
        self.assertEqual((self.folder / "t").read_bytes(), (self.folder / "u").read_bytes())

    # ---- Files that flags name

    def outputs(self, path):
        return (("version", "--json", path), ("inspect", CONFIG, "--json", path), ("convert-log", LOG, path),
                ("gen-trace", "--config", CONFIG, "--layers", "0", "--prefill", "2", "--decode", "0", "--out", path),
                ("replay", LOG, "--json", path))

    def test_what_exists_needs_force(self):
        path = self.folder / "out"
        for command in self.outputs(path):
            path.write_text("old")
            refused = run(*command)
            self.assertEqual((refused.returncode, path.read_text()), (2, "old"), command)
            self.assertIn(b"already exists; --force replaces it", refused.stderr)
            self.assertEqual(run(*command, "--force").returncode, 0, command)
            self.assertGreater(path.stat().st_size, 3)
        self.assertEqual(self.names(), ["out"])

    def test_only_regular_files_and_pipes(self):
        (self.folder / "old").write_text("old")
        (self.folder / "link").symlink_to("old")
        (self.folder / "null").symlink_to("/dev/null")
        for path, words in ((self.folder / "link", b"symbolic link"), (self.folder / "null", b"symbolic link"),
                            ("/dev/null", b"not a regular file"), (self.folder, b"is a directory"),
                            (self.folder / "none" / "x", b"No such file")):
            for command in self.outputs(path):
                done = run(*command, "--force")
                self.assertIn(done.returncode, (2, 3), command)
                self.assertIn(words, done.stderr, command)
        self.assertEqual((self.folder / "old").read_text(), "old")
        self.assertEqual(self.names(), ["link", "null", "old"])
        os.mkfifo(self.folder / "pipe")
        with subprocess.Popen(["cat", str(self.folder / "pipe")], stdout=subprocess.PIPE) as cat:
            self.assertEqual(run("version", "--json", self.folder / "pipe").returncode, 0)
            self.assertIn("compiler", json.loads(cat.communicate()[0]))

    def test_outputs_are_looked_at_before_work(self):
        (self.folder / "there").write_text("")
        for flag in ("--json", "--requests", "--timeline", "--metrics"):
            done = run("replay", self.folder / "no log", flag, self.folder / "there")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{flag} {self.folder}/there: already exists".encode(), done.stderr)
        both = run("replay", LOG, "--json", self.folder / "x", "--metrics", self.folder / "x")
        self.assertEqual((both.returncode, self.names()), (2, ["there"]))
        self.assertEqual(run("replay", LOG, "--requests", "-").returncode, 2)

    def test_a_limit_on_file_size_is_an_error(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

        for command in (("gen-trace", "--config", CONFIG, "--out", self.folder / "t"),
                        ("gen-checkpoint", "--config", CONFIG, "--layers", "0", "--out", self.folder / "ck"),
                        ("convert-log", LOG, self.folder / "n")):
            done = run(*command, preexec_fn=limit)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"File too large", done.stderr)
        self.assertEqual([path for path in self.folder.rglob("*") if path.is_file()], [])

    def test_signals_leave_nothing_unfinished(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with start("gen-trace", "--config", CONFIG, "--prefill", "400000", "--out", self.folder / "t") as process:
                deadline = time.monotonic() + 30
                while not any("partial" in name for name in self.names()):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.001)
                process.send_signal(number)
                process.communicate()
                self.assertEqual(process.returncode, -number)
            self.assertEqual(self.names(), [])

    def test_writers_of_one_checkpoint_do_not_mix(self):
        def digests(folder):
            return {path.name: path.read_bytes() for path in folder.iterdir()}

        whole = []
        for seed in ("1", "2"):
            folder = self.folder / seed
            self.assertEqual(run("gen-checkpoint", "--config", CONFIG, "--layers", "0-1", "--seed", seed, "--out",
                                 folder, "--max-shard-size", "1MB").returncode, 0)
            whole.append(digests(folder))
        for i in range(5):
            folder = self.folder / f"both{i}"
            writers = [start("gen-checkpoint", "--config", CONFIG, "--layers", "0-1", "--seed", seed, "--out", folder,
                             "--max-shard-size", "1MB") for seed in ("1", "2")]
            for writer in writers:
                writer.communicate()
            codes = [writer.returncode for writer in writers]
            self.assertEqual(sorted(codes), [0, 2])
            self.assertTrue(digests(folder) == whole[codes.index(0)], "what lies there is the winner's")

    # ---- Texts

    def check_text(self, done, *parts):
        for text in (done.stdout, done.stderr):
            self.assertIsNone(UNPRINTABLE.search(text), text)
            self.assertNotIn(b"\nerror: fake", text)
        for part in parts:
            self.assertIn(part, done.stdout + done.stderr)

    def checkpoint_with(self, tensors):
        (self.folder / "config.json").write_bytes(CONFIG.read_bytes())
        (self.folder / "model.safetensors").write_bytes(safetensors(tensors))

    def test_inspect_judges_as_the_loader(self):
        partial = self.folder / "partial"
        self.assertEqual(run("gen-checkpoint", "--config", CONFIG, "--layers", "1", "--out", partial).returncode, 0)
        done = run("inspect", partial)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(b"layers.0.attn.wq_a.weight: found nothing, expected ", done.stderr)
        self.assertNotIn(b"layers.1.", done.stderr)
        self.assertFalse(json.loads(run("inspect", partial, "--json", "-").stdout)["loads"])
        done = run("inspect", partial, "--layers", "1", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(json.loads(done.stdout)["loads"])
        self.assertEqual(run("inspect", partial, "--layers", "0-9").returncode, 2)

    def test_names_in_files(self):
        self.checkpoint_with([EVIL])
        self.check_text(run("inspect", self.folder, "--tensors"), b"a\\x0aerror: fake line\\x1b[31m")
        self.check_text(run("inspect", self.folder, "--json", "-"), b"\\u001b[31m\\u202e")
        trace = self.folder / "trace"
        for tensors, metadata in (([EVIL], {"n_prefill": "1", "n_decode": "0"}),
                                  (["layers.0." + EVIL], {"n_prefill": "1", "n_decode": "0"}),
                                  (["layers.0.input"], {"n_prefill": EVIL, "n_decode": "0"})):
            trace.write_bytes(safetensors(tensors, metadata))
            done = run("run", "--checkpoint", SOURCE / "tests" / "golden" / "tiny-bf16", "--trace", trace)
            self.assertEqual(done.returncode, 3)
            self.check_text(done, b"\\x1b[31m")
        (self.folder / "model.safetensors").unlink()
        (self.folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"t": EVIL + ".safetensors"}}))
        self.check_text(run("inspect", self.folder), b"fake line\\x1b")

    def test_values_in_configs(self):
        config = json.loads(CONFIG.read_text())
        for change in ({"model_type": EVIL}, {"hidden_size": EVIL}, {"layer_types": [EVIL] * 4},
                       {"compress_rates": {EVIL: 4}}, {"rope_scaling": {"type": EVIL}}, {EVIL: 1, "head_dim": 3},
                       {"head_dim": [EVIL]}):
            path = self.folder / "c.json"
            path.write_text(json.dumps({**config, **change}))
            done = run("plan", "--config", path)
            self.assertEqual(done.returncode, 3, (change, done.stderr))
            self.check_text(done)
        path.write_text('{"' + EVIL.replace("\n", "\\n").replace("\x1b", "\\u001b") + '": nonsense')
        self.check_text(run("plan", "--config", path), b"not valid JSON")

    def test_paths_and_arguments(self):
        evil = self.folder / EVIL
        for command in (("inspect", evil), ("plan", "--config", evil), ("replay", evil),
                        ("version", "--json", evil / "x"),
                        ("run", "--checkpoint", evil, "--trace", evil), (EVIL,), ("plan", "--" + EVIL),
                        ("replay", LOG, "--policy", EVIL), ("bench", "--checkpoint", evil), ("version", EVIL),
                        ("replay", LOG, "--pool-tokens", EVIL)):
            done = run(*command)
            self.assertIn(done.returncode, (2, 3), command)
            self.check_text(done)
        self.assertEqual(run("gen-trace", "--config", CONFIG, "--layers", "0", "--out", evil).returncode, 0)
        self.check_text(run("gen-checkpoint", "--config", CONFIG, "--layers", "0", "--out", self.folder / (EVIL + "d")))
        raw = os.fsencode(self.folder) + b"/\xff\xfe"
        done = subprocess.run([os.fsencode(PROGRAM), b"convert-log", os.fsencode(LOG), raw, b"--json", b"-"],
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        json.loads(done.stdout)

    def test_logs(self):
        log = self.folder / "log.jsonl"
        for line in ({"timestamp": EVIL, "input_length": 1, "output_length": 1, "hash_ids": [0]}, {EVIL: 1},
                     {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [EVIL]}):
            log.write_text(json.dumps(line) + "\n")
            done = run("replay", log)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.check_text(done)

    # ---- Arguments

    def test_version_and_unknown_commands(self):
        version = run("--version")
        self.assertEqual((version.returncode, version.stdout.split()[0]), (0, b"dsv4rt"))
        self.assertIn(version.stdout.strip(), run("version").stdout)
        for command in (("frobnicate",), ("frobnicate", "--help"), ("--log-level", "info", "frobnicate")):
            done = run(*command)
            self.assertEqual(done.returncode, 2, command)
            self.assertIn(b'unknown command "frobnicate"; accepted: run, inspect', done.stderr)
            self.assertEqual(done.stdout, b"")

    def test_arguments_are_checked_before_work(self):
        golden = SOURCE / "tests" / "golden" / "tiny-bf16"
        for flags, word in ((("--decode-from", "100000"), b"--decode-from"), (("--chunk", "-1"), b"--chunk"),
                            (("--tolerance", "nan"), b"--tolerance"), (("--tolerance", "-1"), b"--tolerance")):
            done = run("run", "--checkpoint", golden, "--trace", golden / "trace.safetensors", *flags)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn(word, done.stderr)
            self.assertNotIn(b"planned", done.stderr)
            self.assertLess(len(done.stderr), 300)

    def test_formats_of_doctor_are_those_of_a_question(self):
        for flag in ("--cache-format", "--index-format", "--linear-precision"):
            done = run("doctor", flag, "none")
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(b"--config", done.stderr)
            done = run("doctor", "--kernels", "--config", CONFIG, flag, "none")
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(flag.encode() + b":", done.stderr)
            self.assertIn(b"none", done.stderr)
        done = run("doctor", "--kernels", "--config", CONFIG, "--linear-precision", "nvfp4")
        self.assertEqual(done.returncode, 2, done)
        self.assertIn(b"--linear-precision: nvfp4", done.stderr)
        self.assertIn(b"accepted: exact, fp8", done.stderr)

    def test_no_color(self):
        def on_terminal(environment):
            ours, theirs = pty.openpty()
            run("inspect", self.folder / "none", stdout=subprocess.DEVNULL, stderr=theirs,
                env={**os.environ, "TERM": "xterm", **environment})
            os.close(theirs)
            text = os.read(ours, 4096)
            os.close(ours)
            self.assertIn(b"error", text)
            return b"\x1b[" in text

        self.assertTrue(on_terminal({"NO_COLOR": ""}))
        self.assertFalse(on_terminal({"NO_COLOR": "1"}))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
