"""What the package consists of: every C function is used, types are declared, and nothing is imported needlessly."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import conftest
import dsv4rt

PACKAGE = pathlib.Path(dsv4rt.__file__).parent
HEADER_FILE = conftest.TREE / "include" / "dsv4rt" / "c_api.h"
HEADER = HEADER_FILE.read_text()


def functions_of_header():
    return set(re.findall(r"\b(dsv4rt_\w+)\(", re.sub(r"//[^\n]*|/\*.*?\*/", "", HEADER, flags=re.DOTALL)))


def test_declarations_are_those_of_the_header():
    from dsv4rt._library import lib
    names = functions_of_header()
    assert len(names) > 40
    for name in names:
        assert callable(getattr(lib, name))
    version = int(re.search(r"define DSV4RT_C_API_VERSION (\d+)", HEADER).group(1))
    assert version == dsv4rt.C_API_VERSION == lib.DSV4RT_C_API_VERSION
    spec = importlib.util.spec_from_file_location("generate", conftest.TREE / "python/tools/generate_declarations.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    left = generator.declarations(HEADER_FILE)
    assert "//" not in left and "__cplusplus" not in left and "DSV4RT_EXPORT" not in left
    assert set(re.findall(r"\b(dsv4rt_\w+)\(", left)) == names


def test_every_c_function_is_reachable_from_python():
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "_declarations.py")
    unused = {name for name in functions_of_header() if not re.search(rf"lib\.{name}\b", sources)}
    assert unused == {"dsv4rt_step_run"}  # dsv4rt_step_run_with_outputs does the same and more


def test_every_option_of_c_is_one_of_python():
    from dsv4rt._library import ffi
    names = {name for name, _ in ffi.typeof("dsv4rt_engine_options").fields}
    fields = set(dsv4rt.EngineOptions.__dataclass_fields__)
    assert names - fields == {"struct_size", "checkpoint", "nondeterministic", "warning_user_data"}
    assert fields <= names


def test_the_installed_package_is_complete():
    for name in ("py.typed", "libdsv4rt.so", "LICENSE", "THIRD_PARTY_NOTICES.md"):
        assert (PACKAGE / name).is_file(), name
    assert conftest.TREE not in PACKAGE.parents, "the tests are of the installed package"
    assert re.fullmatch(r"\d+\.\d+\.\d+", dsv4rt.__version__)


def test_importing_needs_neither_torch_nor_numpy():
    program = "import sys, dsv4rt; print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          check=True).stdout.strip() == "[]"


def test_public_names_have_documentation():
    for name in dsv4rt.__all__:
        if isinstance(kind := getattr(dsv4rt, name), type):
            assert kind.__doc__, name
            for attribute, value in vars(kind).items():
                if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
                    assert value.__doc__, f"{name}.{attribute}"
