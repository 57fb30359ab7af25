"""The golden trace through the package gives what `dsv4rt run` prints for it."""

import re

import conftest
import numpy as np
import pytest

import dsv4rt

PREFILL, TOKENS = 600, 704
# The README's table: relative errors of the four layers.
EXPECTED = tuple(float(error) for error in re.findall(r"^ +\d  \w+ +\.\.\. +\.\.\. +([\d.]+) .* ok$",
                                                      (conftest.TREE / "README.md").read_text(), flags=re.MULTILINE))


def relative(found, wanted):
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def spans():
    yield 0, PREFILL
    for token in range(PREFILL, TOKENS):
        yield token, token + 1


def run_trace(golden, trace, to_array, to_numpy):
    outputs = {}
    with dsv4rt.Engine(golden, max_context_tokens=1024, max_step_tokens=PREFILL) as engine:
        assert engine.layers == (0, 1, 2, 3)
        assert engine.hidden_size == 128
        inputs = {layer: to_array(trace[f"layers.{layer}.input"]) for layer in engine.layers}
        with engine.create_sequence(reserve_tokens=TOKENS) as sequence:
            for begin, end in spans():
                with engine.prepare([(sequence, end - begin)]) as step:
                    for layer in engine.layers:
                        out = step.forward(layer, inputs[layer][begin:end])
                        outputs.setdefault(layer, []).append(to_numpy(out))
            assert len(sequence) == TOKENS
    return {layer: np.concatenate(parts) for layer, parts in outputs.items()}


@pytest.mark.parametrize("kind", ["bfloat16", "bits", "torch"])
def test_outputs_are_those_of_the_command_line(golden, trace, kind):
    import ml_dtypes
    if kind == "torch":
        import torch
        outputs = run_trace(golden, trace,
                            lambda array: torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16),
                            lambda tensor: tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    elif kind == "bits":
        outputs = run_trace(golden, trace, lambda array: array.view(np.uint16),
                            lambda out: out.view(ml_dtypes.bfloat16))
    else:
        outputs = run_trace(golden, trace, lambda array: array, lambda out: out)
    assert len(EXPECTED) == 4
    for layer, wanted in enumerate(EXPECTED):
        assert relative(outputs[layer], trace[f"layers.{layer}.output"]) == pytest.approx(wanted, abs=6e-7)


def test_a_whole_step_with_a_hook_is_the_layers_one_by_one(golden, trace):
    import ml_dtypes
    rows = trace["layers.0.input"][:200]
    with dsv4rt.Engine(golden, max_context_tokens=256, max_step_tokens=200, max_sequences=2) as engine:
        alone = []
        with engine.prepare([(engine.create_sequence(), 200)]) as step:
            x = rows
            for layer in engine.layers:
                alone.append(step.forward(layer, x))
                x = (alone[-1].astype(np.float32) + rows.astype(np.float32)).astype(ml_dtypes.bfloat16)
        hooked = []

        def add_rows(layer, output, next_input):
            assert output.dtype == rows.dtype and output.shape == rows.shape
            hooked.append((layer, output.copy()))
            if next_input is not None:
                next_input[:] = (output.astype(np.float32) + rows.astype(np.float32)).astype(ml_dtypes.bfloat16)

        with engine.prepare([(engine.create_sequence(), 200)]) as step:
            step.run(rows, add_rows)
        assert [layer for layer, _ in hooked] == list(engine.layers)
        for wanted, (_, found) in zip(alone, hooked):
            assert found.tobytes() == wanted.tobytes()
        assert engine.graph_stats.eager_steps == 1


def test_wrong_tensors_in_memory_are_named(golden):
    from safetensors.torch import load_file
    import torch
    config = (golden / "config.json").read_text()
    tensors = load_file(golden / "model.safetensors")
    limits = dict(max_context_tokens=64, max_step_tokens=8)
    name = next(name for name in tensors if name.endswith("wq_a.weight"))
    without = {key: value for key, value in tensors.items() if key != name}
    with pytest.raises(dsv4rt.Dsv4rtError, match=name):
        dsv4rt.Engine.from_tensors(config, without, **limits)
    with pytest.raises(dsv4rt.Dsv4rtError, match=name):
        dsv4rt.Engine.from_tensors(config, {**tensors, name: tensors[name][:-1]}, **limits)
    with pytest.raises(dsv4rt.InvalidArgumentError, match="int64"):
        dsv4rt.Engine.from_tensors(config, {"layers.0.attn.x": torch.zeros(2, dtype=torch.int64)}, **limits)
    with pytest.raises(dsv4rt.BadInputError):
        dsv4rt.Engine.from_tensors("{", tensors, **limits)


def test_an_engine_from_memory_is_that_of_the_directory(golden, trace):
    from safetensors.torch import load_file
    rows = trace["layers.0.input"][:130]
    limits = dict(max_context_tokens=256, max_step_tokens=130)
    tensors = load_file(golden / "model.safetensors")
    config = (golden / "config.json").read_text()
    with dsv4rt.Engine(golden, **limits) as one, dsv4rt.Engine.from_tensors(config, tensors, **limits) as two:
        outputs, sequences = [], []
        for engine in (one, two):
            sequences.append(engine.create_sequence())
            with engine.prepare([(sequences[-1], 130)]) as step:
                outputs.append([step.forward(layer, rows).tobytes() for layer in engine.layers])
        assert outputs[0] == outputs[1]
        # A snapshot is bound to config and weights: that the other engine takes it shows that these are equal.
        saved = sequences[0].save()
        sequences[1].release()
        assert len(two.restore(saved)) == 130
