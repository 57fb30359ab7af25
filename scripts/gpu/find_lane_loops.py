#!/usr/bin/env python3
"""Finds copies of the copy engine that stand in a loop over the lanes of a warp.

  find_lane_loops.py [--cuobjdump PATH] [--least NUMBER] [--json] FILE...

FILE is an object, a library or a program with sm_90a code. What starts a bulk copy takes its operands from registers of
the whole warp. Where a copy is the work of one thread, as in `if (lane == 0)`, the compiler does not know that there is
only one: it lets the lanes that may be active take turns, in a loop of five to fifteen instructions around each copy,
which ends with BRA.U.ANY. elected_lane() of src/backend/cuda/kernels/common/async_copy.cuh, called by the whole warp,
ends that. This script disassembles FILE and tells of each kernel where it has such loops, and around what.

--least NUMBER   fewest loops of a kernel that is told of; default 1

A number is a place to look at: a loop that runs once for a token costs nothing, one amid a ring of stages does. What
the script cannot see: how often a loop runs, and whether different lanes do start copies there.

Exit status: 0 it looked at something; 2 it could not, or FILE has no copy of the copy engine.
"""
import sys

from machine_code import ARCHITECTURE, CannotCheck, Instruction, Kernel, disassemble, find_in_files, kernels_with, \
    parse, print_kernels_with

COPIES = ("UBLKCP", "UBLKRED", "UBLKPF", "UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF")
LOOP = "BRA.U.ANY"


class CopyingKernel(Kernel):
    def copies(self):
        return [instruction for instruction in self.instructions if instruction.root in COPIES]

    def lane_loops(self):
        """Of each copy in such a loop: the instruction."""
        index = {instruction.address: i for i, instruction in enumerate(self.instructions)}
        looped = set()
        for i, instruction in enumerate(self.instructions):
            if instruction.opcode == LOOP:
                looped.update(range(index.get(instruction.target(), i), i))
        return [self.instructions[i] for i in sorted(looped) if self.instructions[i].root in COPIES]


def report_file(least, cuobjdump, file):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file), CopyingKernel, Instruction) if kernel.copies()]
    if not kernels:
        raise CannotCheck(f"{file}: no {ARCHITECTURE} kernel with copies of the copy engine")
    found = kernels_with(kernels, least, "loops", CopyingKernel.lane_loops,
                         lambda kernel: {"copies": len(kernel.copies())})
    return {"file": file, "kernels": len(kernels), "found": found}


def print_report(report):
    print_kernels_with(report, "loops", lambda kernel: f"{kernel['copies']} copies in a loop over lanes", "copies",
                       "loops over lanes")


if __name__ == "__main__":
    sys.exit(find_in_files(__doc__, 1, report_file, print_report))
