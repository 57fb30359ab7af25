#include "engine/late_counts.h"

#include <algorithm>
#include <string>

#include "base/try.h"
#include "layout/bytes.h"

namespace dsv4rt {
namespace {

std::int32_t count_at(std::span<const std::byte> counts, std::size_t entry) {
  return load_bytes<std::int32_t>(counts.data() + entry * sizeof(std::int32_t));
}

}  // namespace

Result<LateCounts> LateCounts::create(Backend& backend, std::int32_t max_sequences, std::int32_t draft_budget_tokens,
                                      std::span<const std::int32_t> ratios) {
  LateCounts late;
  late.most_rejected_ = draft_budget_tokens + 1;
  const auto slots = static_cast<std::size_t>(max_sequences);
  DSV4RT_ASSIGN_OR_RETURN(late.counts_, backend.allocate(slots * sizeof(std::int32_t), "accepted counts"));
  DSV4RT_ASSIGN_OR_RETURN(late.rejected_, backend.allocate(slots * sizeof(std::int32_t), "rejected tokens"));
  DSV4RT_ASSIGN_OR_RETURN(late.reads_, backend.create_read_backs({late.counts_.data(), late.counts_.size()}, kSteps));
  DSV4RT_ASSIGN_OR_RETURN(late.shifts_,
                          backend.create_step_shifts({late.rejected_.as<std::int32_t>(), slots},
                                                     {.most_rejected = late.most_rejected_, .ratios = ratios}));
  late.entries_.reserve(slots);
  late.rejections_.reserve(slots);
  late.accepted_.reserve(slots);
  return late;
}

Status LateCounts::take(Backend& backend, std::uint64_t serial, const StepView& step, std::span<const Entry> entries,
                        const std::int32_t* accepted) {
  const std::size_t place = (last_ + 1) % kSteps;
  steps_[place] = {};
  DSV4RT_RETURN_IF_ERROR(backend.copy(counts_.data(), accepted, entries.size() * sizeof(std::int32_t)));
  DSV4RT_RETURN_IF_ERROR(shifts_->note(step, accepted));
  DSV4RT_RETURN_IF_ERROR(reads_->take(place));
  steps_[place] = {.serial = serial, .entries = static_cast<std::int32_t>(entries.size())};
  last_ = place;
  entries_.assign(entries.begin(), entries.end());
  pending_ = true;
  return {};
}

Status LateCounts::failure_of(std::size_t entry, std::int32_t accepted) const {
  const Entry& of = entries_[entry];
  return {StatusCode::kInvalidArgument, "commit_from_device of step " + std::to_string(steps_[last_].serial) +
                                            ": accepted[" + std::to_string(entry) + "] = " + std::to_string(accepted) +
                                            " of sequence index " + std::to_string(of.sequence.index) +
                                            "; accepted: " + std::to_string(std::max(0, of.tokens - most_rejected_)) +
                                            " .. " + std::to_string(of.tokens) + "; the sequence keeps all of them"};
}

Result<LateCounts::Settled> LateCounts::settle() {
  DSV4RT_ASSIGN_OR_RETURN(const std::span<const std::byte> read, reads_->wait(last_));
  rejections_.clear();
  accepted_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::int32_t accepted = count_at(read, i);
    const std::int32_t tokens = entries_[i].tokens;
    const std::int32_t rejected = rejected_tokens(accepted, tokens, most_rejected_);
    rejections_.push_back({.sequence = entries_[i].sequence, .tokens = rejected});
    accepted_.push_back(tokens - rejected);
    if (accepted != tokens - rejected && failure_.ok()) failure_ = failure_of(i, accepted);
  }
  pending_ = false;  // not before the text of a failure is there: without memory for it the counts stay pending
  return Settled{.serial = steps_[last_].serial, .rejections = rejections_, .accepted = accepted_};
}

Result<AcceptedCounts> LateCounts::counts(std::uint64_t serial) {
  const auto step = std::find_if(steps_.begin(), steps_.end(), [=](const TakenStep& s) { return s.serial == serial; });
  if (serial == 0 || step == steps_.end()) {
    return Status{StatusCode::kFailedPrecondition, "accepted_counts: step " + std::to_string(serial) +
                                                       " is not one of the last " + std::to_string(steps_.size()) +
                                                       " that commit_from_device ended"};
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::span<const std::byte> read,
                          reads_->taken(static_cast<std::size_t>(step - steps_.begin())));
  AcceptedCounts counts{.known = !read.empty(), .accepted = {}};
  for (std::int32_t i = 0; counts.known && i < step->entries; ++i) {
    counts.accepted.push_back(count_at(read, static_cast<std::size_t>(i)));
  }
  return counts;
}

}  // namespace dsv4rt
