#include "engine/output_watch.h"

#include <algorithm>
#include <string>

#include "base/try.h"
#include "layout/bytes.h"

namespace dsv4rt {

Result<OutputWatch> OutputWatch::create(Backend& backend, std::int32_t max_sequences) {
  OutputWatch watch;
  DSV4RT_ASSIGN_OR_RETURN(watch.flags_,
                          backend.allocate(static_cast<std::size_t>(bytes(max_sequences)), "output flags"));
  DSV4RT_ASSIGN_OR_RETURN(watch.reads_,
                          backend.create_read_backs({watch.flags_.data(), watch.flags_.size()}, watch.steps_.size()));
  return watch;
}

Status OutputWatch::end_step(std::uint64_t serial, std::int32_t entries) {
  steps_[next_] = {};
  DSV4RT_RETURN_IF_ERROR(reads_->take(next_));
  steps_[next_] = {.serial = serial, .entries = entries, .flags = {}};
  next_ = (next_ + 1) % steps_.size();
  return {};
}

bool OutputWatch::flagged(const EndedStep& step, std::int32_t entry) {
  return load_bytes<std::int32_t>(step.flags.data() + static_cast<std::size_t>(entry) * sizeof(std::int32_t)) != 0;
}

// Oldest step first.
Result<OutputWatch::Found> OutputWatch::poll() {
  Found last;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::size_t place = (next_ + i) % steps_.size();
    EndedStep& step = steps_[place];
    if (step.serial == 0 || !step.flags.empty()) continue;
    DSV4RT_ASSIGN_OR_RETURN(step.flags, reads_->taken(place));
    if (step.flags.empty()) break;  // later steps run later
    std::int32_t found = 0;
    for (std::int32_t entry = 0; entry < step.entries; ++entry) found += flagged(step, entry) ? 1 : 0;
    if (found > 0) last = {.serial = step.serial, .entries = found};
    found_ += found;
  }
  return last;
}

Result<OutputCheck> OutputWatch::check(std::uint64_t serial) const {
  const auto step = std::find_if(steps_.begin(), steps_.end(), [=](const EndedStep& s) { return s.serial == serial; });
  if (serial == 0 || step == steps_.end()) {
    return Status{StatusCode::kFailedPrecondition, "output_check: step " + std::to_string(serial) +
                                                       " is not one of the last " + std::to_string(steps_.size()) +
                                                       " that were committed or cancelled"};
  }
  OutputCheck check{.known = !step->flags.empty(), .entries = {}};
  for (std::int32_t entry = 0; check.known && entry < step->entries; ++entry) {
    if (flagged(*step, entry)) check.entries.push_back(entry);
  }
  return check;
}

}  // namespace dsv4rt
