#!/usr/bin/env python3
"""Finds loads from global memory that begin when one in front of them has come, though they do not need it.

  find_serial_loads.py [--cuobjdump PATH] [--least NUMBER] [--json] FILE...

FILE is an object, a library or a program with sm_90a code. A load in a branch of its own is waited for there if the
branch makes anything of it, if only a conversion: the loads of an unrolled loop then take one latency each, where the
source reads as if they were under way together. This script disassembles FILE and looks in each kernel for loads that
are waited for in the very run of instructions, from one branch or target to the next, that they are in, and for a load
shortly behind such a wait whose address, and whether it is reached, do not follow from what was waited for. It prints
the chains of these, the longest first.

--least NUMBER   shortest chain that is told, in loads; default 3

A chain is a place to look at, not a mistake: the code may run once, or hold too few registers for more. What helps: to
keep what was loaded as it is until all loads are under way, predicated loads (predicated_load.cuh), or loads of what
nobody needs, from an address that is valid.

What it cannot see:
  * loads that are waited for in a later run of instructions, at a barrier or at the end of a loop's round;
  * whether one address follows from another's value through memory.

Exit status: 0 it looked at something; 2 it could not, or FILE has no load from global memory.
"""
import re
import sys

from machine_code import ARCHITECTURE, NO_SCOREBOARD, CannotCheck, Instruction, Kernel, demangle, disassemble, \
    find_in_files, parse

NEAR = 64  # instructions between a wait and a load that could have begun before it
REGISTER = re.compile(r"(?<![A-Za-z0-9_])(U?[RP])(\d+)(\.64)?")
BRANCHES = ("BRA", "BRX", "JMP", "CALL", "RET", "EXIT", "KILL", "BREAK")
# What loads stay behind for a reason.
ORDERS = ("BAR", "ACQBULK", "SYNCS", "MEMBAR", "UCGABAR_WAIT", "CALL", "RET", "EXIT", "KILL", "BRX", "ERRBAR", "CCTL")
PREDICATE_FIRST = ("ISETP", "FSETP", "DSETP", "PLOP3", "LOP3", "UISETP", "VOTE", "VOTEU", "R2UR", "IADD3", "LEA")


def registers(text, wide=False):
    """Names of the registers in an operand; of a pair both."""
    found = set()
    for kind, number, pair in REGISTER.findall(text):
        found.add(f"{kind}{number}")
        if pair or wide:
            found.add(f"{kind}{int(number) + 1}")
    return found


class LoadInstruction(Instruction):
    def __init__(self, address, text):
        super().__init__(address, text)
        self.guard = set(REGISTER.sub(r"\1\2", word) for word in re.findall(r"^@!?(U?P\d+)", text))

    def loads_global(self):
        return self.root == "LDG" and self.sets != NO_SCOREBOARD

    def written(self):
        if not self.operands or self.root in ("STG", "STS", "STL", "RED", "BRA"):
            return set()
        width = next((int(part) // 32 for part in self.parts if part in ("64", "128")), 1)
        wide = 2 if "WIDE" in self.parts else width
        written = set()
        for kind, number, _ in REGISTER.findall(self.operands[0]):
            written |= {f"{kind}{int(number) + i}" for i in range(wide if kind in ("R", "UR") else 1)}
        if self.root in PREDICATE_FIRST and len(self.operands) > 1 and re.match(r"U?P\d", self.operands[1]):
            written |= registers(self.operands[1])
        return written

    def read(self):
        wide = bool({"WIDE", "64"} & set(self.parts))
        return self.guard.union(*(registers(operand, wide) for operand in self.operands[1:]), set())

    def address_registers(self):
        return self.guard | registers(self.operands[-1], wide=True) if self.operands else set()


class LoadKernel(Kernel):
    def ends_of_runs(self):
        """For each instruction the first one behind its run: behind a branch, or at a target of one."""
        index = {instruction.address: i for i, instruction in enumerate(self.instructions)}
        begins = {index[target] for target in (instruction.target() for instruction in self.instructions
                                               if instruction.root in BRANCHES + ("BSSY",)) if target in index}
        ends, end = [0] * len(self.instructions), len(self.instructions)
        for i in range(len(self.instructions) - 1, -1, -1):
            if self.instructions[i].root in BRANCHES + ("BSYNC",):
                end = i + 1
            ends[i] = end
            if i in begins:
                end = i
        return ends

    def waited_for_at(self, place, end):
        """Where a load's run waits for it; None where it does not."""
        board = self.instructions[place].sets
        return next((i for i in range(place + 1, end) if board in self.instructions[i].waits), None)

    def late_load(self, place, wait):
        """The next load behind the wait that does not need what was waited for; None where there is none near."""
        known = self.instructions[place].written()
        for i in range(place + 1, min(wait + NEAR, len(self.instructions))):
            instruction = self.instructions[i]
            if i >= wait and instruction.root in ORDERS:
                return None
            if instruction.root in BRANCHES and (instruction.guard & known
                                                 or (instruction.target() or i) < instruction.address):
                return None
            if i > wait and instruction.loads_global():
                return None if instruction.address_registers() & known else i
            follows = bool(instruction.read() & known)
            known = known | instruction.written() if follows else known - instruction.written()
        return None

    def chains(self):
        """Lists of loads, each of which begins when the one in front has come."""
        ends = self.ends_of_runs()
        late = {}
        for place, instruction in enumerate(self.instructions):
            if not instruction.loads_global():
                continue
            wait = self.waited_for_at(place, ends[place])
            if wait is not None and (following := self.late_load(place, wait)) is not None:
                late[place] = following
        chains, told = [], set()
        for place in sorted(late):
            chain = [place]
            while chain[-1] in late and late[chain[-1]] not in told:
                chain.append(late[chain[-1]])
            told.update(chain)
            if len(chain) > 1:  # of loads that are waited for together one is told
                chains.append([self.instructions[i] for i in chain])
        return chains


def report_file(least, cuobjdump, file):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file), LoadKernel, LoadInstruction)
               if any(instruction.loads_global() for instruction in kernel.instructions)]
    if not kernels:
        raise CannotCheck(f"{file}: no load from global memory in code of {ARCHITECTURE} found")
    chains = [{"kernel": name, "symbol": kernel.name, "loads": [f"{load.address:#06x}" for load in chain]}
              for kernel, name in zip(kernels, demangle([kernel.name for kernel in kernels]))
              for chain in kernel.chains() if len(chain) >= least]
    return {"file": file, "kernels": len(kernels), "chains": sorted(chains, key=lambda chain: -len(chain["loads"]))}


def print_report(report):
    for chain in report["chains"]:
        print(f"{len(chain['loads'])} loads, {chain['kernel']}: {' '.join(chain['loads'])}")
    print(f"{report['file']}: {len(report['chains'])} chains in {report['kernels']} kernels")


if __name__ == "__main__":
    sys.exit(find_in_files(__doc__, 3, report_file, print_report))
