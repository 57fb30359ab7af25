#!/usr/bin/env python3
"""Finds loads through the read-only path that a kernel may do before the kernels in front of it have ended.

  check_early_loads.py [--cuobjdump PATH] [--allow KERNEL NUMBER]... [--json] FILE...

FILE is an object, a library or a program with sm_90a code. A kernel that starts before the ones in front have ended
waits for them (griddepcontrol.wait, ACQBULK in the machine code). The compiler keeps ordinary loads behind that wait,
but not those of __ldg() and of what it takes for constant (LDG.CONSTANT): it moves them ahead where it likes, from one
place of the source and not from another. Of what an earlier kernel of the step writes they then bring what was there
before. Tests in which that is the same, as in replays of one step, pass. This script disassembles FILE and follows all
paths of every kernel that waits, from its start to its first wait; it prints a line for each of these kernels, and each
such load on the way.

--allow KERNEL NUMBER   kernels whose name matches the regular expression may have so many of these loads. For those of
                        what no kernel writes, as weights are.

What it cannot see:
  * what is loaded: weights count, too (--allow), and which of a kernel's loads are the allowed ones;
  * which paths are possible: all of them count, also those of warps that learn of the wait from other warps.

Exit status: 0 clean; 1 such loads; 2 something could not be checked, or no kernel waits: a check that looked at nothing
has not passed.
"""
import functools
import re
import sys

from machine_code import ARCHITECTURE, CannotCheck, Instruction, Kernel, argument_parser, check_files, demangle, \
    disassemble, parse, print_kernels


class EarlyInstruction(Instruction):
    def waits_for_kernels(self):
        return self.root == "ACQBULK"

    def loads_read_only(self):
        return self.root == "LDG" and "CONSTANT" in self.parts


class EarlyKernel(Kernel):
    def waits_for_kernels(self):
        return any(instruction.waits_for_kernels() for instruction in self.instructions)

    def early(self):
        """Instructions that may be issued before any wait."""
        successors = self.successors()
        reached, left = set(), [0]
        while left:
            place = left.pop()
            if place in reached:
                continue
            reached.add(place)
            instruction = self.instructions[place]
            if not instruction.waits_for_kernels() or instruction.guarded:
                left += successors[place]
        waits = [i for i, instruction in enumerate(self.instructions) if instruction.waits_for_kernels()]
        self.require_reached(sorted(reached & set(waits)) or waits[:1], reached, "wait")
        return [self.instructions[place] for place in sorted(reached)]


def check_kernel(kernel, name, allow):
    report = {"kernel": name, "symbol": kernel.name, "instructions": 0, "hazards": [], "not_checked": None}
    allowed = max((number for pattern, number in allow if re.search(pattern, name)), default=0)
    try:
        early = kernel.early()
        loads = [instruction for instruction in early if instruction.loads_read_only()]
        report["instructions"] = len(early)
        if len(loads) > allowed:
            report["hazards"] = [{"address": f"{load.address:#06x}", "instruction": load.text} for load in loads]
    except CannotCheck as reason:
        report["not_checked"] = str(reason)
    return report


def check_file(allow, cuobjdump, file):
    kernels = [kernel for kernel in parse(disassemble(cuobjdump, file), EarlyKernel, EarlyInstruction)
               if kernel.waits_for_kernels()]
    names = demangle([kernel.name for kernel in kernels])
    return {"file": file, "kernels": [check_kernel(kernel, name, allow) for kernel, name in zip(kernels, names)]}


def print_report(report):
    print_kernels(report["kernels"], "instructions", "instructions before the wait", "loads through the read-only path")
    hazards = sum(len(kernel["hazards"]) for kernel in report["kernels"])
    print(f"{report['file']}: {len(report['kernels'])} kernels that wait, "
          f"{hazards} loads through the read-only path before")


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--allow", action="append", default=[], nargs=2, metavar=("KERNEL", "NUMBER"))
    options = parser.parse_args()
    try:
        options.allow = [(re.compile(kernel), int(number)) for kernel, number in options.allow]
    except (ValueError, re.error) as reason:
        parser.error(f"--allow: {reason}")
    return check_files(options, functools.partial(check_file, options.allow), print_report,
                       lambda report: report["kernels"], f"no kernel that waits in code of {ARCHITECTURE}")


if __name__ == "__main__":
    sys.exit(main())
