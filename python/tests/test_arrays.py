"""Arrays in and out: what is taken without a copy, what is refused, and how long memory lives."""

import contextlib
import gc
import types
import weakref

import numpy as np
import pytest

import dsv4rt


def first_rows(trace, tokens):
    return trace["layers.0.input"][:tokens].copy()


class OnlyDlpack:
    """What a library without NumPy's interface looks like."""

    def __init__(self, tensor, device=None):
        self._tensor, self._device = tensor, device

    def __dlpack__(self, **named):
        return self._tensor.__dlpack__(**named)

    def __dlpack_device__(self):
        return self._device or self._tensor.__dlpack_device__()


def test_dlpack_and_numpy_give_the_same_outputs(engine, trace):
    import torch
    rows = first_rows(trace, 20)
    tensor = torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    outputs = []
    for x, out in ((rows, np.zeros_like(rows)), (OnlyDlpack(tensor), np.zeros_like(rows)),
                   (tensor, OnlyDlpack(torch.zeros_like(tensor)))):
        with engine.create_sequence() as sequence:
            step = engine.prepare([(sequence, 20)])
            assert step.forward(0, x, out) is out
            outputs.append(out._tensor.view(torch.int16).numpy().tobytes() if isinstance(out, OnlyDlpack)
                           else out.tobytes())
            step.cancel()
    assert outputs[0] == outputs[1] == outputs[2]
    assert any(outputs[0])


@pytest.mark.parametrize("wrong, says", [
    (lambda rows: rows.astype(np.float32), "float32"),
    (lambda rows: rows[:10], r"\[10, 128\]"),
    (lambda rows: rows.T.copy().T, "strided"),
    (lambda rows: rows.view(np.int16), "int16"),
    (lambda rows: [[1.0]], "a list"),
    (lambda rows: None, "NoneType"),
])
def test_a_wrong_array_is_refused_by_name(engine, trace, wrong, says):
    rows = first_rows(trace, 20)
    with engine.create_sequence() as sequence:
        step = engine.prepare([(sequence, 20)])
        with pytest.raises(dsv4rt.InvalidArgumentError, match=says) as caught:
            step.forward(0, wrong(rows), np.zeros_like(rows))
        assert str(caught.value).startswith("x is") and "[20, 128]" in str(caught.value)
        with pytest.raises(dsv4rt.InvalidArgumentError, match="out is"):
            step.forward(0, rows, np.zeros((20, 128)))
        step.forward(0, rows)  # nothing has changed
        step.cancel()


def test_wrong_torch_tensors_are_refused(engine):
    import torch
    with engine.create_sequence() as sequence:
        step = engine.prepare([(sequence, 4)])
        good = torch.zeros(4, 128, dtype=torch.bfloat16)
        for wrong, says in ((good.float(), "float32"), (good[:2], r"\[2, 128\]"),
                            (good.t().contiguous().t(), "strided"),
                            (OnlyDlpack(good.float()), "DLPack type"), (OnlyDlpack(good, (2, 0)), "DLPack device 2")):
            with pytest.raises(dsv4rt.InvalidArgumentError, match=says):
                step.forward(0, wrong, good)
        step.cancel()


@pytest.mark.parametrize("wrong, says", [
    (lambda tensor: tensor.float(), "torch.float32 tensor"),
    (lambda tensor: tensor.view(2, 256), r"\[2, 256\]"),
    (lambda tensor: tensor.view(4, 1, 128), r"\[4, 1, 128\]"),
    (lambda tensor: tensor.t().contiguous().t(), "strided"),
    (lambda tensor: tensor.tolist(), "list;"),
    (lambda tensor: tensor.half(), "torch.float16"),
], ids=["type", "shape", "dimensions", "strides", "list", "half"])
def test_each_of_the_two_tensors_is_looked_at(engine, wrong, says):
    import torch
    with engine.create_sequence() as sequence:
        step = engine.prepare([(sequence, 4)])
        good = torch.zeros(4, 128, dtype=torch.bfloat16)
        step.forward(0, good, good.clone())
        for name, x, out in (("x", wrong(good), good), ("out", good, wrong(good)), ("x", wrong(good), wrong(good))):
            with pytest.raises(dsv4rt.InvalidArgumentError, match=f"^{name} is a .*{says}"):
                step.forward(1, x, out)
        step.forward(1, good, good.clone())
        step.cancel()


