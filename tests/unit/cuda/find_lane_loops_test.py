"""scripts/gpu/find_lane_loops.py on machine code that is written here: find_lane_loops_test.py SCRIPTS_FOLDER"""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
# pylint: disable=wrong-import-position
from find_lane_loops import CopyingKernel, report_file  # noqa: E402
from kernel_listing import listing_of, report_of  # noqa: E402
from machine_code import CannotCheck, Instruction, parse  # noqa: E402

ELECT = "@P0 ELECT P1, URZ, PT"
COPY = "UBLKCP.S.G [UR14], [UR4], UR6, desc[UR22]"
NEXT_LANE = "@P1 PLOP3.LUT P0, PT, P1, PT, PT, 0x8, 0x0"


def lane_loops(*instructions):
    """The addresses of the copies found."""
    kernel, = parse(listing_of(*instructions), CopyingKernel, Instruction)
    return [copy.address for copy in kernel.lane_loops()]


def loop(begin, copy=COPY):
    return ELECT, copy, NEXT_LANE, f"@P0 BRA.U.ANY {begin:#x}"


class FindLaneLoopsTest(unittest.TestCase):
    def test_a_copy_in_a_loop_over_lanes(self):
        self.assertEqual(lane_loops("NOP", *loop(0x10), "EXIT"), [0x20])

    def test_each_loop_for_itself(self):
        self.assertEqual(lane_loops(*loop(0x00), *loop(0x40), "EXIT"), [0x10, 0x50])

    def test_every_kind_of_copy(self):
        for copy in ("UTMALDG.2D [UR4], [UR18]", "UTMASTG.2D [UR4], [UR18]", "UTMAREDG.2D.ADD [UR4], [UR18]",
                     "UBLKPF [UR12], UR4", "UBLKRED.G.S.ADD.S32.RN [UR4], [UR6], UR9"):
            self.assertEqual(lane_loops(*loop(0x00, copy), "EXIT"), [0x10], copy)

    def test_lanes_that_bring_their_registers_in_turn(self):
        self.assertEqual(lane_loops("@P1 R2UR P0, UR4, R24", "@P1 R2UR.OR P0, UR5, R25", "UTMASTG.2D [UR12], [UR4]",
                                    "@P1 BRA.U.ANY 0x0", "EXIT"), [0x20])

    def test_a_copy_of_an_elected_lane(self):
        self.assertEqual(lane_loops("ELECT P0, URZ, PT", "@!P0 BRA 0x40", COPY, COPY, "EXIT"), [])
        self.assertEqual(lane_loops(COPY, *loop(0x10, "R2UR UR4, R10"), COPY, "EXIT"), [])

    def test_a_loop_in_another_one(self):
        self.assertEqual(lane_loops("NOP", *loop(0x10), "@P2 BRA.U.ANY 0x0", "EXIT"), [0x20])

    def test_a_loop_over_stages_is_another_one(self):
        self.assertEqual(lane_loops("ELECT P0, URZ, PT", COPY, "@P1 BRA 0x10", "EXIT"), [])
        self.assertEqual(lane_loops(ELECT, COPY, NEXT_LANE, "@P0 BRA 0x0", "EXIT"), [])

    def test_a_loop_that_copies_nothing(self):
        self.assertEqual(lane_loops(*loop(0x00, "R2UR UR4, R10"), COPY, "EXIT"), [])

    def test_a_way_on_is_no_loop(self):
        self.assertEqual(lane_loops("@P0 BRA.U.ANY 0x30", ELECT, COPY, "EXIT"), [])


class ReportTest(unittest.TestCase):
    def test_the_number_of_loops_that_is_told(self):
        code = (*loop(0x00), *loop(0x40), COPY, "EXIT")
        (kernel,) = report_of(report_file, 2, *code)["found"]
        self.assertEqual((kernel["copies"], len(kernel["loops"])), (3, 2))
        self.assertEqual(report_of(report_file, 3, *code)["found"], [])
        self.assertEqual(report_of(report_file, 0, COPY, "EXIT")["found"], [])

    def test_nothing_to_look_at(self):
        with self.assertRaisesRegex(CannotCheck, "no sm_90a kernel with copies"):
            report_of(report_file, 1, "NOP", "EXIT")


if __name__ == "__main__":
    unittest.main()
