// The byte format of one sequence's cache, and its writer. Readers (snapshot_reader.h) fail closed: what is not exactly
// as expected is refused.
//
// Numbers are little-endian. A snapshot is a piece that is whole, then any number of increments, oldest first. A piece
// is a header, then one section per layer and role that the engine has, layers ascending, roles in the order of their
// ids.
//
//   header    magic "DSV4SEQ\n" | u32 version | u32 sections | i64 length, tokens
//             | char profile[16], zero-padded | config fingerprint [32] | digest of the weights [32]
//             | u32 authentication | u32 zero
//             | version 3 only: i64 base length, tokens | digest of the piece before [32]
//             | SHA-256 of all before it [32]
//   section   u32 role | i32 layer of the model | u32 row layout | u32 zero
//             | i64 first row | i64 rows | i64 bytes of all rows
//             | the rows, oldest first | SHA-256 of the section so far [32]
//   code      with authentication 1 only: HMAC-SHA-256 of all of the piece before it under the caller's key [32]
//
// Version 2 is a whole piece, version 3 an increment. The digest of a piece is the SHA-256 of its checksums, header
// first: each increment names what it adds to.
//
// A row is its data part followed by its scale part, without padding: blocks, slots, ring sizes and
// draft budgets leave no trace, so engines that differ in them read each other's snapshots, and equal
// caches give equal snapshots. Compressed rows and index keys are stored up to the length, from row 0 or from the
// first that the piece before lacks; window and state rows (row = position) as far back as the next token needs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/hmac_sha256.h"
#include "base/sha256.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

inline constexpr std::array<char, 8> kSnapshotMagic = {'D', 'S', 'V', '4', 'S', 'E', 'Q', '\n'};
inline constexpr std::uint32_t kSnapshotVersion = 2;
inline constexpr std::uint32_t kIncrementVersion = 3;
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
// With its digest.
inline constexpr std::int64_t kSnapshotHeaderBytes = sizeof(SnapshotHeader) + sizeof(Sha256::Digest);

// What an increment adds to, the piece before; follows its header.
struct SnapshotBase {
  std::int64_t length = 0;
  Sha256::Digest digest{};
};
static_assert(sizeof(SnapshotBase) == 40);

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
std::optional<CacheRole> snapshot_role(std::uint32_t id) noexcept;
std::string snapshot_layout_name(std::uint32_t id);  // empty for an id that the format does not have
std::array<char, 16> padded_profile(std::string_view name);
inline constexpr std::uint32_t kSnapshotStateLayout = 33;  // FP32 [2][width]: kv, then score + ape

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

// A piece: header(), then for every section begin_section(), rows() until they are complete, end_section(); then
// finish().
class SnapshotWriter {
 public:
  // The sink outlives the writer; its failures are returned. With a key the piece is authenticated.
  SnapshotWriter(const SnapshotSink& sink, std::span<const std::byte> key) : sink_(sink) {
    if (!key.empty()) code_.emplace(key);
  }

  // Without a base the piece is whole.
  Status header(const SnapshotIdentity& identity, std::int64_t length, std::size_t sections,
                const std::optional<SnapshotBase>& base);
  Status begin_section(const SnapshotSection& section);
  Status rows(std::span<const std::byte> rows) { return write(rows); }
  Status end_section();
  // The digest of the piece.
  Result<Sha256::Digest> finish();

 private:
  Status give(std::span<const std::byte> bytes);   // to the sink
  Status write(std::span<const std::byte> bytes);  // what counts into the checksum
  Status end_part();

  const SnapshotSink& sink_;
  Sha256 digest_;
  Sha256 checksums_;
  std::optional<HmacSha256> code_;
};

// Bytes of a piece.
std::int64_t snapshot_bytes(std::span<const SnapshotSection> sections, bool increment, std::span<const std::byte> key);

}  // namespace dsv4rt