def test_a_tensor_is_looked_at_anew_in_every_call(engine, trace):
    """Its memory, shape and type may have changed since the last one."""
    import torch
    rows = torch.from_numpy(first_rows(trace, 4).view(np.int16)).view(torch.bfloat16)
    x, out = rows.clone(), torch.zeros_like(rows)
    with engine.create_sequence() as sequence:
        step = engine.prepare([(sequence, 4)])
        wanted = step.forward(0, x, out).clone()
        step.cancel()
        step = engine.prepare([(sequence, 4)])
        old = out.data
        x.data, out.data = torch.zeros_like(rows), torch.zeros_like(rows)
        old.zero_()
        x.copy_(rows)
        assert torch.equal(step.forward(0, x, out), wanted) and not old.any()
        for data, says in ((rows[:2].clone(), r"\[2, 128\]"), (rows.t().contiguous().t(), "strided")):
            x.data = data
            with pytest.raises(dsv4rt.InvalidArgumentError, match=f"x is a .*{says}"):
                step.forward(1, x, out)
        x.data = rows
        out.resize_(8, 128)
        with pytest.raises(dsv4rt.InvalidArgumentError, match=r"out is a .*\[8, 128\]"):
            step.forward(1, x, out)
        step.cancel()


class MadeForTheCall:
    """An array whose DLPack is memory made for it, which is overwritten when nobody refers to it any more."""

    def __init__(self, values):
        self._values = values

    def __dlpack__(self, **_):
        memory = self._values.copy()
        view = memory[:]
        weakref.finalize(view, memory.fill, 0xFFFF)
        return view.__dlpack__()

    def __dlpack_device__(self):
        return (1, 0)


def test_memory_made_for_a_call_is_kept_during_it(engine, trace):
    rows = first_rows(trace, 4)
    made = MadeForTheCall(rows.view(np.uint16))
    results = []
    for x in (rows, made):
        with engine.create_sequence() as sequence:
            step = engine.prepare([(sequence, 4)])
            outputs = [step.forward(0, x, np.zeros_like(rows))]
            step.cancel()
            with engine.prepare([(sequence, 4)]) as step:
                step.run(x, lambda layer, output, _next: outputs.append(np.array(output)))
        results.append([output.tobytes() for output in outputs])
    assert results[0] == results[1]


class OnDevice:
    """An array of a device that this machine may lack."""

    def __init__(self, tensor, device):
        self._tensor, self._device = tensor, device

    def __dlpack__(self, *, stream):
        return self._tensor.__dlpack__()

    def __dlpack_device__(self):
        return self._device


def test_memory_of_another_device_is_refused():
    import torch
    from dsv4rt import _arrays
    engine = types.SimpleNamespace(_cuda=True, _device=(2, 1), _torch_device=1, stream=0)

    class Tensor(torch.Tensor):
        on = 0

        def get_device(self):
            return self.on

    for shape, values, dtype in (((2, 8), _arrays.BFLOAT16, torch.bfloat16), ((3,), _arrays.INT32, torch.int32)):
        tensor = torch.zeros(shape, dtype=dtype)
        for index in (0, 1, 2, -1):
            cases = [OnDevice(tensor, (2, index)), tensor.as_subclass(Tensor)]
            cases[1].on = index
            for array in cases:
                if index == 1:
                    assert _arrays.locate(array, shape, values, engine, "x")[0] == tensor.data_ptr()
                    continue
                with pytest.raises(dsv4rt.InvalidArgumentError, match="x is an? .* on .*in the engine's memory"):
                    _arrays.locate(array, shape, values, engine, "x")
        assert _arrays.locate(OnDevice(tensor, (13, 0)), shape, values, engine, "x"), "managed memory is every device's"
    here, there = (torch.zeros(2, 8, dtype=torch.bfloat16).as_subclass(Tensor) for _ in range(2))
    here.on, there.on = 1, 2
    out = here.clone().as_subclass(Tensor)
    out.on = 1
    for _ in range(2):
        assert _arrays.locate_rows(here, out, (2, 8), engine)[:2] == (here.data_ptr(), out.data_ptr())
    for name, x, out in (("x", there, here), ("out", here, there), ("x", there, there)):
        with pytest.raises(dsv4rt.InvalidArgumentError, match=f"^{name} is a .* on "):
            _arrays.locate_rows(x, out, (2, 8), engine)


def test_strides_of_single_rows_say_nothing(engine):
    import torch
    from dsv4rt import _arrays
    row = torch.zeros(4, 8, dtype=torch.bfloat16)[::4]
    assert row.stride() == (32, 1)
    assert _arrays.locate(OnlyDlpack(row), (1, 8), _arrays.BFLOAT16, engine, "x")[0] == row.data_ptr()
    for wrong in (torch.zeros(8, 8, dtype=torch.bfloat16)[::4], torch.zeros(2, 16, dtype=torch.bfloat16)[:, ::2]):
        with pytest.raises(dsv4rt.InvalidArgumentError, match="strided"):
            _arrays.locate(OnlyDlpack(wrong), (2, 8), _arrays.BFLOAT16, engine, "x")
    counts = np.zeros(8, np.int32)
    with pytest.raises(dsv4rt.InvalidArgumentError, match=r"x is a strided int32 array \[4\]; accepted: .* \[4\]"):
        _arrays.locate(counts[::2], (4,), _arrays.INT32, engine, "x")
    with pytest.raises(dsv4rt.InvalidArgumentError, match="datetime64"):
        _arrays.locate(counts.astype("M8[ns]")[::2], (4,), _arrays.INT32, engine, "x")


