// Typed look-up in a config document that may name one fact in several ways.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4rt/status.h"

namespace dsv4rt {

// A value and the key it was written under.
template <class T>
struct Found {
  T value;
  std::string key;
};

// The first failure latches: later look-ups return nothing, and status() explains the first.
// A key may be a path ("rope_scaling.factor"). A null value counts as absent.
class ConfigReader {
 public:
  using Keys = std::initializer_list<std::string_view>;

  // Both arguments must outlive the reader.
  ConfigReader(const nlohmann::json& root, std::string_view source) : root_(root), source_(source) {}

  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] std::string_view source() const { return source_; }

  // Records a failure unless one is recorded already.
  void fail(Status status);
  // "<source>: <key> = <value>: <explanation>".
  void fail(StatusCode code, std::string_view key, std::string_view value, std::string_view explanation);

  // The value under any of `keys`, which are synonyms: where several are present they must agree.
  // Nothing when all are absent, or after a failure (wrong type, contradiction).
  std::optional<Found<std::int64_t>> integer(Keys keys);
  std::optional<Found<double>> number(Keys keys);
  std::optional<Found<std::string>> text(Keys keys);
  std::optional<Found<bool>> boolean(Keys keys);
  std::optional<Found<std::vector<std::int32_t>>> integers(Keys keys);
  std::optional<Found<std::vector<std::string>>> texts(Keys keys);

  // The same, absence being a failure.
  std::optional<Found<std::int64_t>> required_integer(Keys keys);
  std::optional<Found<double>> required_number(Keys keys);

  // The keys of the object at `path`; empty when it is absent. Failure when it is not an object.
  std::vector<std::string> object_keys(std::string_view path);
  [[nodiscard]] bool has(std::string_view path) { return find(path) != nullptr; }

 private:
  const nlohmann::json* find(std::string_view path);
  void fail_missing(Keys keys, std::string_view accepted);

  template <class T, class Convert, class Describe>
  std::optional<Found<T>> read(Keys keys, std::string_view accepted, Convert convert, Describe describe);

  const nlohmann::json& root_;
  std::string_view source_;
  Status status_;
};

}  // namespace dsv4rt
