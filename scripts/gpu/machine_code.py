#!/usr/bin/env python3
"""What checks of machine code share: cuobjdump, instructions, the paths through a kernel, and the command line.

  machine_code.py [--cuobjdump PATH] FILE

prints the listing of FILE that the checks look at. In a file whose name ends in .sass they take it for FILE.
"""
import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys

ARCHITECTURE = "sm_90a"
INDIRECT = ("BRX", "BRXU", "JMX", "JMXU")

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*/\* 0x")
# The second line of an instruction: the upper half of its 128 bits, which says what it waits for.
UPPER_HALF = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/\s*$")
NO_SCOREBOARD = 7


class CannotCheck(Exception):
    pass


class Instruction:
    waits = frozenset()  # scoreboards that it waits for before it is issued
    sets = NO_SCOREBOARD  # the one that tells when its result is there

    def __init__(self, address, text):
        self.address, self.text = address, text
        guard, self.opcode, operands = re.match(r"(?:@(\S+)\s+)?(\S+)\s*(.*)", text).groups()
        self.guarded = guard is not None
        self.operands = [operand.strip() for operand in operands.split(",")] if operands else []
        self.parts = self.opcode.split(".")
        self.root = self.parts[0]

    def schedule(self, upper_half):
        self.sets = upper_half >> 46 & 7
        self.waits = frozenset(board for board in range(6) if upper_half >> (52 + board) & 1)

    def target(self):
        """Address that the last operand names."""
        return int(self.operands[-1], 16) if self.operands and self.operands[-1].startswith("0x") else None


class Kernel:
    def __init__(self, name):
        self.name = name
        self.instructions = []

    def successors(self):
        """For each instruction the indices of those that may come next."""
        index = {instruction.address: i for i, instruction in enumerate(self.instructions)}
        return [[index[address] for address in self.next_addresses(i) if address in index]
                for i in range(len(self.instructions))]

    def next_addresses(self, i):
        instruction = self.instructions[i]
        following = [later.address for later in self.instructions[i + 1:i + 2]]
        if instruction.root == "BSYNC":
            return self.reconvergence(instruction.operands[-1], following)
        if instruction.root in ("EXIT", "RET", "KILL"):
            return following if instruction.guarded else []
        if instruction.root in ("BRA", "JMP", "CALL"):
            always = instruction.root != "CALL" and instruction.opcode in ("BRA", "JMP") and \
                len(instruction.operands) == 1 and not instruction.guarded
            return [instruction.target()] + ([] if always else following)
        return following

    def reconvergence(self, barrier, following):
        """Where threads go on that meet at `barrier`: mostly right behind, else at a target that names it."""
        targets = [other.target() for other in self.instructions
                   if other.root == "BSSY" and other.operands[0] == barrier]
        return following if not targets or set(following) & set(targets) else targets

    def require_reached(self, places, reached, what):
        """`places`: of the instructions that a check is about."""
        for instruction in self.instructions:
            if instruction.root in INDIRECT:
                raise CannotCheck(f"indirect branch at {instruction.address:#06x}")
        for place in places:
            if place not in reached:
                raise CannotCheck(f"no path found to the {what} at {self.instructions[place].address:#06x}")


def find_cuobjdump(path):
    found = shutil.which(path or "cuobjdump")
    if not found and not path:
        roots = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
        folders = [os.path.join(root, "bin") for root in roots] + [os.path.dirname(shutil.which("nvcc") or "")]
        found = shutil.which("cuobjdump", path=os.pathsep.join(filter(None, folders)))
    if not found:
        raise CannotCheck(f"{path or 'cuobjdump'}: not found; it comes with the CUDA toolkit")
    return found


LISTING_ENDS_IN = ".sass"


def disassemble(cuobjdump, file):
    """The listing of file. cuobjdump: its path, or None to search for it; a listing needs none."""
    if file.endswith(LISTING_ENDS_IN):
        with open(file, encoding="utf-8") as listing:
            return listing.read()
    cuobjdump = find_cuobjdump(cuobjdump)
    # It looks for nvdisasm, its neighbour, on PATH.
    path = os.path.dirname(os.path.abspath(cuobjdump)) + os.pathsep + os.environ.get("PATH", "")
    run = subprocess.run([cuobjdump, "-sass", "-arch", ARCHITECTURE, file], capture_output=True, text=True,
                         env={**os.environ, "PATH": path}, check=False)
    if run.returncode != 0:
        raise CannotCheck(f"{file}: {run.stderr.strip() or f'cuobjdump failed with status {run.returncode}'}")
    return run.stdout


