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
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

ARCHITECTURE = "sm_90a"
MATRIX = ("HGMMA", "QGMMA", "IGMMA", "BGMMA")  # F16, BF16 and TF32; FP8; INT8; bits
OPERAND_REGISTERS = 4  # registers of a thread, for every type: 64 rows of 32 bytes in 128 threads
# Their first general register is read. Of any other instruction it is the result.
ONLY_READS = ("BAR", "BRX", "CALL", "FCHK", "JMX", "NANOSLEEP", "RET", "WARPSYNC")
DOUBLES = ("DADD", "DFMA", "DMUL")
INDIRECT = ("BRX", "BRXU", "JMX", "JMXU")
# Groups told apart; the oldest are taken as one, which errs to the safe side.
MAX_GROUPS = 8

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;?\s*/\* 0x")


class CannotCheck(Exception):
    pass


class Instruction:
    def __init__(self, address, text):
        self.address, self.text = address, text
        guard, self.opcode, operands = re.match(r"(?:@(\S+)\s+)?(\S+)\s*(.*)", text).groups()
        self.guarded = guard is not None
        self.operands = [operand.strip() for operand in operands.split(",")] if operands else []
        self.parts = self.opcode.split(".")
        self.root = self.parts[0]
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

    def target(self):
        """Address that the last operand names."""
        return int(self.operands[-1], 16) if self.operands and self.operands[-1].startswith("0x") else None


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


class Kernel:
    def __init__(self, name):
        self.name = name
        self.instructions = []

    def takes_registers(self):
        return [instruction for instruction in self.instructions if instruction.reads]

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
        self.require_reached({i for i, _ in seen})
        return [self.instructions[i] for i in sorted(found)]

    def require_reached(self, reached):
        for i, instruction in enumerate(self.instructions):
            if instruction.root in INDIRECT:
                raise CannotCheck(f"indirect branch at {instruction.address:#06x}")
            if instruction.reads and i not in reached:
                raise CannotCheck(f"no path found to the matrix instruction at {instruction.address:#06x}")


def find_cuobjdump(path):
    found = shutil.which(path or "cuobjdump")
    if not found and not path:
        roots = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
        folders = [os.path.join(root, "bin") for root in roots] + [os.path.dirname(shutil.which("nvcc") or "")]
        found = shutil.which("cuobjdump", path=os.pathsep.join(filter(None, folders)))
    if not found:
        raise CannotCheck(f"{path or 'cuobjdump'}: not found; it comes with the CUDA toolkit")
    return found


def disassemble(cuobjdump, file):
    # It looks for nvdisasm, its neighbour, on PATH.
    path = os.path.dirname(os.path.abspath(cuobjdump)) + os.pathsep + os.environ.get("PATH", "")
    run = subprocess.run([cuobjdump, "-sass", "-arch", ARCHITECTURE, file], capture_output=True, text=True,
                         env={**os.environ, "PATH": path}, check=False)
    if run.returncode != 0:
        raise CannotCheck(f"{file}: {run.stderr.strip() or f'cuobjdump failed with status {run.returncode}'}")
    return run.stdout


def parse(listing):
    kernels = []
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            kernels.append(Kernel(match.group(1)))
        elif (match := INSTRUCTION.match(line)) and kernels:
            kernels[-1].instructions.append(Instruction(int(match.group(1), 16), match.group(2)))
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
    kernels = parse(disassemble(cuobjdump, file))
    instructions = sum(instruction.is_matrix for kernel in kernels for instruction in kernel.instructions)
    kernels = [kernel for kernel in kernels if kernel.takes_registers()]
    names = demangle([kernel.name for kernel in kernels])
    return {"file": file, "all_matrix_instructions": instructions,
            "kernels": [check_kernel(kernel, name) for kernel, name in zip(kernels, names)]}


def print_report(report):
    for kernel in report["kernels"]:
        result = kernel["not_checked"] and f"not checked: {kernel['not_checked']}"
        print(f"{kernel['kernel']}: {kernel['matrix_instructions']} matrix instructions with an operand in registers, "
              f"{result or str(len(kernel['hazards'])) + ' hazards'}")
        for hazard in kernel["hazards"]:
            print(f"  {hazard['address']}  {hazard['instruction']}")
    hazards = sum(len(kernel["hazards"]) for kernel in report["kernels"])
    print(f"{report['file']}: {report['all_matrix_instructions']} matrix instructions, "
          f"{len(report['kernels'])} kernels with an operand in registers, {hazards} hazards")


def exit_status(reports):
    kernels = [kernel for report in reports for kernel in report["kernels"]]
    if any(kernel["hazards"] for kernel in kernels):
        return 1
    if not any(report["all_matrix_instructions"] for report in reports):
        print(f"{sys.argv[0]}: no matrix instruction of {ARCHITECTURE} found: nothing was checked", file=sys.stderr)
        return 2
    return 2 if any(kernel["not_checked"] for kernel in kernels) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--cuobjdump", metavar="PATH", help="default: on PATH, in CUDA_HOME, or beside nvcc")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    options = parser.parse_args()
    try:
        cuobjdump = find_cuobjdump(options.cuobjdump)
        reports = [check_file(cuobjdump, file) for file in options.files]
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
