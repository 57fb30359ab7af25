// Tables with a row for every value of an enumeration.
#pragma once

#include <array>
#include <cstddef>

namespace dsv4rt {

// Whether row i is that of value i, and the last row that of `last`: a value's row is then found by its number.
template <class Row, std::size_t kRows, class Enum>
consteval bool rows_match(const std::array<Row, kRows>& rows, Enum Row::*value, Enum last) {
  for (std::size_t i = 0; i < kRows; ++i) {
    if (static_cast<std::size_t>(rows[i].*value) != i) return false;
  }
  return kRows == static_cast<std::size_t>(last) + 1;
}

}  // namespace dsv4rt
