// A table for people: aligned columns, numbers to the right.
#pragma once

#include <string>
#include <vector>

namespace dsv4rt::cli {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  // A row has as many cells as the header. Cells may hold what came from outside: they are made printable.
  void add_row(std::vector<std::string> cells);
  [[nodiscard]] std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// `value` with `digits` after the point.
std::string fixed(double value, int digits);
// "3.43 GiB", "584 B": three significant digits, binary units.
std::string human_bytes(double bytes);

}  // namespace dsv4rt::cli
