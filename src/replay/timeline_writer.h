// The run as Chrome trace JSON (https://ui.perfetto.dev, chrome://tracing). Times are microseconds of the replay.
//
//   process "requests"  an async track a request: "request", and in it "queued", "prefill", "decode", "preempted";
//                       rejected ones are instants
//   process "steps"     one slice a step: "decode", "prefill" or "mixed", with its numbers
//   process "cache"     counters: blocks of every paged role, slots, boundary states, the queue; written when they
//   change
//
// Beyond max_events requests and steps are left out, and the trace says how many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/replay_executor.h"
#include "replay/request_record.h"
#include "replay/scheduler.h"
#include "replay/text_output.h"

namespace dsv4rt::replay {

class TimelineWriter {
 public:
  static Result<TimelineWriter> create(const std::filesystem::path& path, std::int64_t max_events);

  Status request(const RequestRecord& record);
  // On the track of `machine`, counted from 0.
  Status step(const StepReport& report, std::int64_t begin_ns, std::int64_t end_ns, std::size_t machine);
  Status counters(const CacheOccupancy& occupancy, const QueueState& queue, std::int64_t at_ns);
  Status commit();

 private:
  TimelineWriter(TextOutput output, std::int64_t max_events) : output_(std::move(output)), max_events_(max_events) {}
  // Whether `events` more fit; counts what is left out otherwise.
  bool admit(std::int64_t events);
  Status emit(const std::string& event);
  Status counter(const std::string& name, std::int64_t at_ns, std::vector<std::pair<std::string, std::int64_t>> series);

  TextOutput output_;
  std::int64_t max_events_;
  std::int64_t events_ = 0;
  std::int64_t left_out_ = 0;
  bool first_ = true;
  std::map<std::string, std::vector<std::pair<std::string, std::int64_t>>> latest_;
};

}  // namespace dsv4rt::replay
