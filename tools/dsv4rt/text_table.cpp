#include "text_table.h"

#include <algorithm>
#include <cstdio>

#include "base/message_text.h"

namespace dsv4rt::cli {
namespace {

constexpr std::size_t kShownCellBytes = 1024;

bool is_number(const std::string& cell) {
  return !cell.empty() && cell.find_first_not_of("0123456789.-+e%, ") == std::string::npos;
}

}  // namespace

void TextTable::add_row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = printable(cell, kShownCellBytes);
  rows_.push_back(std::move(cells));
}

std::string TextTable::to_string() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  std::vector<bool> numeric(widths.size(), rows_.size() > 1);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t c = 0; c < widths.size(); ++c) {
      widths[c] = std::max(widths[c], rows_[r][c].size());
      if (r > 0 && !is_number(rows_[r][c]) && rows_[r][c] != "-") numeric[c] = false;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += numeric[c] ? padding + row[c] : row[c] + padding;
      if (c + 1 < widths.size()) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024.0;
    ++unit;
  }
  const int digits = unit == 0 || bytes >= 100.0 ? 0 : bytes >= 10.0 ? 1 : 2;
  return fixed(bytes, digits) + " " + kUnits[unit];
}

}  // namespace dsv4rt::cli
