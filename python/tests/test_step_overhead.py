"""python/benchmarks/step_overhead.py: that it sees what a step in Python is made to cost, and what it concludes."""

import sys
import time

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
    call = getattr(kind, name)

    def slow(*arguments):
        end = time.perf_counter() + 500e-6
        while time.perf_counter() < end:
            pass
        return call(*arguments)

    monkeypatch.setattr(kind, name, slow)
    most = 450 * calls
    code, added, said = measured("--steps", "40", "--most", str(most))
    assert code == 1 and f"more than {most} us" in said
    assert most < added < 2 * most
    assert measured("--steps", "40", "--most", "1e6")[0] == 0


@pytest.mark.parametrize("arrays", ["torch", "numpy"])
def test_a_step_adds_something_and_less_than_the_step_takes(measured, arrays):
    code, added, _ = measured("--steps", "80", "--arrays", arrays)
    assert code == 0 and 0 < added < 5000
    assert measured("--steps", "40", "--arrays", arrays, "--most", "0")[0] in (1, 3)


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
