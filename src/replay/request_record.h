// What became of one request. Times are nanoseconds since the replay began; -1: it never came to that.
#pragma once

#include <cstdint>
#include <string>

#include "replay/clock.h"

namespace dsv4rt::replay {

enum class RequestOutcome : std::uint8_t { kFinished, kRejected, kAborted };

enum class RejectReason : std::uint8_t { kNone, kQueueFull, kTooLong, kNoTokens };

struct RequestRecord {
  std::int64_t index = 0;  // Request::index
  std::int64_t line = 0;
  std::string id;
  std::int64_t session = -1;
  std::int64_t input_tokens = 0;
  std::int64_t asked_output_tokens = 0;
  std::int64_t output_tokens = 0;  // outputs it got

  RequestOutcome outcome = RequestOutcome::kFinished;
  RejectReason reason = RejectReason::kNone;
  std::string error;  // empty unless rejected or aborted

  std::int64_t arrival_ns = 0;
  std::int64_t admitted_ns = -1;
  std::int64_t first_token_ns = -1;
  std::int64_t last_token_ns = -1;
  std::int64_t end_ns = -1;
  std::int64_t preempted_ns = -1;
  std::int64_t resumed_ns = -1;

  std::int64_t hit_tokens = 0;         // prompt tokens that the cache had at its admission
  std::int64_t recomputed_tokens = 0;  // run again after a preemption
  std::int32_t preemptions = 0;
  std::string output_digest = {};  // SHA-256 of its outputs, of a finished request whose outputs were computed

  // Definitions of vLLM's serving benchmark. A value is meaningful if the request got that far.
  [[nodiscard]] bool has_ttft() const noexcept { return first_token_ns >= 0; }
  [[nodiscard]] double ttft_ms() const noexcept { return to_ms(first_token_ns - arrival_ns); }
  // Mean time of an output token after the first.
  [[nodiscard]] bool has_tpot() const noexcept { return has_ttft() && output_tokens > 1; }
  [[nodiscard]] double tpot_ms() const noexcept {
    return to_ms(last_token_ns - first_token_ns) / static_cast<double>(output_tokens - 1);
  }
  [[nodiscard]] double e2el_ms() const noexcept { return to_ms(end_ns - arrival_ns); }
  [[nodiscard]] bool was_admitted() const noexcept { return admitted_ns >= 0; }
  [[nodiscard]] double queue_ms() const noexcept { return to_ms(admitted_ns - arrival_ns); }
  // Tokens run for it (prompt without hits, and outputs) a second since its admission, preemption included.
  [[nodiscard]] double tokens_per_s() const noexcept {
    const auto tokens = static_cast<double>(input_tokens - hit_tokens + output_tokens);
    return end_ns > admitted_ns ? tokens / static_cast<double>(end_ns - admitted_ns) * kNsPerS : 0;
  }
};

}  // namespace dsv4rt::replay