def test_a_type_of_another_library_is_asked_for_its_text():
    from dsv4rt import _arrays
    engine = types.SimpleNamespace(_cuda=False)

    class Type:
        __hash__ = None

        def __init__(self, text):
            self._text = text

        def __str__(self):
            return self._text

    values = np.zeros((1, 8), np.uint16)
    array = types.SimpleNamespace(__array_interface__=values.__array_interface__, dtype=Type("uint16"))
    assert _arrays.locate(array, (1, 8), _arrays.BFLOAT16, engine, "x")[0] == values.ctypes.data
    array.dtype = Type("mine")
    with pytest.raises(dsv4rt.InvalidArgumentError, match="x is a mine array"):
        _arrays.locate(array, (1, 8), _arrays.BFLOAT16, engine, "x")


def test_a_read_only_array_is_input_and_not_output(engine, trace):
    rows = first_rows(trace, 4)
    rows.setflags(write=False)
    with engine.create_sequence() as sequence:
        step = engine.prepare([(sequence, 4)])
        out = step.forward(0, rows)
        with pytest.raises(dsv4rt.InvalidArgumentError, match="out is read-only"):
            step.forward(1, out, rows)
        step.cancel()


def test_engine_memory_is_shared_and_outlives_the_engine(golden):
    import torch
    engine = dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8)
    rows = engine.input()
    assert rows.shape == (8, 128)
    bits, values, tensor = np.asarray(rows), rows.numpy(), torch.from_dlpack(rows)
    tensor.fill_(1.5)
    assert tensor.dtype is torch.bfloat16
    assert (values.astype(np.float32) == 1.5).all() and (bits == 0x3FC0).all()
    engine.close()
    del engine, rows, values
    gc.collect()
    tensor.fill_(2.0)
    assert (bits == 0x4000).all()


def test_a_dlpack_capsule_that_nobody_takes_is_freed(engine):
    from dsv4rt import _arrays
    before = len(_arrays._exported)
    capsule = engine.input().__dlpack__()
    assert len(_arrays._exported) == before + 1
    del capsule
    assert len(_arrays._exported) == before
    import torch
    tensor = torch.from_dlpack(engine.input())
    assert len(_arrays._exported) == before + 1
    del tensor
    assert len(_arrays._exported) == before


def test_hooks_get_arrays_like_x(engine, trace):
    import torch
    rows = first_rows(trace, 4)
    kinds = []
    for x in (rows, rows.view(np.uint16), torch.zeros(4, 128, dtype=torch.bfloat16),
              OnlyDlpack(torch.zeros(4, 128, dtype=torch.bfloat16))):
        with engine.create_sequence() as sequence, engine.prepare([(sequence, 4)]) as step:
            step.run(x, lambda layer, output, next_input: kinds.append(str(getattr(output, "dtype", type(output)))))
    assert kinds[::4] == ["bfloat16", "uint16", "torch.bfloat16", "<class 'dsv4rt._arrays.Rows'>"]


class FakeStream:
    """A stream of torch, that tells what waits for what."""
    log: list = []

    def __init__(self, number, device=None):
        self.cuda_stream = number

    def wait_stream(self, other):
        self.log.append((self.cuda_stream, "waits for", other.cuda_stream))


@pytest.mark.parametrize("whose", ["rows", "torch"])
def test_torchs_stream_and_the_engines_are_ordered(engine, monkeypatch, whose):
    import torch

    @contextlib.contextmanager
    def as_current(stream):
        log.append(("current", stream.cuda_stream))
        yield
        log.append(("current", theirs))

    ours, theirs = 9, 7
    log = []
    monkeypatch.setattr(FakeStream, "log", log)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(theirs))
    monkeypatch.setattr(torch.cuda, "ExternalStream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", as_current)
    with engine.create_sequence() as sequence:
        x = engine.input() if whose == "rows" else torch.zeros(256, 128, dtype=torch.bfloat16)
        step = engine.prepare([(sequence, x.shape[0])])
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_cuda", True)
            patch.setattr(engine, "stream", ours)
            if whose == "torch":  # no GPU has it
                patch.setattr("dsv4rt.step.locate", lambda x, *_: (x.data_ptr(), x))
            step.run(x, lambda layer, output, next_input: calls.append((layer, log[-1])))
        step.cancel()
    layers = len(engine.layers)
    assert calls == [(layer, ("current", ours)) for layer in range(layers)]
    assert log[0] == (ours, "waits for", theirs) and log[-1] == (theirs, "waits for", ours)
    assert log[1:-1] == [("current", ours), ("current", theirs)] * layers
