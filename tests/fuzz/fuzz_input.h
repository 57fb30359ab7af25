// The bytes of a fuzzer's input, taken apart from the front. Past the end everything is 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace dsv4rt::fuzz {

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t bytes = std::min(sizeof(T), left_.size());
    if (bytes > 0) std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }
  // 0 to limit - 1.
  std::uint32_t below(std::uint32_t limit) { return take<std::uint16_t>() % limit; }

  // The bytes up to the first `separator`, which is dropped; all of them if there is none.
  std::string_view take_until(char separator) {
    const std::string_view all = rest();
    const std::size_t end = std::min(all.find(separator), all.size());
    left_ = left_.subspan(std::min(end + 1, left_.size()));
    return all.substr(0, end);
  }
  [[nodiscard]] std::string_view rest() const { return {reinterpret_cast<const char*>(left_.data()), left_.size()}; }
  [[nodiscard]] bool empty() const noexcept { return left_.empty(); }

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace dsv4rt::fuzz
