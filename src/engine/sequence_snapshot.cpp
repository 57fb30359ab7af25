#include "engine/sequence_snapshot.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "base/try.h"
#include "cache/cache_layout.h"
#include "layout/bytes.h"

namespace dsv4rt {
namespace {

constexpr std::array<char, 8> kMagic = {'D', 'S', 'V', '4', 'S', 'E', 'Q', '\n'};
constexpr std::int64_t kHeaderBytes = sizeof(SnapshotHeader) + sizeof(Sha256::Digest);
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

Status bad(std::string message) {
  return {StatusCode::kBadInput, "snapshot: " + std::move(message)};
}
Status unsupported(std::string message) {
  return {StatusCode::kUnsupported, "snapshot: " + std::move(message)};
}

// Empty for an id that the format does not have.
std::string layout_name(std::uint32_t id) {
  if (id >= kFirstRowLayout && id < kFirstRowLayout + kRowFormats.size()) {
    return "row format " + std::string(row_format_name(kRowFormats[id - kFirstRowLayout]));
  }
  if (id >= kFirstKeyLayout && id < kFirstKeyLayout + kKeyFormats.size()) {
    return "index key format " + std::string(index_key_format_name(kKeyFormats[id - kFirstKeyLayout]));
  }
  return id == kSnapshotStateLayout ? "compressor state" : "";
}

std::string region_name(CacheRole role, std::int32_t layer) {
  return std::string(cache_role_name(role)) + " of layer " + std::to_string(layer);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::array<char, 16> padded_profile(std::string_view name) {
  std::array<char, 16> padded{};
  DSV4RT_CHECK(name.size() <= padded.size());
  std::copy(name.begin(), name.end(), padded.begin());
  return padded;
}

// The code is checked before anything that it covers is believed, but for what says whether there is one.
Result<std::span<const std::byte>> without_code(std::span<const std::byte> snapshot, std::uint32_t authentication,
                                                std::span<const std::byte> key) {
  if (authentication == static_cast<std::uint32_t>(SnapshotAuthentication::kNone)) {
    if (key.empty()) return snapshot;
    return bad("header: nothing authenticates it, and a key was given that would");
  }
  if (authentication != static_cast<std::uint32_t>(SnapshotAuthentication::kHmacSha256)) {
    return unsupported("header: authentication " + std::to_string(authentication) + "; accepted: 0 (none), 1 (HMAC)");
  }
  if (key.empty()) {
    return Status{StatusCode::kInvalidArgument,
                  "snapshot: it is authenticated; accepted: with its key only (SnapshotOptions::key)"};
  }
  if (snapshot.size() < kHeaderBytes + sizeof(Sha256::Digest)) return bad("authentication code: cut off");
  const auto content = snapshot.first(snapshot.size() - sizeof(Sha256::Digest));
  HmacSha256 code(key);
  code.update(content);
  if (equal_codes(code.finish(), load_bytes<Sha256::Digest>(snapshot.data() + content.size()))) return content;
  return bad("authentication code: not that of these bytes under the given key");
}

bool checksum_matches(std::span<const std::byte> content, std::span<const std::byte> checksum) {
  Sha256 digest;
  digest.update(content);
  const Sha256::Digest actual = digest.bytes();
  return std::equal(actual.begin(), actual.end(), checksum.begin(), checksum.end());
}

// The section's header against what the engine has in its place.
Status check_section(const SnapshotSectionHeader& found, const std::string& name, const SnapshotSection* expected) {
  if (found.role < kFirstRole || found.role >= kFirstRole + kRoles.size()) {
    return unsupported(name + ": role id " + std::to_string(found.role) + "; accepted: " + std::to_string(kFirstRole) +
                       " to " + std::to_string(kFirstRole + kRoles.size() - 1));
  }
  const std::string region = region_name(kRoles[found.role - kFirstRole], found.layer);
  const std::string layout = layout_name(found.layout);
  if (layout.empty()) {
    return unsupported(name + " (" + region + "): row layout id " + std::to_string(found.layout) +
                       "; accepted: 1 to 4 (rows), 17 to 20 (index keys), 33 (compressor state)");
  }
  if (expected == nullptr) return bad(name + " (" + region + ") is one more than this engine's layers have");
  const std::string wanted = region_name(expected->role, expected->layer.value);
  if (region != wanted) return bad(name + " is " + region + "; accepted in its place: " + wanted);
  if (found.layout != expected->layout) {
    return unsupported(name + " (" + region + "): " + layout + "; accepted: " + layout_name(expected->layout));
  }
  const std::pair<const char*, std::array<std::int64_t, 2>> fields[] = {
      {"reserved", {found.reserved, 0}},
      {"first row", {found.first_row, expected->first_row}},
      {"rows", {found.rows, expected->rows}},
      {"bytes", {found.bytes, expected->rows * expected->row_bytes}},
  };
  for (const auto& [field, values] : fields) {
    if (values[0] == values[1]) continue;
    return bad(name + " (" + region + "): " + field + " = " + std::to_string(values[0]) +
               "; accepted at this length: " + std::to_string(values[1]));
  }
  return {};
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
  return give(checksum);
}

Status SnapshotWriter::finish() {
  if (!code_) return {};
  const Sha256::Digest code = code_->finish();
  return sink_(code);
}

Status SnapshotWriter::header(const SnapshotIdentity& identity, std::int64_t length, std::size_t sections) {
  const SnapshotHeader header{.magic = kMagic,
                              .version = kSnapshotVersion,
                              .sections = static_cast<std::uint32_t>(sections),
                              .length = length,
                              .profile = padded_profile(identity.profile),
                              .config = identity.config,
                              .weights = identity.weights,
                              .authentication = static_cast<std::uint32_t>(code_ ? SnapshotAuthentication::kHmacSha256
                                                                                 : SnapshotAuthentication::kNone),
                              .reserved = 0};
  DSV4RT_RETURN_IF_ERROR(write(bytes_of(header)));
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

std::int64_t snapshot_bytes(std::span<const SnapshotSection> sections, std::span<const std::byte> key) {
  std::int64_t bytes = kHeaderBytes + (key.empty() ? 0 : sizeof(Sha256::Digest));
  for (const SnapshotSection& section : sections) bytes += kSectionBytes + section.rows * section.row_bytes;
  return bytes;
}

// ---- Reading ------------------------------------------------------------------------------------

Result<SnapshotContent> read_snapshot_header(std::span<const std::byte> snapshot, const SnapshotIdentity& accepted,
                                             std::int64_t max_length, std::span<const std::byte> key) {
  if (snapshot.size() < kHeaderBytes) {
    return bad("header: " + std::to_string(snapshot.size()) + " bytes are all there is; a header has " +
               std::to_string(kHeaderBytes));
  }
  const auto header = load_bytes<SnapshotHeader>(snapshot.data());
  if (header.magic != kMagic) return bad("header: the first 8 bytes are not DSV4SEQ\\n");
  if (header.version != kSnapshotVersion) {
    return unsupported("header: version " + std::to_string(header.version) +
                       "; accepted: " + std::to_string(kSnapshotVersion) +
                       (header.version == 1 ? " (version 1 does not say whose weights computed it)" : ""));
  }
  if (!checksum_matches(snapshot.first(sizeof header), snapshot.subspan(sizeof header, sizeof(Sha256::Digest)))) {
    return bad("header: checksum does not match");
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::span<const std::byte> content, without_code(snapshot, header.authentication, key));
  if (header.reserved != 0) return bad("header: reserved = " + std::to_string(header.reserved) + "; accepted: 0");
  const std::string profile(header.profile.begin(), std::find(header.profile.begin(), header.profile.end(), '\0'));
  if (profile != accepted.profile) {
    return unsupported("header: profile '" + printable(profile) + "'; accepted: '" + printable(accepted.profile) + "'");
  }
  if (header.profile != padded_profile(profile)) {
    return bad("header: the name of profile " + quote(profile) + " is not padded with zeros");
  }
  if (header.config != accepted.config) {
    return unsupported("header: config fingerprint " + hex_text(header.config) +
                       "; accepted: " + hex_text(accepted.config) + " (config and layers of this engine)");
  }
  if (header.weights != accepted.weights) {
    return unsupported("header: weights " + hex_text(header.weights) + "; accepted: " + hex_text(accepted.weights) +
                       " (weights of this engine: names, encodings and values of the loaded layers)");
  }
  if (header.length < 0) return bad("header: length = " + std::to_string(header.length) + "; accepted: 0 or more");
  if (header.length > max_length) {
    return unsupported("header: length = " + std::to_string(header.length) + "; accepted: up to " +
                       std::to_string(max_length) + " (max_context_tokens)");
  }
  return SnapshotContent{.length = header.length, .bytes = content};
}

Result<std::vector<std::span<const std::byte>>> read_snapshot_sections(const SnapshotContent& snapshot,
                                                                       std::span<const SnapshotSection> expected) {
  const std::uint32_t sections = load_bytes<SnapshotHeader>(snapshot.bytes.data()).sections;
  std::span<const std::byte> rest = snapshot.bytes.subspan(kHeaderBytes);
  std::vector<std::span<const std::byte>> rows;
  for (std::uint32_t i = 0; i < sections; ++i) {
    const std::string name = "section " + std::to_string(i);
    if (rest.size() < kSectionBytes) {
      return bad(name + ": ends after " + std::to_string(rest.size()) + " bytes; its header and checksum take " +
                 std::to_string(kSectionBytes));
    }
    const auto header = load_bytes<SnapshotSectionHeader>(rest.data());
    DSV4RT_RETURN_IF_ERROR(check_section(header, name, i < expected.size() ? &expected[i] : nullptr));
    const std::string region = name + " (" + region_name(expected[i].role, expected[i].layer.value) + ")";
    const auto content = sizeof header + static_cast<std::size_t>(header.bytes);
    if (rest.size() < content + sizeof(Sha256::Digest)) {
      return bad(region + ": ends after " + std::to_string(rest.size()) + " bytes; it takes " +
                 std::to_string(content + sizeof(Sha256::Digest)));
    }
    if (!checksum_matches(rest.first(content), rest.subspan(content, sizeof(Sha256::Digest)))) {
      return bad(region + ": checksum does not match");
    }
    rows.push_back(rest.subspan(sizeof header, content - sizeof header));
    rest = rest.subspan(content + sizeof(Sha256::Digest));
  }
  if (rows.size() < expected.size()) {
    const SnapshotSection& missing = expected[rows.size()];
    return bad("section " + std::to_string(rows.size()) +
               ": missing; accepted: " + region_name(missing.role, missing.layer.value));
  }
  if (!rest.empty()) return bad(std::to_string(rest.size()) + " bytes follow the last section");
  return rows;
}

}  // namespace dsv4rt