def parse(listing, kernel_type, instruction_type):
    kernels = []
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            kernels.append(kernel_type(match.group(1)))
        elif (match := INSTRUCTION.match(line)) and kernels:
            kernels[-1].instructions.append(instruction_type(int(match.group(1), 16), match.group(2)))
        elif (match := UPPER_HALF.match(line)) and kernels and kernels[-1].instructions:
            kernels[-1].instructions[-1].schedule(int(match.group(1), 16))
    return kernels


def demangle(names):
    tool = shutil.which("c++filt")
    if not tool or not names:
        return names
    run = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=False)
    demangled = run.stdout.splitlines()
    return [shorten(name) for name in demangled] if len(demangled) == len(names) else names


def shorten(name):
    """Without result type, namespaces and parameters."""
    name = re.sub(r"\(anonymous namespace\)::|\b[A-Za-z_]\w*::", "", name)
    name = re.sub(r"^void ", "", name)
    depth = 0
    for i, character in enumerate(name):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "(" and depth == 0:
            return name[:i]
    return name


def argument_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help=f"or its listing, *{LISTING_ENDS_IN}")
    add_cuobjdump(parser)
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    return parser


def add_cuobjdump(parser):
    parser.add_argument("--cuobjdump", metavar="PATH", help="default: on PATH, in CUDA_HOME, or beside nvcc")


def print_kernels(kernels, counted, counted_as, hazards_as):
    """A line for every kernel, of what there is of `counted` and what was found, and the findings below it."""
    for kernel in kernels:
        reason = kernel["not_checked"]
        result = f"not checked: {reason}" if reason else f"{len(kernel['hazards'])} {hazards_as}"
        print(f"{kernel['kernel']}: {kernel[counted]} {counted_as}, {result}")
        for hazard in kernel["hazards"]:
            print(f"  {hazard['address']}  {hazard['instruction']}")
            for load in hazard.get("loads", []):
                print(f"      {load}")


def exit_status(reports, looked_at, missing):
    """looked_at: whether a report found something to check; missing: the message where none did."""
    kernels = [kernel for report in reports for kernel in report["kernels"]]
    if any(kernel["hazards"] for kernel in kernels):
        return 1
    if not any(looked_at(report) for report in reports):
        print(f"{sys.argv[0]}: {missing}: nothing was checked", file=sys.stderr)
        return 2
    return 2 if any(kernel["not_checked"] for kernel in kernels) else 0


def print_reports(options, report_file, print_report):
    """The reports of all files, made by report_file(cuobjdump, file), printed; None, and why, where one is not made."""
    try:
        reports = [report_file(options.cuobjdump, file) for file in options.files]
    except (CannotCheck, OSError) as reason:
        print(f"{sys.argv[0]}: {reason}", file=sys.stderr)
        return None
    if options.json:
        json.dump(reports, sys.stdout, indent=1)
        print()
    else:
        for report in reports:
            print_report(report)
    return reports


def kernels_with(kernels, least, found_as, find, describe):
    """Of each kernel where find(kernel) finds at least `least` instructions: its name, what describe(kernel) says, and
    as `found_as` these instructions. Those with most come first."""
    found = []
    for kernel, name in zip(kernels, demangle([kernel.name for kernel in kernels])):
        instructions = find(kernel)
        if len(instructions) >= max(least, 1):
            found.append({"kernel": name, **describe(kernel),
                          found_as: [f"{found.address:#06x}  {found.text}" for found in instructions]})
    return sorted(found, key=lambda kernel: -len(kernel[found_as]))


def print_kernels_with(report, found_as, describe, kernels_as, with_as):
    """A line for each of report["found"], which kernels_with() made, and its instructions; then how many there are."""
    for kernel in report["found"]:
        print(f"{kernel['kernel']}: {len(kernel[found_as])} of {describe(kernel)}")
        for instruction in kernel[found_as]:
            print(f"    {instruction}")
    print(f"{sys.argv[0].rsplit('/', 1)[-1]}: {report['file']}: {report['kernels']} kernels with {kernels_as}, "
          f"{len(report['found'])} with {with_as}")


def find_in_files(description, least, report_file, print_report):
    """The command line of a script that finds places to look at, of no fewer than --least each: its exit status.
    report_file(least, cuobjdump, file)."""
    parser = argument_parser(description)
    parser.add_argument("--least", type=int, default=least, metavar="NUMBER")
    options = parser.parse_args()
    return 2 if print_reports(options, functools.partial(report_file, options.least), print_report) is None else 0


def check_files(options, check_file, print_report, looked_at, missing):
    """Prints the reports of all files. The exit status; see print_reports() and exit_status()."""
    reports = print_reports(options, check_file, print_report)
    return 2 if reports is None else exit_status(reports, looked_at, missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE")
    add_cuobjdump(parser)
    options = parser.parse_args()
    try:
        sys.stdout.write(disassemble(options.cuobjdump, options.file))
    except (CannotCheck, OSError) as reason:
        print(f"{sys.argv[0]}: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
