// A log cut into records: lines, or the elements of a JSON document.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "dsv4rt/status.h"

namespace dsv4rt::replay {

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  // The next record, valid until the next call; nothing at the end. A failure of kBadInput concerns one record if
  // can_continue() holds afterwards: the next call then goes on behind it.
  virtual Result<std::optional<std::string_view>> next() = 0;
  [[nodiscard]] virtual bool can_continue() const noexcept = 0;
};

}  // namespace dsv4rt::replay
