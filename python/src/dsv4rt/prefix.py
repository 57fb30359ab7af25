"""The prefix cache: tokens that a sequence begins with instead of running them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dsv4rt._library import ffi, lib, text
from dsv4rt.state import CacheRole, read_struct, sized

if TYPE_CHECKING:
    from dsv4rt.engine import Engine


@dataclasses.dataclass(frozen=True)
class PrefixPolicy:
    """Where boundary states are taken; a sequence can begin where one is kept."""

    interval_tokens: int = 2048
    """Every so many tokens, rounded up to whole units; 0: only at the ends below."""
    prompt_end: bool = True
    """At the last boundary below the last token of the ids that a sequence was created with."""
    output_end: bool = True
    """At the last boundary that a sequence reached after its prompt."""
    fork_points: bool = True
    """At the last boundary at a fork."""


class PrefixEventKind(enum.IntEnum):
    """What a PrefixEvent tells."""

    UNIT_STORED = 0
    UNIT_REMOVED = 1
    STATE_STORED = 2
    STATE_REMOVED = 3


class PrefixRemoval(enum.IntEnum):
    """Why something was removed."""

    SPACE = 0
    QUOTA = 1
    REQUEST = 2


@dataclasses.dataclass(frozen=True)
class PrefixEvent:
    """A unit of the prefix cache, or the boundary state at its end, came or went."""

    kind: PrefixEventKind
    removal: PrefixRemoval
    """Of removals."""
    digest: bytes
    """Names the prefix up to the unit's end: equal in engines of the same checkpoint and formats."""
    parent: bytes
    """The digest of the unit before; of the salt for the first one."""
    end_tokens: int
    """Length of the prefix up to the unit's end."""
    token_ids: tuple[int, ...]
    """Ids of the unit's tokens, if PrefixCacheOptions.event_token_ids asks for them."""
    roles: tuple[CacheRole, ...]
    """What of the cache came or went."""
    medium: str
    """"cpu" or "cuda": where it lies."""


@dataclasses.dataclass(frozen=True)
class PrefixCacheOptions:
    """Makes an engine keep what sequences computed (docs/cache.md)."""

    boundary_states: int
    """States that may be kept, each EngineMemory.bytes_per_boundary_state."""
    policy: PrefixPolicy = PrefixPolicy()
    """Of sequences that bring none."""
    tenant_quota_tokens: int = 0
    """Most tokens that prefixes of one salt may keep; 0: no quota."""
    event_token_ids: bool = False
    """Events carry the token ids of their unit."""
    on_event: Callable[[PrefixEvent], None] | None = None
    """Called at the end of the call that changed the cache, on its thread. It must not change the engine. What it
    raises is printed and dropped."""


@dataclasses.dataclass(frozen=True)
class PrefixLookup:
    """What the cache has of given token ids."""

    hit_tokens: int
    """What a sequence would begin with."""
    matched_tokens: int
    """What is kept without a gap, whether or not a boundary state follows."""


@dataclasses.dataclass(frozen=True)
class PrefixStats:
    """Counts since the engine began; kept and pinned ones are present values."""

    lookups: int
    hit_tokens: int
    missed_tokens: int
    units_stored: int
    units_removed_for_space: int
    units_removed_by_quota: int
    units_removed_on_request: int
    states_taken: int
    states_removed: int
    states_refused: int
    sequences_detached: int
    kept_units: int
    kept_states: int
    pinned_units: int


def policy_struct(policy: PrefixPolicy) -> Any:
    struct = ffi.new("dsv4rt_prefix_policy*")
    lib.dsv4rt_prefix_policy_init(struct, ffi.sizeof(struct[0]))
    struct.interval_tokens = policy.interval_tokens
    struct.prompt_end, struct.output_end, struct.fork_points = policy.prompt_end, policy.output_end, policy.fork_points
    return struct


