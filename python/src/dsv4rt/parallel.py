"""Engines of several processes that run every step together."""

from __future__ import annotations

import dataclasses
from typing import Any

from dsv4rt._library import ffi, lib, text
from dsv4rt.errors import error_of

_MESSAGE_BYTES = 4096
_KINDS = {"tensor": lib.DSV4RT_PARALLEL_TENSOR, "context": lib.DSV4RT_PARALLEL_CONTEXT}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """Which ranks an engine works with. Every rank makes its engine with the same options but for rank and device, and
    then the same calls; dsv4rt_parallel_options in c_types.h describes each field."""

    kind: str
    """"tensor": each rank has a part of the heads. "context": each has a part of a long step's rows."""
    rank: int = 0
    size: int = 0
    """Of this process and of all; with backend "cpu" 0 and 0, as the communicator says."""
    context_min_tokens: int | None = None
    context_own_outputs: bool = False
    """True: outputs of shared steps stay where they were computed; see dsv4rt_step_context_rows."""
    deadline_seconds: float | None = None
    create_deadline_seconds: float | None = None
    mpi_communicator: Any = None
    """Backend "cpu": an mpi4py communicator, or the address of an MPI_Comm; None: MPI_COMM_WORLD."""
    unique_id: bytes | None = None
    """Backend "cuda": what nccl_unique_id() gave one of the ranks."""


def _address(communicator: Any) -> int:
    if isinstance(communicator, int):
        return communicator
    from mpi4py import MPI  # whoever has a communicator of it has it
    return MPI._addressof(communicator)


def parallel_struct(options: ParallelOptions) -> tuple[Any, list]:
    """The C struct, and what it points to."""
    if options.kind not in _KINDS:
        raise ValueError(f"parallel.kind: {options.kind!r}; accepted: {', '.join(map(repr, _KINDS))}")
    struct = ffi.new("dsv4rt_parallel_options*")
    lib.dsv4rt_parallel_options_init(struct, ffi.sizeof(struct[0]))
    kept: list = [struct]
    struct.context_own_outputs = int(options.context_own_outputs)
    struct.kind, struct.rank, struct.size = _KINDS[options.kind], options.rank, options.size
    for name in ("context_min_tokens", "deadline_seconds", "create_deadline_seconds"):
        if (value := getattr(options, name)) is not None:
            setattr(struct, name, value)
    if options.mpi_communicator is not None:
        struct.mpi_communicator = ffi.cast("void*", _address(options.mpi_communicator))
        kept.append(options.mpi_communicator)
    if options.unique_id is not None:
        if len(options.unique_id) != lib.DSV4RT_NCCL_ID_BYTES:
            raise ValueError(f"parallel.unique_id: {len(options.unique_id)} bytes; accepted: the "
                             f"{lib.DSV4RT_NCCL_ID_BYTES} of nccl_unique_id()")
        kept.append(ffi.new("char[]", options.unique_id))
        struct.unique_id = kept[-1]
    return struct, kept


def nccl_unique_id() -> bytes:
    """Bytes by which ranks with backend "cuda" find each other: one of them makes them and gives them to all."""
    made, message = ffi.new("char[]", lib.DSV4RT_NCCL_ID_BYTES), ffi.new("char[]", _MESSAGE_BYTES)
    status = lib.dsv4rt_nccl_unique_id(made, ffi.sizeof(made), message, _MESSAGE_BYTES)
    if status != lib.DSV4RT_OK:
        raise error_of(status, text(message))
    return bytes(ffi.buffer(made))
