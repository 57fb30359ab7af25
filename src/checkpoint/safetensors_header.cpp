#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "base/message_text.h"
#include "base/strict_json.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kLengthBytes = 8;
// Root, tensor, shape or data_offsets.
constexpr std::size_t kMaxHeaderDepth = 3;

// A tensor entry as read, before its numbers are related to each other and to the file.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_dtype = false;
  bool has_shape = false;
  bool has_offsets = false;
};

std::string tensor_label(std::string_view source, const RawTensor& tensor) {
  std::string label = std::string(source) + ": tensor " + quote(tensor.name);
  if (!tensor.offsets.empty()) label += " at data offset " + std::to_string(tensor.offsets.front());
  return label + ": ";
}

// Turns JSON events into RawTensors and metadata; refuses any other structure.
class HeaderVisitor : public JsonVisitor {
 public:
  explicit HeaderVisitor(std::string_view source) : source_(source) {}

  std::vector<RawTensor> take_tensors() { return std::move(tensors_); }
  std::map<std::string, std::string> take_metadata() { return std::move(metadata_); }

  Status value(const JsonPath& path, const JsonValue& value) override {
    switch (path.size()) {
      case 0:
        return expect(value, JsonKind::kObject, "the header");
      case 1:
        return entry(path[0].key, value);
      case 2:
        return path[0].key == kMetadataKey ? metadata(path[1].key, value) : field(path[1].key, value);
      default:
        return path[1].key == "shape" ? dimension(value) : offset(value);
    }
  }

  Status end(const JsonPath& path, JsonKind) override {
    if (path.size() != 1 || path[0].key == kMetadataKey) return {};
    const RawTensor& tensor = tensors_.back();
    if (!tensor.has_dtype) return bad("\"dtype\" is missing");
    if (!tensor.has_shape) return bad("\"shape\" is missing");
    if (!tensor.has_offsets) return bad("\"data_offsets\" is missing");
    if (tensor.offsets.size() != 2) {
      return bad("\"data_offsets\" has " + std::to_string(tensor.offsets.size()) + " entries, must have 2");
    }
    return {};
  }

 private:
  [[nodiscard]] Status bad(const std::string& reason) const {
    return {StatusCode::kBadInput, tensor_label(source_, tensors_.back()) + reason};
  }

  [[nodiscard]] Status expect(const JsonValue& value, JsonKind kind, const std::string& what) const {
    if (value.kind == kind) return {};
    return {StatusCode::kBadInput, std::string(source_) + ": " + what + " is " +
                                       std::string(json_kind_name(value.kind)) + ", must be " +
                                       std::string(json_kind_name(kind))};
  }

  Status entry(const std::string& name, const JsonValue& value) {
    if (name == kMetadataKey) return expect(value, JsonKind::kObject, quote(kMetadataKey));
    tensors_.emplace_back().name = name;
    return expect(value, JsonKind::kObject, "tensor " + quote(name));
  }

  Status metadata(const std::string& key, const JsonValue& value) {
    Status status = expect(value, JsonKind::kString, quote(kMetadataKey) + " value of " + quote(key));
    if (status.ok()) metadata_.emplace(key, value.text);
    return status;
  }

  Status field(const std::string& key, const JsonValue& value) {
    RawTensor& tensor = tensors_.back();
    const std::string what = "tensor " + quote(tensor.name) + ": " + quote(key);
    if (key == "dtype") {
      tensor.has_dtype = true;
      Status status = expect(value, JsonKind::kString, what);
      if (status.ok()) tensor.dtype = value.text;
      return status;
    }
    if (key == "shape") {
      tensor.has_shape = true;
      return expect(value, JsonKind::kArray, what);
    }
    if (key == "data_offsets") {
      tensor.has_offsets = true;
      return expect(value, JsonKind::kArray, what);
    }
    return bad("unknown key " + quote(key) + "; accepted: dtype, shape, data_offsets");
  }

  Status dimension(const JsonValue& value) {
    RawTensor& tensor = tensors_.back();
    if (tensor.shape.size() == kMaxTensorDims) {
      return bad("\"shape\" has more than the " + std::to_string(kMaxTensorDims) + " dimensions accepted");
    }
    Status status = expect(value, JsonKind::kUnsigned, "tensor " + quote(tensor.name) + ": a dimension of \"shape\"");
    if (!status.ok()) return status;
    if (value.number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return bad("dimension " + std::to_string(value.number) + " of \"shape\" exceeds 2^63 - 1");
    }
    tensor.shape.push_back(static_cast<std::int64_t>(value.number));
    return {};
  }

