// From one record of a log to its requests; one implementation for each format.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/request.h"
#include "replay/request_source.h"

namespace dsv4rt::replay {

// Time is counted in units of 100 ns since an origin of the parser's choice: the finest that a known log has, and exact
// over centuries.
using Ticks = std::int64_t;
inline constexpr std::int64_t kTicksPerMs = 10'000;

struct ParsedRequest {
  Request request;               // without index and arrival_ms
  std::optional<Ticks> arrival;  // unset: a later turn that follows its delay, or a log without times
};

class RecordParser {
 public:
  virtual ~RecordParser() = default;
  // Appends the record's requests to `out`; none for a header. A refused record changes nothing that later records
  // depend on. kBadInput as RecordErrors words it.
  virtual Status parse(std::string_view record, std::vector<ParsedRequest>& out) = 0;
  // Whether a header was refused without which later records have no meaning.
  [[nodiscard]] virtual bool lost() const { return false; }
  // Valid after the first record.
  [[nodiscard]] virtual const SourceInfo& info() const = 0;
};

}  // namespace dsv4rt::replay
