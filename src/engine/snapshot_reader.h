// Reads a snapshot, whole piece and increments, in order, and checks everything on the way. The format is in
// sequence_snapshot.h. Errors name the piece if there are several, the section, what it holds and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hmac_sha256.h"
#include "base/sha256.h"
#include "dsv4rt/engine.h"
#include "engine/sequence_snapshot.h"

namespace dsv4rt {

// Where bytes come from, in order.
class SnapshotInput {
 public:
  virtual ~SnapshotInput() = default;
  // The next `bytes` bytes, fewer only where there are no more; valid until the next call.
  virtual Result<std::span<const std::byte>> take(std::size_t bytes) = 0;
};

class SnapshotMemory final : public SnapshotInput {
 public:
  explicit SnapshotMemory(std::span<const std::byte> snapshot) : rest_(snapshot) {}
  Result<std::span<const std::byte>> take(std::size_t bytes) override;

 private:
  std::span<const std::byte> rest_;
};

// Asks the source until it has given what is wanted or ended.
class SnapshotStream final : public SnapshotInput {
 public:
  explicit SnapshotStream(const SnapshotSource& source) : source_(source) {}
  Result<std::span<const std::byte>> take(std::size_t bytes) override;

 private:
  const SnapshotSource& source_;  // outlives this
  std::vector<std::byte> buffer_;
  bool ended_ = false;
};

struct SnapshotPiece {
  std::int64_t length = 0;
  std::int64_t base_length = 0;  // 0 for the whole piece
  Sha256::Digest digest{};       // known when the piece has ended
};

// What a reader is to believe.
enum class SnapshotChecks : std::uint8_t {
  kAll,
  kDone,  // the same bytes have passed all checks before: checksums and codes are not computed again
};

// For every piece next_piece(), then for every section that the engine has at its length begin_section(), rows() until
// they are complete and end_section(), then end_piece().
class SnapshotReader {
 public:
  // What is referred to outlives the reader. kBadInput for damage and for a code that is missing or not of `key`,
  // kInvalidArgument for a key that is missing, kUnsupported for what the engine does not have (version, profile,
  // config, weights, a length above max_length), and what the input fails with.
  SnapshotReader(SnapshotInput& input, const SnapshotIdentity& accepted, std::int64_t max_length,
                 std::span<const std::byte> key, SnapshotChecks checks)
      : input_(input), accepted_(accepted), max_length_(max_length), key_(key), checks_(checks) {}

  // Nothing when the input has ended, which it may only after a piece.
  Result<std::optional<SnapshotPiece>> next_piece();
  Status begin_section(const SnapshotSection& expected);
  // The next rows, `bytes` bytes of them; valid until the next call.
  Result<std::span<const std::byte>> rows(std::int64_t bytes);
  Status end_section();
  // After the last section that the engine has: refuses pieces with more. `expected` sections were read.
  Result<SnapshotPiece> end_piece();

 private:
  [[nodiscard]] Status bad(const std::string& message) const;
  [[nodiscard]] Status unsupported(const std::string& message) const;
  [[nodiscard]] std::string piece_name() const;
  [[nodiscard]] Status check_header(const SnapshotHeader& header) const;
  [[nodiscard]] Status check_authentication(std::uint32_t authentication) const;
  [[nodiscard]] Status check_base(const SnapshotBase& base) const;
  [[nodiscard]] Status check_section(const SnapshotSectionHeader& found, const SnapshotSection* expected) const;
  Result<SnapshotSectionHeader> section_header();
  // Bytes that count into checksum and code.
  Result<std::span<const std::byte>> take(const std::string& what, std::size_t bytes);
  // Compares the checksum of a part with what follows it.
  Status check_part(const std::string& part);

  SnapshotInput& input_;
  const SnapshotIdentity& accepted_;
  std::int64_t max_length_;
  std::span<const std::byte> key_;
  SnapshotChecks checks_;
  std::int32_t pieces_ = 0;     // begun
  SnapshotPiece before_;        // the piece before, if pieces_ > 1
  SnapshotPiece piece_;         // the present one
  std::uint32_t sections_ = 0;  // number that the present piece gives
  std::uint32_t section_ = 0;   // begun in the present piece
  std::string section_name_;
  Sha256 part_;
  Sha256 checksums_;
  std::optional<HmacSha256> code_;
};

}  // namespace dsv4rt
