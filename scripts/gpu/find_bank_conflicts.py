#!/usr/bin/env python3
"""Finds instructions in loops that read three registers of one bank.

  find_bank_conflicts.py [--cuobjdump PATH] [--least NUMBER] [--json] FILE...

FILE is an object, a library or a program with sm_90a code. Registers lie in two banks, those of even and those of odd
numbers, and an instruction gets two of each bank at once: one with three different operands of one bank takes a cycle
more. The compiler chooses registers so that this is rare, unless something else chooses them: accumulators of matrix
instructions and what is loaded or stored by fours lie next to each other, in order, so that a multiply-add of one
array to another one reads two registers of one bank, and the factor's is the third in every other one. This script
disassembles FILE and tells of each kernel with matrix instructions how many such instructions its loops have. An
operand that the instruction in front has read in the same place and kept (.reuse) is not read again.

--least NUMBER   fewest instructions of a kernel that is told of; default 8

A number is a place to look at: what is in a loop over items costs little, in the loop of the products a few per cent.
What lies between a jump back and its target counts as a loop, also where the compiler has put a wait's other tries
behind everything else.

Exit status: 0 it looked at something; 2 it could not, or FILE has no kernel with matrix instructions.
"""
import re
import sys

from check_matrix_operands import MATRIX
from machine_code import ARCHITECTURE, CannotCheck, Instruction, Kernel, disassemble, find_in_files, kernels_with, \
    parse, print_kernels_with

BANKS = 2
THREE_OPERANDS = ("FFMA", "HFMA2", "IMAD", "IADD3", "LOP3", "PRMT", "SHF", "VIADDMNMX", "VIMNMX3")
REGISTER = re.compile(r"^[-|~]*R(\d+)\b(\.reuse)?")


class BankedInstruction(Instruction):
    def sources(self):
        """Registers that it reads, by place: their numbers, and whether they are kept."""
        found = {}
        for place, operand in enumerate(self.operands[1:]):
            if match := REGISTER.match(operand):
                found[place] = (int(match.group(1)), match.group(2) is not None)
        return found

    def conflicts(self, before):
        """Whether it reads three registers of one bank; before: the instruction in front of it."""
        if self.root not in THREE_OPERANDS or "WIDE" in self.parts:  # which reads a pair of registers, one of each bank
            return False
        kept = {place: number for place, (number, reuse) in before.sources().items() if reuse} if before else {}
        read = {number for place, (number, _) in self.sources().items() if kept.get(place) != number}
        return len(read) == 3 and len({number % BANKS for number in read}) == 1


class BankedKernel(Kernel):
    def multiplies(self):
        return any(instruction.root in MATRIX for instruction in self.instructions)

    def looped(self):
        """Indices of instructions in loops."""
        index = {instruction.address: i for i, instruction in enumerate(self.instructions)}
        found = set()
        for i, instruction in enumerate(self.instructions):
            if instruction.root == "BRA" and index.get(instruction.target(), i + 1) <= i:
                found.update(range(index[instruction.target()], i + 1))
        return sorted(found)

    def conflicts(self):
        return [self.instructions[i] for i in self.looped()
                if self.instructions[i].conflicts(self.instructions[i - 1] if i > 0 else None)]


def report_file(least, cuobjdump, file):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file), BankedKernel, BankedInstruction)
               if kernel.multiplies()]
    if not kernels:
        raise CannotCheck(f"{file}: no {ARCHITECTURE} kernel with matrix instructions")
    found = kernels_with(kernels, least, "conflicts", BankedKernel.conflicts,
                         lambda kernel: {"looped": len(kernel.looped())})
    return {"file": file, "kernels": len(kernels), "found": found}


def print_report(report):
    print_kernels_with(report, "conflicts", lambda kernel: f"{kernel['looped']} instructions in loops",
                       "matrix instructions", "conflicts")


if __name__ == "__main__":
    sys.exit(find_in_files(__doc__, 8, report_file, print_report))
