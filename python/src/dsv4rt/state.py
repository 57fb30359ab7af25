"""What an engine is and holds at a moment, as data: include/dsv4rt/engine_state.h describes every field."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from dsv4rt._library import ffi, text


class CacheRole(enum.IntEnum):
    """What a region of cache holds."""

    SWA_KV = 0
    CSA_KV = 1
    INDEX_K = 2
    HCA_KV = 3
    CSA_STATE = 4
    INDEX_STATE = 5
    HCA_STATE = 6


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Dimensions and formats."""

    hidden_size: int
    layers: int
    num_attention_heads: int
    head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    max_position_embeddings: int
    draft_budget_tokens: int
    csa_rows_per_block: int
    hca_rows_per_block: int
    row_format: str
    index_format: str


@dataclasses.dataclass(frozen=True)
class LayerInfo:
    """What kind of layer one is."""

    layer: int
    kind_name: str
    """"swa", "csa" or "hca"."""
    ratio: int
    """Tokens per compressed row; 0: none."""
    indexer: int
    overlap: int
    compressed_rope: int


@dataclasses.dataclass(frozen=True)
class RoleState:
    """Blocks of one paged role, in each of its layers: total = free + used + cached + pinned."""

    role: CacheRole
    layers: int
    tokens_per_block: int
    total_blocks: int
    free_blocks: int
    used_blocks: int
    cached_blocks: int
    pinned_blocks: int
    reserved_blocks: int


@dataclasses.dataclass(frozen=True)
class EngineState:
    """What is used and left; an outstanding step is included."""

    max_sequences: int
    live_sequences: int
    step_serial: int
    """The outstanding step's; 0: none."""
    tokens_left: int
    """Tokens that fit into the unreserved blocks of the shortest role."""
    roles: tuple[RoleState, ...]


@dataclasses.dataclass(frozen=True)
class SequenceState:
    """What a sequence holds; an outstanding step is included."""

    length: int
    reserve_tokens: int
    earliest_truncation: int
    """The shortest length above 0 that truncate accepts wherever no boundary state is kept."""
    slot: int
    """Row in block tables, and number of the ring."""
    blocks: tuple[int, ...]
    """By CacheRole."""
    saved_tokens: int
    """The `base_tokens` of the next increment (Sequence.save); 0: the sequence has to be saved whole."""
    held_by: int
    """The rank that alone has the sequence (Engine.prepare, `hand_over_to`); -1: every rank."""


@dataclasses.dataclass(frozen=True)
class BlockShortage:
    """What keeps a step from being prepared."""

    role: CacheRole
    layer: int
    missing_blocks: int
    missing_bytes: int
    entry: int
    """First entry whose blocks are not there."""


@dataclasses.dataclass(frozen=True)
class CacheView:
    """Where one layer keeps a role, for kernels that read the cache: addresses of backend memory, not to be written.

    They hold until the engine is closed.
    """

    base: int
    block_stride_bytes: int
    block_count: int
    rows_per_block: int
    data_bytes: int
    scale_bytes: int
    tokens_per_row: int
    scale_offset: int
    format: str
    block_table: int
    """[max_sequences][block_table_columns] of int32; 0: a ring for each slot."""
    block_table_columns: int


def sized(kind: str) -> Any:
    """A new struct that says its size."""
    struct = ffi.new(kind + "*")
    struct.struct_size = ffi.sizeof(struct[0])
    return struct


def read_struct(struct: Any, kind: type, **more: Any) -> Any:
    """A dataclass out of the C struct's fields of the same names: texts as str, pointers as int, arrays as tuples."""
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in more:
            continue
        value = getattr(struct, field.name)
        if isinstance(value, ffi.CData):
            c_type = ffi.typeof(value)
            if c_type.kind == "array":
                value = tuple(value)
            elif c_type is ffi.typeof("char*"):
                value = text(value)
            else:
                value = int(ffi.cast("uintptr_t", value))
        values[field.name] = value
    return kind(**values, **more)
