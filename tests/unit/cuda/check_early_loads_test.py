"""scripts/gpu/check_early_loads.py on machine code that is written here: check_early_loads_test.py SCRIPTS_FOLDER"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = sys.argv.pop(1)
sys.path.insert(0, SCRIPTS)
# pylint: disable=wrong-import-position
from check_early_loads import EarlyInstruction, EarlyKernel, check_kernel  # noqa: E402
from kernel_listing import listing_of  # noqa: E402
from machine_code import parse  # noqa: E402

LOAD = "LDG.E.CONSTANT R2, desc[UR4][R2.64]"


def hazards(*instructions, allow=()):
    """Addresses of the loads found, or why the kernel was not checked."""
    kernel, = parse(listing_of(*instructions), EarlyKernel, EarlyInstruction)
    report = check_kernel(kernel, kernel.name, [(re.compile(pattern), number) for pattern, number in allow])
    return report["not_checked"] or [hazard["address"] for hazard in report["hazards"]]


class CheckEarlyLoadsTest(unittest.TestCase):
    def test_loads_before_and_behind_the_wait(self):
        self.assertEqual(hazards(LOAD, "ACQBULK", "EXIT"), ["0x0000"])
        self.assertEqual(hazards("ACQBULK", LOAD, "EXIT"), [])

    def test_other_loads_stay_where_they_are(self):
        self.assertEqual(hazards("LDG.E R2, desc[UR4][R2.64]", "LDG.E.STRONG.GPU R3, desc[UR4][R2.64]",
                                 "LDC.64 R4, c[0x0][0x350]", "ACQBULK", "EXIT"), [])

    def test_one_role_of_two(self):
        roles = ("@P0 BRA 0x40", "ACQBULK", LOAD, "EXIT")
        self.assertEqual(hazards(*roles, LOAD, "ACQBULK", "EXIT"), ["0x0040"])
        self.assertEqual(hazards(*roles, "ACQBULK", LOAD, "EXIT"), [])

    def test_a_wait_that_may_not_be_is_none(self):
        self.assertEqual(hazards("@P0 ACQBULK", LOAD, "EXIT"), ["0x0010"])
        self.assertEqual(hazards("@P0 BRA 0x20", "ACQBULK", LOAD, "EXIT"), ["0x0020"])

    def test_around_a_loop(self):
        self.assertEqual(hazards("BRA 0x20", LOAD, "@P0 BRA 0x10", "ACQBULK", "EXIT"), ["0x0010"])

    def test_a_number_of_loads_is_allowed_and_no_more(self):
        code = (LOAD, LOAD, "ACQBULK", "EXIT")
        self.assertEqual(hazards(*code, allow=[("kern", 2)]), [])
        self.assertEqual(hazards(*code, allow=[("kern", 1)]), ["0x0000", "0x0010"])
        self.assertEqual(hazards(*code, allow=[("other", 2)]), ["0x0000", "0x0010"])

    def test_what_cannot_be_followed_is_not_checked(self):
        self.assertIn("indirect branch", hazards("BRX R2", "ACQBULK", "EXIT"))
        self.assertIn("no path found", hazards("EXIT", "ACQBULK"))

    def test_a_listing_in_place_of_a_program(self):
        script = os.path.join(SCRIPTS, "check_early_loads.py")
        with tempfile.TemporaryDirectory() as folder:
            listing = os.path.join(folder, "kernel.sass")
            clean, hazard = ("ACQBULK", LOAD, "EXIT"), (LOAD, "ACQBULK", "EXIT")
            for code, status, says in (clean, 0, " 0 loads"), (hazard, 1, " 1 loads"):
                with open(listing, "w", encoding="utf-8") as file:
                    file.write(listing_of(*code))
                run = subprocess.run([sys.executable, "-B", script, "--cuobjdump", "/nowhere", listing], text=True,
                                     capture_output=True, check=False)
                self.assertEqual((run.returncode, run.stderr), (status, ""))
                self.assertIn(says, run.stdout)
            run = subprocess.run([sys.executable, "-B", script, os.path.join(folder, "none.sass")], text=True,
                                 capture_output=True, check=False)
            self.assertEqual(run.returncode, 2)
            self.assertIn("none.sass", run.stderr)


if __name__ == "__main__":
    unittest.main()
