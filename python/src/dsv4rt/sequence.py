"""A sequence: one request's tokens in the cache of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsv4rt._library import ffi, lib
from dsv4rt.errors import Dsv4rtError
from dsv4rt.state import SequenceState, read_struct, sized

if TYPE_CHECKING:
    from dsv4rt.engine import Engine


class Sequence:
    """A live sequence, made by `Engine.create_sequence`, `fork`, `branch` or `Engine.restore`.

    It keeps its engine alive. Its cache is given back by `release`, at the end of a `with` block, or, some calls after
    nobody refers to it any more, by the engine.
    """

    __slots__ = ("engine", "hit_tokens", "_id", "_released", "__weakref__")

    def __init__(self, engine: Engine, identity: Any, hit_tokens: int = 0):
        self.engine = engine
        self.hit_tokens = hit_tokens
        """Tokens that it began with, out of the prefix cache: steps go on from there."""
        self._id = identity
        self._released = False

    def __len__(self) -> int:
        """Tokens, those of an outstanding step included."""
        out = ffi.new("int64_t*")
        self.engine._call(lib.dsv4rt_sequence_length, self._id, out)
        return out[0]

    def __bool__(self) -> bool:
        return True  # an empty sequence is one, too

    @property
    def state(self) -> SequenceState:
        """Length, reservation, blocks and how far it can be cut, also during a step."""
        out = sized("dsv4rt_sequence_state")
        self.engine._call(lib.dsv4rt_sequence_get_state, self._id, out)
        return read_struct(out, SequenceState)

    @property
    def released(self) -> bool:
        """Whether release() was called."""
        return self._released

    def fork(self, reserve_tokens: int = 0) -> Sequence:
        """A second sequence with the same content; blocks are shared until one of the two writes to them."""
        return self.engine._sequence(lib.dsv4rt_sequence_fork, self._id, reserve_tokens)

    def claim(self) -> None:
        """Makes a sequence that other ranks do not have this rank's alone: created or restored by this rank only."""
        self.engine._call(lib.dsv4rt_sequence_claim, self._id)

    def branch(self, length: int, reserve_tokens: int = 0) -> Sequence:
        """A sequence that begins with the first `length` tokens of this one, where a boundary state is kept."""
        return self.engine._sequence(lib.dsv4rt_sequence_branch, self._id, length, reserve_tokens)

    def truncate(self, length: int) -> None:
        """Drops tokens from the end: draft_budget_tokens of them always, more where the rings or a boundary state still
        serve it, or all."""
        self.engine._call(lib.dsv4rt_sequence_truncate, self._id, length)

    def release(self) -> None:
        """Gives the cache back, between steps. A second call does nothing."""
        if not self._released:
            self.engine._call(lib.dsv4rt_sequence_release, self._id)
            self._released = True

    def snapshot_bytes(self, key: bytes | None = None, *, base_tokens: int = 0) -> int:
        """Size of what save() gives."""
        out = ffi.new("int64_t*")
        self.engine._call(lib.dsv4rt_sequence_snapshot_bytes, self._id, snapshot_options(key, base_tokens)[0], out)
        return out[0]

    def save(self, key: bytes | None = None, *, base_tokens: int = 0) -> bytearray:
        """The sequence's cache as bytes that describe themselves, for Engine.restore.

        `key`, 16 bytes and more, authenticates them; the same one restores. `base_tokens` > 0 saves an increment: what
        came since the sequence was last saved or restored, when it had so many tokens (`state.saved_tokens`). A
        snapshot followed by the increments on it is a snapshot.
        """
        saved = bytearray(self.snapshot_bytes(key, base_tokens=base_tokens))
        end = 0

        def take(part: memoryview) -> None:
            nonlocal end
            saved[end:end + len(part)] = part
            end += len(part)

        self.save_to(take, key, base_tokens=base_tokens)
        del saved[end:]  # another thread may have cut the sequence in between
        return saved

    def save_to(self, write: Callable[[memoryview], Any], key: bytes | None = None, *, base_tokens: int = 0) -> None:
        """The same, part by part to `write`, for instance the write method of a file. A part is valid during its call;
        what `write` raises ends the save and is raised here."""
        sink = _Sink(write)
        handle = ffi.new_handle(sink)
        try:
            options, _kept = snapshot_options(key, base_tokens)
            self.engine._call(lib.dsv4rt_sequence_save, self._id, options, _on_bytes, handle)
        except Exception:
            if sink.error is not None:
                raise sink.error from None
            raise

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.engine.closed:
            self._released = True
            return
        try:
            self.release()
        except Dsv4rtError:
            if error is None:
                raise
            # During a step that the exception left open; the engine releases it later, and the exception goes on.

    def __del__(self) -> None:
        # May run on any thread and in the middle of a step: the engine releases it at a time that suits it.
        if not getattr(self, "_released", True):
            self.engine._abandoned.append(self._id)

    def __repr__(self) -> str:
        return f"dsv4rt.Sequence({self._id.index}, {self._id.generation}{', released' if self._released else ''})"


class _Sink:
    def __init__(self, write: Callable[[memoryview], Any]):
        self.write = write
        self.error: BaseException | None = None


@ffi.callback("dsv4rt_snapshot_sink")
def _on_bytes(user_data: Any, data: Any, count: int) -> int:
    sink = ffi.from_handle(user_data)
    try:
        sink.write(memoryview(ffi.buffer(data, count)).toreadonly())
    except BaseException as error:  # nothing can be raised through C
        sink.error = error
        return lib.DSV4RT_INVALID_ARGUMENT
    return lib.DSV4RT_OK


class Source:
    """What restores a snapshot from a `read` like a file's, and what that raised."""

    def __init__(self, read: Callable[[int], Any]):
        self.read = read
        self.error: BaseException | None = None


@ffi.callback("dsv4rt_snapshot_source")
def on_read(user_data: Any, target: Any, count: int, given: Any) -> int:
    source = ffi.from_handle(user_data)
    try:
        part = memoryview(source.read(count)).cast("B")
        if len(part) > count:
            raise ValueError(f"read({count}) gave {len(part)} bytes")
        ffi.memmove(target, part, len(part))
        given[0] = len(part)
    except BaseException as error:  # nothing can be raised through C
        source.error = error
        return lib.DSV4RT_INVALID_ARGUMENT
    return lib.DSV4RT_OK


def snapshot_options(key: bytes | None, base_tokens: int = 0) -> tuple[Any, list]:
    """The C struct and what it points to; null if both are the defaults."""
    if key is None and base_tokens == 0:
        return ffi.NULL, []
    held = ffi.from_buffer(key) if key is not None else ffi.NULL
    struct = sized("dsv4rt_snapshot_options")
    struct.key, struct.key_bytes, struct.base_tokens = held, len(key or b""), base_tokens
    return struct, [struct, held]
