"""Ranks, as far as one process shows them; tests/mpi of the repository has several, through the C interface."""

import dsv4rt
import pytest

LIMITS = {"max_context_tokens": 64, "max_step_tokens": 8}


def refused(golden, error, text, backend="cpu", **fields):
    parallel = dsv4rt.ParallelOptions(**{"kind": "tensor", **fields})
    with pytest.raises(error, match=text):
        dsv4rt.Engine(golden, parallel=parallel, backend=backend, **LIMITS)


def test_wrong_options_name_their_field(golden):
    refused(golden, ValueError, "parallel.kind: 'pipeline'; accepted: 'tensor', 'context'", kind="pipeline")
    refused(golden, ValueError, "parallel.unique_id: 3 bytes", unique_id=b"abc")
    refused(golden, dsv4rt.InvalidArgumentError, "unique_id", unique_id=bytes(128))
    refused(golden, dsv4rt.InvalidArgumentError, "unique_id: null", backend="cuda", size=2)
    refused(golden, dsv4rt.InvalidArgumentError, "mpi_communicator", backend="cuda", mpi_communicator=8)
    refused(golden, dsv4rt.InvalidArgumentError, "rank, size: -1, 2", rank=-1, size=2)
    with pytest.raises(TypeError):
        dsv4rt.ParallelOptions()


def test_ranks_need_what_they_meet_over(golden):
    # MPI is not part of the build, or the program has not initialised it.
    refused(golden, (dsv4rt.UnsupportedError, dsv4rt.FailedPreconditionError), "(?i)mpi", kind="context",
            context_min_tokens=16, deadline_seconds=1.5)


def test_an_id_of_ranks_or_why_there_is_none():
    try:
        assert len(dsv4rt.nccl_unique_id()) == 128
    except dsv4rt.UnsupportedError as error:
        assert "nccl" in str(error)


def test_without_other_ranks_sequences_stay(engine):
    sequence = engine.create_sequence()
    for rank, text in ((1, "hand_over_to = 1; accepted: ranks 0 to 0"), (-1, "hand_over_to: -1; accepted: a rank")):
        with pytest.raises(dsv4rt.InvalidArgumentError, match=text):
            engine.prepare([(sequence, 5)], hand_over_to=rank)
    with engine.prepare([(sequence, 5)], hand_over_to=0) as step:
        step.cancel()
    sequence.claim()
    assert sequence.state.held_by == -1
    sequence.release()
    with pytest.raises(dsv4rt.StaleHandleError):
        sequence.claim()


def test_one_rank_computes_all_rows(engine):
    with engine.prepare([(engine.create_sequence(), 5)]) as step:
        assert step.context_rows == (range(0, 5), range(0, 0))
        step.cancel()
