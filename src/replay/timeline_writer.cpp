#include "replay/timeline_writer.h"

#include <nlohmann/json.hpp>

#include "base/try.h"
#include "cache/cache_layout.h"
#include "replay/request_writer.h"

namespace dsv4rt::replay {
namespace {

using OrderedJson = nlohmann::ordered_json;

enum Process : int { kRequests = 1, kSteps = 2, kCache = 3 };

double to_us(std::int64_t ns) {
  return static_cast<double>(ns) / kNsPerUs;
}

std::string text_of(const OrderedJson& event) {
  return event.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string process_name(Process process, const char* name) {
  return text_of({{"ph", "M"}, {"pid", process}, {"tid", 0}, {"name", "process_name"}, {"args", {{"name", name}}}});
}

// One end of a slice on the request's track.
std::string async_event(const char* phase, const char* name, const RequestRecord& record, std::int64_t at_ns) {
  return text_of({{"ph", phase},
                  {"cat", "request"},
                  {"id", record.index},
                  {"pid", kRequests},
                  {"tid", 0},
                  {"name", name},
                  {"ts", to_us(at_ns)}});
}

OrderedJson request_args(const RequestRecord& record) {
  return {{"id", record.id},
          {"outcome", outcome_name(record.outcome)},
          {"input_tokens", record.input_tokens},
          {"output_tokens", record.output_tokens},
          {"hit_tokens", record.hit_tokens},
          {"preemptions", record.preemptions}};
}

}  // namespace

Result<TimelineWriter> TimelineWriter::create(const std::filesystem::path& path, std::int64_t max_events) {
  if (max_events < 0) {
    return Status{StatusCode::kInvalidArgument,
                  "timeline: max_events = " + std::to_string(max_events) + "; accepted: 0 or more"};
  }
  DSV4RT_ASSIGN_OR_RETURN(TextOutput output, TextOutput::create(path));
  TimelineWriter writer(std::move(output), max_events);
  DSV4RT_RETURN_IF_ERROR(writer.output_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"));
  DSV4RT_RETURN_IF_ERROR(writer.emit(process_name(kRequests, "requests")));
  DSV4RT_RETURN_IF_ERROR(writer.emit(process_name(kSteps, "steps")));
  DSV4RT_RETURN_IF_ERROR(writer.emit(process_name(kCache, "cache")));
  return writer;
}

bool TimelineWriter::admit(std::int64_t events) {
  if (events_ + events > max_events_) {
    left_out_ += events;
    return false;
  }
  events_ += events;
  return true;
}

Status TimelineWriter::emit(const std::string& event) {
  DSV4RT_RETURN_IF_ERROR(output_.write(first_ ? "" : ",\n"));
  first_ = false;
  return output_.write(event);
}

Status TimelineWriter::request(const RequestRecord& record) {
  if (!record.was_admitted() && record.end_ns == record.arrival_ns) {
    if (!admit(1)) return {};
    OrderedJson event = {{"ph", "n"},
                         {"cat", "request"},
                         {"id", record.index},
                         {"pid", kRequests},
                         {"tid", 0},
                         {"name", outcome_name(record.outcome)},
                         {"ts", to_us(record.arrival_ns)}};
    event["args"] = request_args(record);
    event["args"]["error"] = record.error;
    return emit(text_of(event));
  }
  struct Slice {
    const char* name;
    std::int64_t begin_ns;
    std::int64_t end_ns;
  };
  std::vector<Slice> slices;  // in the order of time, a preemption within its phase
  const std::int64_t prefill_end = record.has_ttft() ? record.first_token_ns : record.end_ns;
  slices.push_back({"queued", record.arrival_ns, record.was_admitted() ? record.admitted_ns : record.end_ns});
  if (record.was_admitted()) slices.push_back({"prefill", record.admitted_ns, prefill_end});
  if (record.has_ttft()) slices.push_back({"decode", record.first_token_ns, record.end_ns});
  const bool preempted = record.preempted_ns >= 0;
  const std::int64_t resumed_ns = record.resumed_ns >= 0 ? record.resumed_ns : record.end_ns;
  if (!admit(2 + 2 * static_cast<std::int64_t>(slices.size()) + (preempted ? 2 : 0))) return {};
  OrderedJson begin = OrderedJson::parse(async_event("b", "request", record, record.arrival_ns));
  begin["args"] = request_args(record);
  DSV4RT_RETURN_IF_ERROR(emit(text_of(begin)));
  for (const Slice& slice : slices) {
    DSV4RT_RETURN_IF_ERROR(emit(async_event("b", slice.name, record, slice.begin_ns)));
    // A request is preempted once at most, and resumes before the phase goes on.
    const bool last = &slice == &slices.back();
    const bool inside =
        preempted && record.preempted_ns >= slice.begin_ns && (record.preempted_ns < slice.end_ns || last);
    if (inside) {
      DSV4RT_RETURN_IF_ERROR(emit(async_event("b", "preempted", record, record.preempted_ns)));
      DSV4RT_RETURN_IF_ERROR(emit(async_event("e", "preempted", record, resumed_ns)));
    }
    DSV4RT_RETURN_IF_ERROR(emit(async_event("e", slice.name, record, slice.end_ns)));
  }
  return emit(async_event("e", "request", record, record.end_ns));
}

Status TimelineWriter::step(const StepReport& report, std::int64_t begin_ns, std::int64_t end_ns, std::size_t machine) {
  if (!report.ran || !admit(1)) return {};
  const char* const name = report.prefill_sequences == 0  ? "decode"
                           : report.decode_sequences == 0 ? "prefill"
                                                          : "mixed";
  return emit(text_of({{"ph", "X"},
                       {"cat", "step"},
                       {"pid", kSteps},
                       {"tid", machine},
                       {"name", name},
                       {"ts", to_us(begin_ns)},
                       {"dur", to_us(end_ns - begin_ns)},
                       {"args",
                        {{"decode_sequences", report.decode_sequences},
                         {"decode_tokens", report.decode_tokens},
                         {"prefill_sequences", report.prefill_sequences},
                         {"prefill_tokens", report.prefill_tokens}}}}));
}

Status TimelineWriter::counter(const std::string& name, std::int64_t at_ns,
                               std::vector<std::pair<std::string, std::int64_t>> series) {
  auto& latest = latest_[name];
  if (latest == series || !admit(1)) return {};
  OrderedJson event = {{"ph", "C"}, {"pid", kCache}, {"tid", 0}, {"name", name}, {"ts", to_us(at_ns)}};
  event["args"] = OrderedJson::object();
  for (const auto& [key, value] : series) event["args"][key] = value;
  latest = std::move(series);
  return emit(text_of(event));
}

Status TimelineWriter::counters(const CacheOccupancy& occupancy, const QueueState& queue, std::int64_t at_ns) {
  for (const RoleOccupancy& role : occupancy.roles) {
    DSV4RT_RETURN_IF_ERROR(counter(std::string(cache_role_name(role.role)) + " blocks", at_ns,
                                   {{"live", role.live_blocks}, {"cached", role.cached_blocks}}));
  }
  DSV4RT_RETURN_IF_ERROR(counter("slots", at_ns, {{"live", occupancy.live_sequences}}));
  DSV4RT_RETURN_IF_ERROR(counter("boundary states", at_ns, {{"kept", occupancy.kept_states}}));
  return counter("queue", at_ns, {{"waiting", queue.waiting}, {"preempted", queue.preempted}});
}

Status TimelineWriter::commit() {
  DSV4RT_RETURN_IF_ERROR(output_.write("\n],\"otherData\":{\"events_left_out\":" + std::to_string(left_out_) + "}}\n"));
  return output_.commit();
}

}  // namespace dsv4rt::replay
