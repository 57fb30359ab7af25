#!/usr/bin/env python3
"""What a step costs in Python beyond the C calls: step_overhead.py CHECKPOINT [--steps N]

Decodes on the checkpoint's layers, all loaded, as a host does it through the package, and with the bare C calls on
addresses made beforehand. Both do the same work, so the difference of the medians is Python's part; the two alternate,
and one thread computes.
"""

import argparse
import statistics
import time

import torch

import dsv4rt
from dsv4rt._library import ffi, lib


def through_package(engine, sequence, x, out):
    with engine.prepare([(sequence, 1)]) as step:
        for layer in engine.layers:
            step.forward(layer, x, out)


def bare_calls(engine, sequence, x, out):
    """A function that runs a step with nothing but the C calls that a step needs."""
    handle, layers = engine._handle, engine.layers
    entry = ffi.new("dsv4rt_step_entry*", (sequence._id, 1))
    step = ffi.new("dsv4rt_step*")
    x_rows, out_rows = (ffi.cast("dsv4rt_bf16*", tensor.data_ptr()) for tensor in (x, out))
    prepare, forward, commit = lib.dsv4rt_step_prepare, lib.dsv4rt_step_forward_layer, lib.dsv4rt_step_commit

    def run():
        failed = prepare(handle, entry, 1, ffi.NULL, step)
        for layer in layers:
            failed |= forward(handle, step, layer, x_rows, out_rows)
        assert not failed | commit(handle, step, ffi.NULL, 0)

    return run


def call_cost(engine):
    """Seconds of a C call from Python that does next to nothing."""
    out = ffi.new("int64_t*")
    function, handle = lib.dsv4rt_engine_hidden_size, engine._handle
    begin = time.perf_counter()
    for _ in range(20000):
        function(handle, out)
    return (time.perf_counter() - begin) / 20000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    steps = arguments.steps
    with dsv4rt.Engine(arguments.checkpoint, max_context_tokens=steps + 1, max_step_tokens=1, max_sequences=2,
                       threads=1) as engine:
        x, out = (torch.randn(1, engine.hidden_size).bfloat16() for _ in range(2))
        one, two = engine.create_sequence(), engine.create_sequence()
        bare = bare_calls(engine, two, x, out)
        times = ([], [])
        for _ in range(steps):
            for kind, run in enumerate((lambda: through_package(engine, one, x, out), bare)):
                begin = time.perf_counter()
                run()
                times[kind].append(time.perf_counter() - begin)
        package, calls = (statistics.median(values[steps // 4:]) * 1e6 for values in times)
        quiet, quiet_calls = (sorted(values)[steps // 20] * 1e6 for values in times)
        print(f"layers {len(engine.layers)}, step through the package {package:.1f} us, bare C calls {calls:.1f} us, "
              f"difference {package - calls:.1f} us (of the 5th percentiles: {quiet - quiet_calls:.1f} us); "
              f"one C call from Python {call_cost(engine) * 1e6:.2f} us")


if __name__ == "__main__":
    main()
