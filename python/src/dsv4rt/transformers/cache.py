"""The cache that `generate` carries from call to call: one sequence of the engine for each row of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache

from dsv4rt.errors import FailedPreconditionError, InvalidArgumentError
from dsv4rt.sequence import Sequence

if TYPE_CHECKING:
    from dsv4rt.transformers.attachment import Attachment


class EngineCache(Cache):
    """Sequences of an attached engine in place of keys and values.

    A column is a position of the padded batch. Padding takes no place in a sequence, so its row has a mask of the
    columns that hold tokens.
    """

    def __init__(self, attachment: Attachment, salt: bytes = b""):
        super().__init__(layers=[])
        self.attachment = attachment
        self.salt = salt
        self.sequences: list[Sequence] = []
        # [rows, columns], on the CPU.
        self.columns = torch.zeros(0, 0, dtype=torch.bool)
        # Rows whose steps bring token ids, for the prefix cache.
        self.with_ids = False
        self._lost = ""

    # ---- What transformers asks ---------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns so far, padding included."""
        return self.columns.shape[1]

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    get_max_length = get_max_cache_shape

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_linear(self) -> list[bool]:
        """No layer's: `generate` cuts prompts that begin with what is cached."""
        return [False] * len(self)

    @property
    def is_initialized(self) -> bool:
        return bool(self.sequences)

    @property
    def max_batch_size(self) -> int:
        return len(self.sequences)

    def __len__(self) -> int:
        return len(self.attachment.engine.layers)

    def __repr__(self) -> str:
        return f"EngineCache(rows={len(self.sequences)}, columns={self.columns.shape[1]})"

    def update(self, *_: Any, **__: Any) -> Any:
        raise FailedPreconditionError("an EngineCache holds no keys: the model is not attached, or no longer")

    def activate_past_recording(self) -> None:
        """Nothing to do: the engine can always go back by its draft budget."""

    def crop(self, tokens_to_remove: int) -> None:
        """Drops so many columns (a negative number), or all beyond a length (a positive one)."""
        length = self.get_seq_length()
        kept = max(0, length + tokens_to_remove) if tokens_to_remove <= 0 else min(tokens_to_remove, length)
        if kept == length:
            return
        columns = self.columns[:, :kept]
        for sequence, tokens, before in zip(self.sequences, columns.sum(1).tolist(), self.columns.sum(1).tolist()):
            if tokens != before:
                sequence.truncate(tokens)
        self.columns = columns

    def reorder_cache(self, beam_idx: Any) -> None:
        """Row i continues what row beam_idx[i] was: the first to ask keeps its sequence, the others fork it."""
        self._select(torch.as_tensor(beam_idx).tolist())

    def batch_select_indices(self, indices: Any) -> None:
        """Keeps the given rows, in their order."""
        self._select(torch.arange(len(self.sequences))[torch.as_tensor(indices).cpu()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times, next to each other."""
        self._select([row for row in range(len(self.sequences)) for _ in range(repeats)])

    def reset(self) -> None:
        """Empties the cache; it can be used again, also for a batch of another size."""
        for sequence in self.sequences:
            sequence.release()
        self.sequences = []
        self.columns = torch.zeros(0, 0, dtype=torch.bool)
        self._lost = ""

    # ---- What the attachment does with it -----------------------------------------------------------

    def check(self, rows: int) -> None:
        """Whether a step of `rows` rows can go on from here."""
        if self._lost:
            raise FailedPreconditionError(f"the cache was lost in a step that failed: {self._lost}; reset() it")
        if self.sequences and len(self.sequences) != rows:
            raise InvalidArgumentError(f"{rows} rows of input for a cache of {len(self.sequences)} rows")

    def lose(self, error: BaseException) -> None:
        """Rows do not go together any more."""
        self._lost = f"{type(error).__name__}: {error}"

    def _select(self, sources: list[int]) -> None:
        wanted = set(sources)
        for row, sequence in enumerate(self.sequences):
            if row not in wanted:
                sequence.release()  # before the forks, which need slots
        taken: set[int] = set()
        selected = []
        for row in sources:
            selected.append(self.sequences[row].fork() if row in taken else self.sequences[row])
            taken.add(row)
        self.sequences = selected
        self.columns = self.columns[sources]
