#include "console.h"

#include <cstdio>
#include <unistd.h>

namespace dsv4rt::cli {

ProgressLine::ProgressLine(std::string what, std::string unit)
    : what_(std::move(what)), unit_(std::move(unit)), terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::update(std::int64_t done, std::int64_t total) {
  const std::int64_t tenth = total > 0 ? done * 10 / total : 10;
  if (!terminal_ && tenth == last_tenth_) return;
  last_tenth_ = tenth;
  std::fprintf(stderr, "%s%s: %lld of %lld %s%s", terminal_ ? "\r" : "", what_.c_str(), static_cast<long long>(done),
               static_cast<long long>(total), unit_.c_str(), terminal_ && done < total ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace dsv4rt::cli
