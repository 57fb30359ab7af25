"""Rules about the text of every file: machine paths, forbidden words, whitespace, lengths."""

import re

CODE_SUFFIXES = (".h", ".hpp", ".cuh", ".c", ".cpp", ".cu", ".cmake", ".py", ".sh", ".in")
CODE_NAMES = ("CMakeLists.txt",)
TEXT_SUFFIXES = CODE_SUFFIXES + (".md", ".txt", ".yml", ".yaml", ".toml")
MAX_LINE = 120
MAX_FILE_LINES = 600

# Written in two halves so that this file passes its own rules.
FORBIDDEN_WORDS = [left + right for left, right in (
    ("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK"), ("WI", "P"))]
FORBIDDEN_PHRASES = [left + right for left, right in (
    ("for", " now"), ("not implemented", " yet"))]
MACHINE_ROOTS = ["home", "root", "tmp", "work", "workspace", "mnt", "Users"]

WORD = re.compile(r"\b(" + "|".join(FORBIDDEN_WORDS) + r")\b")
PHRASE = re.compile(r"\b(" + "|".join(FORBIDDEN_PHRASES) + r")\b", re.IGNORECASE)
MACHINE_PATH = re.compile(
    r"(?<![\w./})>*~-])/((" + "|".join(MACHINE_ROOTS) + r")\b(?!\.)|usr/local/" + "cuda)")


def is_code(path):
    return path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES or path.as_posix() == ".ci/run"


def is_text(path):
    return is_code(path) or path.suffix in TEXT_SUFFIXES or (path.name.startswith(".") and path.suffix == "")


def check_text(path, text, report):
    """Reports (line, rule, message) for one file; `path` is relative to the repository's root."""
    for number, line in enumerate(text.split("\n"), start=1):
        for pattern, rule, what in ((WORD, "forbidden-word", "the word"), (PHRASE, "forbidden-word", "the words"),
                                    (MACHINE_PATH, "machine-path", "the path")):
            found = pattern.search(line)
            if found:
                report(number, rule, f"{what} '{found.group(0)}' must not be in the tree")
        if line != line.rstrip():
            report(number, "trailing-space", "the line ends with white space or a carriage return")
        if is_code(path):
            if "\t" in line:
                report(number, "tab", "use spaces")
            if len(line) > MAX_LINE:
                report(number, "long-line", f"{len(line)} columns, at most {MAX_LINE}")
    if text and not text.endswith("\n"):
        report(text.count("\n") + 1, "final-newline", "the file must end with a newline")
    if is_code(path) and text.count("\n") > MAX_FILE_LINES:
        report(MAX_FILE_LINES, "long-file", f"{text.count(chr(10))} lines, at most {MAX_FILE_LINES}: split it")
