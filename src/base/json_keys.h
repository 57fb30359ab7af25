// The keys of one JSON object that have been read, to find one that is given twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace dsv4rt {

// Keeps places in the text instead of copies: 16 bytes a key, and 8 to 16 of table from the seventeenth on.
class JsonKeys {
 public:
  // Keys are compared as written; `same` decides between keys of one hash, which differ as written but may mean the
  // same, or are the same. Returns false when an equal key is there already.
  template <class Same>
  bool insert(std::uint64_t hash, std::string_view written, const char* text, const Same& same) {
    if (keys_.size() == kWithoutTable) grow();
    if (table_.empty()) {
      for (const Key& key : keys_) {
        if (key.hash == hash && same(view(key, text), written)) return false;
      }
    } else {
      std::size_t at = hash & (table_.size() - 1);
      for (; table_[at] != 0; at = (at + 1) & (table_.size() - 1)) {
        const Key& key = keys_[table_[at] - 1];
        if (key.hash == hash && same(view(key, text), written)) return false;
      }
      table_[at] = static_cast<std::uint32_t>(keys_.size() + 1);
    }
    keys_.push_back(
        {hash, static_cast<std::uint32_t>(written.data() - text), static_cast<std::uint32_t>(written.size())});
    if (!table_.empty() && keys_.size() * 2 > table_.size()) grow();
    return true;
  }
  [[nodiscard]] std::size_t size() const noexcept { return keys_.size(); }
  // Small sets keep their memory: most objects of a text are alike.
  void clear() {
    if (!table_.empty()) std::vector<Key>().swap(keys_);
    keys_.clear();
    std::vector<std::uint32_t>().swap(table_);
  }

 private:
  static constexpr std::size_t kWithoutTable = 16;
  struct Key {
    std::uint64_t hash;
    std::uint32_t begin;
    std::uint32_t bytes;
  };

  static std::string_view view(const Key& key, const char* text) { return {text + key.begin, key.bytes}; }
  void grow() {
    std::vector<std::uint32_t> table(table_.empty() ? 4 * kWithoutTable : 2 * table_.size());
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      std::size_t at = keys_[i].hash & (table.size() - 1);
      while (table[at] != 0) at = (at + 1) & (table.size() - 1);
      table[at] = static_cast<std::uint32_t>(i + 1);
    }
    table_.swap(table);
  }

  std::vector<Key> keys_;
  std::vector<std::uint32_t> table_;  // index + 1 by hash, 0: empty; at most half full; a power of two
};

}  // namespace dsv4rt
