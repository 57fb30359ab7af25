"""Arrays of other libraries as addresses, and engine memory as arrays: never a copy."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dsv4rt._library import ffi
from dsv4rt.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dsv4rt.engine import Engine

# DLPack's numbers.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _BFLOAT = 0, 1, 4
# Of arrays that have an array interface and no dtype.
_NUMPY_TYPES = {"<u2": "uint16", "=u2": "uint16", "<i4": "int32", "=i4": "int32"}

_api = ctypes.pythonapi
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api))
# For a capsule that is going away: a py_object would bring it back to life.
_dying_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api))
_dying_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api))
_UNUSED = b"dltensor"


@dataclasses.dataclass(slots=True)
class Values:
    """A type of values, as libraries name it."""

    text: str
    torch: str
    numpy: tuple[str, ...]
    dlpack: tuple[tuple[int, int, int], ...]
    """Type code, bits, lanes."""


BFLOAT16 = Values("bfloat16, or of uint16 that holds its bits,", "bfloat16", ("bfloat16", "uint16"),
                  ((_BFLOAT, 16, 1), (_UINT, 16, 1)))
INT32 = Values("int32", "int32", ("int32",), ((_INT, 32, 1),))

# torch.Tensor and torch.bfloat16 once torch was there: it may be imported after this module, or never. Nothing is an
# instance of ().
_tensor: Any = ()
_bfloat16: Any = None


def locate_rows(x: Any, out: Any, shape: tuple[int, ...], engine: Engine) -> tuple[int, int, Any]:
    """Addresses of what a layer reads and writes, and what keeps their memory: locate() of both."""
    # Every layer comes here, and finds the caches full of the layer before. So tensors of torch, which are what they
    # should be, are asked nothing twice and take no further call; locate() says what is wrong with others.
    if (isinstance(x, _tensor) and isinstance(out, _tensor) and x.dtype is out.dtype is _bfloat16
            and x.shape == out.shape == shape and x.is_contiguous() and out.is_contiguous()
            and x.get_device() == out.get_device() == engine._torch_device):
        return x.data_ptr(), out.data_ptr(), None
    if not _tensor:
        _look_for_torch()
    x_rows, x_kept = locate(x, shape, BFLOAT16, engine, "x")
    out_rows, out_kept = locate(out, shape, BFLOAT16, engine, "out", True)
    return x_rows, out_rows, (x_kept, out_kept)


def _look_for_torch() -> None:
    global _tensor, _bfloat16
    if (torch := sys.modules.get("torch")) is not None:
        _tensor, _bfloat16 = torch.Tensor, torch.bfloat16


def locate(array: Any, shape: tuple[int, ...], values: Values, engine: Engine, name: str,
           writable: bool = False) -> tuple[int, Any]:
    """Address of a contiguous array in the engine's memory, and what keeps the memory: anything with the array
    interface or with DLPack, whose producer makes the values available on the engine's stream."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if (array.dtype is getattr(torch, values.torch) and array.shape == shape and array.is_contiguous()
                and array.get_device() == engine._torch_device):
            return array.data_ptr(), array
        found = (f"a {'' if array.is_contiguous() else 'strided '}{array.dtype} tensor {list(array.shape)} on "
                 f"{array.device}")
    elif not engine._cuda and (interface := getattr(array, "__array_interface__", None)) is not None:
        dtype, strides = getattr(array, "dtype", None), interface.get("strides")
        # ml_dtypes' bfloat16 calls itself two opaque bytes in the interface.
        dtype = _text_of(dtype) if dtype is not None else _NUMPY_TYPES.get(interface["typestr"], interface["typestr"])
        fits = dtype in values.numpy
        dense = strides is None or (fits and _dense(interface["shape"], strides, values.dlpack[0][1] // 8))
        pointer, read_only = interface["data"]
        if fits and dense and tuple(interface["shape"]) == shape:
            if read_only and writable:
                raise InvalidArgumentError(f"{name} is read-only")
            return pointer, array
        found = f"a {'' if dense else 'strided '}{dtype} array {list(interface['shape'])}"
    elif not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        found = f"a {type(array).__name__}"
    else:
        address, found = _locate_dlpack(array, shape, values, engine)
        if address is not None:
            return address, found
    raise InvalidArgumentError(f"{name} is {found}; accepted: a contiguous array {list(shape)} of {values.text} in the "
                               "engine's memory")


# What a type of NumPy is called takes it microseconds to say.
_known_text = functools.lru_cache(maxsize=64)(str)


def _text_of(dtype: Any) -> str:
    try:
        return _known_text(dtype)
    except TypeError:  # of another library, and not hashable
        return str(dtype)


def _locate_dlpack(array: Any, shape: tuple[int, ...], values: Values, engine: Engine) -> tuple[int | None, Any]:
    """The same of an array with DLPack; without an address, what was found instead."""
    kind, index = map(int, array.__dlpack_device__())
    # Managed memory is every device's.
    here = kind == _CUDA_MANAGED or (kind, index) == engine._device if engine._cuda else kind in (_CPU, _CUDA_HOST)
    if not here:
        return None, f"an array on DLPack device {kind}:{index}"
    # 1 is DLPack's name of the legacy default stream.
    capsule = array.__dlpack__(stream=engine.stream or 1) if engine._cuda else array.__dlpack__()
    tensor = ffi.cast("DLManagedTensor*", _capsule_pointer(capsule, _UNUSED)).dl_tensor
    found = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    dense = tensor.strides == ffi.NULL or _dense(found, [tensor.strides[i] for i in range(tensor.ndim)], 1)
    if found != shape or dtype not in values.dlpack or not dense:
        return None, f"an array {list(found)} of DLPack type {dtype}{'' if dense else ', strided'}"
    # The capsule was taken by nobody: it frees itself, and what the producer made for it.
    return int(ffi.cast("uintptr_t", tensor.data)) + tensor.byte_offset, (array, capsule)


def _dense(shape: Iterable[int], strides: Iterable[int], step: int) -> bool:
    """Whether values lie one behind the other; `step`: from one to the next, as strides count."""
    for size, stride in zip(reversed(tuple(shape)), reversed(tuple(strides))):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def empty_like(array: Any) -> Any:
    """A new array of the same library, shape, type and device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.empty_like(array, memory_format=torch.contiguous_format)
    if hasattr(array, "__array_interface__"):
        import numpy
        return numpy.empty_like(numpy.asarray(array), order="C")
    raise InvalidArgumentError(f"out is needed: no array is made for a {type(array).__name__}")


class Rows:
    """Rows of BF16 values in memory of an engine: [tokens, hidden_size], without a copy.

    `torch.from_dlpack(rows)` or `rows.torch()`, `numpy.asarray(rows)` (uint16, the values' bits) or `rows.numpy()`
    (ml_dtypes.bfloat16) give an array of the same memory. The memory lives as long as one of them does; what it holds
    changes with the engine's calls.
    """

    __slots__ = ("address", "shape", "_owner", "_device", "__weakref__")

    def __init__(self, address: int, shape: tuple[int, int], owner: Any, device: tuple[int, int]):
        self.address, self.shape, self._owner, self._device = address, shape, owner, device

    @property
    def __array_interface__(self) -> dict:
        if self._device[0] != _CPU:
            raise AttributeError("the rows are in device memory: use DLPack")
        return {"data": (self.address, False), "shape": self.shape, "typestr": "<u2", "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
                   copy: Any = None) -> Any:
        """A DLPack capsule. Work that the engine has enqueued is not waited for: use its stream, or synchronize."""
        if copy or (dl_device is not None and tuple(dl_device) != self._device):
            raise BufferError("rows of an engine are neither copied nor moved")
        return _make_capsule(self)

    def numpy(self) -> Any:
        """The same memory as a NumPy array of ml_dtypes.bfloat16."""
        import ml_dtypes
        import numpy
        return numpy.asarray(self).view(ml_dtypes.bfloat16)

    def torch(self) -> Any:
        """The same memory as a torch tensor of bfloat16."""
        import torch
        return torch.from_dlpack(self)

    def __repr__(self) -> str:
        return f"dsv4rt.Rows(shape={self.shape}, device={self._device})"


# What exported structs refer to, by their address, until their consumer deletes them.
_exported: dict[int, tuple] = {}


@ffi.callback("void(DLManagedTensor*)")
def _delete_exported(tensor: Any) -> None:
    _exported.pop(int(ffi.cast("uintptr_t", tensor)), None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _delete_unused_capsule(capsule: int) -> None:
    if _dying_capsule_is_valid(capsule, _UNUSED):
        _exported.pop(_dying_capsule_pointer(capsule, _UNUSED), None)


def _make_capsule(rows: Rows) -> Any:
    managed = ffi.new("DLManagedTensor*")
    sizes = ffi.new("int64_t[4]", (*rows.shape, rows.shape[1], 1))
    tensor = managed.dl_tensor
    tensor.data = ffi.cast("void*", rows.address)
    tensor.device = rows._device
    tensor.ndim = 2
    tensor.dtype = (_BFLOAT, 16, 1)
    tensor.shape, tensor.strides = sizes, sizes + 2
    managed.deleter = _delete_exported
    key = int(ffi.cast("uintptr_t", managed))
    _exported[key] = (managed, sizes, rows._owner)
    return _new_capsule(key, _UNUSED, ctypes.cast(_delete_unused_capsule, ctypes.c_void_p))


def device_of(backend: str, ordinal: int) -> tuple[int, int]:
    return (_CUDA, ordinal) if backend == "cuda" else (_CPU, 0)

