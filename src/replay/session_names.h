// Numbers for the sessions of a log, in order of first appearance.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace dsv4rt::replay {

class SessionNames {
 public:
  // The session's number, or -1 if it has none.
  [[nodiscard]] std::int64_t find(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? -1 : found->second;
  }
  // The number of the next one that is added.
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(numbers_.size()); }
  std::int64_t find_or_add(const std::string& name) { return numbers_.emplace(name, count()).first->second; }

 private:
  std::unordered_map<std::string, std::int64_t> numbers_;
};

}  // namespace dsv4rt::replay
