"""A step: tokens appended to sequences, run through every layer, and kept or not."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsv4rt import _arrays
from dsv4rt._arrays import BFLOAT16, INT32, locate, locate_rows
from dsv4rt._library import ffi, lib
from dsv4rt.errors import raise_status
from dsv4rt.sequence import Sequence

if TYPE_CHECKING:
    from dsv4rt.engine import Engine

Hook = Callable[[int, Any, Any], None]

# Looked up once: a step makes this call for every layer. It takes addresses as numbers, which need no objects for them.
_forward_layer = ffi.cast("dsv4rt_status(*)(dsv4rt_engine*, const dsv4rt_step*, int32_t, uintptr_t, uintptr_t)",
                          lib.dsv4rt_step_forward_layer)
_commit = lib.dsv4rt_step_commit
_cast = ffi.cast
_ROWS = ffi.typeof("dsv4rt_bf16*")
_COUNTS = ffi.typeof("int32_t*")
_OK = lib.DSV4RT_OK
_HOOK_FAILED = lib.DSV4RT_INVALID_ARGUMENT


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """Which entries of a step had outputs that are not finite."""

    known: bool
    """Whether the step's work has run."""
    entries: tuple[int, ...]
    """Their indices in the step."""


@dataclasses.dataclass(frozen=True)
class AcceptedCounts:
    """What a step was given by commit_from_device."""

    known: bool
    """Whether the counts have reached the host."""
    accepted: tuple[int, ...]
    """They, by entry, as they were read; empty until they are known."""


