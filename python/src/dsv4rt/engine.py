"""An engine: the attention layers of a checkpoint and the cache they own."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dsv4rt import _arrays, options as option_structs, prefix as prefix_structs
from dsv4rt._checkpoint import tensors_array
from dsv4rt._library import ffi, lib, text
from dsv4rt.errors import FailedPreconditionError, InvalidArgumentError, error_of, raise_status
from dsv4rt.options import EngineMemory, EngineOptions, GraphStats, MemoryRegion
from dsv4rt.prefix import PrefixCache, PrefixPolicy
from dsv4rt.sequence import Sequence, Source, on_read, snapshot_options
from dsv4rt.state import (BlockShortage, CacheRole, CacheView, EngineConfig, EngineState, LayerInfo, RoleState,
                          read_struct, sized)
from dsv4rt.step import Step

_MESSAGE_BYTES = 8192
# Views of engine memory that hooks were given; a run uses two addresses.
_MAX_VIEWS = 64
_ENTRIES = ffi.typeof("dsv4rt_step_entry[]")
_STEP = ffi.typeof("dsv4rt_step*")
_prepare = lib.dsv4rt_step_prepare


class _Owner:
    """The C engine. Whoever uses its memory refers to it; it is destroyed with the last of them."""

    __slots__ = ("handle", "kept")

    def __init__(self, handle: Any, kept: list):
        self.handle, self.kept = handle, kept

    def __del__(self) -> None:
        lib.dsv4rt_engine_destroy(self.handle)


class Engine:
    """Attention layers of a checkpoint together with the cache they own.

        engine = dsv4rt.Engine("/models/deepseek-v4-flash", max_context_tokens=4096, max_step_tokens=512)
        sequence = engine.create_sequence()
        with engine.prepare([(sequence, len(x))]) as step:
            for layer in engine.layers:
                y = step.forward(layer, x)
                x = ...  # residual, norm, experts, next norm

    Keyword arguments are the fields of EngineOptions. Any thread may call; calls on one engine take turns, and the
    interpreter's lock is free while the library works. Different engines are independent.
    """

    def __init__(self, checkpoint: str | os.PathLike, options: EngineOptions | None = None, **fields: Any):
        self._open(_engine_options(options, fields), os.fspath(checkpoint), None)

    @classmethod
    def from_tensors(cls, config: Mapping[str, Any] | str, tensors: Mapping[str, Any],
                     options: EngineOptions | None = None, **fields: Any) -> Engine:
        """The same from memory: the content of config.json, and tensors by their names in a checkpoint.

        Tensors are torch tensors or NumPy arrays; BF16, FP32 and the released FP8 and NVFP4 encodings as in files. They
        are read during the call only. Names that are no attention tensors are skipped.
        """
        engine = cls.__new__(cls)
        text_of_config = config if isinstance(config, str) else json.dumps(config)
        engine._open(_engine_options(options, fields), None, (text_of_config, tensors))
        return engine

    def create_sharing(self, options: EngineOptions | None = None, **fields: Any) -> Engine:
        """Another engine with the weights of this one, which are in memory once and stay as long as one of their
        engines does. Without options it has this engine's; profile, backend, device, layers and
        linear_precision cannot differ."""
        engine = type(self).__new__(type(self))
        engine._open(_engine_options(options if options is not None else self.options, fields), None, None, owner=self)
        return engine

    def _open(self, options: EngineOptions, checkpoint: str | bytes | None, memory: Any,
              owner: Engine | None = None) -> None:
        self.options = options
        self._handle = ffi.NULL
        self._owner: _Owner | None = None
        self._lock = threading.RLock()
        # Sequences that nobody refers to any more; deque.append is atomic.
        self._abandoned: collections.deque = collections.deque()
        self._counts_under_way = False
        # What the last commit_from_device reads, maybe later than it returned; the next one and settle() wait for that.
        self._last_counts: Any = None
        self._outstanding: Step | None = None
        self._views: dict = {}
        self._cuda = options.backend == "cuda"
        # Where its memory is, as DLPack and torch's get_device() say it.
        self._device = _arrays.device_of(options.backend or "cpu", options.device)
        self._torch_device = options.device if self._cuda else -1
        struct, kept = option_structs.options_struct(options)
        if options.prefix_cache is not None:
            struct.prefix_cache, more = prefix_structs.options_struct(options.prefix_cache)
            kept += more
        struct.stream = ffi.cast("void*", _stream_of(options)) if self._cuda else ffi.NULL
        handle, message = ffi.new("dsv4rt_engine**"), ffi.new("char[]", _MESSAGE_BYTES)
        if owner is not None:
            with owner._lock:
                if owner.closed:
                    raise_status(lib.DSV4RT_INVALID_ARGUMENT, ffi.NULL)
                status = lib.dsv4rt_engine_create_sharing(owner._handle, struct, handle, message, _MESSAGE_BYTES)
        elif memory is None:
            directory = ffi.new("char[]", os.fsencode(checkpoint))
            struct.checkpoint = directory
            status = lib.dsv4rt_engine_create(struct, handle, message, _MESSAGE_BYTES)
        else:
            config = ffi.new("char[]", memory[0].encode())
            array, count, used = tensors_array(memory[1])
            status = lib.dsv4rt_engine_create_from_tensors(struct, config, array, count, handle, message,
                                                           _MESSAGE_BYTES)
            del used
        if status != lib.DSV4RT_OK:
            raise error_of(status, text(message))
        self._handle = handle[0]
        self._owner = _Owner(self._handle, kept)
        self._read_constants()

    def _read_constants(self) -> None:
        size, count, stream = ffi.new("int64_t*"), ffi.new("size_t*"), ffi.new("void**")
        self._call(lib.dsv4rt_engine_hidden_size, size)
        self.hidden_size: int = size[0]
        """Values in a row of x and of the output."""
        self._call(lib.dsv4rt_engine_layers, ffi.NULL, 0, count)
        layers = ffi.new("int32_t[]", count[0])
        self._call(lib.dsv4rt_engine_layers, layers, count[0], count)
        self.layers: tuple[int, ...] = tuple(layers)
        """The loaded layers in order, numbered as in the model."""
        self._call(lib.dsv4rt_engine_stream, stream)
        self.stream: int = int(ffi.cast("uintptr_t", stream[0]))
        """Backend "cuda": the cudaStream_t that work is enqueued on; 0 with "cpu"."""
        self._torch_stream: Any = None
        self._torch_finds_gpu: bool | None = None
        self.prefix = PrefixCache(self)
        """Queries and changes of the prefix cache."""

    # ---- Life -------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle == ffi.NULL

    def close(self) -> None:
        """Ends the engine and its sequences. Memory is freed when the last array of it is gone, at once without one."""
        with self._lock:
            self._handle = ffi.NULL
            self._views.clear()
            self._owner = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "dsv4rt.Engine(closed)"
        return f"dsv4rt.Engine(layers={len(self.layers)}, hidden_size={self.hidden_size})"

    # ---- Queries ----------------------------------------------------------------------------------

    @property
    def memory(self) -> EngineMemory:
        """What the engine holds."""
        out = sized("dsv4rt_memory")
        self._call(lib.dsv4rt_engine_memory, out)
        regions = []
        for index in range(out.region_count):
            region = sized("dsv4rt_memory_region")
            self._call(lib.dsv4rt_engine_memory_region, index, region)
            regions.append(read_struct(region, MemoryRegion))
        return read_struct(out, EngineMemory, regions=tuple(regions))

    @property
    def config(self) -> EngineConfig:
        """Dimensions and formats."""
        out = sized("dsv4rt_config")
        self._call(lib.dsv4rt_engine_config, out)
        return read_struct(out, EngineConfig)

    @property
    def layer_infos(self) -> tuple[LayerInfo, ...]:
        """What kind each of `layers` is."""
        infos = []
        for index in range(len(self.layers)):
            out = sized("dsv4rt_layer_info")
            self._call(lib.dsv4rt_engine_layer_info, index, out)
            infos.append(read_struct(out, LayerInfo))
        return tuple(infos)

    def describe(self) -> dict[str, Any]:
        """Profile, backend, config, layers, formats, limits and memory."""
        size = ffi.new("size_t*")
        self._call(lib.dsv4rt_engine_describe, ffi.NULL, 0, size)
        described = ffi.new("char[]", size[0] + 1)
        self._call(lib.dsv4rt_engine_describe, described, size[0] + 1, size)
        return json.loads(text(described))

    def metrics(self, labels: Mapping[str, str] | None = None) -> str:
        """Counts and totals as Prometheus text, also during a step; every sample carries `labels`.

        docs/metrics.md has the table. Serve it as text/plain; version=0.0.4.
        """
        pairs = [(ffi.new("char[]", name.encode()), ffi.new("char[]", value.encode()))
                 for name, value in (labels or {}).items()]
        given = ffi.new("dsv4rt_metric_label[]", [{"name": name, "value": value} for name, value in pairs])
        size = ffi.new("size_t*")
        with self._lock:  # numbers do not grow between the two calls
            self._call(lib.dsv4rt_engine_metrics, given, len(pairs), ffi.NULL, 0, size)
            written = ffi.new("char[]", size[0] + 1)
            self._call(lib.dsv4rt_engine_metrics, given, len(pairs), written, size[0] + 1, size)
        return text(written)

    @property
    def state(self) -> EngineState:
        """What is used and left at the moment, also during a step."""
        out = sized("dsv4rt_engine_state")
        roles = []
        with self._lock:
            self._call(lib.dsv4rt_engine_get_state, out)
            for role in CacheRole:
                of_role = sized("dsv4rt_role_state")
                self._call(lib.dsv4rt_engine_role_state, role, of_role)
                if of_role.layers:
                    roles.append(read_struct(of_role, RoleState, role=role))
        return read_struct(out, EngineState, roles=tuple(roles))

    def cache_view(self, layer: int, role: CacheRole) -> CacheView:
        """Where a layer keeps a role; NotFoundError when it has none."""
        out = sized("dsv4rt_cache_view")
        self._call(lib.dsv4rt_engine_cache_view, layer, role, out)
        return read_struct(out, CacheView)

    @property
    def graph_stats(self) -> GraphStats:
        """What became of the steps given to Step.run."""
        out = sized("dsv4rt_graph_stats")
        self._call(lib.dsv4rt_engine_graph_stats, out)
        return read_struct(out, GraphStats)

    @property
    def non_finite_entries(self) -> int:
        """Entries of steps whose outputs were not finite, since the engine began."""
        out = ffi.new("int64_t*")
        self._call(lib.dsv4rt_engine_non_finite_entries, out)
        return out[0]

    @property
    def outstanding(self) -> Step | None:
        """The step that was prepared and has not ended."""
        return self._outstanding

    def input(self) -> _arrays.Rows:
        """Memory for x, [max_step_tokens, hidden_size], at an address that stays: for captured steps."""
        out = ffi.new("dsv4rt_bf16**")
        self._call(lib.dsv4rt_engine_input, out)
        return self._rows(int(ffi.cast("uintptr_t", out[0])), (self.options.max_step_tokens, self.hidden_size), "rows")

    def synchronize(self) -> None:
        """Waits until everything enqueued has run, and raises what failed in it."""
        self._call(lib.dsv4rt_engine_synchronize)

    # ---- Sequences --------------------------------------------------------------------------------

    def can_admit(self, tokens: int = 0) -> bool:
        """Whether create_sequence(reserve_tokens=tokens) would succeed."""
        with self._lock:
            self._release_abandoned()
            status = lib.dsv4rt_engine_can_admit(self._handle, tokens)
            if status not in (lib.DSV4RT_OK, lib.DSV4RT_RESOURCE_EXHAUSTED):
                raise_status(status, self._handle)
            return status == lib.DSV4RT_OK

    def create_sequence(self, token_ids: Iterable[int] | None = None, *, salt: bytes = b"", reserve_tokens: int = 0,
                        policy: PrefixPolicy | None = None) -> Sequence:
        """An empty sequence; reserve_tokens > 0 sets blocks aside so that appends up to there cannot fail.

        With token_ids, one that begins with what the prefix cache has of them, at most all but the last:
        `Sequence.hit_tokens` of them are there, and steps bring the others with their ids. Prefixes are shared among
        sequences of equal salt only.
        """
        if token_ids is None:
            return self._sequence(lib.dsv4rt_sequence_create, reserve_tokens)
        ids, count = prefix_structs.ids_array(token_ids)
        struct = sized("dsv4rt_sequence_options")
        held = ffi.from_buffer(salt)
        struct.salt, struct.salt_bytes, struct.reserve_tokens = held, len(salt), reserve_tokens
        policy_struct = prefix_structs.policy_struct(policy) if policy is not None else None
        if policy_struct is not None:
            struct.policy = policy_struct
        identity, hit = ffi.new("dsv4rt_sequence*"), ffi.new("int64_t*")
        with self._lock:
            self._release_abandoned()
            self._call(lib.dsv4rt_sequence_create_with_ids, ids, count, struct, identity, hit)
        return Sequence(self, identity[0], hit[0])

    def restore(self, snapshot: Any, *, reserve_tokens: int = 0, key: bytes | None = None) -> Sequence:
        """A new sequence out of the bytes that Sequence.save wrote, increments included, by any engine of the same
        checkpoint."""
        data = ffi.from_buffer(snapshot)
        return self._sequence(lib.dsv4rt_sequence_restore, data, len(data), reserve_tokens, snapshot_options(key)[0])

    def restore_from(self, read: Callable[[int], Any], *, reserve_tokens: int = 0,
                     key: bytes | None = None) -> Sequence:
        """The same part by part from `read`, for instance the read method of a binary file: given a number of bytes, it
        gives the next ones, fewer if it likes and none at the end. What it raises is raised here."""
        source = Source(read)
        handle = ffi.new_handle(source)
        try:
            return self._sequence(lib.dsv4rt_sequence_restore_from, on_read, handle, reserve_tokens,
                                  snapshot_options(key)[0])
        except Exception:
            if source.error is not None:
                raise source.error from None
            raise

    # ---- Steps ------------------------------------------------------------------------------------

    def prepare(self, entries: Iterable[tuple[Sequence, Any]], *, pad_to_tokens: int = 0, capture: bool = False,
                hook_key: int = 0, hand_over_to: int | None = None) -> Step:
        """Begins a step: appends tokens to sequences, all or nothing; each sequence may appear once.

        An entry is (sequence, number of tokens), or (sequence, token ids) for sequences that take part in the prefix
        cache. `capture` lets Step.run run the step as a CUDA graph where it can. `hand_over_to`: the rank that alone
        has the step's sequences afterwards, with context parallelism; None: every rank.
        """
        sequences, rows, options, _kept = _step_arguments(entries, pad_to_tokens, capture, hook_key, hand_over_to)
        struct = ffi.new(_STEP)
        with self._lock:
            if self._abandoned:
                self._release_abandoned()
            handle, _owner = self._handle, self._owner  # a receiver of events may close the engine
            status = _prepare(handle, rows, len(sequences), options, struct)
            if status:
                raise_status(status, handle)
            self._outstanding = step = Step(self, struct, sequences)
            return step

    def shortage(self, entries: Iterable[tuple[Sequence, Any]], *, pad_to_tokens: int = 0) -> BlockShortage | None:
        """What keeps prepare(entries) from having its blocks; None: nothing. Other failures are those of prepare.

        Changes nothing, and may be asked during a step: as if all of its tokens were accepted.
        """
        sequences, rows, options, _kept = _step_arguments(entries, pad_to_tokens, False, 0)
        out = sized("dsv4rt_block_shortage")
        self._call(lib.dsv4rt_step_can_prepare, rows, len(sequences), options, out)
        return read_struct(out, BlockShortage, role=CacheRole(out.role)) if out.missing_blocks else None

    def settle(self) -> None:
        """Waits for the counts of Step.commit_from_device that are under way, for nothing else, and applies them."""
        self._call(lib.dsv4rt_engine_settle)
        self._counts_under_way, self._last_counts = False, None

    # ---- For the other modules of the package -----------------------------------------------------

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._lock:
            # A callback may close the engine: it goes when the call has returned.
            handle, _owner = self._handle, self._owner
            status = function(handle, *arguments)
            if status:
                raise_status(status, handle)

    def _sequence(self, function: Any, *arguments: Any) -> Sequence:
        identity = ffi.new("dsv4rt_sequence*")
        with self._lock:
            self._release_abandoned()
            self._call(function, *arguments, identity)
        return Sequence(self, identity[0])

    def _release_abandoned(self) -> None:
        """Releases sequences that were forgotten; during a step it leaves them for later."""
        if self._outstanding is not None or self._handle == ffi.NULL:
            return
        if self._abandoned and self._counts_under_way:
            self.settle()  # the first release would, and would hide a count that cannot be
        handle, _owner = self._handle, self._owner
        while self._abandoned:
            # A failure leaves nothing to do: a stale id is released, and a latched engine releases nothing.
            lib.dsv4rt_sequence_release(handle, self._abandoned.popleft())

    def _rows(self, address: int, shape: tuple[int, int], kind: str) -> Any:
        """An array of engine memory: "rows", "torch", "numpy" (ml_dtypes) or "bits" (uint16)."""
        key = (address, shape, kind)
        view = self._views.get(key)
        if view is None:
            if self._owner is None:
                raise FailedPreconditionError("the engine is closed")
            view = _arrays.Rows(address, shape, self._owner, self._device)
            if kind == "torch":
                view = view.torch()
            elif kind == "numpy":
                view = view.numpy()
            elif kind == "bits":
                import numpy
                view = numpy.asarray(view)
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view

    def _orders_streams(self, x: Any) -> tuple[Any, Any]:
        """What makes the engine's stream wait for torch's current one, and the reverse; None where they are one.

        Of a torch tensor, and of the engine's own rows, which torch may have written.
        """
        torch = self._torch()
        if torch is None or not isinstance(x, (torch.Tensor, _arrays.Rows)):
            return None, None
        current = torch.cuda.current_stream(self.options.device)
        if current.cuda_stream == self.stream:
            return None, None
        own = self._external_stream(torch)
        return (lambda: own.wait_stream(current)), (lambda: current.wait_stream(own))

    def _hook_context(self) -> Any:
        """What a hook runs in: the engine's stream is torch's current one where torch may touch the engine's rows."""
        torch = self._torch()
        return contextlib.nullcontext() if torch is None else torch.cuda.stream(self._external_stream(torch))

    def _torch(self) -> Any:
        """torch, if it is loaded and may work on this engine's memory on a stream of its own: with backend "cuda"."""
        torch = sys.modules.get("torch")
        if torch is None or not self._cuda:
            return None
        if self._torch_finds_gpu is None:
            self._torch_finds_gpu = torch.cuda.is_available()
        return torch if self._torch_finds_gpu else None

    def _external_stream(self, torch: Any) -> Any:
        if self._torch_stream is None:
            self._torch_stream = torch.cuda.ExternalStream(self.stream, device=self.options.device)
        return self._torch_stream


