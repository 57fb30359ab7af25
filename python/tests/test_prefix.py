"""The prefix cache from Python: hits, salts, pins, events."""

import numpy as np
import pytest

import dsv4rt

UNIT = 128


@pytest.fixture
def cached(golden):
    events = []
    options = dsv4rt.PrefixCacheOptions(boundary_states=8, policy=dsv4rt.PrefixPolicy(interval_tokens=UNIT),
                                        event_token_ids=True, on_event=events.append)
    with dsv4rt.Engine(golden, max_context_tokens=1024, max_step_tokens=512, max_sequences=4,
                       prefix_cache=options) as engine:
        engine.events = events
        yield engine


def run(engine, sequence, ids, trace):
    """Runs ids from the sequence's length on; gives the last row of every layer."""
    begin = len(sequence)
    last = []
    with engine.prepare([(sequence, ids[begin:])]) as step:
        for layer in engine.layers:
            out = step.forward(layer, np.ascontiguousarray(trace[f"layers.{layer}.input"][begin:len(ids)]))
            last.append(out[-1].tobytes())
    return last


def test_a_hit_gives_what_running_the_tokens_gives(cached, trace):
    ids = list(range(300))
    assert cached.prefix.unit_tokens == UNIT
    first = cached.create_sequence(ids)
    assert first.hit_tokens == 0
    wanted = run(cached, first, ids, trace)
    second = cached.create_sequence(np.array(ids))
    assert second.hit_tokens == 2 * UNIT == len(second)
    assert run(cached, second, ids, trace) == wanted
    assert cached.create_sequence(ids, salt=b"another tenant").hit_tokens == 0
    stats = cached.prefix.stats
    assert (stats.lookups, stats.hit_tokens) == (3, 2 * UNIT)
    assert stats.units_stored == stats.kept_units == 2

    stored = [event for event in cached.events if event.kind is dsv4rt.PrefixEventKind.UNIT_STORED]
    assert [event.end_tokens for event in stored] == [UNIT, 2 * UNIT]
    assert stored[1].parent == stored[0].digest and len(stored[0].digest) == 32
    assert stored[1].token_ids == tuple(range(UNIT, 2 * UNIT))
    assert stored[0].medium == "cpu" and stored[0].roles


def test_branches_begin_where_a_state_is_kept(cached, trace):
    ids = list(range(300))
    sequence = cached.create_sequence(ids)
    run(cached, sequence, ids, trace)
    branch = sequence.branch(UNIT)
    assert len(branch) == UNIT
    with pytest.raises(dsv4rt.FailedPreconditionError, match="128"):
        sequence.branch(200)


def test_pins_lookups_and_evictions(cached, trace):
    ids = list(range(300))
    run(cached, cached.create_sequence(ids), ids, trace)
    prefix = cached.prefix
    assert prefix.lookup(ids) == dsv4rt.PrefixLookup(2 * UNIT, 2 * UNIT)
    assert prefix.lookup(ids[:200]).hit_tokens == UNIT
    assert prefix.pin(ids[:200]) == UNIT
    prefix.clear()
    assert prefix.lookup(ids).hit_tokens == UNIT and prefix.stats.pinned_units == 1
    assert cached.events[-1].removal is dsv4rt.PrefixRemoval.REQUEST
    assert prefix.unpin(ids[:200]) == UNIT
    assert prefix.evict(ids) == UNIT
    assert prefix.lookup(ids).hit_tokens == 0
    with pytest.raises(dsv4rt.InvalidArgumentError, match="-1"):
        prefix.lookup([1, -1])
    with pytest.raises(OverflowError):
        prefix.lookup([2 ** 40])


@pytest.mark.parametrize("close", [False, True], ids=["ask", "close"])
def test_a_receiver_of_events_may_ask_and_close_while_a_step_is_prepared(golden, trace, close):
    seen = []

    def receive(event):
        if event.kind is not dsv4rt.PrefixEventKind.UNIT_REMOVED or engine.closed:
            return
        # Other entries than those that are being prepared.
        seen.append((engine.shortage([(third, [1]), (second, [2])]), engine.state.live_sequences))
        if close:
            engine.close()

    options = dsv4rt.PrefixCacheOptions(boundary_states=8, policy=dsv4rt.PrefixPolicy(interval_tokens=UNIT),
                                        on_event=receive)
    with dsv4rt.Engine(golden, max_context_tokens=640, max_step_tokens=640, max_sequences=3, pool_tokens=640,
                       draft_budget_tokens=2, csa_rows_per_block=16, hca_rows_per_block=1,
                       prefix_cache=options) as engine:
        first = engine.create_sequence(list(range(400)))
        run(engine, first, list(range(400)), trace)
        first.release()
        second, third = (engine.create_sequence(list(range(1000, 1600)), salt=salt) for salt in (b"2", b"3"))
        step = engine.prepare([(second, list(range(1000, 1300))), (third, list(range(1000, 1300)))])
        assert seen and engine.closed == close and step.tokens == 600
        if not close:
            for layer in engine.layers:
                step.forward(layer, np.ascontiguousarray(trace[f"layers.{layer}.input"][:600]))
            step.commit([300, 298])
            assert (len(second), len(third)) == (300, 298)


def test_without_a_prefix_cache_its_calls_are_refused(engine):
    assert engine.prefix.unit_tokens == 0
    for call in (engine.prefix.clear, lambda: engine.prefix.lookup([1]), lambda: engine.create_sequence([1, 2])):
        with pytest.raises(dsv4rt.FailedPreconditionError):
            call()
