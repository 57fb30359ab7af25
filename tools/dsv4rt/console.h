// What is said on stderr while a command works.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4rt::cli {

// "model: 300 of 704 tokens" on stderr: rewritten in place on a terminal, a line per tenth elsewhere.
class ProgressLine {
 public:
  ProgressLine(std::string what, std::string unit);
  void update(std::int64_t done, std::int64_t total);

 private:
  std::string what_;
  std::string unit_;
  bool terminal_;
  std::int64_t last_tenth_ = -1;
};

}  // namespace dsv4rt::cli
