"""Engines, sequences, steps and snapshots; calls that are wrong; lifetimes."""

import gc
import weakref

import numpy as np
import pytest

import dsv4rt


def rows_of(trace, begin, end, layer=0):
    return trace[f"layers.{layer}.input"][begin:end].copy()


def advance(engine, entries, trace, begin, accepted=None):
    """Runs a step of entries [(sequence, tokens)] whose rows are the trace's from `begin` on; gives output bytes."""
    tokens = sum(count for _, count in entries)
    outputs = []
    with engine.prepare(entries) as step:
        assert (step.tokens, step.valid_tokens) == (tokens, tokens)
        for layer in engine.layers:
            outputs.append(step.forward(layer, rows_of(trace, begin, begin + tokens, layer)))
        if accepted is not None:
            step.accept(accepted)
    return [output.tobytes() for output in outputs]


def test_every_status_has_a_class_of_its_own():
    classes = [kind for kind in vars(dsv4rt).values() if isinstance(kind, type)
               and issubclass(kind, dsv4rt.Dsv4rtError) and kind is not dsv4rt.Dsv4rtError]
    assert sorted(kind.status for kind in classes) == list(range(1, 12))
    from dsv4rt import _library, errors
    for kind in classes:
        assert type(errors.error_of(kind.status, "why")) is kind
        name = _library.text(_library.lib.dsv4rt_status_name(kind.status)).replace(" ", "")
        assert kind.__name__.lower() == name + "error"
    assert issubclass(dsv4rt.InvalidArgumentError, ValueError)
    unknown = errors.error_of(77, "why")
    assert type(unknown) is dsv4rt.Dsv4rtError and unknown.status == 77


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    with pytest.raises(dsv4rt.NotFoundError, match="config.json"):
        dsv4rt.Engine(tmp_path / "none", max_context_tokens=64, max_step_tokens=8)


@pytest.mark.parametrize("fields, error, says", [
    (dict(max_context_tokens=0), dsv4rt.InvalidArgumentError, "max_context_tokens"),
    (dict(row_format="fp7"), dsv4rt.Dsv4rtError, "fp7"),
    (dict(index_format="fp7"), dsv4rt.Dsv4rtError, "fp7"),
    (dict(linear_precision="fp7"), dsv4rt.InvalidArgumentError, "fp7"),
    (dict(backend="tpu"), dsv4rt.Dsv4rtError, "tpu"),
    (dict(profile="v5"), dsv4rt.Dsv4rtError, "v5"),
    (dict(memory_limit_bytes=1000), dsv4rt.ResourceExhaustedError, "1000"),
    (dict(first_layer=9), dsv4rt.InvalidArgumentError, "9"),
    (dict(max_sequences=2 ** 40), OverflowError, "."),
    (dict(max_context=5), TypeError, "max_context"),
])
def test_wrong_options_are_refused(golden, fields, error, says):
    with pytest.raises(error, match=says):
        dsv4rt.Engine(golden, **{**dict(max_context_tokens=64, max_step_tokens=8), **fields})


@pytest.mark.parametrize("precision", [None, "exact", "fp8"])
def test_linear_precision_is_taken(golden, precision):
    from dsv4rt import _library
    from dsv4rt.options import options_struct
    options = dsv4rt.EngineOptions(max_context_tokens=64, max_step_tokens=8, threads=1, linear_precision=precision)
    struct, _kept = options_struct(options)
    null = _library.ffi.NULL
    assert precision == (None if struct.linear_precision == null else _library.text(struct.linear_precision))
    with dsv4rt.Engine(golden, options) as engine:
        assert engine.options.linear_precision == precision


def test_options_are_taken(golden):
    options = dsv4rt.EngineOptions(max_context_tokens=64, max_step_tokens=8, first_layer=1, layer_count=2, threads=1)
    with dsv4rt.Engine(golden, options, row_format="bf16", max_sequences=3) as engine:
        assert engine.layers == (1, 2)
        assert engine.options.max_sequences == 3 and engine.options.row_format == "bf16"
        memory = engine.memory
        assert memory.total_bytes > memory.cache_bytes > 0
        assert {region.role_name for region in memory.regions} >= {"SWA_KV", "CSA_KV", "HCA_KV"}
        assert sum(region.total_bytes for region in memory.regions) <= memory.cache_bytes
        with dsv4rt.Engine(golden, options, max_sequences=3) as smaller:
            assert smaller.memory.cache_bytes < memory.cache_bytes


