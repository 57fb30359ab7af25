#!/usr/bin/env python3
"""Documents equal the program: guide_commands_test.py PROGRAM SOURCE_FOLDER [MPIRUN]

Runs every command line of the program that a code block of README.md or docs/ shows, from a copy of what such lines
name in the tree. Flags and commands that documents name anywhere in code are compared with what the program's help
says.
"""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
MPIRUN = sys.argv[3] if len(sys.argv) > 3 else ""
GUIDES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
TRACE = "tests/golden/tiny-bf16"
# What stands for the reader's own files.
READERS_OWN = {"DIR": TRACE, "FILE": f"{TRACE}/trace.safetensors",
               "LOG": "tests/data/logs/mooncake_conversation_head1000.jsonl"}
# Flash-sized layers and whole logs would take minutes here: the same lines on a model of three layers and a short log.
SMALLER = {"--layers 1-4": "--layers 1-2", "--whole-prefill 4096": "--whole-prefill 512",
           "replay LOG --execute real": "replay LOG --execute real --limit 4 --scale-lengths 0.01"}
PROMPT = re.compile(r"^\s*(\$ )?((mpirun [^|]*?)?(\S*/)?dsv4rt +(?=[a-z-]).*)$")


def help_of(*command):
    return subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True).stdout


def command_lines():
    """(guide, line) of every command in a code block, lines that are continued joined."""
    for guide in GUIDES:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", guide.read_text(), flags=re.DOTALL | re.MULTILINE):
            if language not in ("", "sh", "console"):
                continue
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                if (found := PROMPT.match(line)) is not None:
                    yield guide.name, found[2]


class Guides(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        for name in ("configs", TRACE, "tests/data/logs"):
            shutil.copytree(SOURCE / name, cls.folder / name)
        (cls.folder / "build").mkdir()
        main = help_of()
        cls.commands = re.findall(r"^  ([a-z-]+) {2,}\S", main[main.index("Subcommands:"):], flags=re.MULTILINE)
        cls.helps = {command: help_of(command) for command in cls.commands}
        cls.flags = {command: set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) | {"--help"}
                     for command, text in cls.helps.items()}
        cls.main_flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", main)) | {"--help"}

    def run_line(self, line, *more):
        for shown, smaller in SMALLER.items():
            line = line.replace(shown, smaller)
        words = [READERS_OWN.get(word, word) for word in shlex.split(line, comments=True)]
        at = next(i for i, word in enumerate(words) if word.split("/")[-1] == "dsv4rt")
        words[at] = str(PROGRAM)
        if words[0] == "mpirun":
            words[:1] = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                         "--mca", "btl_vader_single_copy_mechanism", "none"]
        run = subprocess.run([*words, *more], cwd=self.folder, capture_output=True, text=True, check=False)
        if "--backend cuda" in line and run.returncode == 3:  # flags are right, but there are no such devices here
            self.assertRegex(run.stderr, "no usable CUDA device|not part of this build|only .* device")
            return run.stdout
        self.assertEqual(run.returncode, 0, f"{line}\n{run.stdout}{run.stderr}")
        return run.stdout

    def test_command_lines_run(self):
        lines = list(command_lines())
        self.assertGreaterEqual(len(lines), 8)
        for guide, line in lines:
            if line.startswith("mpirun") and not MPIRUN:
                continue  # a build without ranks
            with self.subTest(guide=guide, line=line):
                if " compare " in line:
                    self.make_compared()
                self.run_line(line)

    def make_compared(self):
        """The reports that docs/replay.md compares: its replay with two policies, of fewer requests."""
        replay = next(line for guide, line in command_lines()
                      if guide == "replay.md" and " replay " in line and "--execute model" in line)
        for policy in ("useful", "lru"):
            out = self.folder / f"{policy}.json"
            if not out.exists():
                self.run_line(re.sub(r" --(policy|out|json|html|page|report) \S+", "", replay), "--policy", policy,
                              "--limit", "100", "--json", str(out))

    def test_flags_in_code_exist(self):
        every = set().union(*self.flags.values(), self.main_flags)
        seen = 0
        for guide in GUIDES:
            text = re.sub(r"^```.*?^```", "", guide.read_text(), flags=re.DOTALL | re.MULTILINE)
            for code in re.findall(r"`([^`\n]+)`", text):
                named = re.match(r"dsv4rt ([a-z-]+)\b(.*)", code)
                if named is None:
                    continue
                with self.subTest(guide=guide.name, code=code):
                    self.assertTrue(named[1] in self.commands or named[1] in self.main_flags, "no such command")
                    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code):
                        self.assertIn(flag, self.flags.get(named[1], self.main_flags) | self.main_flags)
                        seen += 1
        self.assertGreater(seen, 10)
        cli = (SOURCE / "docs" / "cli.md").read_text()
        for flags in re.findall(r"^\| (`--[^|]*?) \|", cli, flags=re.MULTILINE):
            for flag in re.findall(r"`(--[a-z][a-z0-9-]*)", flags):
                with self.subTest(table="cli.md", flag=flag):
                    self.assertIn(flag, every)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
