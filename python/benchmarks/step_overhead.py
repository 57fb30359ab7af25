#!/usr/bin/env python3
"""What a step costs in Python beyond the C calls: step_overhead.py CHECKPOINT [--steps N] [--most MICROSECONDS]

Decodes on the checkpoint's layers, all loaded, as a host does it through the package, and with the bare C calls on
addresses made beforehand. Both do the same work on sequences of the same content, in turns, with one thread, and their
outputs and snapshots must be equal. The difference of the medians, and what the bare calls themselves take in Python,
together bound what Python adds to the same loop in C or C++. Exit 1 if that is more than --most, 2 if results differ.
"""

import argparse
import statistics
import sys
import time

import torch

import dsv4rt
from dsv4rt._library import ffi, lib


def through_package(engine, sequence, xs, outs):
    with engine.prepare([(sequence, 1)]) as step:
        for layer, x, out in zip(engine.layers, xs, outs):
            step.forward(layer, x, out)


def bare_calls(engine, sequence, xs, outs):
    """A function that runs a step with nothing but the C calls that a step needs."""
    handle = engine._handle
    entry = ffi.new("dsv4rt_step_entry*", (sequence._id, 1))
    step = ffi.new("dsv4rt_step*")
    rows = [(layer, *(ffi.cast("dsv4rt_bf16*", tensor.data_ptr()) for tensor in pair))
            for layer, *pair in zip(engine.layers, xs, outs)]
    prepare, forward, commit = lib.dsv4rt_step_prepare, lib.dsv4rt_step_forward_layer, lib.dsv4rt_step_commit

    def run():
        failed = prepare(handle, entry, 1, ffi.NULL, step)
        for layer, x, out in rows:
            failed |= forward(handle, step, layer, x, out)
        assert not failed | commit(handle, step, ffi.NULL, 0)

    return run


def call_cost(engine):
    """Seconds of a C call from Python that does next to nothing, the least of some rounds."""
    out = ffi.new("int64_t*")
    function, handle = lib.dsv4rt_engine_hidden_size, engine._handle
    rounds = []
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(1000):
            function(handle, out)
        rounds.append((time.perf_counter() - begin) / 1000)
    return min(rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--most", type=float, help="microseconds that Python may add to a step")
    arguments = parser.parse_args()
    steps = arguments.steps
    if steps < 20:
        parser.error("--steps: 20 or more, for the percentiles")
    with dsv4rt.Engine(arguments.checkpoint, max_context_tokens=steps + 1, max_step_tokens=1, max_sequences=2,
                       threads=1) as engine:
        layers = len(engine.layers)
        xs = [torch.empty(1, engine.hidden_size, dtype=torch.bfloat16) for _ in range(layers)]
        outs = [[torch.empty_like(x) for x in xs] for _ in range(2)]
        inputs = torch.randn(steps, layers, 1, engine.hidden_size,
                             generator=torch.Generator().manual_seed(1)).bfloat16()
        one, two = engine.create_sequence(), engine.create_sequence()
        runs = (lambda: through_package(engine, one, xs, outs[0])), bare_calls(engine, two, xs, outs[1])
        times = ([], [])
        for number in range(steps):
            for x, values in zip(xs, inputs[number]):
                x.copy_(values)
            for kind in (0, 1) if number % 2 else (1, 0):
                begin = time.perf_counter()
                runs[kind]()
                times[kind].append(time.perf_counter() - begin)
            if not all(torch.equal(a, b) for a, b in zip(*outs)):
                print(f"outputs of step {number} differ", file=sys.stderr)
                return 2
        if one.save() != two.save() or len(one) != steps:
            print("the caches differ", file=sys.stderr)
            return 2
        warm = steps // 4
        package, calls = (statistics.median(values[warm:]) * 1e6 for values in times)
        quiet, quiet_calls = (sorted(values[warm:])[(steps - warm) // 20] * 1e6 for values in times)
        of_calls = (layers + 2) * call_cost(engine) * 1e6
    added = package - calls + of_calls
    print(f"layers {layers}, step through the package {package:.1f} us, bare C calls {calls:.1f} us, difference "
          f"{package - calls:.1f} us (of the 5th percentiles {quiet - quiet_calls:.1f} us); {layers + 2} C calls take "
          f"{of_calls:.1f} us from Python, so that it adds at most {added:.1f} us to a step in C; "
          f"{steps} steps with equal outputs and caches")
    if arguments.most is not None and added > arguments.most:
        print(f"more than {arguments.most:g} us", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