class Step:
    """A prepared step, made by `Engine.prepare`; `with` ends it, by commit, or by cancel after an exception.

    Rows of x and of outputs are BF16 [tokens, hidden_size] in the order of the entries: torch tensors, NumPy arrays of
    ml_dtypes.bfloat16 or of uint16 (bits), or anything with DLPack, in host memory with backend "cpu" and in device
    memory with "cuda".
    """

    __slots__ = ("engine", "_struct", "_entries", "_shape", "_accepted", "__weakref__")

    def __init__(self, engine: Engine, struct: Any, entries: list[Sequence]):
        self.engine = engine
        self._struct = struct
        self._entries = entries
        self._shape = (struct.tokens, engine.hidden_size)
        self._accepted: Any = None

    @property
    def tokens(self) -> int:
        """Rows of x and of the output, padding included."""
        return self._struct.tokens

    @property
    def valid_tokens(self) -> int:
        """Rows that belong to sequences; they come first."""
        return self._struct.valid_tokens

    @property
    def ended(self) -> bool:
        """Whether the step was committed or cancelled."""
        return self.engine._outstanding is not self

    @property
    def context_rows(self) -> tuple[range, range]:
        """The rows that this rank computes with context parallelism, and reads of x: two parts, of which either may be
        empty. All rows, as the first part, where every rank computes all."""
        first, count = ffi.new("int32_t[2]"), ffi.new("int32_t[2]")
        self.engine._call(lib.dsv4rt_step_context_rows, self._struct, first, count)
        return range(first[0], first[0] + count[0]), range(first[1], first[1] + count[1])

    def forward(self, layer: int, x: Any, out: Any = None) -> Any:
        """Runs one layer and returns `out`, made like `x` if it is None. Every layer runs once, in any order."""
        if out is None:
            out = _arrays.empty_like(x)
        engine = self.engine
        # What keeps the memory stays in a variable during the call: a producer may have made it for this alone.
        x_rows, out_rows, _kept = locate_rows(x, out, self._shape, engine)
        before, after = engine._orders_streams(x) if engine._cuda else (None, None)
        if before is not None:
            before()
        with engine._lock:
            handle, _owner = engine._handle, engine._owner  # a warning's receiver may close the engine
            status = _forward_layer(handle, self._struct, layer, x_rows, out_rows)
            if status != _OK:
                raise_status(status, handle)
        if after is not None:
            after()
        return out

    def run(self, x: Any, hook: Hook | None = None) -> None:
        """Runs all layers in order; x is the first one's input.

        After each layer `hook(layer, output, next_input)` fills next_input with the next layer's input; it is None
        after the last one. Both are arrays like x of the engine's own memory, and hold what they hold during the call
        only.
        Without a hook, outputs go nowhere and every layer reads what its next_input was. A step prepared with `capture`
        calls the hook only while a graph of its shape is recorded. The hook may ask the engine, not change it; what it
        raises ends the run and is raised here.
        """
        engine = self.engine
        address, _x = locate(x, self._shape, BFLOAT16, engine, "x")
        x_rows = _cast(_ROWS, address)
        before, after = engine._orders_streams(x) if engine._cuda else (None, None)
        call = _HookCall(self, x, hook)
        handle = ffi.new_handle(call)
        if before is not None:
            before()
        try:
            engine._call(lib.dsv4rt_step_run_with_outputs, self._struct, x_rows, _on_layer, handle)
        except Exception:
            if call.error is not None:
                raise call.error from None
            raise
        if after is not None:
            after()

    def accept(self, counts: Any) -> None:
        """Says how many tokens of each entry stay at the end of the `with` block."""
        self._accepted = list(counts)

    def commit(self, accepted: Any = None) -> None:
        """Ends the step after every layer ran. accepted[i]: tokens of entry i that stay; None: all."""
        counts = accepted if accepted is not None else self._accepted
        numbers, count = ffi.NULL, 0
        if counts is not None:
            numbers = ffi.new("int32_t[]", list(counts))
            count = len(numbers)
        engine = self.engine
        with engine._lock:
            handle, _owner = engine._handle, engine._owner
            status = _commit(handle, self._struct, numbers, count)
            if status != _OK:
                raise_status(status, handle)
            engine._outstanding = None

    def commit_from_device(self, accepted: Any) -> None:
        """Ends the step with counts that are in the engine's memory: int32, one of every entry.

        A torch tensor, a NumPy array with backend "cpu", or anything with DLPack. Nothing waits: the numbers are read
        when work enqueued earlier has run, and the next step may be prepared and run at once. They are applied when
        that one ends, when sequences are changed otherwise, or by Engine.settle(); until then lengths and states are as
        if all tokens were accepted. A count that cannot be is an InvalidArgumentError of the call that finds it, once;
        the sequence then has all of its tokens. Needs EngineOptions.draft_budget_tokens, of which and one more token
        every entry may reject.
        """
        engine = self.engine
        address, kept = locate(accepted, (len(self._entries),), INT32, engine, "accepted")
        before, after = engine._orders_streams(accepted) if engine._cuda else (None, None)
        if before is not None:
            before()
        with engine._lock:
            engine._call(lib.dsv4rt_step_commit_from_device, self._struct, _cast(_COUNTS, address), len(self._entries))
            engine._counts_under_way, engine._last_counts, engine._outstanding = True, kept, None
        if after is not None:
            after()

    def accepted_counts(self) -> AcceptedCounts:
        """The counts of one of the last eight steps that commit_from_device ended; waits for nothing."""
        known, count = ffi.new("int32_t*"), ffi.new("size_t*")
        accepted = ffi.new("int32_t[]", max(1, len(self._entries)))
        self.engine._call(lib.dsv4rt_step_accepted, self._struct, known, accepted, len(self._entries), count)
        return AcceptedCounts(bool(known[0]), tuple(accepted[0:count[0]]))

    def cancel(self) -> list[Sequence]:
        """Ends the step at any point without keeping its tokens.

        Returns the sequences that could not go back to their length and were emptied.
        """
        count = ffi.new("size_t*")
        emptied = ffi.new("dsv4rt_sequence[]", max(1, len(self._entries)))
        with self.engine._lock:
            self.engine._call(lib.dsv4rt_step_cancel, self._struct, emptied, len(self._entries), count)
            self.engine._outstanding = None
        by_id = {(entry._id.index, entry._id.generation): entry for entry in self._entries}
        return [by_id[emptied[i].index, emptied[i].generation] for i in range(count[0])]

    def output_check(self) -> OutputCheck:
        """Whose outputs are not finite, of the last eight steps that ended; needs EngineOptions.check_outputs."""
        known, count = ffi.new("int32_t*"), ffi.new("size_t*")
        entries = ffi.new("int32_t[]", max(1, len(self._entries)))
        self.engine._call(lib.dsv4rt_step_output_check, self._struct, known, entries, len(self._entries), count)
        return OutputCheck(bool(known[0]), tuple(entries[0:count[0]]))

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.ended:
            return
        if error is not None:
            self._cancel_after(error)
            return
        try:
            self.commit()
        except Exception as failed:
            self._cancel_after(failed)
            raise

    def _cancel_after(self, error: BaseException) -> None:
        try:
            self.cancel()
        except Exception as second:  # an engine that is latched or closed; the first error says why
            if hasattr(error, "add_note"):
                error.add_note(f"and the step could not be cancelled: {second}")

    def __repr__(self) -> str:
        return f"dsv4rt.Step(tokens={self.tokens}, valid_tokens={self.valid_tokens}{', ended' if self.ended else ''})"


class _HookCall:
    """What a run's hook is called with, and what it raised."""

    def __init__(self, step: Step, x: Any, hook: Hook | None):
        self.hook = hook
        self.error: BaseException | None = None
        self._step = step
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            self._kind = "torch"
        elif hasattr(x, "__array_interface__") and not isinstance(x, _arrays.Rows):
            self._kind = "bits" if str(getattr(x, "dtype", "")) == "uint16" else "numpy"
        else:
            self._kind = "rows"

    def rows(self, pointer: Any) -> Any:
        return self._step.engine._rows(int(_cast("uintptr_t", pointer)), self._step._shape, self._kind)

    def call(self, layer: int, output: Any, next_input: Any) -> int:
        try:
            if self.hook is None:
                return _OK
            arrays = self.rows(output), None if next_input == ffi.NULL else self.rows(next_input)
            with self._step.engine._hook_context():
                self.hook(layer, *arrays)
        except BaseException as error:  # nothing can be raised through C
            self.error = error
            return _HOOK_FAILED
        return _OK


@ffi.callback("dsv4rt_layer_output_hook")
def _on_layer(user_data: Any, output: Any) -> int:
    return ffi.from_handle(user_data).call(output.layer, output.output, output.next_input)
