"""The package on a GPU: torch tensors of the device, streams, hooks, a model of transformers. Needs a CUDA device:
scripts/gpu/python.sh runs it, the tests of python/tests do not."""

import copy
import pathlib
import sys
import unittest

import torch
from safetensors.torch import load_file

import dsv4rt
import dsv4rt.transformers

TREE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = TREE / "tests" / "golden" / "tiny-fp8"
PREFILL, TOKENS = 600, 704
# Outputs of the recording differ by FP8 rows and the order of sums; the CPU's are 0.0050 to 0.0057 off.
TOLERANCE = 0.01


def relative(found, wanted):
    return float((found.double().cpu() - wanted.double().cpu()).norm() / wanted.double().norm())


class Device:
    """Bytes of the device as torch takes them from others."""

    def __init__(self, address, shape):
        self.__cuda_array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": "|u1"}


class Cuda(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.trace = load_file(GOLDEN / "trace.safetensors")

    def rows(self, layer, first, last):
        return self.trace[f"layers.{layer}.input"][first:last].cuda()

    def run_trace(self, stream=None):
        outputs = {}
        with dsv4rt.Engine(GOLDEN, backend="cuda", stream=stream, max_context_tokens=1024,
                           max_step_tokens=PREFILL) as engine:
            with engine.create_sequence(reserve_tokens=TOKENS) as sequence:
                for first, last in [(0, PREFILL), *((token, token + 1) for token in range(PREFILL, TOKENS))]:
                    with engine.prepare([(sequence, last - first)]) as step:
                        for layer in engine.layers:
                            out = step.forward(layer, self.rows(layer, first, last))
                            self.assertTrue(out.is_cuda)
                            outputs.setdefault(layer, []).append(out.clone())
        return {layer: torch.cat(parts).cpu() for layer, parts in outputs.items()}

    def test_the_golden_trace(self):
        outputs = self.run_trace()
        for layer, found in outputs.items():
            self.assertLess(relative(found, self.trace[f"layers.{layer}.output"]), TOLERANCE, layer)

    def test_streams_of_torch_and_the_engine_are_ordered(self):
        wanted = self.run_trace()
        own = torch.cuda.Stream()
        with torch.cuda.stream(torch.cuda.Stream()):
            found = self.run_trace(stream=own)
        for layer in wanted:
            self.assertTrue(torch.equal(found[layer], wanted[layer]), layer)

    def test_hooks_of_captured_steps_run_on_the_engines_stream(self):
        rows = self.rows(0, 0, 40)
        with dsv4rt.Engine(GOLDEN, backend="cuda", max_context_tokens=256, max_step_tokens=40) as engine:
            alone, hooked = [], []
            sequence = engine.create_sequence()
            for first in range(40):
                with engine.prepare([(sequence, 1)]) as step:
                    x = rows[first:first + 1]
                    for layer in engine.layers:
                        alone.append(step.forward(layer, x).clone())
                        x = alone[-1] + rows[first:first + 1]
            sequence.release()
            sequence = engine.create_sequence()
            # What a graph reads and writes lies where it lay when it was captured.
            own = torch.empty_like(rows[:1])
            kept = {layer: torch.empty_like(own) for layer in engine.layers}

            def add(layer, output, next_input):
                kept[layer].copy_(output)
                if next_input is not None:
                    torch.add(output, own, out=next_input)

            for first in range(40):
                own.copy_(rows[first:first + 1])
                with engine.prepare([(sequence, 1)], capture=True) as step:
                    step.run(own, add)
                hooked.extend(kept[layer].clone() for layer in engine.layers)
            torch.cuda.synchronize()
            self.assertEqual(engine.graph_stats.replays, 40)
            self.assertLess(engine.graph_stats.captures, 10)
            for number, (one, two) in enumerate(zip(alone, hooked, strict=True)):
                self.assertTrue(torch.equal(one, two), number)

    def test_a_cache_view_names_memory_of_the_device(self):
        with dsv4rt.Engine(GOLDEN, backend="cuda", max_context_tokens=256, max_step_tokens=200) as engine:
            role = next(role for role in dsv4rt.CacheRole if self.has_role(engine, role))
            view = engine.cache_view(engine.layers[-1], role)
            with engine.create_sequence() as sequence, engine.prepare([(sequence, 200)]) as step:
                for layer in engine.layers:
                    step.forward(layer, self.rows(layer, 0, 200))
                torch.cuda.synchronize()
                shape = (view.block_count, view.block_stride_bytes)
                pool = torch.as_tensor(Device(view.base, shape), device="cuda")
                self.assertEqual(tuple(pool.shape), shape)
                self.assertTrue(pool.any().item(), "rows have been written")

    @staticmethod
    def has_role(engine, role):
        try:
            return engine.cache_view(engine.layers[-1], role).base != 0
        except dsv4rt.NotFoundError:
            return False

    def test_counts_that_only_the_device_knows(self):
        with dsv4rt.Engine(GOLDEN, backend="cuda", max_context_tokens=256, max_step_tokens=128, max_sequences=2,
                           draft_budget_tokens=3) as engine:
            one, two = engine.create_sequence(), engine.create_sequence()
            found, wanted = [], []
            first = 0
            for tokens, kept in [(126, 126), (4, 2), (4, 0), (4, 4), (4, 1), (3, 3)]:
                for sequence, outputs, late in [(one, found, True), (two, wanted, False)]:
                    step = engine.prepare([(sequence, tokens)], capture=tokens < 8)
                    for layer in engine.layers:
                        outputs.append(step.forward(layer, self.rows(layer, first, first + step.tokens)).clone())
                    if late:
                        # Work of torch's stream makes the counts.
                        counts = (torch.full((1,), tokens, device="cuda") - (tokens - kept)).int()
                        step.commit_from_device(counts)
                        del counts
                    else:
                        step.commit([kept])
                first += kept
            engine.settle()
            torch.cuda.synchronize()
            self.assertEqual(len(one), len(two))
            for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
                self.assertTrue(torch.equal(a, b), number)
            self.assertEqual(one.save(), two.save())
            step = engine.prepare([(one, 1)])
            for layer in engine.layers:
                step.forward(layer, self.rows(layer, 0, 1))
            with self.assertRaises(dsv4rt.InvalidArgumentError):
                step.commit_from_device(torch.ones(1, dtype=torch.int32))
            step.cancel()

    def test_tensors_of_the_host_are_refused(self):
        with dsv4rt.Engine(GOLDEN, backend="cuda", max_context_tokens=64, max_step_tokens=8) as engine:
            with engine.create_sequence() as sequence:
                step = engine.prepare([(sequence, 8)])
                with self.assertRaises(dsv4rt.InvalidArgumentError):
                    step.forward(0, self.trace["layers.0.input"][:8])
                step.cancel()

    def test_a_model_of_transformers(self):
        sys.path.insert(0, str(TREE / "python" / "tests"))
        import models
        model = models.random_model()
        prompt = torch.randint(1, 256, (2, 150), generator=torch.Generator().manual_seed(5))
        wanted = model.generate(prompt, max_new_tokens=40, do_sample=False)
        on_device = copy.deepcopy(model).cuda()
        attachment = dsv4rt.transformers.attach(on_device, max_context_tokens=512, row_format="bf16",
                                                index_format="bf16")
        found = on_device.generate(prompt.cuda(), max_new_tokens=40, do_sample=False).cpu()
        attachment.detach()
        self.assertGreaterEqual((found == wanted).float().mean().item(), 0.99)


if __name__ == "__main__":
    unittest.main(verbosity=2)