def test_fork_truncate_and_accept_are_plain_decoding(engine, trace):
    plain = engine.create_sequence()
    advance(engine, [(plain, 50)], trace, 0)
    wanted = [advance(engine, [(plain, 1)], trace, at) for at in (50, 51)]

    parent = engine.create_sequence()
    advance(engine, [(parent, 50)], trace, 0)
    child = parent.fork()
    assert len(child) == 50
    advance(engine, [(parent, 3)], trace, 300)  # the parent goes another way
    assert advance(engine, [(child, 1)], trace, 50) == wanted[0]

    parent.truncate(50)
    assert len(parent) == 50
    drafts = advance(engine, [(parent, 3)], trace, 50, accepted=[1])  # two drafts are rejected
    assert len(parent) == 51
    assert [row[:256] for row in drafts] == wanted[0]
    assert advance(engine, [(parent, 1)], trace, 51) == wanted[1]


def test_an_exception_in_a_step_cancels_it(engine, trace):
    sequence = engine.create_sequence()
    advance(engine, [(sequence, 10)], trace, 0)
    with pytest.raises(KeyError, match="mine"):
        with engine.prepare([(sequence, 2)]) as step:
            step.forward(0, rows_of(trace, 10, 12))
            assert engine.outstanding is step
            raise KeyError("mine")
    assert step.ended and engine.outstanding is None and len(sequence) == 10
    with pytest.raises(dsv4rt.FailedPreconditionError, match="layer"):
        with engine.prepare([(sequence, 2)]) as step:
            step.forward(0, rows_of(trace, 10, 12))  # and no other layer
    assert step.ended and len(sequence) == 10


def test_an_exception_in_a_hook_is_the_one_that_run_raises(engine, trace):
    sequence = engine.create_sequence()

    def fail(layer, output, next_input):
        if layer == 2:
            raise ZeroDivisionError("in layer 2")

    with pytest.raises(ZeroDivisionError, match="in layer 2"):
        with engine.prepare([(sequence, 4)]) as step:
            step.run(rows_of(trace, 0, 4), fail)
    assert len(sequence) == 0
    advance(engine, [(sequence, 4)], trace, 0)


def test_a_hook_may_ask_and_not_change(engine, trace):
    sequence = engine.create_sequence()
    seen = []

    def ask(layer, output, next_input):
        seen.append((len(sequence), engine.memory.total_bytes > 0))
        engine.create_sequence()

    with pytest.raises(dsv4rt.FailedPreconditionError):
        with engine.prepare([(sequence, 4)]) as step:
            step.run(rows_of(trace, 0, 4), ask)
    assert seen == [(4, True)]


def test_a_cancelled_step_tells_whom_it_emptied(engine, trace):
    long, short = engine.create_sequence(), engine.create_sequence()
    advance(engine, [(long, 140), (short, 10)], trace, 0)
    step = engine.prepare([(short, 2), (long, 200)])
    for layer in engine.layers:
        step.forward(layer, rows_of(trace, 0, 202, layer))
    assert step.cancel() == [long]
    assert (len(long), len(short)) == (0, 10)


def test_wrong_calls_are_typed(engine, golden, trace):
    sequence = engine.create_sequence()
    with pytest.raises(dsv4rt.InvalidArgumentError):
        engine.prepare([(sequence, 0)])
    with pytest.raises(dsv4rt.InvalidArgumentError):
        engine.prepare([(sequence, 100000)])
    with pytest.raises(dsv4rt.InvalidArgumentError):
        engine.prepare([(sequence, 1), (sequence, 1)])
    with pytest.raises(dsv4rt.InvalidArgumentError):
        engine.prepare([])
    with pytest.raises(TypeError):
        engine.prepare([(sequence, None)])
    with pytest.raises(dsv4rt.InvalidArgumentError):
        sequence.truncate(5)
    with engine.prepare([(sequence, 1)]) as step:
        with pytest.raises(dsv4rt.FailedPreconditionError):
            engine.prepare([(sequence, 1)])
        with pytest.raises(dsv4rt.InvalidArgumentError, match="layer"):
            step.forward(17, rows_of(trace, 0, 1))
        for layer in engine.layers:
            step.forward(layer, rows_of(trace, 0, 1, layer))
        with pytest.raises(dsv4rt.FailedPreconditionError):
            step.forward(0, rows_of(trace, 0, 1))
        with pytest.raises(dsv4rt.InvalidArgumentError):
            step.commit([5])
        with pytest.raises(dsv4rt.InvalidArgumentError):
            step.commit([1, 1])
    with pytest.raises(dsv4rt.FailedPreconditionError):
        step.commit()
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8) as other:
        with pytest.raises(dsv4rt.StaleHandleError):
            other.prepare([(sequence, 1)])
    sequence.release()
    sequence.release()  # the second one does nothing
    assert sequence.released
    with pytest.raises(dsv4rt.StaleHandleError):
        len(sequence)
    with pytest.raises(dsv4rt.FailedPreconditionError, match="check_outputs"):
        step.output_check()


