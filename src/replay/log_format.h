// Which format a log has, told by its content.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "dsv4rt/status.h"
#include "replay/arrival_order.h"
#include "replay/record_parser.h"

namespace dsv4rt::replay {

// How the log's records are found, from its first bytes.
enum class LogShape : std::uint8_t {
  kLines,     // one record a line
  kElements,  // JSON objects over several lines, or a JSON array
};
// `head`: the first bytes of the log, without a byte order mark.
LogShape log_shape(std::string_view head) noexcept;

// The parser for a log that begins with `first_record`; it keeps `arrivals` and `errors`. kBadInput listing the known
// formats; kUnsupported for a flag that the format cannot serve.
Result<std::unique_ptr<RecordParser>> parser_for(std::string_view first_record, const RequestLogOptions& options,
                                                 const ArrivalOrder& arrivals, RecordErrors& errors);

}  // namespace dsv4rt::replay
