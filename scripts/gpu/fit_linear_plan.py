#!/usr/bin/env python3
"""Fits the constants of src/backend/cuda/kernels/linear/linear_costs.h to measured times.

scripts/gpu/fit_linear_plan.py [--fp8 | --mixed] [--new PREFIX | --term NAME] [FILE...]

--fp8: of launches of FP8 products alone; --mixed: of such beside BF16 weights. FILE: by default
scripts/gpu/linear_plan_h200.csv, linear_plan_fp8_h200.csv or linear_plan_mixed_h200.csv.

--new: constants begin as linear_costs.h has them, and those of the variants alone whose name begins with PREFIX are
fitted.

--term: constants begin as linear_costs.h has them, and this one alone is moved: bf16_stage changes no choice where some
weights are FP8.

FILE: what `bench_linear_gpu [--fp8] --family ... --csv FILE` writes, with and without --pro; families that no constant
belongs to do not matter. Prints the table for linear_costs.h, residuals, and how the choices that follow compare with
the fastest variant of each problem. The estimate is that of linear_costs.cpp; constants begin as least squares of
relative errors, none negative, and are then moved to where the choices lose least, since what counts is differences
between variants near their crossings. Takes NumPy and some minutes.
"""
import argparse
import collections
import csv
import math
import os
import re
import sys

import numpy as np

MULTIPROCESSORS = 132
SHARED_BYTES = 232448  # of a block
FP8, BF16, CODES = 4096, 8192, 8192.0  # bytes of a row tile's weights in a stage; of CODES it holds 128 inputs, not 64
# Clusters of so many blocks, one a multiprocessor, that an H200 runs at once.
CLUSTERS = {1: 132, 2: 66}
EXACT_VARIANTS = ["splitk 64x4", "splitk 80x4", "splitk 80x2", "splitk 80x1", "splitk 96x4", "splitk 96x1",
                  "splitk 96r2", "splitk 112x4", "splitk 128r2", "tile 1c2k2", "tile 2c1", "tile 2c2", "tile 1c2k2t160",
                  "tile 2c1t160", "tile 2c2t160", "tile 1c2k2t192", "tile 2c1t192", "tile 2c2t192", "tile 2c1t256",
                  "prefill 128", "prefill 192"]
FP8_VARIANTS = ["splitk 64x4", "splitk 96r2", "fp8 128r1", "fp8 128r1c2", "fp8 128", "fp8 128c2", "fp8 192r1",
                "fp8 192r1c2", "fp8 192"]
WIDEST = "fp8 192"  # does not run BF16 weights
MIXED_VARIANTS = [variant for variant in FP8_VARIANTS if variant != WIDEST]
EXACT_VARIANTS += [variant for variant in MIXED_VARIANTS if variant not in EXACT_VARIANTS]  # BF16 weights alone
TERMS = ["start", "rounding", "round", "fp8_stage", "bf16_stage", "traffic"]
MOST_PREFILL_PROBLEMS = 8
TRIES = 1_500_000


