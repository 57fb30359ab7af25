// The byte format of one sequence's cache. Reading fails closed: what is not exactly as expected is refused.
//
// Numbers are little-endian. A snapshot is a header, then one section per layer and role that the
// engine has, layers ascending, roles in the order of their ids.
//
//   header    magic "DSV4SEQ\n" | u32 version | u32 sections | i64 length, tokens
//             | char profile[16], zero-padded | config fingerprint [32] | SHA-256 of all before it [32]
//   section   u32 role | i32 layer of the model | u32 row layout | u32 zero
//             | i64 first row | i64 rows | i64 bytes of all rows
//             | the rows, oldest first | SHA-256 of the section so far [32]
//
// A row is its data part followed by its scale part, without padding: blocks, slots, ring sizes and
// draft budgets leave no trace, so engines that differ in them read each other's snapshots, and equal
// caches give equal snapshots. Compressed rows and index keys are stored from row 0 to the length,
// window and state rows (row = position) as far back as the next token needs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

inline constexpr std::uint32_t kSnapshotVersion = 1;

struct SnapshotHeader {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t sections = 0;
  std::int64_t length = 0;
  std::array<char, 16> profile{};
  Sha256::Digest config{};
};
static_assert(sizeof(SnapshotHeader) == 72);

struct SnapshotSectionHeader {
  std::uint32_t role = 0;
  std::int32_t layer = 0;
  std::uint32_t layout = 0;
  std::uint32_t reserved = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
};
static_assert(sizeof(SnapshotSectionHeader) == 40);

// Ids that the format fixes for ever.
std::uint32_t snapshot_role_id(CacheRole role) noexcept;           // 1 to 7
std::uint32_t snapshot_layout_id(RowFormat format) noexcept;       // 1 to 4
std::uint32_t snapshot_layout_id(IndexKeyFormat format) noexcept;  // 17 to 20
inline constexpr std::uint32_t kSnapshotStateLayout = 33;          // FP32 [2][width]: kv, then score + ape

// What the writer's and the reader's engine must share besides the sections.
struct SnapshotIdentity {
  std::string profile;
  Sha256::Digest config{};  // digest of every config field of the loaded layers, and which these are
};
SnapshotIdentity snapshot_identity(const std::string& profile, const ModelConfig& config, std::int32_t first_layer);

// One section as an engine has it.
struct SnapshotSection {
  CacheRole role = CacheRole::kSwaKv;
  LayerId layer;  // numbering of the model
  std::uint32_t layout = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
};

// header(), then for every section begin_section(), rows() until they are complete, end_section().
class SnapshotWriter {
 public:
  // The sink outlives the writer; its failures are returned.
  explicit SnapshotWriter(const SnapshotSink& sink) : sink_(sink) {}

  Status header(const SnapshotIdentity& identity, std::int64_t length, std::size_t sections);
  Status begin_section(const SnapshotSection& section);
  Status rows(std::span<const std::byte> rows) { return write(rows); }
  Status end_section();

 private:
  Status write(std::span<const std::byte> bytes);  // what counts into the checksum
  Status end_part();

  const SnapshotSink& sink_;
  Sha256 digest_;
};

std::int64_t snapshot_bytes(std::span<const SnapshotSection> sections);

// Checks the header: kBadInput for damage, kUnsupported for what this engine does not have (version,
// profile, config, a length above max_length). Gives the length.
Result<std::int64_t> read_snapshot_header(std::span<const std::byte> snapshot, const SnapshotIdentity& accepted,
                                          std::int64_t max_length);

// Checks everything after the header, checksums included, against `expected`; the rows of each section
// in its order. Errors name the section, what it holds and what is accepted.
Result<std::vector<std::span<const std::byte>>> read_snapshot_sections(std::span<const std::byte> snapshot,
                                                                       std::span<const SnapshotSection> expected);

}  // namespace dsv4rt
