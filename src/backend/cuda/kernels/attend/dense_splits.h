// How the rows of a token that attends to many divide into KV splits, for the dense kernel (dense_plan.cuh), and the
// splits into runs.
#pragma once

#include <cstdint>

#include "backend/attend_weights.h"

namespace dsv4rt::cuda {

// What a split of 64 heads leaves: FP32 sums of values, a power and a sum of weights for each head.
inline constexpr std::int64_t kSplitBytes = 64 * (512 * 4 + 8);
// Scratch for them; a step of more tokens takes them in turn.
inline constexpr std::int64_t kMostDenseBytes = std::int64_t{256} << 20;

// Whole tiles of 64 rows, as evenly as they go. The bounds follow from the token's own rows alone, and so do its sums:
// those of a run's splits are added first, then those of the runs, whether or not a block has a whole run to itself.
struct DenseSplits {
  static constexpr std::int32_t kTile = 64;
  static constexpr std::int32_t kMost = 16;
  static constexpr std::int32_t kFewestTiles = 4;  // tiles of a split, at least
  static constexpr std::int32_t kMostRuns = 4;

  std::int32_t tiles = 0;  // tiles of the token, the last one perhaps not full
  std::int32_t count = 0;
  std::int32_t run = 0;  // splits of a run; the last one may have fewer

  constexpr explicit DenseSplits(std::int32_t rows)
      : tiles((rows + kTile - 1) / kTile), count(splits_of(tiles)), run(longest_run(count)) {}

  // Tile at which split `split` starts; of split `count`, their number.
  [[nodiscard]] constexpr std::int32_t first_tile(std::int32_t split) const { return split * tiles / count; }
  [[nodiscard]] constexpr std::int32_t runs() const { return (count + run - 1) / run; }

  // Splits of a run of a token that has so many, or fewer.
  static constexpr std::int32_t longest_run(std::int32_t splits) { return (splits + kMostRuns - 1) / kMostRuns; }
  // Most runs of tokens with up to so many splits; those with many rows, of which the dense kernel's are.
  static constexpr std::int32_t most_runs(std::int32_t splits) {
    std::int32_t most = 1;
    for (std::int32_t n = DenseSplits(kMaximumRows + 1).count; n <= splits; ++n) {
      const std::int32_t runs = (n + longest_run(n) - 1) / longest_run(n);
      most = runs > most ? runs : most;
    }
    return most;
  }

  // Splits that a token of at most so many rows can have.
  static constexpr std::int32_t most(std::int64_t rows) {
    const std::int64_t fewest = std::int64_t{kFewestTiles} * kTile;
    const std::int64_t splits = (rows + fewest - 1) / fewest;
    return splits < kMost ? static_cast<std::int32_t>(splits) : kMost;
  }

 private:
  static constexpr std::int32_t splits_of(std::int32_t tiles) {
    // No std::max, which takes addresses: static members have none on a device.
    const std::int32_t least = (tiles + kMost - 1) / kMost;
    const std::int32_t each = least > kFewestTiles ? least : kFewestTiles;
    return (tiles + each - 1) / each;
  }
};

}  // namespace dsv4rt::cuda
