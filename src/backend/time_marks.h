// Points in a backend's order of work, for measuring the time between them.
#pragma once

#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt {

class TimeMarks {
 public:
  virtual ~TimeMarks() = default;
  // Marks the end of everything enqueued so far. Costs a little of the backend's time.
  virtual Status mark() = 0;
  // Microseconds from the first mark to each one, waiting for the last. The marks are forgotten.
  virtual Result<std::vector<double>> take() = 0;
};

}  // namespace dsv4rt
