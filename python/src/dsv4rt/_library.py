"""The loaded shared library and its declarations."""

import pathlib
from typing import Any

from dsv4rt._declarations import ffi as _ffi

# Types that are made at run time: type checkers see Any.
ffi: Any = _ffi
lib: Any = ffi.dlopen(str(pathlib.Path(__file__).with_name("libdsv4rt.so")))


def text(pointer: Any) -> str:
    """A C string, decoded without failing: messages may quote bytes of files."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode(errors="replace")
