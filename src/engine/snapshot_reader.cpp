#include "engine/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/message_text.h"
#include "base/try.h"
#include "cache/cache_layout.h"
#include "layout/bytes.h"

namespace dsv4rt {
namespace {

std::string region_name(CacheRole role, std::int32_t layer) {
  return std::string(cache_role_name(role)) + " of layer " + std::to_string(layer);
}

}  // namespace

// ---- Where bytes come from ----------------------------------------------------------------------

Result<std::span<const std::byte>> SnapshotMemory::take(std::size_t bytes) {
  const auto taken = rest_.first(std::min(bytes, rest_.size()));
  rest_ = rest_.subspan(taken.size());
  return taken;
}

Result<std::span<const std::byte>> SnapshotStream::take(std::size_t bytes) {
  buffer_.resize(bytes);
  std::size_t filled = 0;
  while (filled < bytes && !ended_) {
    const std::span<std::byte> rest = std::span(buffer_).subspan(filled);
    DSV4RT_ASSIGN_OR_RETURN(const std::size_t given, source_(rest));
    if (given > rest.size()) {
      return Status{StatusCode::kInvalidArgument, "snapshot: the source says it gave " + std::to_string(given) +
                                                      " bytes; accepted: up to the " + std::to_string(rest.size()) +
                                                      " asked for, 0 at the end"};
    }
    ended_ = given == 0;
    filled += given;
  }
  return std::span<const std::byte>(buffer_).first(filled);
}

// ---- Errors -------------------------------------------------------------------------------------

std::string SnapshotReader::piece_name() const {
  return pieces_ > 1 ? "snapshot: increment " + std::to_string(pieces_ - 1) + ": " : "snapshot: ";
}
Status SnapshotReader::bad(const std::string& message) const {
  return {StatusCode::kBadInput, piece_name() + message};
}
Status SnapshotReader::unsupported(const std::string& message) const {
  return {StatusCode::kUnsupported, piece_name() + message};
}

// ---- Bytes --------------------------------------------------------------------------------------

Result<std::span<const std::byte>> SnapshotReader::take(const std::string& what, std::size_t bytes) {
  DSV4RT_ASSIGN_OR_RETURN(const auto taken, input_.take(bytes));
  if (taken.size() < bytes) {
    return bad(what + ": cut off, " + std::to_string(bytes - taken.size()) + " bytes more are needed");
  }
  if (checks_ == SnapshotChecks::kAll) {
    part_.update(taken);
    if (code_) code_->update(taken);
  }
  return taken;
}

Status SnapshotReader::check_part(const std::string& part) {
  DSV4RT_ASSIGN_OR_RETURN(const auto stored, input_.take(sizeof(Sha256::Digest)));
  if (stored.size() < sizeof(Sha256::Digest)) return bad(part + ": cut off in its checksum");
  checksums_.update(stored);
  if (checks_ == SnapshotChecks::kDone) return {};
  const Sha256::Digest computed = std::exchange(part_, Sha256()).bytes();
  if (!std::equal(computed.begin(), computed.end(), stored.begin())) return bad(part + ": checksum does not match");
  if (code_) code_->update(stored);
  return {};
}

// ---- Headers ------------------------------------------------------------------------------------

Result<std::optional<SnapshotPiece>> SnapshotReader::next_piece() {
  before_ = std::exchange(piece_, SnapshotPiece{});
  ++pieces_;
  section_ = 0;
  part_ = Sha256();
  checksums_ = Sha256();
  code_.reset();
  if (!key_.empty() && checks_ == SnapshotChecks::kAll) code_.emplace(key_);

  DSV4RT_ASSIGN_OR_RETURN(const auto bytes, input_.take(sizeof(SnapshotHeader)));
  if (bytes.empty() && pieces_ > 1) return std::optional<SnapshotPiece>();
  if (bytes.size() < sizeof(SnapshotHeader)) {
    return bad("header: " + std::to_string(bytes.size()) + " bytes are all there is; a header has " +
               std::to_string(kSnapshotHeaderBytes));
  }
  const auto header = load_bytes<SnapshotHeader>(bytes.data());
  if (checks_ == SnapshotChecks::kAll) {
    part_.update(bytes);
    if (code_) code_->update(bytes);
  }
  if (header.magic != kSnapshotMagic) return bad("header: the first 8 bytes are not DSV4SEQ\\n");
  const std::uint32_t expected_version = pieces_ == 1 ? kSnapshotVersion : kIncrementVersion;
  if (header.version != expected_version) {
    const char* why = "";
    if (header.version == 1) why = " (version 1 does not say whose weights computed it)";
    if (pieces_ == 1 && header.version == kIncrementVersion)
      why = " (version 3 adds to a snapshot that comes before it)";
    if (pieces_ > 1 && header.version == kSnapshotVersion) why = " (version 2 is whole: restore it by itself)";
    return unsupported("header: version " + std::to_string(header.version) +
                       "; accepted: " + std::to_string(expected_version) + why);
  }
  SnapshotBase base;
  if (pieces_ > 1) {
    DSV4RT_ASSIGN_OR_RETURN(const auto base_bytes, take("header", sizeof base));
    base = load_bytes<SnapshotBase>(base_bytes.data());
  }
  DSV4RT_RETURN_IF_ERROR(check_part("header"));
  DSV4RT_RETURN_IF_ERROR(check_authentication(header.authentication));
  DSV4RT_RETURN_IF_ERROR(check_header(header));
  piece_.length = header.length;
  piece_.base_length = base.length;
  sections_ = header.sections;
  if (pieces_ > 1) DSV4RT_RETURN_IF_ERROR(check_base(base));
  return std::optional<SnapshotPiece>(piece_);
}

Status SnapshotReader::check_authentication(std::uint32_t authentication) const {
  if (authentication == static_cast<std::uint32_t>(SnapshotAuthentication::kNone)) {
    if (key_.empty()) return {};
    return bad("header: nothing authenticates it, and a key was given that would");
  }
  if (authentication != static_cast<std::uint32_t>(SnapshotAuthentication::kHmacSha256)) {
    return unsupported("header: authentication " + std::to_string(authentication) + "; accepted: 0 (none), 1 (HMAC)");
  }
  if (!key_.empty()) return {};
  return {StatusCode::kInvalidArgument,
          piece_name() + "it is authenticated; accepted: with its key only (SnapshotOptions::key)"};
}

Status SnapshotReader::check_header(const SnapshotHeader& header) const {
  if (header.reserved != 0) return bad("header: reserved = " + std::to_string(header.reserved) + "; accepted: 0");
  const std::string profile(header.profile.begin(), std::find(header.profile.begin(), header.profile.end(), '\0'));
  if (profile != accepted_.profile) {
    return unsupported("header: profile '" + printable(profile) + "'; accepted: '" + printable(accepted_.profile) +
                       "'");
  }
  if (header.profile != padded_profile(profile)) {
    return bad("header: the name of profile '" + printable(profile) + "' is not padded with zeros");
  }
  if (header.config != accepted_.config) {
    return unsupported("header: config fingerprint " + hex_text(header.config) +
                       "; accepted: " + hex_text(accepted_.config) + " (config and layers of this engine)");
  }
  if (header.weights != accepted_.weights) {
    return unsupported("header: weights " + hex_text(header.weights) + "; accepted: " + hex_text(accepted_.weights) +
                       " (weights of this engine: names, encodings and values of the loaded layers)");
  }
  if (header.length < 0) return bad("header: length = " + std::to_string(header.length) + "; accepted: 0 or more");
  if (header.length > max_length_) {
    return unsupported("header: length = " + std::to_string(header.length) + "; accepted: up to " +
                       std::to_string(max_length_) + " (max_context_tokens)");
  }
  return {};
}

Status SnapshotReader::check_base(const SnapshotBase& base) const {
  if (base.length != before_.length || base.digest != before_.digest) {
    return bad("header: it adds to another piece of " + std::to_string(base.length) +
               " tokens; accepted here: what adds to the one before, of " + std::to_string(before_.length));
  }
  if (piece_.length >= base.length) return {};
  return bad("header: length = " + std::to_string(piece_.length) + "; accepted: the " + std::to_string(base.length) +
             " that it adds to, or more");
}

// ---- Sections -----------------------------------------------------------------------------------

Result<SnapshotSectionHeader> SnapshotReader::section_header() {
  section_name_ = "section " + std::to_string(section_);
  DSV4RT_ASSIGN_OR_RETURN(const auto bytes, take(section_name_, sizeof(SnapshotSectionHeader)));
  return load_bytes<SnapshotSectionHeader>(bytes.data());
}

Status SnapshotReader::begin_section(const SnapshotSection& expected) {
  if (section_ == sections_) {
    return bad("section " + std::to_string(section_) +
               ": missing; accepted: " + region_name(expected.role, expected.layer.value));
  }
  DSV4RT_ASSIGN_OR_RETURN(const SnapshotSectionHeader header, section_header());
  DSV4RT_RETURN_IF_ERROR(check_section(header, &expected));
  section_name_ += " (" + region_name(expected.role, expected.layer.value) + ")";
  ++section_;
  return {};
}

// The section's header against what the engine has in its place.
Status SnapshotReader::check_section(const SnapshotSectionHeader& found, const SnapshotSection* expected) const {
  const std::optional<CacheRole> role = snapshot_role(found.role);
  if (!role) {
    return unsupported(section_name_ + ": role id " + std::to_string(found.role) + "; accepted: 1 to " +
                       std::to_string(kCacheRoleCount));
  }
  const std::string region = region_name(*role, found.layer);
  const std::string layout = snapshot_layout_name(found.layout);
  if (layout.empty()) {
    return unsupported(section_name_ + " (" + region + "): row layout id " + std::to_string(found.layout) +
                       "; accepted: 1 to 4 (rows), 17 to 20 (index keys), 33 (compressor state)");
  }
  if (expected == nullptr) return bad(section_name_ + " (" + region + ") is one more than this engine's layers have");
  const std::string wanted = region_name(expected->role, expected->layer.value);
  if (region != wanted) return bad(section_name_ + " is " + region + "; accepted in its place: " + wanted);
  if (found.layout != expected->layout) {
    return unsupported(section_name_ + " (" + region + "): " + layout +
                       "; accepted: " + snapshot_layout_name(expected->layout));
  }
  const std::pair<const char*, std::array<std::int64_t, 2>> fields[] = {
      {"reserved", {found.reserved, 0}},
      {"first row", {found.first_row, expected->first_row}},
      {"rows", {found.rows, expected->rows}},
      {"bytes", {found.bytes, expected->rows * expected->row_bytes}},
  };
  for (const auto& [field, values] : fields) {
    if (values[0] == values[1]) continue;
    return bad(section_name_ + " (" + region + "): " + field + " = " + std::to_string(values[0]) +
               "; accepted at this length: " + std::to_string(values[1]));
  }
  return {};
}

Result<std::span<const std::byte>> SnapshotReader::rows(std::int64_t bytes) {
  return take(section_name_, static_cast<std::size_t>(bytes));
}

Status SnapshotReader::end_section() {
  return check_part(section_name_);
}

Result<SnapshotPiece> SnapshotReader::end_piece() {
  if (section_ < sections_) {
    DSV4RT_ASSIGN_OR_RETURN(const SnapshotSectionHeader header, section_header());
    return check_section(header, nullptr);
  }
  if (!key_.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(const auto stored, input_.take(sizeof(Sha256::Digest)));
    if (stored.size() < sizeof(Sha256::Digest)) return bad("authentication code: cut off");
    if (code_ && !equal_codes(code_->finish(), load_bytes<Sha256::Digest>(stored.data()))) {
      return bad("authentication code: not that of these bytes under the given key");
    }
  }
  piece_.digest = checksums_.bytes();
  return piece_;
}

}  // namespace dsv4rt
