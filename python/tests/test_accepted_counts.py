"""Steps that end with counts in the engine's memory, which the host learns later."""

import gc
import weakref

import numpy as np
import pytest

import dsv4rt


def run(engine, entries, trace, begin):
    """A step whose layers have run; its outputs."""
    tokens = sum(count for _, count in entries)
    step = engine.prepare(entries)
    outputs = [step.forward(layer, trace[f"layers.{layer}.input"][begin:begin + tokens].copy())
               for layer in engine.layers]
    return step, outputs


class Dlpack:
    """An array of which only DLPack is known."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **how):
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def torch_tensor(values):
    import torch
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("counts_of", [lambda values: np.array(values, np.int32), torch_tensor,
                                       lambda values: Dlpack(np.array(values, np.int32))],
                         ids=["numpy", "torch", "dlpack"])
@pytest.mark.parametrize("kept", range(5))
def test_the_next_step_needs_no_counts(engine, trace, counts_of, kept):
    sequence, plain = engine.create_sequence(), engine.create_sequence()
    for each in (sequence, plain):
        run(engine, [(each, 126)], trace, 0)[0].commit()
    step, _ = run(engine, [(sequence, 4)], trace, 126)
    counts = counts_of([kept])
    step.commit_from_device(counts)
    assert step.ended and engine.outstanding is None
    behind, found = run(engine, [(sequence, 2)], trace, 200)
    assert len(sequence) == 132, "as if all four stayed"
    assert step.accepted_counts() == dsv4rt.AcceptedCounts(True, (kept,))
    behind.commit([1])
    assert len(sequence) == 127 + kept
    if kept:
        run(engine, [(plain, kept)], trace, 126)[0].commit()
    wanted = run(engine, [(plain, 2)], trace, 200)
    wanted[0].commit([1])
    assert [rows.tobytes() for rows in found] == [rows.tobytes() for rows in wanted[1]]
    assert sequence.save() == plain.save()


def test_a_count_that_cannot_be_is_raised_once(engine, trace):
    sequence, forgotten = engine.create_sequence(), engine.create_sequence()
    step, _ = run(engine, [(sequence, 4), (forgotten, 1)], trace, 0)
    step.commit_from_device(np.array([5, 1], np.int32))
    del forgotten, step  # its release needs the counts
    with pytest.raises(dsv4rt.InvalidArgumentError, match=r"accepted\[0\] = 5 of sequence index \d+; accepted: 0 .. 4"):
        engine.prepare([(sequence, 1)])
    assert len(sequence) == 4
    run(engine, [(sequence, 1)], trace, 0)[0].commit()
    engine.settle()
    assert engine.state.live_sequences == 1


@pytest.mark.parametrize("wrong, says", [
    ([1], "a list"),
    (np.array([1], np.int64), "int64"),
    (np.array([1, 1], np.int32), r"\[2\]"),
    (np.array([[1]], np.int32), r"\[1, 1\]"),
    (Dlpack(np.array([1.0], np.float32)), "DLPack type"),
])
def test_other_arrays_are_refused(engine, trace, wrong, says):
    sequence = engine.create_sequence()
    step, _ = run(engine, [(sequence, 2)], trace, 0)
    with pytest.raises(dsv4rt.InvalidArgumentError, match=says):
        step.commit_from_device(wrong)
    assert not step.ended and engine.outstanding is step
    step.commit_from_device(np.array([1], np.int32))
    engine.settle()
    assert len(sequence) == 1


def test_tensors_of_other_types_are_refused(engine, trace):
    import torch
    sequence = engine.create_sequence()
    step, _ = run(engine, [(sequence, 1)], trace, 0)
    for shape, dtype in ((1, torch.int64), (2, torch.int32), ((), torch.int32)):
        wrong = torch.ones(shape, dtype=dtype)
        with pytest.raises(dsv4rt.InvalidArgumentError, match="accepted is a torch"):
            step.commit_from_device(wrong)
    step.commit_from_device(torch.ones(4, dtype=torch.int32)[:1])
    engine.settle()
    with pytest.raises(dsv4rt.FailedPreconditionError, match="is not the outstanding step"):
        step.commit_from_device(torch.ones(1, dtype=torch.int32))


def test_settling_needs_a_step_that_ended(engine, trace):
    sequence = engine.create_sequence()
    step = engine.prepare([(sequence, 1)])
    with pytest.raises(dsv4rt.FailedPreconditionError, match="outstanding"):
        engine.settle()
    with pytest.raises(dsv4rt.FailedPreconditionError, match="accepted_counts"):
        step.accepted_counts()
    step.cancel()


def test_a_save_is_that_of_the_counts(engine, trace):
    sequence = engine.create_sequence()
    step, _ = run(engine, [(sequence, 4)], trace, 0)
    step.commit_from_device(np.array([1], np.int32))
    saved = sequence.save()
    assert len(sequence) == 1 and len(saved) == sequence.snapshot_bytes()
    restored, plain = engine.restore(saved), engine.create_sequence()
    run(engine, [(plain, 1)], trace, 0)[0].commit()
    assert len(restored) == 1 and restored.save() == plain.save() == saved


class Exporting:
    """An array whose DLPack is memory made for it."""

    def __init__(self, values):
        self._values, self.made = values, None

    def __dlpack__(self):
        array = np.array(self._values, np.int32)
        self.made = weakref.ref(array)
        return array.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def test_counts_are_kept_until_they_are_read(engine, trace):
    sequence = engine.create_sequence()
    gone = lambda references: [reference() is None for reference in references]
    for end in ("commit", "settle"):
        counts = Exporting([1])
        step, _ = run(engine, [(sequence, 2)], trace, 0)
        step.commit_from_device(counts)
        kept = [weakref.ref(counts), counts.made]
        del counts
        gc.collect()
        assert gone(kept) == [False, False]
        if end == "commit":
            run(engine, [(sequence, 1)], trace, 0)[0].commit_from_device(np.array([1], np.int32))
        engine.settle()
        gc.collect()
        assert gone(kept) == [True, True]
