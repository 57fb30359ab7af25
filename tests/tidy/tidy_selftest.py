#!/usr/bin/env python3
"""Shows that every rule of tidy.py fires on a file that breaks it, and on nothing else."""

import json
import pathlib
import tempfile
import unittest

import headers_alone
import tidy
import tidy_text

HEADER = "#pragma once\n"
WORK_MARK = tidy_text.FORBIDDEN_WORDS[0]
PHRASE = tidy_text.FORBIDDEN_PHRASES[0]
HOME = "/" + "home/somebody"
TOOLKIT = "/usr/local/" + "cuda-12/include"

# (file, content, the rules that must fire on it)
CASES = [
    ("src/base/a.h", HEADER + "#include <vector>\n#include \"dsv4rt/status.h\"\n", set()),
    ("src/base/a.cpp", f"// {WORK_MARK}: later\n", {"forbidden-word"}),
    ("docs/a.md", f"It is slow {PHRASE}.\n", {"forbidden-word"}),
    ("src/base/a.cpp", "char name[] = \"XX" + "XXXX\";\n", set()),
    ("scripts/a.sh", f"cd {HOME}\n", {"machine-path"}),
    ("docs/a.md", f"Look in `{HOME}`.\n", {"machine-path"}),
    ("CMakeLists.txt", f"set(toolkit \"{TOOLKIT}\")\n", {"machine-path"}),
    ("scripts/a.sh", "cd \"$ROOT/" + "work\" && ls and/" + "tmp\n", set()),
    ("src/base/a.cpp", "int a; \n", {"trailing-space"}),
    ("src/base/a.cpp", "int a;\r\n", {"trailing-space"}),
    ("src/base/a.cpp", "if (a)\n\tb();\n", {"tab"}),
    ("src/base/a.cpp", "// " + "a" * 118 + "\n", {"long-line"}),
    ("src/base/a.cpp", "// " + "a" * 117 + "\n", set()),
    ("docs/a.md", "a" * 200 + "\n", set()),
    ("src/base/a.cpp", "int a;", {"final-newline"}),
    ("src/base/a.cpp", "\n" * 601, {"long-file"}),
    ("src/base/a.cpp", "\n" * 600, set()),
    ("src/base/a.h", "int a();\n", {"pragma-once"}),
    # Direction of includes.
    ("src/attention/a.cpp", '#include "backend/ops.h"\n#include "base/check.h"\n', set()),
    ("src/base/a.cpp", '#include "model/rope.h"\n', {"include-direction"}),
    ("src/model/a.cpp", '#include "layout/row_format.h"\n', {"include-direction"}),
    ("src/layout/a.cpp", '#include "model/rope.h"\n', {"include-direction"}),
    ("src/cache/a.cpp", '#  include "backend/ops.h"\n', {"include-direction"}),
    ("src/backend/cpu/a.cpp", '#include "attention/attention_layer.h"\n', {"include-direction"}),
    ("src/engine/a.cpp", '#include "tools/table.h"\n', {"include-form"}),
    ("src/cache/a.cpp", '#include "neighbour.h"\n', {"include-form"}),
    ("src/cache/a.cpp", '#include "../base/check.h"\n', {"include-form"}),
    ("src/elsewhere/a.cpp", "int a;\n", {"unknown-module"}),
    # Public headers.
    ("include/dsv4rt/a.h", HEADER + '#include <string>\n#include "dsv4rt/status.h"\n', set()),
    ("include/dsv4rt/a.h", HEADER + '#include "base/check.h"\n', {"public-include"}),
    ("include/dsv4rt/a.h", HEADER + "#include <nlohmann/json_fwd.hpp>\n", {"public-include"}),
    ("include/dsv4rt/a.h", HEADER + "#include <cuda_runtime.h>\n", {"public-include"}),
    ("include/dsv4rt/a.h", HEADER + "namespace spdlog { class logger; }\n", {"public-type"}),
    ("include/dsv4rt/a.h", HEADER + "void run(cudaStream_t stream);\n", {"public-type"}),
    ("include/dsv4rt/a.h", HEADER + "void run(ncclComm_t ranks);\n", {"public-type"}),
    ("include/dsv4rt/a.h", HEADER + "// Works without spdlog and cudaMalloc.\n", set()),
    # Facts of the schedule, and what a library must not do.
    ("src/attention/a.cpp", "if (spec.ratio == 4) pool();\n", {"ratio-literal"}),
    ("tools/dsv4rt/a.cpp", "if (config.compress_ratios[i] >= 128) pool();\n", {"ratio-literal"}),
    ("src/attention/a.cpp", "if (spec.ratio >= 1 && hit_ratio < 1.0) pool();  // ratio == 4\n", set()),
    ("src/model/a.cpp", "if (ratio == 4) overlap = true;\n", set()),
    ("src/engine/a.cpp", "if (layer.value == 2) skip();\n", {"layer-literal"}),
    ("src/cache/a.cpp", "std::cerr << 1;\n", {"library-output"}),
    ("src/cache/a.cpp", "printf(format, 1);\n", {"library-output"}),
    ("src/cache/a.cpp", "std::exit(1);\n", {"library-output"}),
    ("src/cache/a.cpp", "std::snprintf(text, 8, format, 1);\nplan.print_to(out);\n", set()),
    ("tools/dsv4rt/a.cpp", "std::cout << 1;\n", set()),
    # What came from outside.
    ("src/cache/a.cpp", 'return bad("cannot open \'" + path + "\'");\n', {"raw-text"}),
    ("src/cache/a.cpp", 'return bad("cannot open \\"" + name + "\\"");\n', {"raw-text"}),
    ("src/report/a.cpp", 'return "<p id=\\"" + name + "\\">";\n', set()),
    ("src/cache/a.cpp", 'return bad(path.string() + ": empty");\n', {"raw-text"}),
    ("tools/dsv4rt/a.cpp", 'return bad("no file " +\n    entry->path().native());\n', {"raw-text"}),
    ("src/cache/a.cpp", 'return bad(std::string(source_) + ": empty");\n', {"raw-text"}),
    ("tools/dsv4rt/a.cpp", 'std::cout << flags.out << 1;\n', {"raw-text"}),
    ("src/cache/a.cpp", 'return bad(shown(path) + ": " + quote(name.native()) + " is \'" + printable(text) + "\'");\n',
     set()),
    ("src/cache/a.cpp", 'return bad("\'" + std::string(kind_name(kind)) + "\'");  // path.string() + "a"\n', set()),
    ("tools/dsv4rt/a.cpp", "std::cout << shown(flags.out) << flags.seed;\n", set()),
    ("tests/a.cpp", 'FAIL() << path.string() + ": empty";\n', set()),
    ("src/report/a.cpp", 'return "<g id=\\"" + id + "\\">";\n', set()),
    ("src/report/a.cpp", 'return bad(path.string() + ": empty");\n', {"raw-text"}),
    # Comments are sentences.
    ("src/base/a.cpp", "int rows;  // of the token\n", {"dangling-comment"}),
    ("src/base/a.cu", "float max[8];//By head.\n", {"dangling-comment"}),
    ("src/base/a.cpp", "Bytes b; ///< as stored\n", {"dangling-comment"}),
    ("tests/a.cpp", "if (a > b) {  // than before\n}\n", {"dangling-comment"}),
    ("tools/a.cpp", "int n = f(\"//\");  // that remain\n", {"dangling-comment"}),
    ("src/base/a.h", HEADER + "int n;  // which block\n", {"dangling-comment"}),
    ("src/base/a.cpp", "int n;  // rows of the token\nint m;  // offset, asked of none\n", set()),
    ("src/base/a.cpp", "// Of k owners k - 1 copy.\nint n;  // Office, bytes, thatch.\n", set()),
    ("src/base/a.cpp", "int n;  // rows\n        // of the token\nauto s = \"// of it\";  /* // of */\n", set()),
    # Work on the default stream that nobody waits for.
    ("tests/gpu/a.cpp", "cudaMemcpy(to, from, 8,\n           cudaMemcpyHostToDevice);\n", {"default-stream"}),
    ("tools/bench/gpu/a.cpp", "require(cudaMemset(to, 0, 8));\n", {"default-stream"}),
    ("src/backend/a.cpp", "cudaMemcpy(to, from, 8, cudaMemcpyHostToDevice);\n", {"default-stream"}),
    ("tests/gpu/support/device_writes.h", HEADER + "cudaMemset(to, 0, 8);\n", set()),
    ("tests/gpu/a.cpp", "cudaMemcpy(to, from, 8, cudaMemcpyDeviceToHost);\ncudaMemsetAsync(to, 0, 8, stream);\n"
     "cudaMemcpyAsync(to, from, 8, cudaMemcpyHostToDevice, stream);  // cudaMemset(\n", set()),
    # Checks that cannot fail.
    ("tests/a.cpp", "const std::uint64_t allocations = allocations;\n", {"self-initialised"}),
    ("tests/a.cpp", "const std::uint64_t before = allocations;\nint a = a_;\n", set()),
    ("tests/a.cpp", "EXPECT_EQ(allocations, allocations);\n", {"self-compared"}),
    ("tests/a.cpp", "EXPECT_EQ(a.rows, b.rows);\nEXPECT_EQ(rows, rows_before);\n", set()),
]


class TidySelfTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def write(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
        return path

    def rules(self, **options):
        return {rule for _, _, rule, _ in tidy.check_tree(self.root, **options)}

    def test_each_rule(self):
        for name, content, expected in CASES:
            with self.subTest(file=name, content=content[:80]):
                path = self.write(name, content)
                self.assertEqual(self.rules(), expected)
                path.unlink()

    def test_line_is_reported(self):
        self.write("src/base/a.cpp", 'int a;\n/* two\n lines */ #\n#include "model/rope.h"\n')
        self.assertEqual([(path, line) for path, line, _, _ in tidy.check_tree(self.root)], [("src/base/a.cpp", 4)])

    def test_undeclared_module(self):
        self.write("src/cache/CMakeLists.txt",
                   "dsv4rt_module(cache\n  SOURCES a.cpp\n  DEPENDS base model\n  LINKS x::x)\n")
        self.write("src/cache/a.cpp", '#include "model/rope.h"\n')
        self.assertEqual(self.rules(), set())
        self.write("src/cache/b.cpp", '#include "layout/row_format.h"\n')
        self.assertEqual(self.rules(), {"undeclared-module"})

    def test_not_utf8(self):
        (self.root / "a.py").write_bytes(b"# \xff\n")
        self.assertEqual(self.rules(), {"encoding"})

    def test_source_that_is_not_built(self):
        self.write("tests/unit/base/built_test.cpp", "int a;\n")
        commands = self.write("build/compile_commands.json", json.dumps(
            [{"directory": str(self.root / "build"), "file": "../tests/unit/base/built_test.cpp", "command": "c++"}]))
        self.assertEqual(self.rules(compile_commands=commands), set())
        self.write("tests/unit/base/forgotten_test.cpp", "int a;\n")
        self.assertEqual(self.rules(compile_commands=commands), {"not-built"})
        self.assertEqual(self.rules(compile_commands=commands, not_built=["tests/unit"]), set())

    def test_sources_of_a_unity_build(self):
        built = self.write("tests/unit/base/built_test.cpp", "int a;\n")
        self.write("tests/unit/base/forgotten_test.cpp", "int a;\n")
        self.write("build/Unity/unity_0_cxx.cxx", f'/* generated */\n#include "{built}"\n')
        commands = self.write("build/compile_commands.json", json.dumps(
            [{"directory": str(self.root / "build"), "file": "Unity/unity_0_cxx.cxx", "command": "c++"}]))
        self.assertEqual([finding[0] for finding in tidy.check_tree(self.root, commands)],
                         ["tests/unit/base/forgotten_test.cpp"])

    def test_headers_that_sources_begin_with(self):
        self.write("src/base/a.cpp", '// About a.\n\n#include "base/a.h"\n\n#include "base/later.h"\n')
        self.write("src/base/b.cpp", '#include <vector>\n\n#include "base/b.h"\n')
        self.write("src/base/c.cpp", '#define WITH_C\n#include "base/c.h"\n')
        self.write("src/base/kernel.cu", '#include "base/kernel.h"\n')
        self.write("src/base/forgotten.cpp", '#include "base/forgotten.h"\n')
        sources = ("a.cpp", "b.cpp", "c.cpp", "kernel.cu")
        commands = self.write("build/compile_commands.json", json.dumps(
            [{"directory": str(self.root / "build"), "file": f"../src/base/{name}"} for name in sources]))
        self.assertEqual(headers_alone.opened_headers(self.root, commands), {"base/a.h"})

    def test_build_folders_are_skipped(self):
        self.write("build/release/a.cpp", f"// {WORK_MARK}\n")
        self.assertEqual(self.rules(), set())


if __name__ == "__main__":
    unittest.main()
