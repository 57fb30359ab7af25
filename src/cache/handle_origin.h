// Where an engine's handles begin counting, so that those of one engine mean nothing to another.
#pragma once

#include <cstdint>

namespace dsv4rt {

struct HandleOrigin {
  std::uint32_t first_generation = 1;  // generation of every slot's first sequence; never 0
  std::uint64_t steps_before = 0;      // serial before the first step's

  // Generations of engine number k begin at k steps of the golden ratio around the circle of 2^32, which keeps any N
  // engines at least about 2^32 / (3 N) apart: ids of two engines could only be equal after a slot was used so many
  // times. Steps begin 2^40 apart.
  static constexpr HandleOrigin of_engine(std::uint32_t number) noexcept {
    const std::uint32_t generation = 1U + number * 0x9e3779b1U;
    return {.first_generation = generation == 0 ? 1U : generation,
            .steps_before = std::uint64_t{number & 0xffffffU} << 40U};
  }
};

}  // namespace dsv4rt
