"""A padded batch of the model as a step of the engine: which rows are given to it, and where outputs go."""

from __future__ import annotations

from typing import Any

import torch

from dsv4rt.engine import Engine
from dsv4rt.sequence import Sequence
from dsv4rt.step import Step
from dsv4rt.transformers.cache import EngineCache


class Batch:
    """New columns of a batch. `run` says which of their tokens the engine is given: not padding, not what the prefix
    cache had, and of equal prompts only the first."""

    def __init__(self, cache: EngineCache, tokens: torch.Tensor, run: torch.Tensor, ids: Any, start: int = 0,
                 source: list[int] | None = None):
        self.tokens = tokens
        self.start = start
        """The first column that has to be computed."""
        self._cache = cache
        self._run = run
        self._ids = ids
        self._source = source
        self.rows_run = max(1, len(set(source)) if source is not None else tokens.shape[0])
        self._step: Step | None = None
        self._rows: torch.Tensor | None = None
        self._everything = False

    def begin(self, engine: Engine, begin: int, end: int) -> None:
        """Prepares the step of columns [begin, end)."""
        run = self._run[:, begin:end]
        self._everything = bool(run.all())
        counts = [end - begin] * run.shape[0] if self._everything else run.sum(1).tolist()
        entries: list[tuple[Sequence, Any]] = []
        for row, count in enumerate(counts):
            if count:
                tokens: Any = count if self._ids is None else self._ids[row, begin:end][run[row]]
                entries.append((self._cache.sequences[row], tokens))
        self._rows = None if self._everything else run.reshape(-1).nonzero().squeeze(1)
        self._step = engine.prepare(entries) if entries else None

    def attend(self, layer: int, hidden_states: torch.Tensor) -> torch.Tensor:
        """Attention outputs [batch, columns, hidden_size] of one layer; zeros where nothing was to be computed."""
        shape = hidden_states.shape
        x = hidden_states.reshape(-1, shape[-1])
        if self._step is None:
            return torch.zeros_like(hidden_states)
        if self._everything:
            return self._step.forward(layer, x.to(torch.bfloat16).contiguous()).to(x.dtype).view(shape)
        rows = self._rows.to(x.device)
        out = self._step.forward(layer, x.index_select(0, rows).to(torch.bfloat16))
        result = torch.zeros_like(x).index_copy_(0, rows, out.to(x.dtype)).view(shape)
        return result if self._source is None else result[self._source]

    def commit(self) -> None:
        """Keeps the step's tokens."""
        if self._step is not None:
            self._step.commit()

    def cancel(self) -> bool:
        """Ends the step without its tokens; whether a sequence was lost with it."""
        if self._step is None or self._step.ended:
            return False
        try:
            return bool(self._step.cancel())
        except Exception:  # a latched engine has nothing to give back
            return True

    def fork_duplicates(self) -> None:
        """Gives rows of equal prompts sequences of their own, after the last step of the first of them."""
        if self._source is None:
            return
        sequences = self._cache.sequences
        self._cache.sequences = [sequences[source] if source == row else sequences[source].fork()
                                 for row, source in enumerate(self._source)]
        self._source = None

    @property
    def shares_sequences(self) -> bool:
        """Whether rows of equal prompts are still one sequence."""
        return self._source is not None


def next_batch(cache: EngineCache, tokens: torch.Tensor, input_ids: Any) -> Batch:
    """Columns that go on from what the cache has."""
    ids = input_ids.cpu() if cache.with_ids and input_ids is not None else None
    return Batch(cache, tokens, tokens, ids)


def first_batch(cache: EngineCache, tokens: torch.Tensor, input_ids: Any, wanted_columns: int) -> Batch:
    """Columns of an empty cache: makes its sequences, out of the prefix cache where the outputs of what it has are not
    wanted."""
    engine = cache.attachment.engine
    cache.with_ids = engine.options.prefix_cache is not None and input_ids is not None and wanted_columns > 0
    ids = input_ids.cpu() if input_ids is not None else None
    source = _sources(ids, tokens)
    run = tokens.clone()
    sequences: list[Any] = []
    try:
        for row in range(tokens.shape[0]):
            if source is not None and source[row] != row:
                run[row] = False
                sequences.append(sequences[source[row]])
            elif cache.with_ids:
                places = tokens[row].nonzero().squeeze(1)
                looked_up = ids[row][places][:max(1, len(places) - wanted_columns + 1)]
                sequences.append(engine.create_sequence(looked_up, salt=cache.salt))
                if sequences[-1].hit_tokens:
                    run[row, :int(places[sequences[-1].hit_tokens])] = False
            else:
                sequences.append(engine.create_sequence())
    except Exception:
        for sequence in set(sequences):
            sequence.release()
        raise
    cache.sequences = sequences
    cache.columns = torch.zeros(len(sequences), 0, dtype=torch.bool)
    needed = run.any(0).nonzero()
    start = int(needed[0]) if cache.with_ids and len(needed) else 0
    return Batch(cache, tokens, run, ids if cache.with_ids else None, start, source)


def _sources(ids: Any, tokens: torch.Tensor) -> list[int] | None:
    """The first row with the same prompt for every row; None where all differ."""
    if ids is None or tokens.shape[0] == 1:
        return None
    first: dict[bytes, int] = {}
    sources = []
    for row in range(tokens.shape[0]):
        key = tokens[row].numpy().tobytes() + ids[row].contiguous().numpy().tobytes()
        sources.append(first.setdefault(key, row))
    return sources if len(first) < len(sources) else None
