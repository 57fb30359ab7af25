#include "report/saved_report.h"

#include <fstream>
#include <string>

namespace dsv4rt::report {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

}  // namespace

Result<Document> read_saved_report(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  // One byte more than is accepted, so that a longer file is seen.
  text.resize(kMostBytes + 1);
  if (!file || !file.read(text.data(), static_cast<std::streamsize>(text.size())).eof()) {
    const bool too_long = file.good();
    return Status{StatusCode::kBadInput,
                  path.string() + (too_long ? ": longer than 64 MiB, no report" : ": cannot be read")};
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return parse_document(text, path.string());
}

}  // namespace dsv4rt::report
