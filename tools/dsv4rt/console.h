// What is said on stderr while a command works.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4rt::cli {

// "model: 300 of 704 tokens" on stderr: rewritten in place on a terminal, a line per tenth elsewhere.
class ProgressLine {
 public:
  enum class Elsewhere : std::uint8_t { kTenths, kEverything, kNothing };  // where stderr is no terminal

  ProgressLine(std::string what, std::string unit, Elsewhere elsewhere = Elsewhere::kTenths);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(std::int64_t done, std::int64_t total);
  // The same with what happens inside of the part at hand: ", layer 3 of 43". Never a line per tenth.
  void update(std::int64_t done, std::int64_t total, const std::string& inside);

 private:
  void write(std::int64_t done, std::int64_t total, const std::string& inside);

  std::string what_;
  std::string unit_;
  bool terminal_;
  Elsewhere elsewhere_;
  std::size_t length_ = 0;  // characters on the terminal's line; 0: it is complete
  std::int64_t last_tenth_ = -1;
};

}  // namespace dsv4rt::cli
