#include "engine/sequence_snapshot.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "cache/cache_layout.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kSectionBytes = sizeof(SnapshotSectionHeader) + sizeof(Sha256::Digest);  // besides rows

constexpr std::array kRoles = {CacheRole::kSwaKv,    CacheRole::kCsaKv,      CacheRole::kIndexK,  CacheRole::kHcaKv,
                               CacheRole::kCsaState, CacheRole::kIndexState, CacheRole::kHcaState};
static_assert(kRoles.size() == kCacheRoleCount);
constexpr std::array kRowFormats = {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16};
constexpr std::array kKeyFormats = {IndexKeyFormat::kMxfp4, IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8,
                                    IndexKeyFormat::kBf16};
constexpr std::uint32_t kFirstRole = 1;
constexpr std::uint32_t kFirstRowLayout = 1;
constexpr std::uint32_t kFirstKeyLayout = 17;

template <class Table, class Value>
std::uint32_t id_in(const Table& table, std::uint32_t first, Value value) noexcept {
  return first + static_cast<std::uint32_t>(std::find(table.begin(), table.end(), value) - table.begin());
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

std::uint32_t snapshot_role_id(CacheRole role) noexcept {
  return id_in(kRoles, kFirstRole, role);
}
std::uint32_t snapshot_layout_id(RowFormat format) noexcept {
  return id_in(kRowFormats, kFirstRowLayout, format);
}
std::uint32_t snapshot_layout_id(IndexKeyFormat format) noexcept {
  return id_in(kKeyFormats, kFirstKeyLayout, format);
}

std::optional<CacheRole> snapshot_role(std::uint32_t id) noexcept {
  if (id < kFirstRole || id >= kFirstRole + kRoles.size()) return std::nullopt;
  return kRoles[id - kFirstRole];
}

std::string snapshot_layout_name(std::uint32_t id) {
  if (id >= kFirstRowLayout && id < kFirstRowLayout + kRowFormats.size()) {
    return "row format " + std::string(row_format_name(kRowFormats[id - kFirstRowLayout]));
  }
  if (id >= kFirstKeyLayout && id < kFirstKeyLayout + kKeyFormats.size()) {
    return "index key format " + std::string(index_key_format_name(kKeyFormats[id - kFirstKeyLayout]));
  }
  return id == kSnapshotStateLayout ? "compressor state" : "";
}

std::array<char, 16> padded_profile(std::string_view name) {
  std::array<char, 16> padded{};
  DSV4RT_CHECK(name.size() <= padded.size());
  std::copy(name.begin(), name.end(), padded.begin());
  return padded;
}

SnapshotIdentity snapshot_identity(const std::string& profile, const ModelConfig& config, std::int32_t first_layer,
                                   const Sha256::Digest& weights) {
  Sha256 digest;
  const auto add = [&digest](auto... values) { (digest.update(bytes_of(values)), ...); };
  add(std::int64_t{first_layer}, config.hidden_size, config.num_hidden_layers, config.num_attention_heads,
      config.q_lora_rank, config.o_lora_rank, config.o_groups, config.sliding_window, config.index_n_heads,
      config.index_topk, config.rms_norm_eps, config.rope_theta, config.compress_rope_theta,
      config.max_position_embeddings);
  add(std::int64_t{config.rope_scaling.has_value()});
  if (config.rope_scaling) {
    const YarnScaling& yarn = *config.rope_scaling;
    add(yarn.factor, yarn.beta_fast, yarn.beta_slow, yarn.original_max_position_embeddings);
  }
  digest.update(std::as_bytes(std::span(config.compress_ratios)));
  return {.profile = profile, .config = digest.bytes(), .weights = weights};
}

Status check_snapshot_key(const char* operation, std::span<const std::byte> key) {
  if (key.empty() || key.size() >= kLeastSnapshotKeyBytes) return {};
  return {StatusCode::kInvalidArgument, std::string(operation) + ": key of " + std::to_string(key.size()) +
                                            " bytes; accepted: none, or " + std::to_string(kLeastSnapshotKeyBytes) +
                                            " and more"};
}

// ---- Writing ------------------------------------------------------------------------------------

Status SnapshotWriter::give(std::span<const std::byte> bytes) {
  if (code_) code_->update(bytes);
  return sink_(bytes);
}

Status SnapshotWriter::write(std::span<const std::byte> bytes) {
  digest_.update(bytes);
  return give(bytes);
}

Status SnapshotWriter::end_part() {
  const Sha256::Digest checksum = std::exchange(digest_, Sha256()).bytes();
  checksums_.update(checksum);
  return give(checksum);
}

Result<Sha256::Digest> SnapshotWriter::finish() {
  if (code_) {
    const Sha256::Digest code = code_->finish();
    DSV4RT_RETURN_IF_ERROR(sink_(code));
  }
  return checksums_.bytes();
}

Status SnapshotWriter::header(const SnapshotIdentity& identity, std::int64_t length, std::size_t sections,
                              const std::optional<SnapshotBase>& base) {
  const SnapshotHeader header{.magic = kSnapshotMagic,
                              .version = base ? kIncrementVersion : kSnapshotVersion,
                              .sections = static_cast<std::uint32_t>(sections),
                              .length = length,
                              .profile = padded_profile(identity.profile),
                              .config = identity.config,
                              .weights = identity.weights,
                              .authentication = static_cast<std::uint32_t>(code_ ? SnapshotAuthentication::kHmacSha256
                                                                                 : SnapshotAuthentication::kNone),
                              .reserved = 0};
  DSV4RT_RETURN_IF_ERROR(write(bytes_of(header)));
  if (base) DSV4RT_RETURN_IF_ERROR(write(bytes_of(*base)));
  return end_part();
}

Status SnapshotWriter::begin_section(const SnapshotSection& section) {
  const SnapshotSectionHeader header{.role = snapshot_role_id(section.role),
                                     .layer = section.layer.value,
                                     .layout = section.layout,
                                     .reserved = 0,
                                     .first_row = section.first_row,
                                     .rows = section.rows,
                                     .bytes = section.rows * section.row_bytes};
  return write(bytes_of(header));
}

Status SnapshotWriter::end_section() {
  return end_part();
}

std::int64_t snapshot_bytes(std::span<const SnapshotSection> sections, bool increment, std::span<const std::byte> key) {
  std::int64_t bytes =
      kSnapshotHeaderBytes + (increment ? sizeof(SnapshotBase) : 0) + (key.empty() ? 0 : sizeof(Sha256::Digest));
  for (const SnapshotSection& section : sections) bytes += kSectionBytes + section.rows * section.row_bytes;
  return bytes;
}

}  // namespace dsv4rt
