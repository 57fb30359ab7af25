#!/usr/bin/env python3
"""Finds what kernels compute behind their wait for the kernels in front, before they ask memory for anything.

  find_late_work.py [--cuobjdump PATH] [--least NUMBER] [--json] FILE...

FILE is an object, a library or a program with sm_90a code. The compiler takes griddepcontrol.wait for an order of
accesses to memory, and moves arithmetic behind it as it likes: divisions that find a block's rows, addresses of what is
read first. Every block of the kernel then waits for these, with instructions that are fetched when they are needed.
This script disassembles FILE and tells of each wait, ACQBULK, how many instructions the shortest way from there to an
access to global memory takes, and how many conversions and reciprocals, which divisions have, are among them.
have_ready() of src/backend/cuda/kernels/common/dependent_launch.cuh keeps a value's arithmetic in front.

--least NUMBER   fewest instructions that are told; default 24

A number is a place to look at. What the script cannot see:
  * instructions that follow from what is in shared memory, or from another warp, and cannot come earlier;
  * what is in a subroutine, as divisions of 64 bits may be: a call counts as one instruction.

Exit status: 0 it looked at something; 2 it could not, or FILE has no kernel that waits.
"""
import sys

from machine_code import ARCHITECTURE, CannotCheck, Instruction, Kernel, demangle, disassemble, find_in_files, parse

WAIT = "ACQBULK"
# Loads, asynchronous copies, and atomic operations. Stores and prefetches need no answer.
ACCESSES = ("LDG", "LD", "LDGSTS", "UTMALDG", "UBLKCP", "ATOM", "ATOMG")


def of_division(instruction):
    return instruction.root in ("I2F", "F2I") or (instruction.root == "MUFU" and "RCP" in instruction.parts)


class WaitingKernel(Kernel):
    def late_work(self):
        """Of each wait from which an access is reached: its address, and the instructions of the shortest way there."""
        successors = self.successors()
        found = []
        for start, instruction in enumerate(self.instructions):
            if instruction.root != WAIT:
                continue
            path = self.way_to_access(start, successors)
            if path is not None:
                found.append((instruction.address, path))
        return found

    def way_to_access(self, start, successors):
        before = {start: None}
        level = [start]
        while level:
            following = []
            for place in level:
                for after in successors[place]:
                    if after in before or self.instructions[after].root == WAIT:
                        continue
                    before[after] = place
                    if self.instructions[after].root in ACCESSES:
                        return self.path(after, start, before)
                    following.append(after)
            level = following
        return None

    def path(self, end, start, before):
        path = []
        while end != start:
            path.append(self.instructions[end])
            end = before[end]
        return path[::-1]


def report_file(least, cuobjdump, file):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file), WaitingKernel, Instruction)
               if any(instruction.root == WAIT for instruction in kernel.instructions)]
    if not kernels:
        raise CannotCheck(f"{file}: no {ARCHITECTURE} kernel that waits for the kernels in front")
    waits = []
    for kernel, name in zip(kernels, demangle([kernel.name for kernel in kernels])):
        for address, path in kernel.late_work():
            if len(path) - 1 >= least:
                waits.append({"kernel": name, "wait": f"{address:#06x}", "instructions": len(path) - 1,
                              "divisions": sum(map(of_division, path)),
                              "access": f"{path[-1].address:#06x}  {path[-1].text}"})
    waits.sort(key=lambda wait: -wait["instructions"])
    return {"file": file, "kernels": len(kernels), "waits": waits}


def print_report(report):
    for wait in report["waits"]:
        divisions = f", {wait['divisions']} of divisions" if wait["divisions"] else ""
        print(f"{wait['kernel']}: {wait['instructions']} instructions from {wait['wait']} on{divisions}, then")
        print(f"    {wait['access']}")
    print(f"{sys.argv[0].rsplit('/', 1)[-1]}: {report['file']}: {report['kernels']} kernels that wait, "
          f"{len(report['waits'])} waits with late work")


if __name__ == "__main__":
    sys.exit(find_in_files(__doc__, 24, report_file, print_report))
