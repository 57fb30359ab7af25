#!/usr/bin/env python3
"""Fits the constants of src/backend/cuda/kernels/linear/linear_costs.h to measured times.

scripts/gpu/fit_linear_plan.py [--fp8] [FILE...]     default: scripts/gpu/linear_plan_h200.csv
                                                     with --fp8: scripts/gpu/linear_plan_fp8_h200.csv

FILE: what `bench_linear_gpu [--fp8] --family ... --csv FILE` writes, with and without --pro; families that no constant
belongs to do not matter. Prints the table for linear_costs.h, residuals, and how the choices that follow compare with
the fastest variant of each problem. The estimate is that of linear_costs.cpp, least squares of relative errors, no
constant negative. Starts and whole variants are then moved to where the choices lose least, since only differences
between variants near their crossings matter.
"""
import collections
import csv
import math
import os
import random
import re
import sys

MULTIPROCESSORS = 132
FP8, BF16, CODES = 4096, 8192, 8192.0  # bytes of a row tile's weights in a stage; of CODES it holds 128 inputs, not 64
# Clusters of so many blocks, one a multiprocessor, that an H200 runs at once.
CLUSTERS = {1: 132, 2: 66, 4: 31}
EXACT_VARIANTS = ["splitk 64x4", "splitk 80x4", "splitk 80x2", "splitk 96x4", "splitk 96r2", "splitk 96r5",
                  "splitk 112x4", "splitk 128x4", "splitk 128r2", "tile 1c2k2", "tile 2c1", "tile 2c2", "tile 2c4",
                  "tile 2c1t256", "prefill 128", "prefill 192"]
FP8_VARIANTS = ["splitk 64x4", "splitk 96r2", "fp8 64", "fp8 128", "fp8 192"]
TERMS = ["start", "rounding", "round", "fp8_stage", "bf16_stage", "traffic"]
MOST_PREFILL_PROBLEMS = 8


