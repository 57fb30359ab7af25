#include "replay/request_writer.h"

#include <nlohmann/json.hpp>

#include "base/try.h"

namespace dsv4rt::replay {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson quantity(double value, const char* unit) {
  return {{"value", value}, {"unit", unit}};
}
OrderedJson quantity(std::int64_t value, const char* unit) {
  return {{"value", value}, {"unit", unit}};
}

}  // namespace

const char* outcome_name(RequestOutcome outcome) noexcept {
  switch (outcome) {
    case RequestOutcome::kFinished:
      return "finished";
    case RequestOutcome::kRejected:
      return "rejected";
    case RequestOutcome::kAborted:
      return "aborted";
  }
  return "";
}

const char* reject_reason_name(RejectReason reason) noexcept {
  switch (reason) {
    case RejectReason::kNone:
      return "none";
    case RejectReason::kQueueFull:
      return "queue full";
    case RejectReason::kTooLong:
      return "too long";
    case RejectReason::kNoTokens:
      return "no tokens";
  }
  return "";
}

std::string request_line(const RequestRecord& record) {
  OrderedJson line;
  OrderedJson& metadata = line["metadata"];
  metadata = {{"session_num", record.index},
              {"x_request_id", record.id},
              {"log_line", record.line},
              {"outcome", outcome_name(record.outcome)},
              {"was_cancelled", record.outcome == RequestOutcome::kAborted},
              {"request_start_ns", record.arrival_ns},
              {"request_end_ns", record.end_ns}};
  if (record.session >= 0) metadata["conversation_id"] = record.session;
  if (!record.output_digest.empty()) metadata["output_sha256"] = record.output_digest;
  OrderedJson& metrics = line["metrics"];
  metrics["input_sequence_length"] = quantity(record.input_tokens, "tokens");
  metrics["output_sequence_length"] = quantity(record.output_tokens, "tokens");
  if (record.was_admitted()) {
    metrics["queue_time"] = quantity(record.queue_ms(), "ms");
    metrics["prefix_hit_tokens"] = quantity(record.hit_tokens, "tokens");
    metrics["recomputed_tokens"] = quantity(record.recomputed_tokens, "tokens");
    metrics["preemptions"] = quantity(std::int64_t{record.preemptions}, "count");
  }
  if (record.has_ttft()) metrics["time_to_first_token"] = quantity(record.ttft_ms(), "ms");
  if (record.has_tpot()) metrics["inter_token_latency"] = quantity(record.tpot_ms(), "ms");
  if (record.outcome == RequestOutcome::kFinished) metrics["request_latency"] = quantity(record.e2el_ms(), "ms");
  line["error"] = nullptr;
  if (record.outcome != RequestOutcome::kFinished) {
    const bool rejected = record.outcome == RequestOutcome::kRejected;
    line["error"] = {{"code", rejected ? reject_reason_name(record.reason) : "aborted"}, {"message", record.error}};
  }
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Result<RequestWriter> RequestWriter::create(const std::filesystem::path& path) {
  DSV4RT_ASSIGN_OR_RETURN(TextOutput output, TextOutput::create(path));
  return RequestWriter(std::move(output));
}

}  // namespace dsv4rt::replay
