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
import json
import re
import sys
from typing import NamedTuple

from check_matrix_operands import ARCHITECTURE, INDIRECT, INSTRUCTION, FUNCTION, CannotCheck, Instruction, Kernel, \
    demangle, disassemble, find_cuobjdump

# The second line of an instruction: the upper half of its 128 bits, which says what it waits for.
UPPER_HALF = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
NO_SCOREBOARD = 7


class Load(NamedTuple):
    place: int       # number of the instruction
    scoreboard: int


class ScheduledInstruction(Instruction):
    waits = frozenset()  # scoreboards that it waits for before it is issued
    sets = NO_SCOREBOARD  # the one that tells when its result is there

    def schedule(self, upper_half):
        self.sets = upper_half >> 46 & 7
        self.waits = frozenset(board for board in range(6) if upper_half >> (52 + board) & 1)

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


class ScheduledKernel(Kernel):
    def findings(self, allowed):
        """Arrivals, each with the loads that may be under way there."""
        if any(instruction.root in INDIRECT for instruction in self.instructions):
            raise CannotCheck("indirect branch")
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
        for place, instruction in enumerate(self.instructions):
            if instruction.arrives() and place not in reached:
                raise CannotCheck(f"no path found to the arrival at {instruction.address:#06x}")
        arrivals = ((instruction, [load for load in sorted(before[place]) if not instruction.ends(load)])
                    for place, instruction in enumerate(self.instructions) if instruction.arrives())
        return [(arrival, [self.instructions[load.place] for load in loads]) for arrival, loads in arrivals if loads]

    def after(self, place, loads, allowed):
        instruction = self.instructions[place]
        left = {load for load in loads if not instruction.ends(load)}
        if instruction.loads_shared() and not any(re.search(pattern, instruction.text) for pattern in allowed):
            left.add(Load(place, instruction.sets))
        return left


def parse(listing):
    kernels = []
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            kernels.append(ScheduledKernel(match.group(1)))
        elif (match := INSTRUCTION.match(line)) and kernels:
            kernels[-1].instructions.append(ScheduledInstruction(int(match.group(1), 16), match.group(2)))
        elif (match := UPPER_HALF.match(line)) and kernels and kernels[-1].instructions:
            kernels[-1].instructions[-1].schedule(int(match.group(1), 16))
    return kernels


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


def check_file(cuobjdump, file, allow):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file))
               if any(instruction.arrives() for instruction in kernel.instructions)]
    names = demangle([kernel.name for kernel in kernels])
    return {"file": file, "kernels": [check_kernel(kernel, name, allow) for kernel, name in zip(kernels, names)]}


def print_report(report):
    for kernel in report["kernels"]:
        result = kernel["not_checked"] and f"not checked: {kernel['not_checked']}"
        print(f"{kernel['kernel']}: {kernel['arrivals']} arrivals, "
              f"{result or str(len(kernel['hazards'])) + ' with loads under way'}")
        for hazard in kernel["hazards"]:
            print(f"  {hazard['address']}  {hazard['instruction']}")
            for load in hazard["loads"]:
                print(f"      {load}")
    arrivals = sum(kernel["arrivals"] for kernel in report["kernels"])
    hazards = sum(len(kernel["hazards"]) for kernel in report["kernels"])
    print(f"{report['file']}: {arrivals} arrivals in {len(report['kernels'])} kernels, {hazards} with loads under way")


def exit_status(reports):
    kernels = [kernel for report in reports for kernel in report["kernels"]]
    if any(kernel["hazards"] for kernel in kernels):
        return 1
    if not kernels:
        print(f"{sys.argv[0]}: no arrival in code of {ARCHITECTURE} found: nothing was checked", file=sys.stderr)
        return 2
    return 2 if any(kernel["not_checked"] for kernel in kernels) else 0


def allowance(text):
    kernel, separator, load = text.partition(":")
    try:
        if not separator or not kernel or not load:
            raise ValueError("it takes KERNEL:LOAD")
        return re.compile(kernel), re.compile(load)
    except (ValueError, re.error) as reason:
        raise argparse.ArgumentTypeError(f"'{text}': {reason}") from reason


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--cuobjdump", metavar="PATH", help="default: on PATH, in CUDA_HOME, or beside nvcc")
    parser.add_argument("--allow", action="append", default=[], type=allowance, metavar="KERNEL:LOAD")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    options = parser.parse_args()
    try:
        cuobjdump = find_cuobjdump(options.cuobjdump)
        reports = [check_file(cuobjdump, file, options.allow) for file in options.files]
    except (CannotCheck, OSError) as reason:
        print(f"{sys.argv[0]}: {reason}", file=sys.stderr)
        return 2
    if options.json:
        json.dump(reports, sys.stdout, indent=1)
        print()
    else:
        for report in reports:
            print_report(report)
    return exit_status(reports)


if __name__ == "__main__":
    sys.exit(main())
