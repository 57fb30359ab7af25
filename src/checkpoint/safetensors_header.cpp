#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

#include "base/message_text.h"
#include "base/strict_json.h"
#include "base/system_failure.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

// Root, tensor, shape or data_offsets.
constexpr JsonBounds kHeaderBounds{
    .depth = 3, .keys = kMaxTensors, .key_bytes = 6 * kMaxTensorNameBytes, .text_bytes = std::size_t{1} << 20};
// Names that are written with escapes are copied; nobody writes them so.
constexpr std::size_t kMaxEscapedNameBytes = std::size_t{1} << 20;

// The entry that is being read: its numbers, before they are related to each other and to the file.
struct RawTensor {
  std::string name;
  std::string_view written;
  std::string dtype;
  std::size_t first_dimension = 0;
  std::uint64_t offsets[2] = {};
  std::size_t offset_count = 0;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

std::string tensor_label(std::string_view source, const RawTensor& tensor) {
  std::string label = shown(source) + ": tensor " + quote(tensor.name);
  if (tensor.offset_count > 0) label += " at data offset " + std::to_string(tensor.offsets[0]);
  return label + ": ";
}

// Relates one entry's dtype, shape and offsets to each other and to the data.
Result<TensorView> check_tensor(const RawTensor& raw, std::span<const std::int64_t> shape,
                                std::span<const std::byte> data, std::string_view source) {
  const auto refused = [&](const std::string& reason, StatusCode code = StatusCode::kBadInput) {
    return Status{code, tensor_label(source, raw) + reason};
  };
  const auto [begin, end] = raw.offsets;
  const auto range = [begin = begin, end = end] {
    return "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  };
  if (begin > end) return refused(range() + " end before they begin");
  if (end > data.size()) {
    return refused(range() + " lie outside the " + std::to_string(data.size()) +
                   " bytes of tensor data: truncated file or wrong offsets");
  }
  const auto dtype = tensor_dtype_from_name(raw.dtype);
  if (!dtype) {
    return refused("unknown dtype " + quote(raw.dtype) + "; known: " + tensor_dtype_names(), StatusCode::kUnsupported);
  }
  const auto bytes = tensor_bytes(*dtype, shape);
  const auto kind = [&] { return std::string(tensor_dtype_name(*dtype)) + " of shape " + shape_text(shape); };
  if (!bytes) return refused(kind() + " overflows or does not fill whole bytes");
  if (*bytes != end - begin) {
    return refused(kind() + " takes " + std::to_string(*bytes) + " bytes, but " + range() + " hold " +
                   std::to_string(end - begin));
  }
  return TensorView{{}, *dtype, shape, data.subspan(begin, end - begin)};
}

// Turns JSON events into tensors and metadata; refuses any other structure.
class HeaderVisitor : public JsonVisitor {
 public:
  HeaderVisitor(std::string_view text, std::span<const std::byte> data, std::string_view source,
                std::span<const std::string_view> metadata)
      : data_(data), source_(source), metadata_(metadata) {
    // An upper bound of what will be there, so that no vector grows by copying itself.
    constexpr std::size_t kShortestEntry =
        std::string_view(R"("":{"dtype":"","shape":[],"data_offsets":[0,0]},)").size();
    const auto commas = static_cast<std::size_t>(std::count(text.begin(), text.end(), ','));
    const std::size_t most = std::min(text.size() / kShortestEntry + 1, kMaxTensors);
    header_.tensors.reserve(most);
    first_dimensions_.reserve(most);
    header_.dimensions.reserve(std::min(commas, most * kMaxTensorDims) + kMaxTensorDims);
  }

  SafetensorsHeader take() {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      TensorView& tensor = header_.tensors[i];
      tensor.shape = std::span(header_.dimensions).subspan(first_dimensions_[i], tensor.shape.size());
    }
    return std::move(header_);
  }

  Status value(const JsonPath& path, const JsonValue& value) override {
    switch (path.size()) {
      case 0:
        return expect(value, JsonKind::kObject, "the header");
      case 1:
        return entry(path[0], value);
      case 2:
        return in_metadata_ ? metadata(path[1].key, value) : field(path[1].key, value);
      default:
        return in_shape_ ? dimension(value) : offset(value);
    }
  }

  Status end(const JsonPath& path, JsonKind) override {
    if (path.size() != 1 || in_metadata_) return {};
    if (!raw_.has_dtype) return bad("\"dtype\" is missing");
    if (!raw_.has_shape) return bad("\"shape\" is missing");
    if (!raw_.has_offsets) return bad("\"data_offsets\" is missing");
    if (raw_.offset_count != 2) {
      return bad("\"data_offsets\" has " + std::to_string(raw_.offset_count) + " entries, must have 2");
    }
    DSV4RT_ASSIGN_OR_RETURN(
        TensorView tensor,
        check_tensor(raw_, std::span(header_.dimensions).subspan(raw_.first_dimension), data_, source_));
    DSV4RT_ASSIGN_OR_RETURN(tensor.name, keep_name());
    header_.tensors.push_back(tensor);
    first_dimensions_.push_back(static_cast<std::uint32_t>(raw_.first_dimension));
    return {};
  }

 private:
  [[nodiscard]] Status bad(const std::string& reason) const {
    return {StatusCode::kBadInput, tensor_label(source_, raw_) + reason};
  }

  // `what` is made only for a message.
  template <class What>
  [[nodiscard]] Status expect(const JsonValue& value, JsonKind kind, const What& what) const {
    if (value.kind == kind) return {};
    std::string name;
    if constexpr (std::is_invocable_v<What>) {
      name = what();
    } else {
      name = what;
    }
    return {StatusCode::kBadInput, shown(source_) + ": " + name + " is " + std::string(json_kind_name(value.kind)) +
                                       ", must be " + std::string(json_kind_name(kind))};
  }

  Status entry(const JsonLevel& level, const JsonValue& value) {
    const std::string& name = level.key;
    in_metadata_ = name == kMetadataKey;
    if (in_metadata_) return expect(value, JsonKind::kObject, quote(kMetadataKey));
    raw_.name = name;
    raw_.written = level.written;
    raw_.offset_count = 0;
    raw_.has_dtype = raw_.has_shape = raw_.has_offsets = false;
    raw_.first_dimension = header_.dimensions.size();
    if (name.size() > kMaxTensorNameBytes) {
      return bad("the name has " + std::to_string(name.size()) + " bytes; at most " +
                 std::to_string(kMaxTensorNameBytes) + " are accepted");
    }
    if (header_.tensors.size() == kMaxTensors) {
      return {StatusCode::kBadInput,
              shown(source_) + ": more than " + std::to_string(kMaxTensors) + " tensors; fewer are accepted"};
    }
    return expect(value, JsonKind::kObject, [&] { return "tensor " + quote(name); });
  }

  // As a part of the file where it is written as it is.
  Result<std::string_view> keep_name() {
    if (raw_.written == raw_.name) return raw_.written;
    escaped_name_bytes_ += raw_.name.size() + sizeof(std::string);
    if (escaped_name_bytes_ > kMaxEscapedNameBytes) {
      return Status{StatusCode::kBadInput, shown(source_) + ": more than " + std::to_string(kMaxEscapedNameBytes) +
                                               " bytes of tensor names are written with escapes"};
    }
    return std::string_view(header_.names.emplace_back(raw_.name));
  }

  Status metadata(const std::string& key, const JsonValue& value) {
    Status status = expect(value, JsonKind::kString, [&] { return quote(kMetadataKey) + " value of " + quote(key); });
    if (!status.ok() || std::find(metadata_.begin(), metadata_.end(), key) == metadata_.end()) return status;
    if (value.text.size() > kMaxTensorNameBytes) {
      return {StatusCode::kBadInput, shown(source_) + ": " + quote(kMetadataKey) + " value of " + quote(key) + " has " +
                                         std::to_string(value.text.size()) + " bytes; at most " +
                                         std::to_string(kMaxTensorNameBytes) + " are accepted"};
    }
    header_.metadata.emplace(key, value.text);
    return {};
  }

  Status field(const std::string& key, const JsonValue& value) {
    const auto what = [&] { return "tensor " + quote(raw_.name) + ": " + quote(key); };
    in_shape_ = key == "shape";
    if (in_shape_) {
      raw_.has_shape = true;
      return expect(value, JsonKind::kArray, what);
    }
    if (key == "dtype") {
      raw_.has_dtype = true;
      Status status = expect(value, JsonKind::kString, what);
      if (status.ok()) raw_.dtype.assign(value.text.substr(0, kMaxTensorNameBytes));
      return status;
    }
    if (key == "data_offsets") {
      raw_.has_offsets = true;
      return expect(value, JsonKind::kArray, what);
    }
    return bad("unknown key " + quote(key) + "; accepted: dtype, shape, data_offsets");
  }

  Status dimension(const JsonValue& value) {
    if (header_.dimensions.size() - raw_.first_dimension == kMaxTensorDims) {
      return bad("\"shape\" has more than the " + std::to_string(kMaxTensorDims) + " dimensions accepted");
    }
    Status status =
        expect(value, JsonKind::kUnsigned, [&] { return "tensor " + quote(raw_.name) + ": a dimension of \"shape\""; });
    if (!status.ok()) return status;
    if (value.number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return bad("dimension " + std::to_string(value.number) + " of \"shape\" exceeds 2^63 - 1");
    }
    header_.dimensions.push_back(static_cast<std::int64_t>(value.number));
    return {};
  }

  Status offset(const JsonValue& value) {
    if (raw_.offset_count == 2) return bad("\"data_offsets\" has more than 2 entries");
    Status status =
        expect(value, JsonKind::kUnsigned, [&] { return "tensor " + quote(raw_.name) + ": \"data_offsets\""; });
    if (status.ok()) raw_.offsets[raw_.offset_count++] = value.number;
    return status;
  }

  std::span<const std::byte> data_;
  std::string_view source_;
  std::span<const std::string_view> metadata_;
  SafetensorsHeader header_;
  std::vector<std::uint32_t> first_dimensions_;  // one for each tensor, while dimensions may move
  RawTensor raw_;
  bool in_metadata_ = false;
  bool in_shape_ = false;
  std::size_t escaped_name_bytes_ = 0;
};

// No hole, no overlap, nothing after the last tensor. `data` is the region the views lie in.
Status check_coverage(std::span<const TensorView> tensors, std::span<const std::byte> data, std::string_view source) {
  std::vector<const TensorView*> by_offset;
  by_offset.reserve(tensors.size());
  for (const TensorView& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorView* a, const TensorView* b) {
    if (a->data.data() != b->data.data()) return a->data.data() < b->data.data();
    return a->data.size() < b->data.size();
  });
  std::uint64_t covered = 0;
  for (const TensorView* tensor : by_offset) {
    const auto begin = static_cast<std::uint64_t>(tensor->data.data() - data.data());
    if (begin != covered) {
      return {StatusCode::kBadInput, shown(source) + ": tensor " + quote(tensor->name) + " at data offset " +
                                         std::to_string(begin) +
                                         (begin < covered ? " overlaps" : " leaves a hole after") +
                                         " the tensors before it, which end at " + std::to_string(covered)};
    }
    covered += tensor->data.size();
  }
  if (covered != data.size()) {
    return {StatusCode::kBadInput, shown(source) + ": " + std::to_string(data.size() - covered) +
                                       " bytes at data offset " + std::to_string(covered) + " belong to no tensor"};
  }
  return {};
}

