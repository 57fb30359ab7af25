#!/usr/bin/env python3
"""Finds registers that are written while an asynchronous matrix instruction may still read them.

  check_matrix_operands.py [--cuobjdump PATH] [--json] FILE...

FILE is an object, a library or a program with sm_90a code. A wgmma may take its left operand from registers, and
reads them until a wait for its group has returned. The compiler does not know this: to it the operand is read where
the instruction is issued, and an asm() that holds the registers until after the wait may hold a copy of them. What it
made of the source is seen in the machine code only. This script disassembles FILE and follows every path of every
kernel that has such instructions, with the groups that are under way there; it prints a line for each of these kernels
and the address of each write into an operand of a group that has not been waited for.

What it cannot see:
  * results of matrix instructions that are read or written too early, and operands in shared memory;
  * which paths are possible: all of them count, as do writes under a predicate, so that it may report too much;
  * what happens in a called function outside the kernel, and the operand registers of sparse matrix instructions;
  * the targets of indirect branches: a kernel with one counts as not checked.

Exit status: 0 clean; 1 hazards; 2 something could not be checked, or there is no matrix instruction at all: a check
that looked at nothing has not passed.
"""
import re
import sys
from typing import NamedTuple

from machine_code import ARCHITECTURE, CannotCheck, Instruction, Kernel, argument_parser, check_files, demangle, \
    disassemble, parse, print_kernels

MATRIX = ("HGMMA", "QGMMA", "IGMMA", "BGMMA")  # F16, BF16 and TF32; FP8; INT8; bits
OPERAND_REGISTERS = 4  # registers of a thread, for every type: 64 rows of 32 bytes in 128 threads
# Their first general register is read. Of any other instruction it is the result.
ONLY_READS = ("BAR", "BRX", "CALL", "FCHK", "JMX", "NANOSLEEP", "RET", "WARPSYNC")
DOUBLES = ("DADD", "DFMA", "DMUL")
# Groups told apart; the oldest are taken as one, which errs to the safe side.
MAX_GROUPS = 8


class MatrixInstruction(Instruction):
    def __init__(self, address, text):
        super().__init__(address, text)
        self.is_matrix = self.root in MATRIX
        self.ends_group = self.is_matrix and "gsb0" in self.operands
        self.reads = self.matrix_operand() if self.is_matrix else frozenset()
        self.writes = self.results()

    def matrix_operand(self):
        """Registers of the left operand; none where it lies in shared memory."""
        left = self.operands[1] if len(self.operands) > 1 else ""
        if left.startswith("gdesc["):
            return frozenset()
        first = register(left)
        if first is None:
            raise CannotCheck(f"the operand of '{self.text}' is neither in registers nor in shared memory")
        return frozenset(range(first, first + OPERAND_REGISTERS))

    def results(self):
        if self.root in ONLY_READS or not self.operands:
            return frozenset()
        # A result may stand behind a predicate; in a comparison another predicate does.
        place = 1 if re.fullmatch(r"P(\d|T)", self.operands[0]) else 0
        first = register(self.operands[place]) if len(self.operands) > place else None
        return frozenset() if first is None else frozenset(range(first, first + self.result_width()))

    def result_width(self):
        if self.is_matrix:
            columns = int(re.search(r"\.64x(\d+)x", self.opcode).group(1))
            return columns // 4 if "F16" in self.parts and "F32" not in self.parts else columns // 2
        if "128" in self.parts or self.root in ("HMMA", "IMMA", "BMMA", "DMMA"):
            return 4
        if self.root == "LDSM":
            return int(self.parts[-1]) if self.parts[-1] in ("2", "4") else 1
        if self.root == "CS2R":
            return 1 if "32" in self.parts else 2
        if "64" in self.parts or "WIDE" in self.parts or self.root in DOUBLES:
            return 2
        return 2 if self.parts[1:2] == ["F64"] or self.opcode.startswith(("F2I.U64", "F2I.S64")) else 1

    def pending_allowed(self):
        """N of an instruction that waits until N groups are under way; None of any other."""
        if not self.opcode.startswith("WARPGROUP.DEPBAR"):
            return None
        if self.opcode != "WARPGROUP.DEPBAR.LE" or self.operands[0] != "gsb0":
            raise CannotCheck(f"'{self.text}' is a wait of another kind")
        return int(self.operands[1], 16)


def register(operand):
    match = re.match(r"R(\d+)\b", operand)
    return int(match.group(1)) if match else None


class Pending(NamedTuple):
    """Registers that matrix instructions under way read: of complete groups, oldest first, and of the open one."""
    groups: tuple = ()
    open: frozenset = frozenset()

    def registers(self):
        return self.open.union(*self.groups)

    def after(self, instruction):
        allowed = instruction.pending_allowed()
        if allowed is not None and not instruction.guarded:
            return Pending(self.groups[max(len(self.groups) - allowed, 0):], self.open)
        reads = self.open | instruction.reads
        if not instruction.ends_group:
            return Pending(self.groups, reads)
        groups = self.groups + (reads,)
        if len(groups) > MAX_GROUPS:
            groups = (groups[0] | groups[1],) + groups[2:]
        return Pending(groups)


class MatrixKernel(Kernel):
    def takes_registers(self):
        return [instruction for instruction in self.instructions if instruction.reads]

    def hazards(self):
        """Instructions that write what a matrix instruction may still read."""
        successors = self.successors()
        found, seen, work = set(), set(), [(0, Pending())]
        while work:
            if work[-1] in seen:
                work.pop()
                continue
            i, pending = work.pop()
            seen.add((i, pending))
            instruction = self.instructions[i]
            if instruction.writes & pending.registers():
                found.add(i)
            work += [(following, pending.after(instruction)) for following in successors[i]]
        takers = [i for i, instruction in enumerate(self.instructions) if instruction.reads]
        self.require_reached(takers, {i for i, _ in seen}, "matrix instruction")
        return [self.instructions[i] for i in sorted(found)]


def check_kernel(kernel, short_name):
    report = {"kernel": short_name, "symbol": kernel.name, "matrix_instructions": len(kernel.takes_registers()),
              "hazards": [], "not_checked": None}
    try:
        report["hazards"] = [{"address": f"{hazard.address:#06x}", "instruction": hazard.text}
                             for hazard in kernel.hazards()]
    except CannotCheck as reason:
        report["not_checked"] = str(reason)
    return report


def check_file(cuobjdump, file):
    kernels = parse(disassemble(cuobjdump, file), MatrixKernel, MatrixInstruction)
    instructions = sum(instruction.is_matrix for kernel in kernels for instruction in kernel.instructions)
    kernels = [kernel for kernel in kernels if kernel.takes_registers()]
    names = demangle([kernel.name for kernel in kernels])
    return {"file": file, "all_matrix_instructions": instructions,
            "kernels": [check_kernel(kernel, name) for kernel, name in zip(kernels, names)]}


def print_report(report):
    print_kernels(report["kernels"], "matrix_instructions", "matrix instructions with an operand in registers",
                  "hazards")
    hazards = sum(len(kernel["hazards"]) for kernel in report["kernels"])
    print(f"{report['file']}: {report['all_matrix_instructions']} matrix instructions, "
          f"{len(report['kernels'])} kernels with an operand in registers, {hazards} hazards")


def main():
    return check_files(argument_parser(__doc__).parse_args(), check_file, print_report,
                       lambda report: report["all_matrix_instructions"] > 0,
                       f"no matrix instruction of {ARCHITECTURE} found")


if __name__ == "__main__":
    sys.exit(main())
