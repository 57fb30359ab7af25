// The byte format of one sequence's cache. Reading fails closed: what is not exactly as expected is refused.
//
// Numbers are little-endian. A snapshot is a header, then one section per layer and role that the
// engine has, layers ascending, roles in the order of their ids.
//
//   header    magic "DSV4SEQ\n" | u32 version | u32 sections | i64 length, tokens
//             | char profile[16], zero-padded | config fingerprint [32] | digest of the weights [32]
//             | u32 authentication | u32 zero | SHA-256 of all before it [32]
//   section   u32 role | i32 layer of the model | u32 row layout | u32 zero
//             | i64 first row | i64 rows | i64 bytes of all rows
//             | the rows, oldest first | SHA-256 of the section so far [32]
//   code      with authentication 1 only: HMAC-SHA-256 of all before it under the caller's key [32]
//
// A row is its data part followed by its scale part, without padding: blocks, slots, ring sizes and
// draft budgets leave no trace, so engines that differ in them read each other's snapshots, and equal
// caches give equal snapshots. Compressed rows and index keys are stored from row 0 to the length,
// window and state rows (row = position) as far back as the next token needs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hmac_sha256.h"
#include "base/sha256.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

inline constexpr std::uint32_t kSnapshotVersion = 2;
// Shorter keys are refused: whoever can guess one can forge.
inline constexpr std::size_t kLeastSnapshotKeyBytes = 16;

enum class SnapshotAuthentication : std::uint32_t { kNone = 0, kHmacSha256 = 1 };

struct SnapshotHeader {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t sections = 0;
  std::int64_t length = 0;
  std::array<char, 16> profile{};
  Sha256::Digest config{};
  Sha256::Digest weights{};
  std::uint32_t authentication = 0;  // SnapshotAuthentication
  std::uint32_t reserved = 0;
};
static_assert(sizeof(SnapshotHeader) == 112);

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
  Sha256::Digest config{};   // digest of every config field of the loaded layers, and which these are
  Sha256::Digest weights{};  // sampled_weights_digest
};
SnapshotIdentity snapshot_identity(const std::string& profile, const ModelConfig& config, std::int32_t first_layer,
                                   const Sha256::Digest& weights);
// kInvalidArgument for a key that is too short; empty is none.
Status check_snapshot_key(const char* operation, std::span<const std::byte> key);

// One section as an engine has it.
struct SnapshotSection {
  CacheRole role = CacheRole::kSwaKv;
  LayerId layer;  // numbering of the model
  std::uint32_t layout = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
};

// header(), then for every section begin_section(), rows() until they are complete, end_section(); then finish().
class SnapshotWriter {
 public:
  // The sink outlives the writer; its failures are returned. With a key the snapshot is authenticated.
  SnapshotWriter(const SnapshotSink& sink, std::span<const std::byte> key) : sink_(sink) {
    if (!key.empty()) code_.emplace(key);
  }

  Status header(const SnapshotIdentity& identity, std::int64_t length, std::size_t sections);
  Status begin_section(const SnapshotSection& section);
  Status rows(std::span<const std::byte> rows) { return write(rows); }
  Status end_section();
  Status finish();

 private:
  Status give(std::span<const std::byte> bytes);   // to the sink
  Status write(std::span<const std::byte> bytes);  // what counts into the checksum
  Status end_part();

  const SnapshotSink& sink_;
  Sha256 digest_;
  std::optional<HmacSha256> code_;
};

std::int64_t snapshot_bytes(std::span<const SnapshotSection> sections, std::span<const std::byte> key);

// Checks the authentication code, then the header. kBadInput for damage and for a code that is missing or not of
// `key`, kInvalidArgument for a key that is missing, kUnsupported for what this engine does not have (version,
// profile, config, weights, a length above max_length).
struct SnapshotContent {
  std::int64_t length = 0;
  std::span<const std::byte> bytes;  // header and sections
};
Result<SnapshotContent> read_snapshot_header(std::span<const std::byte> snapshot, const SnapshotIdentity& accepted,
                                             std::int64_t max_length, std::span<const std::byte> key);

// Checks everything after the header, checksums included, against `expected`; the rows of each section
// in its order. Errors name the section, what it holds and what is accepted.
Result<std::vector<std::span<const std::byte>>> read_snapshot_sections(const SnapshotContent& snapshot,
                                                                       std::span<const SnapshotSection> expected);

}  // namespace dsv4rt
