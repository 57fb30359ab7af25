"""Tensors in memory as the C interface takes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dsv4rt._library import ffi
from dsv4rt.errors import InvalidArgumentError

# Types of torch and of NumPy with ml_dtypes, by their names, as safetensors files spell them.
_DTYPES = {"bfloat16": "BF16", "float32": "F32", "float16": "F16", "float64": "F64", "float8_e4m3fn": "F8_E4M3",
           "float8_e8m0fnu": "F8_E8M0", "uint8": "U8", "int8": "I8"}


def tensors_array(tensors: Mapping[str, Any]) -> tuple[Any, int, list]:
    """An array of dsv4rt_tensor, its length, and what it points to."""
    array = ffi.new("dsv4rt_tensor[]", max(1, len(tensors)))
    kept: list = []
    for row, (name, tensor) in zip(array, tensors.items()):
        dtype = str(tensor.dtype).rsplit(".", 1)[-1]
        if dtype not in _DTYPES:
            raise InvalidArgumentError(f"tensor {name!r} is {dtype}; accepted: {', '.join(_DTYPES)}")
        tensor, address, size = _dense(tensor)
        row.struct_size = ffi.sizeof("dsv4rt_tensor")
        row_name, row_dtype = ffi.new("char[]", name.encode()), ffi.new("char[]", _DTYPES[dtype].encode())
        shape = ffi.new("int64_t[]", list(tensor.shape))
        row.name, row.dtype, row.shape, row.dimensions = row_name, row_dtype, shape, len(tensor.shape)
        row.data, row.bytes = ffi.cast("void*", address), size
        kept.append((tensor, row_name, row_dtype, shape))
    return array, len(tensors), kept


def _dense(tensor: Any) -> tuple[Any, int, int]:
    """The tensor in host memory without gaps, which is itself if it is so, its address and its bytes."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        tensor = tensor.detach().cpu().contiguous()
        return tensor, tensor.data_ptr(), tensor.numel() * tensor.element_size()
    import numpy
    tensor = numpy.asarray(tensor, order="C")
    return tensor, tensor.__array_interface__["data"][0], tensor.nbytes
