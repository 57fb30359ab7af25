#include "console.h"

#include <cstdio>
#include <unistd.h>

namespace dsv4rt::cli {

ProgressLine::ProgressLine(std::string what, std::string unit, Elsewhere elsewhere)
    : what_(std::move(what)), unit_(std::move(unit)), terminal_(isatty(STDERR_FILENO) == 1), elsewhere_(elsewhere) {}

// What follows on stderr begins on a line of its own.
ProgressLine::~ProgressLine() {
  if (length_ > 0) std::fputc('\n', stderr);
}

void ProgressLine::update(std::int64_t done, std::int64_t total) {
  const std::int64_t tenth = total > 0 ? done * 10 / total : 10;
  if (!terminal_ && elsewhere_ == Elsewhere::kTenths && tenth == last_tenth_) return;
  last_tenth_ = tenth;
  write(done, total, "");
}

void ProgressLine::update(std::int64_t done, std::int64_t total, const std::string& inside) {
  if (terminal_ || elsewhere_ == Elsewhere::kEverything) write(done, total, inside);
}

void ProgressLine::write(std::int64_t done, std::int64_t total, const std::string& inside) {
  if (!terminal_ && elsewhere_ == Elsewhere::kNothing) return;
  std::string line = what_ + ": " + std::to_string(done) + " of " + std::to_string(total) + " " + unit_ + inside;
  const std::size_t length = line.size();
  if (terminal_) {
    if (length < length_) line.append(length_ - length, ' ');  // over what the line before had more
    line.insert(0, 1, '\r');
  }
  const bool open = terminal_ && done < total;
  length_ = open ? length : 0;
  if (!open) line += '\n';
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace dsv4rt::cli
