"""scripts/gpu/find_bank_conflicts.py on machine code that is written here.

  find_bank_conflicts_test.py SCRIPTS_FOLDER
"""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
# pylint: disable=wrong-import-position
from find_bank_conflicts import BankedInstruction, BankedKernel, report_file  # noqa: E402
from kernel_listing import listing_of, report_of  # noqa: E402
from machine_code import CannotCheck, parse  # noqa: E402

MATRIX = "QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24, gsb0"
CONFLICT = "FFMA R90, R26, R220, R90"


def conflicts(*instructions):
    """The addresses of the conflicts found."""
    kernel, = parse(listing_of(*instructions), BankedKernel, BankedInstruction)
    return [conflict.address for conflict in kernel.conflicts()]


def in_loop(*instructions):
    return (*instructions, "@P0 BRA 0x0", "EXIT")


class FindBankConflictsTest(unittest.TestCase):
    def test_three_registers_of_one_bank(self):
        self.assertEqual(conflicts(*in_loop("NOP", CONFLICT)), [0x10])
        self.assertEqual(conflicts(*in_loop("FFMA R91, R27, R221, R91", "@P1 FFMA R91, -R27, R221, |R91|")),
                         [0x00, 0x10])

    def test_two_of_one_bank(self):
        self.assertEqual(conflicts(*in_loop("FFMA R90, R26, R221, R90", "FFMA R91, R26, R220, R91")), [])

    def test_what_is_no_register_of_the_thread(self):
        self.assertEqual(conflicts(*in_loop("FFMA R90, R26, UR220, R90", "FFMA R90, R26, 2, R90",
                                            "FFMA R90, R26, c[0x0][0x24], R90", "IADD3 R2, P0, R4, UR6, RZ")), [])

    def test_one_register_twice_is_read_once(self):
        self.assertEqual(conflicts(*in_loop("FFMA R90, R26, R26, R90", "FFMA R90, R90, R220, R90")), [])

    def test_the_result_is_not_read(self):
        self.assertEqual(conflicts(*in_loop("FFMA R90, R26, R220, R91", "FFMA R90, R26, 2, R92")), [])

    def test_what_the_instruction_in_front_kept(self):
        keeps = "FFMA R91, R27, R220.reuse, R91"
        self.assertEqual(conflicts(*in_loop(keeps, CONFLICT)), [])
        self.assertEqual(conflicts(*in_loop(keeps, "NOP", CONFLICT)), [0x20])
        self.assertEqual(conflicts(*in_loop("FFMA R91, R220.reuse, R27, R91", CONFLICT)), [0x10])  # in another place
        self.assertEqual(conflicts(*in_loop("FFMA R91, R27, R222.reuse, R91", CONFLICT)), [0x10])  # another register

    def test_what_is_in_no_loop(self):
        self.assertEqual(conflicts(CONFLICT, "NOP", "@P0 BRA 0x10", CONFLICT, "@P0 BRA 0x60", CONFLICT, "EXIT"), [])

    def test_other_instructions(self):
        self.assertEqual(conflicts(*in_loop("STG.E.64 desc[UR4][R2.64], R4, R6", MATRIX)), [])
        self.assertEqual(conflicts(*in_loop("HMMA.16816.F32.BF16 R4, R8, R12, R16")), [])
        self.assertEqual(conflicts(*in_loop("IMAD.WIDE.U32 R18, R218, R18, R14", "IMAD R18, R218, R18, R14")), [0x10])


class ReportTest(unittest.TestCase):
    def test_the_number_of_conflicts_that_is_told(self):
        code = in_loop(MATRIX, CONFLICT, CONFLICT)
        (kernel,) = report_of(report_file, 2, *code)["found"]
        self.assertEqual((kernel["looped"], len(kernel["conflicts"])), (4, 2))
        self.assertEqual(report_of(report_file, 3, *code)["found"], [])
        self.assertEqual(report_of(report_file, 0, *in_loop(MATRIX))["found"], [])

    def test_nothing_to_look_at(self):
        with self.assertRaisesRegex(CannotCheck, "no sm_90a kernel with matrix instructions"):
            report_of(report_file, 1, *in_loop(CONFLICT))


if __name__ == "__main__":
    unittest.main()
