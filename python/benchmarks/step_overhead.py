#!/usr/bin/env python3
"""What a step in Python costs beyond the same step in C.

  step_overhead.py CHECKPOINT [--steps N] [--most MICROSECONDS] [--arrays torch|numpy]

Decodes on the checkpoint's layers, all loaded, with one thread: as a host does it through the package, with tensors of
torch or with arrays of NumPy (--arrays numpy), and with the same calls in C, which the compiler makes (CC, or cc) when
this begins. Both work on sequences of the same content and take turns, and their outputs and snapshots must be equal.
The clock of a step through the package stands outside of everything that the step needs of Python, and that of a step
in C stands in C: what the package takes longer is all that Python adds, the calls themselves and what cold caches make
of them included. It has colder caches beside other work, and the figure is then one of that machine.

Two steps make a round, one with either side first, so that what a side leaves in the caches for the other, and what
else the machine does, meet both. A round gives one difference of the two sides. Printed are the median of these
differences and the interval in which the true median lies with 95 % confidence (order statistics: no distribution is
assumed). The first quarter of the rounds warms up and is not counted.

Exit code 0: that median is not above --most, with that confidence. 1: it is. 3: undecided, the interval holds --most;
more steps or a quieter machine decide. 2: results differ, something failed, or wrong usage.
"""

import argparse
import ctypes
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import dsv4rt
from dsv4rt._library import ffi

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tools" / "bench"))
from compare_builds import median_interval  # noqa: E402: found by the line above

STEP_IN_C = """
#include <time.h>

#include "dsv4rt/c_api.h"

/* Seconds of a step of one token, or -1 if a call failed. */
double step(dsv4rt_engine* engine, const dsv4rt_step_entry* entry, const int32_t* layers, size_t count,
            const dsv4rt_bf16* const* xs, dsv4rt_bf16* const* outs) {
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  dsv4rt_step step;
  dsv4rt_status failed = dsv4rt_step_prepare(engine, entry, 1, NULL, &step);
  for (size_t i = 0; i < count && !failed; ++i)
    failed = dsv4rt_step_forward_layer(engine, &step, layers[i], xs[i], outs[i]);
  if (!failed) failed = dsv4rt_step_commit(engine, &step, NULL, 0);
  clock_gettime(CLOCK_MONOTONIC, &end);
  return failed ? -1 : (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}
"""


class Failure(Exception):
    """The two sides computed different things, or one of them nothing."""


def compile_step():
    """The function above, of the library that the package has loaded."""
    library = pathlib.Path(dsv4rt.__file__).with_name("libdsv4rt.so")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "step.so"
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{TREE / 'include'}", "-o", out,
                        "-xc", "-", "-xnone", library], input=STEP_IN_C, text=True, check=True)
        step = ctypes.CDLL(str(out)).step
    step.restype = ctypes.c_double
    return step


def through_package(engine, sequence, xs, outs):
    """A function that runs a step as a host does, and gives its seconds."""
    def run():
        begin = time.perf_counter()
        with engine.prepare([(sequence, 1)]) as step:
            for layer, x, out in zip(engine.layers, xs, outs):
                step.forward(layer, x, out)
        return time.perf_counter() - begin

    return run


def in_c(engine, sequence, xs, outs):
    """The same with the calls in C, on addresses made beforehand."""
    step, count = compile_step(), len(engine.layers)
    entry = ffi.new("dsv4rt_step_entry*", (sequence._id, 1))
    layers = (ctypes.c_int32 * count)(*engine.layers)
    rows = [(ctypes.c_void_p * count)(*(tensor.data_ptr() for tensor in tensors)) for tensors in (xs, outs)]
    handle, address = (ctypes.c_void_p(int(ffi.cast("uintptr_t", pointer))) for pointer in (engine._handle, entry))

    def run(_kept=entry):  # what the address is of
        seconds = step(handle, address, layers, ctypes.c_size_t(count), *rows)
        if seconds < 0:
            raise Failure("a call of the step in C failed")
        return seconds

    return run


def as_numpy(tensors):
    """Arrays of NumPy of the same memory."""
    import ml_dtypes
    return [tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for tensor in tensors]


def measure(checkpoint, steps, arrays="torch"):
    """Number of layers, and the seconds of every step after the warm-up: [(through the package, in C)]."""
    with dsv4rt.Engine(checkpoint, max_context_tokens=steps + 1, max_step_tokens=1, max_sequences=2,
                       threads=1) as engine:
        layers = len(engine.layers)
        xs = [torch.empty(1, engine.hidden_size, dtype=torch.bfloat16) for _ in range(layers)]
        outs = [[torch.empty_like(x) for x in xs] for _ in range(2)]
        inputs = torch.randn(steps, layers, 1, engine.hidden_size,
                             generator=torch.Generator().manual_seed(1)).bfloat16()
        sequences = [engine.create_sequence() for _ in range(2)]
        given = (xs, outs[0]) if arrays == "torch" else (as_numpy(xs), as_numpy(outs[0]))
        sides = through_package(engine, sequences[0], *given), in_c(engine, sequences[1], xs, outs[1])
        times = []
        for number in range(steps):
            for x, values in zip(xs, inputs[number]):
                x.copy_(values)
            if number % 2:
                package, calls = sides[0](), sides[1]()
            else:
                calls, package = sides[1](), sides[0]()
            times.append((package, calls))
            if not all(torch.equal(a, b) for a, b in zip(*outs)):
                raise Failure(f"outputs of step {number} differ")
        if sequences[0].save() != sequences[1].save() or len(sequences[0]) != steps:
            raise Failure("the caches differ")
    return layers, times[steps // 8 * 2:]


def rounds_of(times):
    """Microseconds that the package took longer, of rounds of two steps each."""
    added = [(package - calls) * 1e6 for package, calls in times]
    return [(one + two) / 2 for one, two in zip(added[::2], added[1::2])]


def exit_code(interval, most):
    """Whether the true median is at most `most`, by the interval that holds it."""
    if most is None or interval[1] <= most:
        return 0
    return 1 if interval[0] > most else 3


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--most", type=float, help="microseconds that Python may add to a step")
    parser.add_argument("--arrays", choices=("torch", "numpy"), default="torch", help="what the package is given")
    arguments = parser.parse_args(words)
    if arguments.steps < 20 or arguments.steps % 2:
        parser.error(f"--steps: {arguments.steps} is not an even number from 20 on")
    try:
        layers, times = measure(arguments.checkpoint, arguments.steps, arguments.arrays)
    except (Failure, dsv4rt.Dsv4rtError, OSError, subprocess.CalledProcessError) as error:
        print(f"step_overhead.py: {error}", file=sys.stderr)
        return 2
    rounds = rounds_of(times)
    interval = median_interval(rounds)
    package, calls = (statistics.median(seconds) * 1e6 for seconds in zip(*times))
    print(f"layers {layers}, load {os.getloadavg()[0]:.1f}; step through the package {package:.1f} us, in C "
          f"{calls:.1f} us; Python adds {statistics.median(rounds):.1f} us ({interval[0]:.1f} .. {interval[1]:.1f} "
          f"with 95 % confidence) by {len(rounds)} rounds; {arguments.steps} steps with equal outputs and caches")
    code = exit_code(interval, arguments.most)
    if code:
        print(f"{'more than' if code == 1 else 'undecided: is it more than'} {arguments.most:g} us", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