def problems(hidden, rank, heads, groups, prefix):
    """As bench_linear_gpu has them: (outputs, inputs, bytes of a tile, whether inputs are rounded)."""
    low = [(rank, hidden, FP8, True), (512, hidden, FP8, True)]

    def plain(*outputs):
        return [(n, hidden, BF16, False) for n in outputs]

    return {prefix + name: parts for name, parts in {
        "x CSA": low + plain(1024, 1024, 256, 256, 64),
        "x HCA": low + plain(512, 512),
        "bf16 of x CSA": plain(1024, 1024, 256, 256, 64),
        "bf16 of x HCA": plain(512, 512),
        "x SWA": low,
        "wq_b": [(heads * 512, rank, FP8, True)],
        "wq_b + index": [(heads * 512, rank, FP8, True), (8192, rank, FP8, True)],
        "wo_a": [(1024, heads * 512 // groups, FP8, False)] * groups,
        "wo_b": [(hidden, groups * 1024, FP8, True)],
        "bf16 square": plain(hidden),
    }.items()}


def stage_inputs(part):
    return 128 if part[2] is CODES else 64


def with_bf16(named, prefix):
    """The problems that have FP8 weights, with BF16 ones, as bench_linear_gpu --bf16 names them."""
    return {prefix + "bf16 " + name.removeprefix(prefix): [(n, k, BF16, False) for n, k, _, _ in parts]
            for name, parts in named.items() if any(p[2] == FP8 for p in parts)}


FLASH, PRO = problems(4096, 1024, 64, 8, ""), problems(7168, 1536, 128, 16, "pro ")
PROBLEMS = FLASH | PRO | with_bf16(FLASH, "") | with_bf16(PRO, "pro ")


def ceil_div(a, b):
    return -(-a // b)


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


def fp8_shape(shape):
    """Tokens, row tiles, and blocks of a cluster."""
    tokens, rows, cluster = re.fullmatch(r"(\d+)(?:r(\d))?(?:c(\d))?", shape).groups()
    return int(tokens), int(rows or 2), int(cluster or 1)


def ring_stages(parts, tokens, rows, cluster, sharers):
    """Stages of a ring of the tile kernel, as plan_tiles() of linear_dispatch.cpp finds them."""
    if sharers > 1:
        sums = 3 * 64 * tokens
    else:
        sums = rows * 64 * tokens * (2 if cluster == 1 else 4)
    stage = rows * max(p[2] for p in parts) + tokens * 128
    return (SHARED_BYTES - 1024 - 512 * sharers - sums) // stage // sharers


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
        # A warpgroup has registers for two segments of 192 tokens, or for one of 256.
        most = 1 if item_tokens > 192 else 2 * cluster * sharers if sharers > 1 else count
        if count % (cluster * sharers) or count > most or ring_stages(parts, item_tokens, rows, cluster, sharers) < 3:
            return None
    elif family == "fp8":
        item_tokens, rows, cluster = fp8_shape(shape)
        if any(p[2] == FP8 or (variant == WIDEST and p[2] is not CODES) for p in parts) or count % cluster:
            return None
        if len(parts) > MOST_PREFILL_PROBLEMS:
            return None
    else:
        rows, item_tokens = 4, int(shape)
        if len(parts) > MOST_PREFILL_PROBLEMS:
            return None

    def items_of(part):
        return ceil_div(part[0], 64 * rows) * ceil_div(tokens, item_tokens)

    items = sum(items_of(p) for p in parts)
    work = [(items_of(p), p[1] // stage_inputs(p)) for p in parts]
    tiles = ceil_div(tokens, item_tokens)
    traffic = sum(ceil_div(p[0], 64 * rows) * (p[1] // stage_inputs(p)) * (tokens * 128 + tiles * rows * p[2])
                  for p in parts)
    if family == "splitk":
        per_sm = max(1, 4 // (groups * rows)) if groups * rows > 1 else 5
        blocks = MULTIPROCESSORS * per_sm
        rounds = ceil_div(items, max(1, blocks // cluster if cluster <= 2 else blocks * 10 // 11 // cluster))
        neighbours = min(per_sm, ceil_div(items * cluster, MULTIPROCESSORS))
        stages = rounds * (parts[0][1] / stage_inputs(parts[0]) / count) * neighbours * groups * rows
    else:
        clusters = min(items, CLUSTERS[2 if family == "prefill" else cluster])
        rounds = ceil_div(items, clusters)
        most = max(stages for _, stages in work)
        total = sum(n * stages for n, stages in work)
        stages = (rounds * most if total == items * most else max(most, total / clusters)) / cluster
    fp8 = any(p[2] is CODES or p[2] == FP8 for p in parts)
    return [1, any(p[3] for p in parts), rounds, stages if fp8 else 0, 0 if fp8 else stages,
            traffic / 1024 / MULTIPROCESSORS if family in ("splitk", "fp8") else 0]


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
    """What the estimates choose for every problem and number of tokens, and what that loses."""

    def __init__(self, times, variants, problems_of):
        self.points = list(times)
        shape = (len(self.points), len(variants))
        self.features = np.zeros((*shape, len(TERMS)))
        self.measured = np.full(shape, np.inf)
        for i, (name, tokens) in enumerate(self.points):
            parts = problems_of[name]
            # From these counts of tokens on a launch takes as few problems as one of prefill does, for all.
            few = tokens >= 192 or parts[0][2] is CODES
            launches = ceil_div(len(parts), MOST_PREFILL_PROBLEMS) if few else 1
            for j, variant in enumerate(variants):
                measured = times[name, tokens].get(variant)
                known = features(variant, parts[:ceil_div(len(parts), launches)], tokens)
                if measured is not None and known is not None:
                    self.features[i, j] = known
                    self.measured[i, j] = measured / launches
        self.runs = np.isfinite(self.measured)
        self.losses = np.log(self.measured / self.measured.min(axis=1, keepdims=True))
        self.weights = np.array([5.0 if tokens in (128, 256) and not name.startswith("pro ") else 1.0
                                 for name, tokens in self.points])

    def estimates(self, constants):
        return np.where(self.runs, (self.features * constants).sum(axis=2), np.inf)

    def chosen(self, constants):
        """For every point the number of a variant, and the logarithm of its time over the fastest one's."""
        variants = self.estimates(constants).argmin(axis=1)
        return variants, self.losses[np.arange(len(self.points)), variants]

    def score(self, constants):
        """Large losses count most, and those of full batches of decode steps. Where variants are estimated alike the
        slowest counts, since constants are printed with four digits. Estimates far from what was measured count too:
        choices for other problems and numbers of tokens are made by them."""
        estimates = self.estimates(constants)
        alike = estimates <= 1.002 * estimates.min(axis=1, keepdims=True)
        losses = self.weights * np.where(alike, self.losses, 0.0).max(axis=1)
        errors = np.log(np.maximum(estimates[self.runs], 1e-3) / self.measured[self.runs])
        return (losses.mean() + 10 * np.maximum(0, losses - 0.01).mean() + 60 * np.maximum(0, losses - 0.06).mean()
                + 8 * (errors**2).mean())

    def refined(self, constants, tries, variants=None, only=None):
        """The constants after small random changes of those of `variants`, or of all, and of the term `only`, or of
        all, of which those that lessen the score are kept, and for a while some that do not (simulated annealing)."""
        generator = np.random.default_rng(1)
        variants = np.arange(len(constants)) if variants is None else variants
        if only is not None:  # of variants that have it, and from more than nothing, since it is multiplied
            variants = variants[(self.features[:, variants, only] > 0).any(axis=0)]
            constants = constants.copy()
            constants[variants, only] = np.maximum(constants[variants, only], 0.01)
        current, least = constants, self.score(constants)
        best, lowest = current, least
        for number in range(tries):
            tried = current.copy()
            for _ in range(generator.integers(1, 4)):
                values = tried[generator.choice(variants)]
                if only is None and generator.random() < 0.15:
                    values[0] = max(0.0, values[0] + generator.normal())
                    continue
                term = generator.choice(np.nonzero(values > 1e-6)[0]) if only is None else only
                values[term] *= math.exp(generator.normal(0, 0.12))
            found = self.score(tried)
            if found < least or generator.random() < math.exp((least - found) / (5e-4 * (1 - number / tries))):
                current, least = tried, found
                if least < lowest:
                    best, lowest = current, least
        return best

    def mended(self, constants, tries):
        """The same for the points that lose most, one after the other: of what is chosen there and of the fastest."""
        for _ in range(5):
            chosen, losses = self.chosen(constants)
            worst = losses.argmax()
            constants = self.refined(constants, tries, np.array([chosen[worst], self.losses[worst].argmin()]))
        return constants


def divide_rounds(choices, constants):
    """Where all points of a variant have equally many stages a round nothing tells rounds from stages. Then a sixth
    of the time is the round's own, about what other variants have, and stages of BF16 weights take what FP8 ones do."""
    rounds, fp8_stages = TERMS.index("round"), TERMS.index("fp8_stage")
    for j, values in enumerate(constants):
        points = choices.features[choices.runs[:, j], j]
        stages = {round(point[fp8_stages] / point[rounds], 6) for point in points}
        if len(stages) != 1 or 0 in stages:
            continue
        (stages,) = stages
        whole = values[rounds] + stages * values[fp8_stages]
        values[rounds] = whole / 6
        values[fp8_stages:fp8_stages + 2] = whole * 5 / 6 / stages


def with_codes(beside_others):
    """The problems whose weights all become CODES, or some; inputs of wo_a come as such."""
    def has(part):
        return part[2] == FP8

    return {name: [(n, k, CODES if kind == FP8 else kind, rounded) for n, k, kind, rounded in parts]
            for name, parts in PROBLEMS.items()
            if (any(map(has, parts)) and not all(map(has, parts)) if beside_others else all(map(has, parts)))}


def in_table(variant):
    """A variant as linear_costs.h names it."""
    family, shape = variant.split()
    numbers = shape
    if family == "fp8":
        tokens, rows, cluster = fp8_shape(shape)
        more = [rows, cluster] if cluster > 1 else [rows] if rows != 2 else []
        numbers = ", ".join(map(str, [tokens, *more]))
    if family == "tile":
        rows, cluster, sharers, tokens = tile_shape(shape)
        more = [sharers, tokens] if tokens > 128 else [sharers] if sharers > 1 else []
        numbers = ", ".join(map(str, [rows, cluster, *more]))
    if family == "splitk":
        tokens, rows, groups = splitk_shape(shape)
        numbers = f"{tokens}, {groups}, {rows}"
    return f"{family}_of({numbers})"


def constants_in_force(variants, table):
    """Those of linear_costs.h."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "../../src/backend/cuda/kernels/linear/linear_costs.h")
    with open(path, encoding="utf-8") as file:
        text = file.read().split(f"std::array {table} = {{")[1].split("};")[0]
    known = {name: [float(value) for value in values.split(",")]
             for name, values in re.findall(r"LinearCost\{(\w+\([^)]*\)), ([^}]*)\}", text)}
    return np.array([known[in_table(variant)] for variant in variants])


def main():
    arguments = argparse.ArgumentParser()
    kinds = arguments.add_mutually_exclusive_group()
    kinds.add_argument("--fp8", action="store_true")
    kinds.add_argument("--mixed", action="store_true")
    parts = arguments.add_mutually_exclusive_group()
    parts.add_argument("--new", metavar="PREFIX")
    parts.add_argument("--term", choices=TERMS)
    arguments.add_argument("paths", nargs="*", metavar="FILE")
    options = arguments.parse_args()
    codes = options.fp8 or options.mixed
    variants = MIXED_VARIANTS if options.mixed else FP8_VARIANTS if options.fp8 else EXACT_VARIANTS
    problems_of = with_codes(options.mixed) if codes else PROBLEMS
    table, default = (("kMixedCosts", "linear_plan_mixed_h200.csv") if options.mixed else
                      ("kFp8Costs", "linear_plan_fp8_h200.csv") if options.fp8 else
                      ("kLinearCosts", "linear_plan_h200.csv"))
    paths = options.paths or [os.path.join(os.path.dirname(os.path.abspath(__file__)), default)]
    times = read(paths, variants, problems_of)
    if not times:
        sys.exit("fit_linear_plan.py: no times of " + ", ".join(variants))
    choices = Choices(times, variants, problems_of)
    if options.term:
        term = TERMS.index(options.term)
        constants = choices.refined(constants_in_force(variants, table), TRIES // 10, only=term)
    else:
        def fitted(j):
            runs = choices.runs[:, j]
            return fit((choices.features[runs, j] / choices.measured[runs, j, None]).tolist())

        if options.new:
            new = np.array([j for j, variant in enumerate(variants) if variant.startswith(options.new)])
            if not len(new) or not choices.runs[:, new].any(axis=0).all():
                sys.exit(f"fit_linear_plan.py: --new {options.new}: no variant is named so, or one has no times")
            kept = [variant for variant in variants if not variant.startswith(options.new)]
            constants = np.zeros((len(variants), len(TERMS)))
            constants[[variants.index(variant) for variant in kept]] = constants_in_force(kept, table)
            constants[new] = [fitted(j) for j in new]
            constants = choices.refined(constants, TRIES // 3, new)
        else:
            constants = choices.mended(choices.refined(np.array([fitted(j) for j in range(len(variants))]), TRIES),
                                       TRIES // 20)
            divide_rounds(choices, constants)
    for variant, constant in zip(variants, constants):
        values = ", ".join(f"{value if value > 1e-6 else 0:.4g}" for value in constant)
        print(f"    LinearCost{{{in_table(variant)}, {values}}},")
    print("\nvariant       root mean square and largest relative residual, points, chosen")
    numbers, losses = choices.chosen(constants)
    for j, variant in enumerate(variants):
        runs = choices.runs[:, j]
        errors = choices.estimates(constants)[runs, j] / choices.measured[runs, j] - 1
        print(f"{variant:12}  {math.sqrt((errors**2).mean()):6.1%} {abs(errors).max():6.1%} {runs.sum():5} "
              f"{(numbers == j).sum():5}")
    print(f"\nchosen against fastest: {math.expm1(losses.mean()):.2%} more on average; over 2 %:")
    for i in np.argsort(-losses):
        if losses[i] > math.log(1.02):
            name, tokens = choices.points[i]
            print(f"  {name}, {tokens} tokens: {variants[numbers[i]]}, {math.expm1(losses[i]):.1%}")


if __name__ == "__main__":
    main()