Result<SafetensorsHeader> parse(std::span<const std::byte> file, std::string_view source,
                                std::span<const std::string_view> metadata) {
  const auto length_field = file.first(std::min(file.size(), kSafetensorsLengthBytes));
  DSV4RT_ASSIGN_OR_RETURN(const std::uint64_t length, safetensors_header_bytes(length_field, file.size(), source));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kSafetensorsLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    return Status{StatusCode::kBadInput, shown(source) + ": the header does not begin with '{'"};
  }
  const auto data = file.subspan(kSafetensorsLengthBytes + text.size());
  HeaderVisitor visitor(text, data, source, metadata);
  DSV4RT_RETURN_IF_ERROR(parse_strict_json(text, source, kHeaderBounds, visitor));
  SafetensorsHeader header = visitor.take();
  header.json_bytes = length;
  DSV4RT_RETURN_IF_ERROR(check_coverage(header.tensors, data, source));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return header;
}

}  // namespace

Result<std::uint64_t> safetensors_header_bytes(std::span<const std::byte> length_field, std::uint64_t file_bytes,
                                               std::string_view source) {
  const auto bad = [&](const std::string& reason) {
    return Status{StatusCode::kBadInput, shown(source) + ": " + reason};
  };
  if (length_field.size() < kSafetensorsLengthBytes) {
    return bad("has " + std::to_string(length_field.size()) + " bytes, too short for the 8-byte header length");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(length_field[i]) << (8 * i);
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return bad("header length " + std::to_string(length) + " exceeds the " +
               std::to_string(kMaxSafetensorsHeaderBytes) + " bytes accepted");
  }
  if (length > file_bytes - kSafetensorsLengthBytes) {
    return bad("header length " + std::to_string(length) + " exceeds the " +
               std::to_string(file_bytes - kSafetensorsLengthBytes) + " bytes that follow it: truncated file");
  }
  return length;
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view source,
                                            std::span<const std::string_view> metadata) {
  try {
    return parse(file, source, metadata);
  } catch (const std::bad_alloc&) {
    return out_of_memory(source, "reading the header");
  }
}

}  // namespace dsv4rt
