"""Arrays of other libraries as addresses, and engine memory as arrays: never a copy."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from dsv4rt._library import ffi
from dsv4rt.errors import InvalidArgumentError

# DLPack's numbers.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _BFLOAT = 0, 1, 4

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


def refuse(name: str, found: str, rows: int, width: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name} is {found}; accepted: a contiguous array [{rows}, {width}] of bfloat16, or of uint16 that holds its "
        "bits, in the engine's memory")


def refuse_tensor(name: str, tensor: Any, shape: tuple[int, int]) -> InvalidArgumentError:
    """What is said of a torch tensor that does not hold the rows of a step."""
    return refuse(name, f"a {'' if tensor.is_contiguous() else 'strided '}{tensor.dtype} tensor "
                        f"{list(tensor.shape)} on {tensor.device}", *shape)


def address(array: Any, shape: tuple[int, int], cuda: bool, stream: int, name: str, writable: bool) -> int:
    """Address of an array that holds the rows of a step: anything with the array interface or with DLPack.

    `stream`: the engine's stream, on which the array's producer makes its values available.
    """
    if not cuda and (interface := getattr(array, "__array_interface__", None)) is not None:
        return _numpy_address(array, interface, shape, name, writable)
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise refuse(name, f"a {type(array).__name__}", *shape)
    device, _ = array.__dlpack_device__()
    if (int(device) in (_CUDA, _CUDA_MANAGED)) != cuda or (not cuda and int(device) not in (_CPU, _CUDA_HOST)):
        raise refuse(name, f"an array on DLPack device {int(device)}", *shape)
    # 1 is DLPack's name of the legacy default stream.
    capsule = array.__dlpack__(stream=stream or 1) if cuda else array.__dlpack__()
    tensor = ffi.cast("DLManagedTensor*", _capsule_pointer(capsule, _UNUSED)).dl_tensor
    found = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    dense = tensor.strides == ffi.NULL or (
        len(found) == 2 and (found[0] == 1 or tensor.strides[0] == shape[1]) and tensor.strides[1] == 1)
    if found != shape or dtype not in ((_BFLOAT, 16, 1), (_UINT, 16, 1)) or not dense:
        raise refuse(name, f"an array {list(found)} of DLPack type {dtype}{'' if dense else ', strided'}", *shape)
    # The producer owns the values; its array outlives the call, and the capsule frees itself.
    return int(ffi.cast("uintptr_t", tensor.data)) + tensor.byte_offset


def counts_address(array: Any, count: int, cuda: bool, stream: int) -> int:
    """Address of int32 numbers, one of every entry of a step, in the engine's memory."""
    def refused(found: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"accepted is {found}; accepted: a contiguous array [{count}] of int32 in the "
                                    "engine's memory")

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if (array.dtype is not torch.int32 or array.shape != (count,) or not array.is_contiguous()
                or array.is_cuda != cuda):
            raise refused(f"a {array.dtype} tensor {list(array.shape)} on {array.device}")
        return array.data_ptr()
    if not cuda and (interface := getattr(array, "__array_interface__", None)) is not None:
        strides = interface.get("strides")
        if (interface["typestr"] not in ("<i4", "=i4") or tuple(interface["shape"]) != (count,)
                or strides not in (None, (4,))):
            raise refused(f"a {interface['typestr']} array {list(interface['shape'])}")
        return interface["data"][0]
    if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
        raise refused(f"a {type(array).__name__}")
    device, _ = array.__dlpack_device__()
    if (int(device) in (_CUDA, _CUDA_MANAGED)) != cuda or (not cuda and int(device) not in (_CPU, _CUDA_HOST)):
        raise refused(f"an array on DLPack device {int(device)}")
    capsule = array.__dlpack__(stream=stream or 1) if cuda else array.__dlpack__()
    tensor = ffi.cast("DLManagedTensor*", _capsule_pointer(capsule, _UNUSED)).dl_tensor
    found = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    dense = tensor.strides == ffi.NULL or count == 1 or (len(found) == 1 and tensor.strides[0] == 1)
    if found != (count,) or dtype != (_INT, 32, 1) or not dense:
        raise refused(f"an array {list(found)} of DLPack type {dtype}{'' if dense else ', strided'}")
    return int(ffi.cast("uintptr_t", tensor.data)) + tensor.byte_offset


def _numpy_address(array: Any, interface: dict, shape: tuple[int, int], name: str, writable: bool) -> int:
    pointer, read_only = interface["data"]
    # ml_dtypes' bfloat16 calls itself two opaque bytes.
    bits = interface["typestr"] in ("<u2", "=u2") or str(getattr(array, "dtype", "")) == "bfloat16"
    if not bits or tuple(interface["shape"]) != shape or interface.get("strides") is not None:
        strided = "strided " if interface.get("strides") is not None else ""
        raise refuse(name, f"a {strided}{getattr(array, 'dtype', interface['typestr'])} array "
                           f"{list(interface['shape'])}", *shape)
    if read_only and writable:
        raise InvalidArgumentError(f"{name} is read-only")
    return pointer


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