def problems(hidden, rank, heads, groups, prefix):
    """As bench_linear_gpu has them: (outputs, inputs, bytes of a tile, whether inputs are rounded)."""
    low = [(rank, hidden, FP8, True), (512, hidden, FP8, True)]

    def plain(*outputs):
        return [(n, hidden, BF16, False) for n in outputs]

    return {prefix + name: parts for name, parts in {
        "x CSA": low + plain(1024, 1024, 256, 256, 64),
        "x HCA": low + plain(512, 512),
        "x SWA": low,
        "wq_b": [(heads * 512, rank, FP8, True)],
        "wq_b + index": [(heads * 512, rank, FP8, True), (8192, rank, FP8, True)],
        "wo_a": [(1024, heads * 512 // groups, FP8, False)] * groups,
        "wo_b": [(hidden, groups * 1024, FP8, True)],
        "bf16 square": plain(hidden),
    }.items()}


def stage_inputs(part):
    return 128 if part[2] is CODES else 64


PROBLEMS = problems(4096, 1024, 64, 8, "") | problems(7168, 1536, 128, 16, "pro ")


def ceil_div(a, b):
    return -(-a // b)


def even_item_tokens(family, item_tokens, tokens):
    """Tokens of every item but the last, as even_item_tokens() of linear_dispatch.h has them."""
    if family == "prefill":
        return item_tokens
    if tokens <= item_tokens:
        return tokens
    return item_tokens if family == "fp8" else 8 * ceil_div(ceil_div(tokens, ceil_div(tokens, item_tokens)), 8)


def segments(part):
    count = 1
    while count < 8 and part[1] > 1024 * count:
        count *= 2
    return count // 2 if part[2] is CODES and part[1] >= 8192 else count


def splitk_shape(shape):
    """Tokens, row tiles and segments of a block."""
    tokens, rows, groups = re.fullmatch(r"(\d+)(?:r(\d))?(?:x(\d))?", shape).groups()
    return int(tokens), int(rows or 1), int(groups or 1)


def tile_shape(shape):
    """Row tiles of a block, blocks of a cluster, warpgroups that share a row tile, and tokens."""
    rows, cluster, sharers, tokens = re.fullmatch(r"(\d)c(\d)(?:k(\d))?(?:t(\d+))?", shape).groups()
    return int(rows), int(cluster), int(sharers or 1), int(tokens or 128)


def competes(variant, parts, tokens):
    """Split-K of exact products and more than 64 tokens runs launches of one item of tokens alone, items of 256 tokens
    of the tile kernel up to 1024."""
    family, shape = variant.split()
    if family == "tile":
        return tokens <= 1024 or tile_shape(shape)[3] == 128
    if family != "splitk" or all(p[2] is CODES for p in parts):
        return True
    item_tokens = splitk_shape(shape)[0]
    return item_tokens <= 64 or tokens <= item_tokens


def features(variant, parts, tokens):
    """What the constants are multiplied with; None where the variant does not run the problem."""
    family, shape = variant.split()
    rows, cluster, groups = 1, 1, 1
    count = segments(parts[0])
    if family == "splitk":
        item_tokens, rows, groups = splitk_shape(shape)
        if count % groups:
            return None
        cluster = count // groups
    elif family == "tile":
        rows, cluster, sharers, item_tokens = tile_shape(shape)
        # A warpgroup has registers for two segments of 128 tokens, or for one of 256.
        most = 1 if item_tokens > 128 else 2 * cluster * sharers if sharers > 1 else count
        if count % (cluster * sharers) or count > most:
            return None
    elif family == "fp8":
        rows, item_tokens = 2, int(shape)
        if any(p[2] is not CODES for p in parts):
            return None
    else:
        rows, item_tokens = 4, int(shape)
        if len(parts) > MOST_PREFILL_PROBLEMS:
            return None

    def items_of(part):
        return ceil_div(part[0], 64 * rows) * ceil_div(tokens, item_tokens)

    items = sum(items_of(p) for p in parts)
    work = [(items_of(p), p[1] // stage_inputs(p)) for p in parts]
    inputs = even_item_tokens(family, item_tokens, tokens) * 128  # bytes of a stage
    traffic = sum(items_of(p) * (p[1] // stage_inputs(p)) * (inputs + rows * p[2]) for p in parts)
    if family == "splitk":
        per_sm = max(1, 4 // (groups * rows)) if groups * rows > 1 else 5
        blocks = MULTIPROCESSORS * per_sm
        rounds = ceil_div(items, max(1, blocks // cluster if cluster <= 2 else blocks * 10 // 11 // cluster))
        neighbours = min(per_sm, ceil_div(items * cluster, MULTIPROCESSORS))
        stages = rounds * (parts[0][1] / stage_inputs(parts[0]) / count) * neighbours * groups * rows
    else:
        clusters = min(items, CLUSTERS[{"tile": cluster, "fp8": 1, "prefill": 2}[family]])
        rounds = ceil_div(items, clusters)
        most = max(stages for _, stages in work)
        total = sum(n * stages for n, stages in work)
        stages = (rounds * most if total == items * most else max(most, total / clusters)) / cluster
    fp8 = all(p[2] is CODES for p in parts) or any(p[2] == FP8 for p in parts)
    return [1, any(p[3] for p in parts), rounds, stages if fp8 else 0, 0 if fp8 else stages,
            traffic / 1024 / MULTIPROCESSORS if family == "splitk" else 0]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def fit(rows):
    """x >= 0 that brings every row's product close to 1, by coordinate descent."""
    size = len(rows[0])
    products = [[sum(r[i] * r[j] for r in rows) for j in range(size)] for i in range(size)]
    sums = [sum(r[i] for r in rows) for i in range(size)]
    x = [0.0] * size
    for _ in range(5000):
        for j in range(size):
            if products[j][j] > 0:
                x[j] = max(0.0, x[j] + (sums[j] - dot(products[j], x)) / products[j][j])
    return x


def read(paths, variants, known):
    times = collections.defaultdict(dict)
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                if row["family"] in variants and row["problem"] in known and int(row["tokens"]) > 64:
                    times[row["problem"], int(row["tokens"])][row["family"]] = float(row["microseconds"])
    return times


class Choices:
    def __init__(self, times, constants, variants, problems_of):
        self.times = times
        self.constants = constants
        self.variants = variants
        self.candidates = {}
        for (name, tokens), measured in times.items():
            parts = problems_of[name]
            known = {v: features(v, parts, tokens) for v in variants if v in measured}
            known = {v: f for v, f in known.items() if f is not None and competes(v, parts, tokens)}
            # A launch of prefill takes few problems; one of these counts of tokens is cut into several for all.
            if len(parts) > MOST_PREFILL_PROBLEMS and tokens >= 192:
                known = {v: features(v, parts[:MOST_PREFILL_PROBLEMS], tokens) for v in known}
            self.candidates[name, tokens] = known

    def chosen(self, constants):
        for at, known in self.candidates.items():
            yield at, min(known, key=lambda v: dot(constants[v], known[v]))

    def losses(self, constants):
        for at, variant in self.chosen(constants):
            measured = self.times[at]
            yield measured[variant] / min(measured[v] for v in self.candidates[at]), at, variant

    def score(self, constants):
        """Large losses count most."""
        return sum(math.log(r) + 10 * max(0.0, math.log(r / 1.02)) for r, _, _ in self.losses(constants))

    def adjusted(self):
        """The constants with starts moved and whole variants scaled to where the choices lose least."""
        best = self.constants
        least = self.score(best)
        for start, scale in ((2, 0.08), (1, 0.04), (0.5, 0.02), (0.25, 0.01), (1, 0.04), (0.5, 0.02), (0.25, 0.01)):
            for _ in range(3):
                for variant in self.variants:
                    values = best[variant]
                    moves = [[max(0.0, values[0] + sign * start), *values[1:]] for sign in (1, -1)]
                    moves += [[value * (1 + sign * scale) for value in values] for sign in (1, -1)]
                    for move in moves:
                        tried = best | {variant: move}
                        score = self.score(tried)
                        if score < least - 1e-9:
                            least, best = score, tried
        return best

    def refined(self, constants):
        """The constants after small random changes that lessen the losses, large ones before all."""
        def score(tried):
            return self.score(tried) + 60 * sum(max(0.0, math.log(r / 1.08)) for r, _, _ in self.losses(tried))

        generator = random.Random(1)
        best, least = constants, score(constants)
        for _ in range(12000):
            tried = {variant: list(values) for variant, values in best.items()}
            for _ in range(generator.randint(1, 3)):
                values = tried[generator.choice(self.variants)]
                at = generator.choice([i for i, value in enumerate(values) if value > 1e-6])
                values[at] *= math.exp(generator.gauss(0, 0.1))
            if (found := score(tried)) < least - 1e-9:
                best, least = tried, found
        return best


def with_codes():
    """The problems whose weights all become CODES."""
    return {name: [(n, k, CODES, True) for n, k, _, _ in parts] for name, parts in PROBLEMS.items()
            if all(p[3] for p in parts)}


def main():
    fp8 = "--fp8" in sys.argv[1:]
    variants = FP8_VARIANTS if fp8 else EXACT_VARIANTS
    problems_of = with_codes() if fp8 else PROBLEMS
    default = "linear_plan_fp8_h200.csv" if fp8 else "linear_plan_h200.csv"
    paths = [path for path in sys.argv[1:] if path != "--fp8"] or [
        os.path.join(os.path.dirname(os.path.abspath(__file__)), default)]
    times = read(paths, variants, problems_of)
    if not times:
        sys.exit("fit_linear_plan.py: no times of " + ", ".join(variants))
    constants = {}
    residuals = {}
    for variant in variants:
        rows = []
        for (name, tokens), measured in times.items():
            known = features(variant, problems_of[name], tokens)
            if known is not None and variant in measured:
                rows.append([value / measured[variant] for value in known])
        constants[variant] = fit(rows)
        errors = [dot(row, constants[variant]) - 1 for row in rows]
        residuals[variant] = (math.sqrt(sum(e * e for e in errors) / len(errors)), max(map(abs, errors)), len(errors))
    choices = Choices(times, constants, variants, problems_of)
    choices.constants = choices.refined(choices.adjusted())
    adjusted = choices.constants if fp8 else choices.adjusted()
    for variant in variants:
        values = ", ".join(f"{value if value > 1e-6 else 0:.4g}" for value in adjusted[variant])
        family, shape = variant.split()
        numbers = shape.replace("c", ", ")
        if family == "tile":
            rows, cluster, sharers, tokens = tile_shape(shape)
            numbers = f"{rows}, {cluster}" + (f", {sharers}, {tokens}" if sharers > 1 or tokens > 128 else "")
        if family == "splitk":
            tokens, rows, groups = splitk_shape(shape)
            numbers = f"{tokens}, {groups}, {rows}"
        print(f"    LinearCost{{{family}_of({numbers}), {values}}},")
    print("\nvariant       root mean square and largest relative residual, points, chosen")
    counts = collections.Counter(variant for _, variant in choices.chosen(adjusted))
    for variant, (rms, most, count) in residuals.items():
        print(f"{variant:12}  {rms:6.1%} {most:6.1%} {count:5} {counts[variant]:5}")
    losses = sorted(choices.losses(adjusted), reverse=True)
    mean = math.exp(sum(math.log(r) for r, _, _ in losses) / len(losses))
    print(f"\nchosen against fastest: {mean - 1:.1%} more on average; over 2 %:")
    for ratio, (name, tokens), variant in losses:
        if ratio > 1.02:
            print(f"  {name}, {tokens} tokens: {variant}, {ratio - 1:.1%}")


if __name__ == "__main__":
    main()
