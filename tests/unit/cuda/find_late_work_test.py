"""scripts/gpu/find_late_work.py on machine code that is written here: find_late_work_test.py SCRIPTS_FOLDER"""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
# pylint: disable=wrong-import-position
from find_late_work import WaitingKernel, of_division  # noqa: E402
from kernel_listing import listing_of  # noqa: E402
from machine_code import Instruction, parse  # noqa: E402


def late_work(*instructions):
    """Of each wait its address and the addresses on the way from it to an access."""
    kernel, = parse(listing_of(*instructions), WaitingKernel, Instruction)
    return [(wait, [instruction.address for instruction in path]) for wait, path in kernel.late_work()]


LOAD = "LDG.E R2, desc[UR4][R10.64]"
ADD = "IADD3 R4, R4, 0x1, RZ"


class FindLateWorkTest(unittest.TestCase):
    def test_arithmetic_in_front_of_the_first_load(self):
        self.assertEqual(late_work(ADD, "ACQBULK", ADD, "MUFU.RCP R4, R4", LOAD, LOAD, "EXIT"),
                         [(0x10, [0x20, 0x30, 0x40])])

    def test_a_load_that_comes_at_once(self):
        self.assertEqual(late_work("ACQBULK", LOAD, "EXIT"), [(0x00, [0x10])])

    def test_every_kind_of_access(self):
        for access in ("@!P0 LDG.E.128 R4, desc[UR4][R2.64]", "LD.E R4, desc[UR4][R2.64]", "UTMALDG.2D [UR8], [UR16]",
                       "LDGSTS.E.BYPASS.128 [R9], desc[UR16][R14.64]", "UBLKCP.S.G [UR14], [UR12], UR4",
                       "ATOMG.E.ADD PT, R2, desc[UR4][R10.64], R4"):
            self.assertEqual(late_work("ACQBULK", access, "EXIT"), [(0x00, [0x10])], access)

    def test_what_is_no_access_that_is_waited_for(self):
        for other in ("STG.E desc[UR4][R10.64], R2", "LDS R2, [R3]", "LDC R2, c[0x0][0x10]", "LDL R2, [R1]",
                      "CCTL.E.PF2 [R2]", "UBLKPF [UR12], UR4"):
            self.assertEqual(late_work("ACQBULK", other, LOAD, "EXIT"), [(0x00, [0x10, 0x20])], other)

    def test_the_shortest_way(self):
        self.assertEqual(late_work("ACQBULK", "@P0 BRA 0x50", ADD, ADD, LOAD, ADD, LOAD, "EXIT"),
                         [(0x00, [0x10, 0x50, 0x60])])

    def test_each_wait_for_itself(self):
        self.assertEqual(late_work("@P0 BRA 0x40", "ACQBULK", LOAD, "EXIT", "ACQBULK", ADD, LOAD, "EXIT"),
                         [(0x10, [0x20]), (0x40, [0x50, 0x60])])

    def test_a_wait_without_an_access_behind_it(self):
        self.assertEqual(late_work("ACQBULK", ADD, "EXIT"), [])
        self.assertEqual(late_work("ACQBULK", ADD, "ACQBULK", LOAD, "EXIT"), [(0x20, [0x30])])

    def test_what_divisions_have(self):
        for text in ("I2F.U32.RP R4, R9", "F2I.FTZ.U32.TRUNC.NTZ R5, R4", "MUFU.RCP R4, R4"):
            self.assertTrue(of_division(Instruction(0, text)), text)
        for text in ("MUFU.RSQ R4, R4", "MUFU.EX2 R4, R4", ADD):
            self.assertFalse(of_division(Instruction(0, text)), text)

    def test_a_loop_without_an_access_ends(self):
        self.assertEqual(late_work("ACQBULK", ADD, "@P0 BRA 0x10", "EXIT"), [])


if __name__ == "__main__":
    unittest.main()
