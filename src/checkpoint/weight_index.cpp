#include "checkpoint/weight_index.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/message_text.h"
#include "base/strict_json.h"
#include "base/system_failure.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_header.h"

namespace dsv4rt {
namespace {

// "weight_map" needs 2; unknown keys such as "metadata" may hold a little structure.
constexpr JsonBounds kIndexBounds{
    .depth = 8, .keys = kMaxTensors, .key_bytes = 6 * kMaxTensorNameBytes, .text_bytes = std::size_t{1} << 20};
constexpr std::size_t kMaxShards = 100'000;
constexpr std::size_t kMaxShardNameBytes = 255;
constexpr std::size_t kMaxEscapedNameBytes = std::size_t{1} << 20;

bool is_plain_shard_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (name.size() <= kSuffix.size() || !name.ends_with(kSuffix) || name.front() == '.') return false;
  if (name.size() > kMaxShardNameBytes) return false;
  return name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

class IndexVisitor : public JsonVisitor {
 public:
  explicit IndexVisitor(std::string_view source) : source_(source) {}

  [[nodiscard]] bool has_map() const { return has_map_; }
  // Entries and shards in ascending order.
  WeightIndex take() {
    std::vector<std::uint32_t> place(numbers_.size());
    index_.shards.reserve(numbers_.size());
    for (const auto& [shard, number] : numbers_) {
      place[number] = static_cast<std::uint32_t>(index_.shards.size());
      index_.shards.push_back(shard);
    }
    for (WeightIndex::Entry& entry : index_.entries) entry.shard = place[entry.shard];
    std::sort(index_.entries.begin(), index_.entries.end(),
              [](const WeightIndex::Entry& a, const WeightIndex::Entry& b) { return a.name < b.name; });
    return std::move(index_);
  }

  Status value(const JsonPath& path, const JsonValue& value) override {
    if (path.empty()) return expect(value, JsonKind::kObject, "the index");
    if (path[0].key != "weight_map") return {};
    if (path.size() == 1) {
      has_map_ = true;
      return expect(value, JsonKind::kObject, "\"weight_map\"");
    }
    const std::string& name = path[1].key;
    if (value.kind != JsonKind::kString) {
      return expect(value, JsonKind::kString, "\"weight_map\" entry " + quote(name));
    }
    if (!is_plain_shard_name(value.text)) {
      return {StatusCode::kBadInput, shown(source_) + ": \"weight_map\" entry " + quote(name) + " names shard " +
                                         quote(value.text) +
                                         "; accepted: a file name in the same directory that ends in .safetensors"};
    }
    auto shard = numbers_.find(value.text);
    if (shard == numbers_.end()) {
      if (numbers_.size() == kMaxShards) return too_many(kMaxShards, "shards");
      shard = numbers_.emplace(value.text, static_cast<std::uint32_t>(numbers_.size())).first;
    }
    if (path[1].written == name) {
      index_.entries.push_back({path[1].written, shard->second});
      return {};
    }
    escaped_name_bytes_ += name.size() + sizeof(std::string);
    if (escaped_name_bytes_ > kMaxEscapedNameBytes) return too_many(kMaxEscapedNameBytes, "bytes of escaped names");
    index_.entries.push_back({index_.names.emplace_back(name), shard->second});
    return {};
  }

  Status end(const JsonPath&, JsonKind) override { return {}; }

 private:
  [[nodiscard]] Status expect(const JsonValue& value, JsonKind kind, const std::string& what) const {
    if (value.kind == kind) return {};
    return {StatusCode::kBadInput, shown(source_) + ": " + what + " is " + std::string(json_kind_name(value.kind)) +
                                       ", must be " + std::string(json_kind_name(kind))};
  }

  [[nodiscard]] Status too_many(std::size_t most, const char* what) const {
    return {StatusCode::kBadInput,
            shown(source_) + ": more than " + std::to_string(most) + " " + what + "; fewer are accepted"};
  }

  std::string_view source_;
  WeightIndex index_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;  // shards in the order of the text
  std::size_t escaped_name_bytes_ = 0;
  bool has_map_ = false;
};

Result<WeightIndex> parse(std::string_view text, std::string_view source) {
  if (text.size() > kMaxWeightIndexBytes) {
    return Status{StatusCode::kBadInput, shown(source) + ": has " + std::to_string(text.size()) +
                                             " bytes, more than the " + std::to_string(kMaxWeightIndexBytes) +
                                             " accepted"};
  }
  IndexVisitor visitor(source);
  if (Status status = parse_strict_json(text, source, kIndexBounds, visitor); !status.ok()) return status;
  if (!visitor.has_map()) return Status{StatusCode::kBadInput, shown(source) + ": \"weight_map\" is missing"};
  return visitor.take();
}

}  // namespace

Result<WeightIndex> parse_weight_index(std::string_view text, std::string_view source) {
  try {
    return parse(text, source);
  } catch (const std::bad_alloc&) {
    return out_of_memory(source, "reading the index");
  }
}

const std::string* WeightIndex::shard_of(std::string_view name) const noexcept {
  const auto found = std::lower_bound(entries.begin(), entries.end(), name,
                                      [](const Entry& entry, std::string_view key) { return entry.name < key; });
  return found != entries.end() && found->name == name ? &shards[found->shard] : nullptr;
}

Status write_weight_index(const std::filesystem::path& path, const std::map<std::string, std::string>& shard_of,
                          std::uint64_t total_size, Existing existing) {
  nlohmann::json json;
  json["metadata"]["total_size"] = total_size;
  json["weight_map"] = shard_of;
  try {
    return write_text_file(path, json.dump(2) + "\n", existing);
  } catch (const nlohmann::json::type_error&) {
    return {StatusCode::kInvalidArgument, shown(path) + ": a tensor or shard name is not valid UTF-8"};
  }
}

}  // namespace dsv4rt