  Status offset(const JsonValue& value) {
    RawTensor& tensor = tensors_.back();
    if (tensor.offsets.size() == 2) return bad("\"data_offsets\" has more than 2 entries");
    Status status = expect(value, JsonKind::kUnsigned, "tensor " + quote(tensor.name) + ": \"data_offsets\"");
    if (status.ok()) tensor.offsets.push_back(value.number);
    return status;
  }

  std::string_view source_;
  std::vector<RawTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The JSON text of the header, after the checks of its length.
Result<std::string_view> header_text(std::span<const std::byte> file, std::string_view source) {
  const auto bad = [&](const std::string& reason) {
    return Status{StatusCode::kBadInput, std::string(source) + ": " + reason};
  };
  if (file.size() < kLengthBytes) {
    return bad("has " + std::to_string(file.size()) + " bytes, too short for the 8-byte header length");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes) {
    return bad("header length " + std::to_string(length) + " exceeds the " +
               std::to_string(kMaxSafetensorsHeaderBytes) + " bytes accepted");
  }
  if (length > file.size() - kLengthBytes) {
    return bad("header length " + std::to_string(length) + " exceeds the " +
               std::to_string(file.size() - kLengthBytes) + " bytes that follow it: truncated file");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') return bad("the header does not begin with '{'");
  return text;
}

// Relates one entry's dtype, shape and offsets to each other and to the data.
Result<TensorView> check_tensor(RawTensor raw, std::span<const std::byte> data, std::string_view source) {
  const std::string label = tensor_label(source, raw);
  const std::uint64_t begin = raw.offsets[0];
  const std::uint64_t end = raw.offsets[1];
  const std::string range = "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  if (begin > end) return Status{StatusCode::kBadInput, label + range + " end before they begin"};
  if (end > data.size()) {
    return Status{StatusCode::kBadInput, label + range + " lie outside the " + std::to_string(data.size()) +
                                             " bytes of tensor data: truncated file or wrong offsets"};
  }
  const auto dtype = tensor_dtype_from_name(raw.dtype);
  if (!dtype) {
    return Status{StatusCode::kUnsupported,
                  label + "unknown dtype " + quote(raw.dtype) + "; known: " + tensor_dtype_names()};
  }
  const auto bytes = tensor_bytes(*dtype, raw.shape);
  const std::string kind = std::string(tensor_dtype_name(*dtype)) + " of shape " + shape_text(raw.shape);
  if (!bytes) {
    return Status{StatusCode::kBadInput, label + kind + " overflows or does not fill whole bytes"};
  }
  if (*bytes != end - begin) {
    return Status{StatusCode::kBadInput, label + kind + " takes " + std::to_string(*bytes) + " bytes, but " + range +
                                             " hold " + std::to_string(end - begin)};
  }
  return TensorView{std::move(raw.name), *dtype, std::move(raw.shape), data.subspan(begin, end - begin)};
}

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
      return {StatusCode::kBadInput, std::string(source) + ": tensor " + quote(tensor->name) + " at data offset " +
                                         std::to_string(begin) +
                                         (begin < covered ? " overlaps" : " leaves a hole after") +
                                         " the tensors before it, which end at " + std::to_string(covered)};
    }
    covered += tensor->data.size();
  }
  if (covered != data.size()) {
    return {StatusCode::kBadInput, std::string(source) + ": " + std::to_string(data.size() - covered) +
                                       " bytes at data offset " + std::to_string(covered) + " belong to no tensor"};
  }
  return {};
}

Result<SafetensorsHeader> parse(std::span<const std::byte> file, std::string_view source) {
  const auto text = header_text(file, source);
  if (!text) return text.status();
  HeaderVisitor visitor(source);
  if (Status status = parse_strict_json(*text, source, kMaxHeaderDepth, visitor); !status.ok()) return status;

  const auto data = file.subspan(kLengthBytes + text->size());
  SafetensorsHeader header{{}, visitor.take_metadata()};
  std::vector<RawTensor> raw = visitor.take_tensors();
  header.tensors.reserve(raw.size());
  for (RawTensor& tensor : raw) {
    auto checked = check_tensor(std::move(tensor), data, source);
    if (!checked) return checked.status();
    header.tensors.push_back(std::move(*checked));
  }
  if (Status status = check_coverage(header.tensors, data, source); !status.ok()) return status;
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return header;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  try {
    return parse(file, source);
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, std::string(source) + ": out of memory while reading the header"};
  }
}

}  // namespace dsv4rt
