#include "model/config_reader.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/message_text.h"
#include "model/json_document.h"

namespace dsv4rt {
namespace {

using Json = nlohmann::json;

// Longest list a config may hold; far above one entry per layer.
constexpr std::size_t kMaxListEntries = 4096;

constexpr std::string_view kAcceptedInteger = "an integer is accepted";
constexpr std::string_view kAcceptedNumber = "a finite number is accepted";

// JSON integers, and floats without a fraction that represent their integer exactly.
bool to_integer(const Json& json, std::int64_t& value) {
  constexpr double kExactLimit = 9007199254740992.0;  // 2^53
  if (json.is_number_unsigned()) {
    const auto wide = json.get<std::uint64_t>();
    if (wide > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
    value = static_cast<std::int64_t>(wide);
    return true;
  }
  if (json.is_number_integer()) {
    value = json.get<std::int64_t>();
    return true;
  }
  if (!json.is_number_float()) return false;
  const double real = json.get<double>();
  if (!(std::abs(real) <= kExactLimit) || std::trunc(real) != real) return false;
  value = static_cast<std::int64_t>(real);
  return true;
}

bool to_number(const Json& json, double& value) {
  if (!json.is_number()) return false;
  value = json.get<double>();
  return std::isfinite(value);
}

bool to_text(const Json& json, std::string& value) {
  if (!json.is_string()) return false;
  value = json.get_ref<const std::string&>();
  return true;
}

bool to_boolean(const Json& json, bool& value) {
  if (!json.is_boolean()) return false;
  value = json.get<bool>();
  return true;
}

// Any count of tokens: which ratios have a meaning is the layer schedule's knowledge.
bool to_ratio(const Json& json, std::int32_t& value) {
  std::int64_t wide = 0;
  if (!to_integer(json, wide) || wide < 0 || wide > std::numeric_limits<std::int32_t>::max()) return false;
  value = static_cast<std::int32_t>(wide);
  return true;
}

template <class Entry>
bool to_list(const Json& json, std::vector<Entry>& values, bool (*convert_entry)(const Json&, Entry&)) {
  if (!json.is_array() || json.size() > kMaxListEntries) return false;
  for (const Json& entry : json) {
    if (!convert_entry(entry, values.emplace_back())) return false;
  }
  return true;
}

// Points at the entry that spoils a list, so that the message need not show the whole list.
template <class Entry>
std::string describe_list(const Json& json, bool (*convert_entry)(const Json&, Entry&)) {
  std::string text = describe_json(json);
  if (!json.is_array() || json.size() > kMaxListEntries) return text;
  Entry ignored{};
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (convert_entry(json[i], ignored)) continue;
    return text.append(" with entry ").append(std::to_string(i)).append(" = ").append(describe_json(json[i]));
  }
  return text;
}

}  // namespace

void ConfigReader::fail(Status status) {
  if (ok()) status_ = std::move(status);
}

void ConfigReader::fail(StatusCode code, std::string_view key, std::string_view value, std::string_view explanation) {
  std::string message = shown(source_);
  message.append(": ").append(key).append(" = ").append(value).append(": ").append(explanation);
  fail(Status(code, std::move(message)));
}

void ConfigReader::fail_missing(Keys keys, std::string_view accepted) {
  std::string names;
  for (const std::string_view key : keys) names.append(names.empty() ? "" : " or ").append(key);
  fail(Status(StatusCode::kBadInput, shown(source_) + ": " + names + " is missing or null; " + std::string(accepted)));
}

const Json* ConfigReader::find(std::string_view path) {
  if (!ok()) return nullptr;
  const Json* node = &root_;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = path.find('.', begin);
    const std::size_t end = dot == std::string_view::npos ? path.size() : dot;
    const auto entry = node->find(std::string(path.substr(begin, end - begin)));
    if (entry == node->end() || entry->is_null()) return nullptr;
    node = &*entry;
    if (end == path.size()) return node;
    if (!node->is_object()) {
      fail(StatusCode::kBadInput, path.substr(0, end), describe_json(*node), "an object is accepted");
      return nullptr;
    }
    begin = end + 1;
  }
}

template <class T, class Convert, class Describe>
std::optional<Found<T>> ConfigReader::read(Keys keys, std::string_view accepted, Convert convert, Describe describe) {
  std::optional<Found<T>> found;
  std::string found_text;
  for (const std::string_view key : keys) {
    const Json* node = find(key);
    if (node == nullptr) continue;
    T value{};
    if (!convert(*node, value)) {
      fail(StatusCode::kBadInput, key, describe(*node), accepted);
    } else if (!found) {
      found = Found<T>{std::move(value), std::string(key)};
      found_text = describe_json(*node);
    } else if (found->value != value) {
      fail(StatusCode::kBadInput, key, describe_json(*node),
           "contradicts " + found->key + " = " + found_text + "; one of them, or equal values, are accepted");
    }
  }
  if (!ok()) return std::nullopt;
  return found;
}

std::optional<Found<std::int64_t>> ConfigReader::integer(Keys keys) {
  return read<std::int64_t>(keys, kAcceptedInteger, to_integer, describe_json);
}

std::optional<Found<double>> ConfigReader::number(Keys keys) {
  return read<double>(keys, kAcceptedNumber, to_number, describe_json);
}

std::optional<Found<std::string>> ConfigReader::text(Keys keys) {
  return read<std::string>(keys, "a string is accepted", to_text, describe_json);
}

std::optional<Found<bool>> ConfigReader::boolean(Keys keys) {
  return read<bool>(keys, "true or false is accepted", to_boolean, describe_json);
}

std::optional<Found<std::vector<std::int32_t>>> ConfigReader::integers(Keys keys) {
  using List = std::vector<std::int32_t>;
  return read<List>(
      keys, "an array of at most " + std::to_string(kMaxListEntries) + " integers from 0 to 2147483647 is accepted",
      [](const Json& json, List& values) { return to_list(json, values, to_ratio); },
      [](const Json& json) { return describe_list(json, to_ratio); });
}

std::optional<Found<std::vector<std::string>>> ConfigReader::texts(Keys keys) {
  using List = std::vector<std::string>;
  return read<List>(
      keys, "an array of at most " + std::to_string(kMaxListEntries) + " strings is accepted",
      [](const Json& json, List& values) { return to_list(json, values, to_text); },
      [](const Json& json) { return describe_list(json, to_text); });
}

std::optional<Found<std::int64_t>> ConfigReader::required_integer(Keys keys) {
  auto found = integer(keys);
  if (!found) fail_missing(keys, kAcceptedInteger);
  return found;
}

std::optional<Found<double>> ConfigReader::required_number(Keys keys) {
  auto found = number(keys);
  if (!found) fail_missing(keys, kAcceptedNumber);
  return found;
}

std::vector<std::string> ConfigReader::object_keys(std::string_view path) {
  std::vector<std::string> keys;
  const Json* node = find(path);
  if (node == nullptr) return keys;
  if (!node->is_object()) {
    fail(StatusCode::kBadInput, path, describe_json(*node), "an object is accepted");
    return keys;
  }
  for (const auto& [key, value] : node->items()) keys.push_back(key);
  return keys;
}

}  // namespace dsv4rt
