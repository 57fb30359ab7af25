#!/usr/bin/env python3
"""Writes the module that declares the C interface to cffi: generate_declarations.py c_api.h OUTPUT

The declarations are the text of the header and of those beside it that it includes, so they cannot differ from it.
"""

import pathlib
import re
import sys

import cffi

# DLPack 0.8: how arrays of other libraries come in and memory of an engine goes out.
DLPACK = """
typedef struct { int32_t device_type; int32_t device_id; } DLDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;
"""


def with_includes(header):
    """The text of a header, the headers of its own folder in the place where it includes them."""
    def included(match):
        return with_includes(header.parent / match[1]) if match[1] != "export.h" else ""
    return re.sub(r'^#include "dsv4rt/(\w+\.h)"$', included, header.read_text(), flags=re.MULTILINE)


def declarations(header):
    """The declarations of a C header, without comments, directives and what only C++ reads."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", with_includes(header), flags=re.DOTALL)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^#(?!define DSV4RT_\w+ \d+$).*\n", "", text, flags=re.MULTILINE)
    return text.replace("DSV4RT_EXPORT ", "")


def main():
    header, output = map(pathlib.Path, sys.argv[1:])
    ffi = cffi.FFI()
    ffi.cdef(declarations(header) + DLPACK)
    ffi.set_source("dsv4rt._declarations", None)
    ffi.emit_python_code(str(output))


if __name__ == "__main__":
    main()
