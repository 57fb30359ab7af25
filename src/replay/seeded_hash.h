// Numbers that depend on a seed and on what they are for, never on the order in which they are asked for.
#pragma once

#include <cstdint>

namespace dsv4rt::replay {

// The finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators): a bijection.
constexpr std::uint64_t scramble(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// What numbers are for; streams of one seed are unrelated.
enum class HashStream : std::uint64_t {
  kBlockTokens = 1,
  kOwnTokens,
  kOutputTokens,
  kWrongDrafts,
  kAcceptance,
  kJitter,
  kHiddenRows
};

constexpr std::uint64_t stream_key(std::uint64_t seed, HashStream stream, std::uint64_t of) noexcept {
  return scramble(scramble(scramble(seed) ^ static_cast<std::uint64_t>(stream)) ^ of);
}

constexpr std::uint64_t seeded_hash(std::uint64_t key, std::uint64_t index) noexcept {
  return scramble(key ^ scramble(index));
}

// In [0, 1).
constexpr double unit_value(std::uint64_t hash) noexcept {
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

}  // namespace dsv4rt::replay
