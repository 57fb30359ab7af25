#!/usr/bin/env python3
"""What ranks take is what was planned: plan_ranks_test.py DSV4RT GOLDEN_FOLDER MPIRUN..."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM, GOLDEN, MPIRUN = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]


def report(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        subprocess.run([*map(str, arguments), "--json", str(path)], check=True, capture_output=True)
        return json.loads(path.read_text())


class PlanOfRanks(unittest.TestCase):
    def test_engines_of_ranks_take_what_was_planned(self):
        checkpoint = GOLDEN / "tiny-bf16"
        run = ("run", "--checkpoint", checkpoint, "--trace", checkpoint / "trace.safetensors", "--threads", "1")
        alone = report(PROGRAM, *run)
        for flags in (("--cp", "2"), ("--tp", "2")):
            parts = report(*MPIRUN, 2, PROGRAM, *run, *flags)
            tokens = alone["prefill_tokens"] + alone["decode_tokens"]
            plan = report(PROGRAM, "plan", "--config", checkpoint / "config.json", "--weights", "bf16", *flags,
                          "--threads", "1", "--sequences", "1", "--max-context", tokens,
                          "--max-step-tokens", alone["prefill_tokens"])
            with self.subTest(flags=flags):
                memory = parts["memory_parts"]
                self.assertEqual(plan["workspace_bytes"], memory["workspace"])
                self.assertNotEqual(plan["workspace_bytes"], alone["memory_parts"]["workspace"])
                self.assertEqual(plan["scratch_bytes"], memory["scratch"])
                self.assertEqual(plan["cache_bytes"], memory["cache"])
                self.assertEqual(plan["weight_bytes"], memory["weights"])
                ranks = plan["context_parallel" if flags[0] == "--cp" else "tensor_parallel"]
                self.assertEqual(ranks["exchange_bytes"], memory["exchange"])
                self.assertEqual(plan["total_bytes"], parts["memory_bytes"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
