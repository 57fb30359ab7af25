#include "checkpoint/weight_index.h"

#include <new>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/message_text.h"
#include "base/strict_json.h"
#include "checkpoint/output_file.h"

namespace dsv4rt {
namespace {

// "weight_map" needs 2; unknown keys such as "metadata" may hold a little structure.
constexpr std::size_t kMaxIndexDepth = 8;

bool is_plain_shard_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (name.size() <= kSuffix.size() || !name.ends_with(kSuffix) || name.front() == '.') return false;
  return name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexVisitor : public JsonVisitor {
 public:
  explicit IndexVisitor(std::string_view source) : source_(source) {}

  [[nodiscard]] bool has_map() const { return has_map_; }
  WeightIndex take() { return std::move(index_); }

  Status value(const JsonPath& path, const JsonValue& value) override {
    if (path.empty()) return expect(value, JsonKind::kObject, "the index");
    if (path[0].key != "weight_map") return {};
    if (path.size() == 1) {
      has_map_ = true;
      return expect(value, JsonKind::kObject, "\"weight_map\"");
    }
    const std::string& name = path[1].key;
    Status status = expect(value, JsonKind::kString, "\"weight_map\" entry " + quote(name));
    if (!status.ok()) return status;
    if (!is_plain_shard_name(value.text)) {
      return {StatusCode::kBadInput, std::string(source_) + ": \"weight_map\" entry " + quote(name) + " names shard " +
                                         quote(value.text) +
                                         "; accepted: a file name in the same directory that ends in .safetensors"};
    }
    index_.shard_of.emplace(name, value.text);
    return {};
  }

  Status end(const JsonPath&, JsonKind) override { return {}; }

 private:
  [[nodiscard]] Status expect(const JsonValue& value, JsonKind kind, const std::string& what) const {
    if (value.kind == kind) return {};
    return {StatusCode::kBadInput, std::string(source_) + ": " + what + " is " +
                                       std::string(json_kind_name(value.kind)) + ", must be " +
                                       std::string(json_kind_name(kind))};
  }

  std::string_view source_;
  WeightIndex index_;
  bool has_map_ = false;
};

Result<WeightIndex> parse(std::string_view text, std::string_view source) {
  if (text.size() > kMaxWeightIndexBytes) {
    return Status{StatusCode::kBadInput, std::string(source) + ": has " + std::to_string(text.size()) +
                                             " bytes, more than the " + std::to_string(kMaxWeightIndexBytes) +
                                             " accepted"};
  }
  IndexVisitor visitor(source);
  if (Status status = parse_strict_json(text, source, kMaxIndexDepth, visitor); !status.ok()) return status;
  if (!visitor.has_map()) return Status{StatusCode::kBadInput, std::string(source) + ": \"weight_map\" is missing"};
  return visitor.take();
}

}  // namespace

Result<WeightIndex> parse_weight_index(std::string_view text, std::string_view source) {
  try {
    return parse(text, source);
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, std::string(source) + ": out of memory while reading the index"};
  }
}

Status write_weight_index(const std::filesystem::path& path, const WeightIndex& index, std::uint64_t total_size) {
  nlohmann::json json;
  json["metadata"]["total_size"] = total_size;
  json["weight_map"] = index.shard_of;
  try {
    return write_text_file(path, json.dump(2) + "\n");
  } catch (const nlohmann::json::type_error&) {
    return {StatusCode::kInvalidArgument, path.string() + ": a tensor or shard name is not valid UTF-8"};
  }
}

}  // namespace dsv4rt