def test_slots_are_counted(engine):
    held = [engine.create_sequence() for _ in range(4)]
    assert not engine.can_admit(1)
    with pytest.raises(dsv4rt.ResourceExhaustedError):
        engine.create_sequence()
    held.pop().release()
    assert engine.can_admit(1)


def test_output_checks_name_the_entry(golden, trace):
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, max_sequences=2, check_outputs=True) as engine:
        fine, broken = engine.create_sequence(), engine.create_sequence()
        with engine.prepare([(fine, 2), (broken, 2)]) as step:
            for layer in engine.layers:
                x = rows_of(trace, 0, 4, layer)
                x[3, 5] = float("nan")
                step.forward(layer, x)
        assert step.output_check() == dsv4rt.OutputCheck(True, (1,))
        assert engine.non_finite_entries == 1


def test_increments_are_appended_and_read_from_files(engine, golden, trace, tmp_path):
    sequence = engine.create_sequence()
    path = tmp_path / "sequence"
    with path.open("wb") as file:
        for first, tokens in ((0, 100), (100, 30), (130, 1)):
            advance(engine, [(sequence, tokens)], trace, first)
            sequence.save_to(file.write, base_tokens=sequence.state.saved_tokens)
    assert sequence.state.saved_tokens == 131
    with sequence.fork() as twin:
        whole = twin.save()
    with path.open("rb") as file, engine.restore_from(file.read) as again:
        assert again.save() == whole
    with engine.restore(path.read_bytes()) as again:
        assert again.save() == whole
        sequence.truncate(130)
        with pytest.raises(dsv4rt.FailedPreconditionError, match="base_tokens = 131"):
            sequence.save(base_tokens=131)

    def broken(count):
        raise OSError("gone")
    with pytest.raises(OSError, match="gone"):
        engine.restore_from(broken)
    with pytest.raises(ValueError, match="gave"):
        engine.restore_from(lambda count: bytes(count + 1))
    with pytest.raises(dsv4rt.BadInputError):
        engine.restore_from(lambda count: b"")


def test_engines_share_weights(engine, golden, trace):
    with engine.create_sharing(max_sequences=2) as other:
        assert other.memory.weight_bytes == 0 < engine.memory.weight_bytes
        one, two = engine.create_sequence(), other.create_sequence()
        assert advance(engine, [(one, 20)], trace, 0) == advance(other, [(two, 20)], trace, 0)
        with other.create_sharing() as third:
            other.close()
            sequence = third.create_sequence()
            advance(third, [(sequence, 20)], trace, 0)
            assert sequence.save() == one.save()
    with pytest.raises(dsv4rt.InvalidArgumentError, match="layer_count"):
        engine.create_sharing(layer_count=1)
    with pytest.raises(dsv4rt.FailedPreconditionError):
        other.create_sharing()


@pytest.mark.parametrize("expected", [0, 100_000])
def test_a_save_is_what_was_written_whatever_was_expected(engine, trace, monkeypatch, expected):
    sequence = engine.create_sequence()
    advance(engine, [(sequence, 1)], trace, 0)
    saved = sequence.save()
    monkeypatch.setattr(dsv4rt.Sequence, "snapshot_bytes", lambda *_, **__: expected)
    assert sequence.save() == saved


def test_snapshots_continue_where_they_were_saved(engine, golden, trace):
    sequence = engine.create_sequence()
    advance(engine, [(sequence, 150)], trace, 0)
    for key in (None, b"0123456789abcdef"):
        saved = sequence.save(key)
        assert len(saved) == sequence.snapshot_bytes(key)
        parts = []
        sequence.save_to(lambda part: parts.append(bytes(part)), key)
        assert b"".join(parts) == saved
        with dsv4rt.Engine(golden, max_context_tokens=256, max_step_tokens=8) as other:
            again = other.restore(bytes(saved), key=key)
            twin = sequence.fork()
            assert advance(other, [(again, 1)], trace, 150) == advance(engine, [(twin, 1)], trace, 150)
    damaged = bytearray(saved)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(dsv4rt.BadInputError):
        engine.restore(damaged, key=key)
    with pytest.raises(dsv4rt.InvalidArgumentError):
        engine.restore(saved)
    with pytest.raises(dsv4rt.InvalidArgumentError):
        sequence.save(b"short")

    def full(part):
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        sequence.save_to(full)
    assert len(sequence) == 150


def test_sequences_keep_their_engine_and_free_it(golden):
    engine = dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8)
    alive = weakref.ref(engine)
    sequence = engine.create_sequence()
    del engine
    gc.collect()
    assert alive() is not None and len(sequence) == 0
    del sequence
    gc.collect()
    assert alive() is None


