"""Rules about C++ files: include direction, public headers, literals that belong to the schedule, comments."""

import re

# A module may include itself and modules of a lower rank; two of the same rank do not see each other.
RANK = {"base": 0, "model": 1, "layout": 1, "step": 1, "dist": 1, "checkpoint": 2, "cache": 3, "backend": 4,
        "attention": 5, "engine": 6, "capi": 7, "replay": 7, "report": 7}

STANDARD_HEADERS = set("""
algorithm any array atomic barrier bit bitset charconv chrono compare complex concepts condition_variable coroutine
deque exception execution filesystem format forward_list fstream functional future initializer_list iomanip ios iosfwd
iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric optional
ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span sstream stack
stdexcept stop_token streambuf string string_view syncstream system_error thread tuple type_traits typeindex typeinfo
unordered_map unordered_set utility valarray variant vector version
cassert cctype cerrno cfenv cfloat cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef cstdint cstdio
cstdlib cstring ctime cuchar cwchar cwctype
stddef.h stdint.h stdbool.h inttypes.h limits.h
""".split())

INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")')
PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\b", re.MULTILINE)
HIDDEN_TYPES = re.compile(r"\b(spdlog|nlohmann|cuda[A-Z_]\w*|cublas\w*|nccl\w*|ncclComm_t|CU(stream|context|device))\b")
RATIO_LITERAL = re.compile(r"(?:\bratio|compress_ratio)s?(?:\[[^\]]*\])?\s*(?:==|!=|<=?|>=?|%)\s*"
                           r"(?:[2-9]|[1-9]\d+)\b(?!\.)")
LAYER_LITERAL = re.compile(r"\blayer(?:_id|_index)?(?:\.value)?\s*(?:==|!=)\s*\d+\b")
OUTPUT = re.compile(r"\bstd::(?:cout|cerr|clog)\b|(?<![\w.>:])(?:std::)?(?:v?f?printf|puts|exit|_Exit|abort)\s*\(")
# A name of an outer scope that a declaration meant to read hides: the variable is read before it has a value.
SELF_INITIALISED = re.compile(r"\b(?:auto|int|float|double|bool|(?:std::)?(?:u?int\d+|size)_t)\s+"
                              r"(\w+)\s*=\s*\1\s*;")
SELF_COMPARED = re.compile(r"\b(?:EXPECT|ASSERT)_(?:EQ|NE|LE|GE|LT|GT)\(\s*([\w.]+)\s*,\s*\1\s*\)")
# These leave work under way on the default stream, which the engine's stream does not wait for.
DEFAULT_STREAM = re.compile(r"\bcudaMemset\s*\(|\bcudaMemcpy\s*\([^;]*\bcudaMemcpyHostToDevice\b")
# What waits for it: copy_to_device() and fill_on_device().
DEFAULT_STREAM_HOMES = ("tests/gpu/support/device_writes.h", "tools/bench/gpu/graph_timing.h")
# Such a comment goes on from the code before it and says nothing by itself.
DANGLING = re.compile(r"///?<?\s*((?:of|by|as|than|that|which)\b.{0,40})", re.IGNORECASE)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)

# Text from outside that goes into a message, or to standard output, as it is: a path, a name between quotes made by
# hand, the name of what is being read, a flag that names a file.
RAW_TEXT = [re.compile(pattern) for pattern in (
    r"""(?:'|\\")"\s*\+\s*(?!printable\(|std::to_string\(|std::string\([\w:]+\()[\w*(]""",
    r"""\.(?:string|native|c_str)\(\)\s*\+\s*\"""",
    r"""\"\s*\+\s*(?!quote\(|printable\(|shown\()[\w.>()-]+\.(?:string|native|c_str)\(\)""",
    r"""std::string\((?:source|path|log_name)_?\)\s*\+""",
    r"""<<\s*(?:flags|options|trace)\.(?:[\w.]+\.)?(?:path|out|json|config|checkpoint|trace|log|file)\b(?!\()""",
)]

HEADER_SUFFIXES = (".h", ".hpp", ".cuh")
SOURCE_SUFFIXES = (".cpp", ".c", ".cu")


def strip_comments_and_strings(text):
    """The same number of lines, with comments and literals blanked."""
    def blank(match):
        return "\n" * match.group(0).count("\n")
    return COMMENT_OR_STRING.sub(blank, text)


def strip_comments(text):
    """The same number of lines, with comments blanked and literals as they are."""
    def blank(match):
        return "\n" * match.group(0).count("\n") if match.group(0).startswith("/") else match.group(0)
    return COMMENT_OR_STRING.sub(blank, text)


