"""Threads: engines side by side, one engine in turns, and the interpreter's lock during calls."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest

import dsv4rt


def decode(engine, trace, tokens=40):
    with engine.create_sequence() as sequence:
        digest = []
        for at in range(tokens):
            with engine.prepare([(sequence, 1)]) as step:
                for layer in engine.layers:
                    x = np.ascontiguousarray(trace[f"layers.{layer}.input"][at:at + 1])
                    digest.append(step.forward(layer, x).tobytes())
    return b"".join(digest)


def test_engines_in_threads_do_not_see_each_other(golden, trace):
    def one(_):
        with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, threads=1) as engine:
            return decode(engine, trace)

    wanted = one(None)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(one, range(4))) == {wanted}


def test_threads_take_turns_on_one_engine(golden, trace):
    """Whole steps are the caller's to keep together; single calls of any thread are safe."""
    turn = threading.Lock()
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, max_sequences=4, threads=1) as engine:
        wanted = decode(engine, trace)

        def one(_):
            digest = []
            with turn:
                sequence = engine.create_sequence()
            for at in range(40):
                with turn, engine.prepare([(sequence, 1)]) as step:
                    for layer in engine.layers:
                        x = np.ascontiguousarray(trace[f"layers.{layer}.input"][at:at + 1])
                        digest.append(step.forward(layer, x).tobytes())
            return b"".join(digest)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert set(pool.map(one, range(4))) == {wanted}


def test_racing_calls_fail_in_python_and_nowhere_else(golden):
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, max_sequences=2, threads=1) as engine:
        def one(_):
            failed = 0
            for _ in range(200):
                try:
                    with engine.create_sequence():
                        assert engine.can_admit(1) in (True, False)
                except dsv4rt.ResourceExhaustedError as error:
                    assert "slot" in str(error) or "sequence" in str(error)
                    failed += 1
            return failed

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(one, range(4))) < 800
        assert engine.can_admit(1)


@pytest.mark.parametrize("name", ["_prepare", "_forward_layer", "_commit"])
def test_a_call_of_a_step_is_one_turn(golden, trace, monkeypatch, name):
    """While one is in the library, no other thread's call is, and what it leaves is seen whole."""
    module = dsv4rt.engine if name == "_prepare" else dsv4rt.step
    call = getattr(module, name)
    x = np.ascontiguousarray(trace["layers.0.input"][:1])
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, threads=1) as engine:
        sequence = engine.create_sequence()
        asked, seen = threading.Event(), []

        def ask():
            asked.set()
            with engine._lock:
                seen.append((engine.state.step_serial, engine.outstanding))

        thread = threading.Thread(target=ask)

        def slow(*arguments):
            if not asked.is_set():
                thread.start()
                asked.wait()
                thread.join(0.1)
                assert not seen, "another thread's call ran beside this one"
            return call(*arguments)

        monkeypatch.setattr(module, name, slow)
        with engine.prepare([(sequence, 1)]) as step:
            for layer in engine.layers:
                step.forward(layer, x)
        thread.join()
        assert seen in ([(step._struct.serial, step)], [(0, None)])


def test_state_is_read_while_steps_end(golden, trace):
    """What another thread reads is that of before or after a step, and tokens never go back."""
    stop = threading.Event()
    with dsv4rt.Engine(golden, max_context_tokens=256, max_step_tokens=8, threads=1) as engine:
        sequence = engine.create_sequence()
        read = []

        def watch():
            while not stop.is_set():
                read.append((len(sequence), sequence.state.length, engine.state.live_sequences))
                step = engine.outstanding
                assert step is None or (step.tokens, step.valid_tokens) == (1, 1)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            watchers = [pool.submit(watch) for _ in range(2)]
            try:
                for _ in range(100):
                    with engine.prepare([(sequence, 1)]) as step:
                        for layer in engine.layers:
                            step.forward(layer, np.ascontiguousarray(trace[f"layers.{layer}.input"][:1]))
                    assert step.ended and engine.outstanding is None
            finally:
                stop.set()
            for watcher in watchers:
                watcher.result()
        assert len(sequence) == 100 and read
        assert all(length <= later <= 100 and live == 1 for length, later, live in read)


def test_other_threads_run_during_a_call(golden, trace):
    """A counter in another thread moves while one long call is in the library."""
    with dsv4rt.Engine(golden, max_context_tokens=1024, max_step_tokens=704, threads=1) as engine:
        sequence = engine.create_sequence()
        step = engine.prepare([(sequence, 704)])
        x = np.ascontiguousarray(trace["layers.1.input"])
        out = np.empty_like(x)
        ticks, stop = [], threading.Event()

        def tick():
            while not stop.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.0005)

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.perf_counter()
        step.forward(1, x, out)
        end = time.perf_counter()
        stop.set()
        thread.join()
        step.cancel()
        assert end - begin > 0.005
        assert sum(begin < at < end for at in ticks) >= 3