def _step_arguments(entries: Iterable[tuple[Sequence, Any]], pad_to_tokens: int, capture: bool, hook_key: int,
                    hand_over_to: int | None = None) -> tuple[list[Sequence], Any, Any, Any]:
    """The sequences of a step, its entries and options as C takes them, and what the options point to."""
    sequences, rows, ids = [], [], {}
    for sequence, tokens in entries:
        if not isinstance(tokens, int):
            ids[len(rows)], tokens = prefix_structs.ids_array(tokens)
        sequences.append(sequence)
        rows.append((sequence._id, tokens))
    rows = ffi.new(_ENTRIES, rows)
    if not ids and not pad_to_tokens and not capture and hand_over_to is None:
        return sequences, rows, ffi.NULL, None
    options = sized("dsv4rt_step_options")
    options.pad_to_tokens, options.capture, options.hook_key = pad_to_tokens, capture, hook_key
    if hand_over_to is not None:
        options.hand_over, options.hand_over_to = 1, hand_over_to
    if not ids:
        return sequences, rows, options, None
    pointers = ffi.new("int32_t*[]", [ids.get(index, ffi.NULL) for index in range(len(sequences))])
    options.token_ids = pointers
    return sequences, rows, options, (ids, pointers)


def _engine_options(options: EngineOptions | None, fields: dict[str, Any]) -> EngineOptions:
    if options is None:
        return EngineOptions(**fields)
    return dataclasses.replace(options, **fields)


def _stream_of(options: EngineOptions) -> int:
    stream = options.stream
    torch = sys.modules.get("torch")
    if stream is None:
        if torch is None or not torch.cuda.is_available():
            return 0
        stream = torch.cuda.current_stream(options.device)
    number = getattr(stream, "cuda_stream", stream)
    if not isinstance(number, int):
        raise InvalidArgumentError(f"stream is a {type(stream).__name__}; accepted: a cudaStream_t as an integer, or a "
                                   "torch stream")
    return number
