"""scripts/gpu/find_serial_loads.py on machine code that is written here: find_serial_loads_test.py SCRIPTS_FOLDER"""
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
# pylint: disable=wrong-import-position
from find_serial_loads import LoadInstruction, LoadKernel  # noqa: E402
from machine_code import NO_SCOREBOARD, parse  # noqa: E402


def load(register, address, board):
    """A load of global memory whose result `board` tells."""
    return f"LDG.E {register}, desc[UR4][{address}.64]", board, ()


def use(text, board):
    return text, NO_SCOREBOARD, (board,)


def chains(*instructions):
    """Addresses of the loads of each chain. An instruction is its text, or that, what it sets and what it waits for."""
    lines = ["\t\tFunction : kernel"]
    for i, instruction in enumerate(instructions):
        text, sets, waits = (instruction, NO_SCOREBOARD, ()) if isinstance(instruction, str) else instruction
        upper_half = sets << 46 | sum(1 << (52 + board) for board in waits)
        lines += [f"        /*{16 * i:04x}*/  {text} ;  /* 0x0000000000000000 */",
                  f"                             /* 0x{upper_half:016x} */"]
    kernel, = parse("\n".join(lines), LoadKernel, LoadInstruction)
    return [[item.address for item in chain] for chain in kernel.chains()]


class FindSerialLoadsTest(unittest.TestCase):
    def test_branches_that_each_wait_for_their_load(self):
        self.assertEqual(chains("@P0 BRA 0x30", load("R2", "R10", 0), use("SHF.L.U32 R2, R2, 0x10, RZ", 0),
                                "@P1 BRA 0x60", load("R3", "R12", 1), use("SHF.L.U32 R3, R3, 0x10, RZ", 1),
                                "@P2 BRA 0x90", load("R4", "R14", 2), use("SHF.L.U32 R4, R4, 0x10, RZ", 2),
                                "EXIT"), [[0x10, 0x40, 0x70]])

    def test_branches_that_leave_what_they_load(self):
        self.assertEqual(chains("@P0 BRA 0x20", load("R2", "R10", 0), "@P1 BRA 0x40", load("R3", "R12", 1),
                                use("IADD3 R4, R2, R3, RZ", 0), load("R5", "R14", 2), "EXIT"), [])

    def test_loads_that_are_under_way_together(self):
        self.assertEqual(chains(load("R2", "R10", 0), load("R3", "R12", 1), use("IADD3 R4, R2, R3, RZ", 0), "EXIT"), [])

    def test_an_address_that_follows_from_what_was_loaded(self):
        pointer = (load("R2", "R10", 0), use("IMAD.WIDE R12, R2, 0x4, R14", 0))
        self.assertEqual(chains(*pointer, load("R3", "R12", 1), "EXIT"), [])
        self.assertEqual(chains(*pointer, "IMAD.MOV.U32 R16, RZ, RZ, R13", load("R3", "R15", 1), "EXIT"), [])
        self.assertEqual(chains(*pointer, load("R3", "R20", 1), "EXIT"), [[0x00, 0x20]])

    def test_a_register_that_is_written_anew_does_not_follow(self):
        self.assertEqual(chains(load("R2", "R10", 0), use("IADD3 R5, R2, 0x1, RZ", 0), "IMAD.MOV.U32 R2, RZ, RZ, R9",
                                load("R3", "R2", 1), "EXIT"), [[0x00, 0x30]])

    def test_a_branch_that_follows_from_what_was_loaded(self):
        asked = (load("R2", "R10", 0), use("ISETP.GE.AND P0, PT, R2, RZ, PT", 0))
        self.assertEqual(chains(*asked, "@P0 BRA 0x40", load("R3", "R12", 1), "EXIT"), [])
        self.assertEqual(chains(*asked, "@P1 BRA 0x40", load("R3", "R12", 1), "EXIT"), [[0x00, 0x30]])
        self.assertEqual(chains(*asked, load("R3", "R12", 1), "EXIT"), [[0x00, 0x20]])

    def test_what_loads_stay_behind_for_a_reason(self):
        waited = (load("R2", "R10", 0), use("IADD3 R4, R2, 0x1, RZ", 0))
        for order in ("BAR.SYNC 0x0", "ACQBULK", "MEMBAR.ALL.CTA", "EXIT"):
            self.assertEqual(chains(*waited, order, load("R3", "R12", 1), "EXIT"), [], order)
        self.assertEqual(chains(*waited, "@P0 BRA 0x0", load("R3", "R12", 1), "EXIT"), [])  # the next round of a loop

    def test_loads_that_are_waited_for_together_are_told_once(self):
        self.assertEqual(chains(load("R2", "R10", 0), load("R3", "R12", 0), use("IADD3 R4, R2, R3, RZ", 0),
                                load("R5", "R14", 1), "EXIT"), [[0x00, 0x30]])

    def test_far_loads_are_no_chain(self):
        waited = (load("R2", "R10", 0), use("IADD3 R4, R2, 0x1, RZ", 0))
        self.assertEqual(chains(*waited, *["NOP"] * 70, load("R3", "R12", 1), "EXIT"), [])


if __name__ == "__main__":
    unittest.main()