def check_trailing_comments(text, report):
    for comment in COMMENT_OR_STRING.finditer(text):
        found = DANGLING.match(comment.group(0))
        line_start = text.rfind("\n", 0, comment.start()) + 1
        if found and text[line_start:comment.start()].strip():
            report(text.count("\n", 0, comment.start()) + 1, "dangling-comment",
                   f"'{found.group(1)}' does not name what it is about")


def module_of(path):
    """The module of src/<module>/..., or None for a file elsewhere."""
    return path.parts[1] if len(path.parts) > 2 and path.parts[0] == "src" else None


def check_public_include(target, quoted, number, report):
    if quoted and not target.startswith("dsv4rt/"):
        report(number, "public-include", f'a public header includes only "dsv4rt/..." and the standard library, '
                                         f'not "{target}"')
    if not quoted and target not in STANDARD_HEADERS:
        report(number, "public-include", f"a public header includes only the standard library, not <{target}>")


def check_module_include(path, target, depends, number, report):
    """An #include "target" in src/<module>; `depends` is what the module's CMakeLists.txt declares."""
    module = module_of(path)
    other = target.split("/")[0]
    if other == "dsv4rt" or other == module and "/" in target:
        return
    if other not in RANK or "/" not in target:
        report(number, "include-form", f'write "dsv4rt/<file>" or "<module>/<file>" instead of "{target}"')
    elif module in RANK and RANK[other] >= RANK[module]:
        report(number, "include-direction", f'{module} must not include "{target}": {other} does not lie below it')
    elif depends is not None and other not in depends:
        report(number, "undeclared-module", f'"{target}" is used, but DEPENDS of {module} does not name {other}')


def check_code(path, text, depends, report):
    """Reports (line, rule, message) for one C or C++ file; `path` is relative to the repository's root."""
    public = path.parts[0] == "include"
    module = module_of(path)
    if module is not None and module not in RANK:
        report(1, "unknown-module", f"src/{module} has no rank in tests/tidy/tidy_code.py")
    for number, line in enumerate(text.split("\n"), start=1):
        found = INCLUDE.match(line)
        if not found:
            continue
        quoted, target = found.group(1)[0] == '"', found.group(1)[1:-1]
        if public:
            check_public_include(target, quoted, number, report)
        elif module is not None and quoted:
            check_module_include(path, target, depends, number, report)
    if path.suffix in HEADER_SUFFIXES and not PRAGMA_ONCE.search(text):
        report(1, "pragma-once", "a header needs #pragma once")

    check_trailing_comments(text, report)
    if str(path) not in DEFAULT_STREAM_HOMES:
        code = strip_comments_and_strings(text)
        for found in DEFAULT_STREAM.finditer(code):
            report(code.count("\n", 0, found.start()) + 1, "default-stream",
                   "may still be under way on the default stream: copy_to_device() and fill_on_device() wait")
    if path.parts[0] in ("src", "tools") and path.parts[:2] != ("tools", "bench"):
        code = strip_comments(text)
        # The attributes of markup are between quotes too, and escaped in its way.
        for pattern in RAW_TEXT[1:] if module == "report" else RAW_TEXT:
            for found in pattern.finditer(code):
                report(code.count("\n", 0, found.start()) + 1, "raw-text",
                       f"'{found.group(0)}': what came from outside goes through shown(), quote() or printable()")
    for number, line in enumerate(strip_comments_and_strings(text).split("\n"), start=1):
        if public and HIDDEN_TYPES.search(line) and not INCLUDE.match(line):
            report(number, "public-type", f"'{HIDDEN_TYPES.search(line).group(0)}' must not show in a public header")
        for pattern, rule in ((SELF_INITIALISED, "self-initialised"), (SELF_COMPARED, "self-compared")):
            found = pattern.search(line)
            if found:
                report(number, rule, f"'{found.group(0)}' says nothing about {found.group(1)}")
        if path.parts[0] in ("src", "tools") and module != "model":
            for pattern, rule in ((RATIO_LITERAL, "ratio-literal"), (LAYER_LITERAL, "layer-literal")):
                found = pattern.search(line)
                if found:
                    report(number, rule, f"'{found.group(0)}': ask the LayerSpec's fields instead")
        if module is not None and OUTPUT.search(line):
            report(number, "library-output", f"'{OUTPUT.search(line).group(0)}': the library never prints or exits")
