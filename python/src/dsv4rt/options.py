"""What an engine is made with, and what it says that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dsv4rt._library import ffi, lib, text
from dsv4rt.parallel import ParallelOptions, parallel_struct
from dsv4rt.prefix import PrefixCacheOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine is made. The limits fix every allocation; include/dsv4rt/engine.h describes each field."""

    max_context_tokens: int
    """Longest sequence."""
    max_step_tokens: int
    """Most tokens of one step, all sequences together."""
    max_sequences: int = 1
    pool_tokens: int = 0
    """Tokens of all sequences together; 0: max_sequences * max_context_tokens."""
    profile: str | None = None
    """"deepseek-v4" (None) or "seed"."""
    backend: str | None = None
    """"cpu" (None) or "cuda"."""
    row_format: str | None = None
    """"fp8_ds_mla", "fp8_row", "nvfp4" or "bf16"; None: the profile's."""
    index_format: str | None = None
    """"mxfp4", "nvfp4", "fp8" or "bf16"; None: the profile's."""
    threads: int = 0
    """CPU threads; 0: as many as the process may use. Results do not depend on it."""
    first_layer: int = 0
    layer_count: int = 0
    """Layers to load from first_layer on; 0: to the last one."""
    csa_rows_per_block: int | None = None
    hca_rows_per_block: int | None = None
    draft_budget_tokens: int = 0
    """Draft tokens of a step that can always be rejected, and how far Sequence.truncate can always go back."""
    memory_limit_bytes: int = 0
    """Refuse a larger plan; 0: no limit."""
    device: int = 0
    """Backend "cuda": ordinal."""
    max_graphs: int | None = None
    max_graph_tokens: int | None = None
    stream: Any = None
    """Backend "cuda": a cudaStream_t as an integer, or a torch stream; it outlives the engine. None: torch's current
    stream if torch is loaded, otherwise a stream of the engine's own."""
    linear_precision: str | None = None
    """How backend "cuda" multiplies quantized weights: "exact" (None); "fp8", which is faster for long steps and moves
    outputs by about 4 %; or "nvfp4", by cuBLASLt on compute capability 10.x."""
    prefix_cache: PrefixCacheOptions | None = None
    allow_non_finite_weights: bool = False
    check_outputs: bool = False
    """Step.output_check tells whose outputs are not finite."""
    on_warning: Callable[[str], None] | None = None
    """Called with a message for people when the engine works, but not as well as it should. It must not change the
    engine; what it raises is printed and dropped."""
    parallel: ParallelOptions | None = None
    """The ranks that run every step together; None: one rank."""


@ffi.callback("dsv4rt_warning_callback")
def _on_warning(user_data: Any, message: Any) -> None:
    ffi.from_handle(user_data)(text(message))


_TEXTS = ("profile", "backend", "row_format", "index_format", "linear_precision")
_NUMBERS = ("threads", "first_layer", "layer_count", "max_sequences", "max_context_tokens", "pool_tokens",
            "max_step_tokens", "draft_budget_tokens", "memory_limit_bytes", "device", "allow_non_finite_weights",
            "check_outputs")
_NUMBERS_WITH_DEFAULT = ("csa_rows_per_block", "hca_rows_per_block", "max_graphs", "max_graph_tokens")


def options_struct(options: EngineOptions) -> tuple[Any, list]:
    """The C struct without checkpoint, stream and prefix cache, and what it points to."""
    struct = ffi.new("dsv4rt_engine_options*")
    lib.dsv4rt_engine_options_init(struct, ffi.sizeof(struct[0]))
    kept: list = [struct]
    for name in _TEXTS:
        if (value := getattr(options, name)) is not None:
            kept.append(ffi.new("char[]", value.encode()))
            setattr(struct, name, kept[-1])
    for name in _NUMBERS:
        setattr(struct, name, int(getattr(options, name)))
    for name in _NUMBERS_WITH_DEFAULT:
        if (value := getattr(options, name)) is not None:
            setattr(struct, name, value)
    if options.on_warning is not None:
        kept += [options.on_warning, ffi.new_handle(options.on_warning)]
        struct.on_warning, struct.warning_user_data = _on_warning, kept[-1]
    if options.parallel is not None:
        struct.parallel, more = parallel_struct(options.parallel)
        kept += more
    return struct, kept


@dataclasses.dataclass(frozen=True)
class MemoryRegion:
    """One role's line of the memory plan, all its layers together."""

    role_name: str
    role: int
    layers: int
    bytes_per_token: float
    bytes_per_sequence: int
    blocks_per_layer: int
    total_bytes: int


@dataclasses.dataclass(frozen=True)
class EngineMemory:
    """What an engine holds, in bytes; dsv4rt_memory in c_api.h describes each field."""

    total_bytes: int
    weight_bytes: int
    workspace_bytes: int
    scratch_bytes: int
    graph_bytes: int
    cache_bytes: int
    block_table_bytes: int
    step_metadata_bytes: int
    boundary_state_bytes: int
    table_row_bytes: int
    bytes_per_token: float
    bytes_per_sequence: int
    bytes_per_boundary_state: int
    sharing_unit_tokens: int
    prefix_unit_tokens: int
    regions: tuple[MemoryRegion, ...]


@dataclasses.dataclass(frozen=True)
class GraphStats:
    """What became of the steps that ran as a whole."""

    captures: int
    replays: int
    eager_steps: int
    evictions: int
    last_nodes: int