def test_forgotten_sequences_give_their_slots_back(engine, trace):
    for _ in range(20):
        sequence = engine.create_sequence()
        advance(engine, [(sequence, 5)], trace, 0)
        del sequence
    kept, forgotten = engine.create_sequence(), engine.create_sequence()
    with engine.prepare([(kept, 1)]) as step:
        del forgotten
        assert len(engine._abandoned) == 1  # nothing is released while a step is outstanding
        for layer in engine.layers:
            step.forward(layer, rows_of(trace, 0, 1, layer))
    held = [engine.create_sequence() for _ in range(3)]
    assert len(held) == 3 and not engine._abandoned


def test_a_closed_engine_refuses_everything(golden, trace):
    engine = dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8)
    sequence = engine.create_sequence()
    step = engine.prepare([(sequence, 1)])
    engine.close()
    engine.close()
    assert engine.closed and repr(engine) == "dsv4rt.Engine(closed)"
    for call in (engine.create_sequence, engine.synchronize, engine.input, lambda: engine.memory, sequence.fork,
                 lambda: len(sequence), sequence.release, lambda: step.forward(0, rows_of(trace, 0, 1)), step.commit,
                 lambda: step.run(rows_of(trace, 0, 1)), lambda: engine.prepare([(sequence, 1)]), engine.can_admit,
                 lambda: engine.prefix.stats):
        with pytest.raises(dsv4rt.FailedPreconditionError, match="closed"):
            call()
    with sequence:
        pass


def test_a_callback_may_close_the_engine(golden, trace):
    engine = dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8)
    sequence = engine.create_sequence()
    step = engine.prepare([(sequence, 1)])
    with pytest.raises(ZeroDivisionError):
        step.run(rows_of(trace, 0, 1), lambda *_: engine.close() or 1 / 0)
    assert engine.closed
    with pytest.raises(dsv4rt.FailedPreconditionError, match="closed"):
        sequence.save()


def test_a_receiver_of_warnings_may_ask_and_close(golden, monkeypatch):
    seen, destroyed = [], []
    destroy = dsv4rt.engine._Owner.__del__
    monkeypatch.setattr(dsv4rt.engine._Owner, "__del__", lambda owner: destroyed.append(owner) or destroy(owner))

    def receive(message):
        seen.append((message, len(sequence), engine.state.live_sequences, engine.shortage([(sequence, 1)])))
        try:
            engine.prepare([(sequence, 1)])
        except dsv4rt.FailedPreconditionError as error:
            seen.append(str(error))
        engine.close()
        assert not destroyed, "the call that tells still works with the engine"

    engine = dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, check_outputs=True, on_warning=receive)
    sequence = engine.create_sequence()
    with engine.prepare([(sequence, 2)]) as step:
        for layer in engine.layers:
            step.forward(layer, np.full((2, 128), 0x7FC0, np.uint16))
    assert step.ended and engine.closed
    assert len(seen) == 2 and "finite" in seen[0][0] and seen[0][1:] == (2, 1, None) and "must not change" in seen[1]
    assert len(destroyed) == 1
    with pytest.raises(dsv4rt.FailedPreconditionError, match="closed"):
        len(sequence)


def test_entries_of_a_step_are_its_own(golden, trace):
    """Token ids may come from what asks the engine meanwhile, with other entries and more of them."""
    options = dsv4rt.PrefixCacheOptions(boundary_states=4)
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=16, max_sequences=3,
                       prefix_cache=options) as engine:
        one, two, other = (engine.create_sequence(list(range(20))) for _ in range(3))

        def ids(count):
            for token in range(count):
                assert engine.shortage([(other, [token]), (two, [token])]) is None
                yield token

        def entries():
            yield one, [0, 1]
            yield two, ids(3)

        with engine.prepare(entries()) as step:
            for layer in engine.layers:
                step.forward(layer, rows_of(trace, 0, 5, layer))
        assert [len(sequence) for sequence in (one, two, other)] == [2, 3, 0]


def test_an_exception_passes_a_sequence_whose_step_is_open(engine):
    with pytest.raises(KeyError, match="mine"):
        with engine.create_sequence() as sequence:
            step = engine.prepare([(sequence, 1)])
            raise KeyError("mine")
    step.cancel()
    del sequence, step
    engine.create_sequence()
    assert engine.state.live_sequences == 1


def test_engines_come_and_go_without_keeping_memory(golden):
    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def one():
        with dsv4rt.Engine(golden, max_context_tokens=512, max_step_tokens=64, threads=1) as engine:
            engine.create_sequence()
            return engine.memory.total_bytes // 1024

    one()
    before = resident()
    size = max(one() for _ in range(12))
    assert resident() - before < 3 * size
