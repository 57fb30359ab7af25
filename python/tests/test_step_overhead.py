"""python/benchmarks/step_overhead.py: that it sees what a step in Python is made to cost, and what it concludes."""

import statistics
import sys
import time
import types

import pytest

import conftest
import dsv4rt

sys.path.insert(0, str(conftest.TREE / "python" / "benchmarks"))
import step_overhead  # noqa: E402: found by the line above

@pytest.fixture
def measured(golden, capsys):
    """Runs it: exit code, microseconds (None without), and what it says of a failure."""
    def run(*words):
        code = step_overhead.main([str(golden), *words])
        said = capsys.readouterr()
        added = said.out.partition("Python adds ")[2].partition(" us")[0]
        return code, float(added) if added else None, said.err

    return run


@pytest.mark.parametrize("kind, name, calls", [(dsv4rt.Engine, "prepare", 1), (dsv4rt.Step, "forward", 4),
                                               (dsv4rt.Step, "commit", 1)])
def test_what_a_step_is_made_to_cost_is_reported(measured, monkeypatch, kind, name, calls):
    """To the microsecond, with a clock that only these calls move, and a step in C that always takes 3 us."""
    now = [0.0]
    call, in_c = getattr(kind, name), step_overhead.in_c

    def slow(*arguments):
        now[0] += 10e-6
        return call(*arguments)

    def constant(*arguments):
        run = in_c(*arguments)
        return lambda: run() * 0 + 3e-6

    monkeypatch.setattr(kind, name, slow)
    monkeypatch.setattr(step_overhead, "in_c", constant)
    monkeypatch.setattr(step_overhead, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    added = 10 * calls - 3
    assert measured("--steps", "40", "--most", str(added - 0.1)) == (1, added, f"more than {added - 0.1:g} us\n")
    assert measured("--steps", "40", "--most", str(added + 0.1)) == (0, added, "")


@pytest.mark.parametrize("arrays", ["torch", "numpy"])
def test_a_figure_is_given(measured, arrays):
    code, added, said = measured("--steps", "40", "--arrays", arrays)
    assert code == 0 and added is not None and not said


def test_the_step_in_c_has_a_clock_of_its_own(golden, monkeypatch):
    """Which begins and ends within the call, and is of seconds."""
    shares, in_c = [], step_overhead.in_c

    def watched(*arguments):
        run = in_c(*arguments)

        def timed():
            begin = time.perf_counter()
            seconds = run()
            shares.append(seconds / (time.perf_counter() - begin))
            return seconds

        return timed

    monkeypatch.setattr(step_overhead, "in_c", watched)
    step_overhead.measure(golden, 40)
    assert max(shares) <= 1 and statistics.median(shares) > 0.5


def test_a_step_in_c_that_fails_has_no_seconds(engine):
    import torch
    xs, outs = ([torch.zeros(1, engine.hidden_size, dtype=torch.bfloat16) for _ in engine.layers] for _ in range(2))
    sequence = engine.create_sequence()
    run = step_overhead.in_c(engine, sequence, xs, outs)
    assert run() > 0
    sequence.release()
    with pytest.raises(step_overhead.Failure):
        run()


def test_other_outputs_or_tokens_are_no_figure(measured, monkeypatch):
    forward, commit = dsv4rt.Step.forward, dsv4rt.Step.commit

    def changed(step, layer, x, out):
        forward(step, layer, x, out)
        if layer == 2 and len(step._entries[0]) == 9:
            out[0, 5] = 7

    with monkeypatch.context() as patch:
        patch.setattr(dsv4rt.Step, "forward", changed)
        assert measured("--steps", "20") == (2, None, "step_overhead.py: outputs of step 8 differ\n")

    def dropped(step):
        commit(step, [0] if len(step._entries[0]) == 20 else None)

    monkeypatch.setattr(dsv4rt.Step, "commit", dropped)
    assert measured("--steps", "20") == (2, None, "step_overhead.py: the caches differ\n")


def test_without_a_compiler_or_a_checkpoint_it_says_so(measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    code, added, said = measured("--steps", "20")
    assert (code, added) == (2, None) and "no-compiler" in said
    monkeypatch.setenv("CC", "false")
    assert measured("--steps", "20")[:2] == (2, None)
    assert step_overhead.main([str(tmp_path), "--steps", "20"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_a_round_is_two_steps_and_the_interval_decides():
    assert step_overhead.rounds_of([(5e-6, 1e-6), (9e-6, 1e-6), (3e-6, 1e-6), (1e-6, 3e-6)]) == pytest.approx([6, 0])
    assert [step_overhead.exit_code((20, 30), most) for most in (None, 31, 30, 25, 20, 19)] == [0, 0, 0, 3, 3, 1]
    for wrong in ("0", "18", "21"):
        with pytest.raises(SystemExit) as caught:
            step_overhead.main(["nowhere", "--steps", wrong])
        assert caught.value.code == 2
