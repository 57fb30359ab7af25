#!/usr/bin/env python3
"""Finds loads of shared memory that may be under way when a barrier in shared memory is arrived at.

  check_shared_loads.py [--cuobjdump PATH] [--allow KERNEL:LOAD]... [--json] FILE...

FILE is an object, a library or a program with sm_90a code. A warp that has read a slot of a ring arrives at a barrier,
and the copy engine, or another block, fills the slot again. The arrival does not wait for loads that were issued before
it: where the first use of what they bring stands behind it, which the compiler decides, new bytes may overtake them.
fence.proxy.async between the two (a MEMBAR in the machine code), or a real use of the words, is what it takes. Race
checkers do not see this, and tests may pass for long. This script disassembles FILE and follows all paths of every
kernel that has such arrivals, with the loads there whose scoreboard nobody has waited for; it prints a line for each
of these kernels, and each arrival with the loads that may be under way.

--allow KERNEL:LOAD   two regular expressions: in kernels whose name matches the first, instructions that match the
                      second are not looked at. For loads of what no arrival gives back.

What it cannot see:
  * which memory a barrier guards: a load of anything else counts, too (--allow);
  * which paths are possible: all of them count, as do loads under a predicate;
  * loads that have no scoreboard of their own, stores, and copies of bytes that matrix instructions read.

Exit status: 0 clean; 1 loads under way at an arrival; 2 something could not be checked, or there is no arrival at all:
a check that looked at nothing has not passed.
"""
import argparse
import functools
import re
import sys
from typing import NamedTuple

from machine_code import ARCHITECTURE, NO_SCOREBOARD, CannotCheck, Instruction, Kernel, argument_parser, \
    check_files, demangle, disassemble, parse, print_kernels


class Load(NamedTuple):
    place: int       # number of the instruction
    scoreboard: int


class SharedInstruction(Instruction):
    def arrives(self):
        return self.opcode.startswith("SYNCS.ARRIVE")

    def loads_shared(self):
        return self.root in ("LDS", "LDSM") and self.sets != NO_SCOREBOARD

    def ends_all_loads(self):
        return self.root == "MEMBAR" and not self.guarded

    def ends(self, load):
        if load.scoreboard in self.waits or self.ends_all_loads():
            return True
        return self.opcode == "DEPBAR.LE" and self.operands == [f"SB{load.scoreboard}", "0x0"]


class SharedKernel(Kernel):
    def findings(self, allowed):
        """Arrivals, each with the loads that may be under way there."""
        successors = self.successors()
        before = [set() for _ in self.instructions]
        reached = {0}
        work = [0]
        while work:
            place = work.pop()
            under_way = self.after(place, before[place], allowed)
            for following in successors[place]:
                if following not in reached or under_way - before[following]:
                    reached.add(following)
                    before[following] |= under_way
                    work.append(following)
        arrivals = [place for place, instruction in enumerate(self.instructions) if instruction.arrives()]
        self.require_reached(arrivals, reached, "arrival")
        under_way = {place: [load for load in sorted(before[place]) if not self.instructions[place].ends(load)]
                     for place in arrivals}
        return [(self.instructions[place], [self.instructions[load.place] for load in loads])
                for place, loads in under_way.items() if loads]

    def after(self, place, loads, allowed):
        instruction = self.instructions[place]
        left = {load for load in loads if not instruction.ends(load)}
        if instruction.loads_shared() and not any(re.search(pattern, instruction.text) for pattern in allowed):
            left.add(Load(place, instruction.sets))
        return left


def check_kernel(kernel, name, allow):
    arrivals = sum(instruction.arrives() for instruction in kernel.instructions)
    report = {"kernel": name, "symbol": kernel.name, "arrivals": arrivals, "hazards": [], "not_checked": None}
    allowed = [load for pattern, load in allow if re.search(pattern, name)]
    try:
        report["hazards"] = [{"address": f"{arrival.address:#06x}", "instruction": arrival.text,
                              "loads": [f"{load.address:#06x}  {load.text}" for load in loads]}
                             for arrival, loads in kernel.findings(allowed)]
    except CannotCheck as reason:
        report["not_checked"] = str(reason)
    return report


def check_file(allow, cuobjdump, file):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file), SharedKernel, SharedInstruction)
               if any(instruction.arrives() for instruction in kernel.instructions)]
    names = demangle([kernel.name for kernel in kernels])
    return {"file": file, "kernels": [check_kernel(kernel, name, allow) for kernel, name in zip(kernels, names)]}


def print_report(report):
    print_kernels(report["kernels"], "arrivals", "arrivals", "with loads under way")
    arrivals = sum(kernel["arrivals"] for kernel in report["kernels"])
    hazards = sum(len(kernel["hazards"]) for kernel in report["kernels"])
    print(f"{report['file']}: {arrivals} arrivals in {len(report['kernels'])} kernels, {hazards} with loads under way")


def allowance(text):
    kernel, separator, load = text.partition(":")
    try:
        if not separator or not kernel or not load:
            raise ValueError("it takes KERNEL:LOAD")
        return re.compile(kernel), re.compile(load)
    except (ValueError, re.error) as reason:
        raise argparse.ArgumentTypeError(f"'{text}': {reason}") from reason


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--allow", action="append", default=[], type=allowance, metavar="KERNEL:LOAD")
    options = parser.parse_args()
    return check_files(options, functools.partial(check_file, options.allow), print_report,
                       lambda report: report["kernels"], f"no arrival in code of {ARCHITECTURE} found")


if __name__ == "__main__":
    sys.exit(main())