def ids_array(token_ids: Iterable[int]) -> tuple[Any, int]:
    """Token ids as int32 [count]: a list, a NumPy array or a tensor on the CPU."""
    if hasattr(token_ids, "tolist"):
        token_ids = token_ids.tolist()
    values = list(token_ids)
    return ffi.new("int32_t[]", values), len(values)


@ffi.callback("dsv4rt_prefix_event_callback")
def _on_event(user_data: Any, event: Any) -> None:
    # What is raised here cannot pass through C: cffi prints it.
    ffi.from_handle(user_data)(PrefixEvent(
        PrefixEventKind(event.kind), PrefixRemoval(event.removal), bytes(event.digest), bytes(event.parent),
        event.end_tokens, tuple(event.token_ids[0:event.token_id_count]) if event.token_id_count else (),
        tuple(CacheRole(event.roles[i]) for i in range(event.role_count)), text(event.medium)))


def options_struct(options: PrefixCacheOptions) -> tuple[Any, list]:
    """The C struct, and what has to live as long as the engine."""
    struct = ffi.new("dsv4rt_prefix_options*")
    lib.dsv4rt_prefix_options_init(struct, ffi.sizeof(struct[0]))
    struct.boundary_states = options.boundary_states
    struct.event_token_ids = options.event_token_ids
    struct.tenant_quota_tokens = options.tenant_quota_tokens
    policy = policy_struct(options.policy)
    struct.policy = policy
    if options.on_event is None:
        return struct, [struct, policy]
    handle = ffi.new_handle(options.on_event)
    struct.on_event, struct.user_data = _on_event, handle
    return struct, [struct, policy, handle, options.on_event]


class PrefixCache:
    """Queries and changes of an engine's prefix cache, between steps: `Engine.prefix`.

    All of them are FailedPreconditionError without EngineOptions.prefix_cache.
    """

    def __init__(self, engine: Engine):
        self._engine = engine

    @property
    def unit_tokens(self) -> int:
        """The shortest prefix that can be cached, of which every other is a multiple; 0 without a prefix cache."""
        out = ffi.new("int64_t*")
        self._engine._call(lib.dsv4rt_engine_prefix_unit_tokens, out)
        return out[0]

    @property
    def stats(self) -> PrefixStats:
        """Counts of what was found, kept and removed."""
        out = sized("dsv4rt_prefix_stats")
        self._engine._call(lib.dsv4rt_engine_prefix_stats, out)
        return read_struct(out, PrefixStats)

    def lookup(self, token_ids: Iterable[int], salt: bytes = b"") -> PrefixLookup:
        """What a sequence with these ids would begin with; changes nothing."""
        matched = ffi.new("int64_t*")
        return PrefixLookup(self._of_ids(lib.dsv4rt_prefix_lookup, token_ids, salt, matched), matched[0])

    def pin(self, token_ids: Iterable[int], salt: bytes = b"") -> int:
        """Keeps the longest prefix that a sequence can begin with until it is unpinned as often; gives its length."""
        return self._of_ids(lib.dsv4rt_prefix_pin, token_ids, salt)

    def unpin(self, token_ids: Iterable[int], salt: bytes = b"") -> int:
        """Undoes one pin of the longest pinned prefix of these ids; gives its length."""
        return self._of_ids(lib.dsv4rt_prefix_unpin, token_ids, salt)

    def evict(self, token_ids: Iterable[int], salt: bytes = b"") -> int:
        """Forgets units from the end of what is cached of these ids; gives the tokens forgotten."""
        return self._of_ids(lib.dsv4rt_prefix_evict, token_ids, salt)

    def clear(self) -> None:
        """Forgets everything that is not pinned."""
        self._engine._call(lib.dsv4rt_prefix_clear)

    def _of_ids(self, function: Any, token_ids: Iterable[int], salt: bytes, *more: Any) -> int:
        ids, count = ids_array(token_ids)
        out = ffi.new("int64_t*")
        self._engine._call(function, ids, count, ffi.from_buffer(salt), len(salt), out, *more)
        return out[0]
