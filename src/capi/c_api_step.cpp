// The C interface: prepare, run, commit and cancel a step.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/try.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"

namespace dsv4rt::c_api {
namespace {

Step step_of(const dsv4rt_step& step) {
  return {.serial = step.serial, .tokens = step.tokens, .valid_tokens = step.valid_tokens};
}

struct StepRequest {
  StepOptions options;
  std::uint64_t hook_key = 0;
  const std::int32_t* const* token_ids = nullptr;  // [entries], or null
};

Result<StepRequest> read_step_options(const dsv4rt_step_options* given) {
  dsv4rt_step_options known{};
  if (given != nullptr) DSV4RT_RETURN_IF_ERROR(read_struct(given, "dsv4rt_step_options", known));
  if (known.pad_to_tokens < 0 || known.pad_to_tokens > std::numeric_limits<std::int32_t>::max()) {
    return Status{StatusCode::kInvalidArgument, "dsv4rt_step_options.pad_to_tokens: " +
                                                    std::to_string(known.pad_to_tokens) + " is not a token count"};
  }
  if (known.capture != 0 && known.capture != 1) {
    return Status{StatusCode::kInvalidArgument,
                  "dsv4rt_step_options.capture: " + std::to_string(known.capture) + "; accepted: 0 or 1"};
  }
  if (known.hand_over != 0 && known.hand_over != 1) {
    return Status{StatusCode::kInvalidArgument,
                  "dsv4rt_step_options.hand_over: " + std::to_string(known.hand_over) + "; accepted: 0 or 1"};
  }
  // Whether there is such a rank, the engine knows.
  if (known.hand_over_to < 0 || known.hand_over_to > std::numeric_limits<std::int32_t>::max() ||
      (known.hand_over == 0 && known.hand_over_to != 0)) {
    return Status{StatusCode::kInvalidArgument,
                  "dsv4rt_step_options.hand_over_to: " + std::to_string(known.hand_over_to) +
                      (known.hand_over == 0 ? " without hand_over; accepted: 0" : "; accepted: a rank")};
  }
  std::optional<std::int32_t> hand_over_to;
  if (known.hand_over == 1) hand_over_to = static_cast<std::int32_t>(known.hand_over_to);
  return StepRequest{.options = {.pad_to_tokens = static_cast<std::int32_t>(known.pad_to_tokens),
                                 .capture = known.capture == 1,
                                 .hand_over_to = hand_over_to},
                     .hook_key = known.hook_key,
                     .token_ids = known.token_ids};
}

// Fills `read`, one of the handle's lists, which have room for as many entries as a step can have.
Result<StepRequest> read_step(const char* function, std::vector<StepEntry>& read, const dsv4rt_step_entry* entries,
                              std::size_t count, const dsv4rt_step_options* given) {
  if (entries == nullptr) return null_argument(function, "entries");
  DSV4RT_ASSIGN_OR_RETURN(const StepRequest request, read_step_options(given));
  // A sequence appears once in a step, so more entries than slots cannot be valid.
  if (count > read.capacity()) {
    return Status{StatusCode::kInvalidArgument, std::string(function) + ": " + std::to_string(count) +
                                                    " entries; at most " + std::to_string(read.capacity()) +
                                                    " sequences are live"};
  }
  read.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const dsv4rt_step_entry& entry = entries[i];
    read.push_back({.sequence = id_of(entry.sequence),
                    .tokens = entry.tokens,
                    .token_ids = request.token_ids == nullptr ? nullptr : request.token_ids[i]});
  }
  return request;
}

Status can_prepare(dsv4rt_engine& handle, const dsv4rt_step_entry* entries, std::size_t count,
                   const dsv4rt_step_options* given, dsv4rt_block_shortage* shortage) {
  constexpr char kName[] = "dsv4rt_step_can_prepare";
  if (shortage == nullptr) return null_argument(kName, "shortage");
  DSV4RT_ASSIGN_OR_RETURN(const StepRequest request, read_step(kName, handle.asked_entries, entries, count, given));
  DSV4RT_ASSIGN_OR_RETURN(const std::optional<BlockShortage> found,
                          handle.engine->can_step(handle.asked_entries, request.options));
  dsv4rt_block_shortage values{};
  if (found) {
    values.role = static_cast<std::int32_t>(found->role);
    values.layer = found->layer.value;
    values.missing_blocks = found->missing_blocks;
    values.missing_bytes = found->missing_bytes;
    values.entry = found->entry;
  }
  return write_struct(shortage, shortage->struct_size, "dsv4rt_block_shortage", values);
}

Status prepare(dsv4rt_engine& handle, const dsv4rt_step_entry* entries, std::size_t count,
               const dsv4rt_step_options* given, dsv4rt_step* step) {
  constexpr char kName[] = "dsv4rt_step_prepare";
  if (step == nullptr) return null_argument(kName, "step");
  DSV4RT_ASSIGN_OR_RETURN(const StepRequest request, read_step(kName, handle.entries, entries, count, given));
  DSV4RT_ASSIGN_OR_RETURN(const Step prepared, handle.engine->prepare(handle.entries, request.options));
  handle.step_serial = prepared.serial;
  handle.step_entries = count;
  handle.hook_key = request.hook_key;
  *step = {prepared.serial, prepared.tokens, prepared.valid_tokens};
  return {};
}

// Calls the caller's hook; what it returns or throws is its own failure, not the engine's.
// `call` gives the hook's status.
template <class Call>
Status run_hook(dsv4rt_engine& handle, const LayerOutput& layer, Call&& call) {
  const auto failed = [&](StatusCode code, const std::string& what) {
    return Status(code, "the hook of layer " + std::to_string(layer.layer.value) + " " + what);
  };
  dsv4rt_status status = DSV4RT_OK;
  try {
    const HookScope scope(handle);
    status = call();
  } catch (const std::exception& exception) {
    return failed(StatusCode::kInvalidArgument, std::string("threw: ") + exception.what());
  } catch (...) {
    return failed(StatusCode::kInvalidArgument, "threw an exception of unknown type");
  }
  if (status == DSV4RT_OK) return {};
  if (status < DSV4RT_OK || status > DSV4RT_BACKEND_LOST) {
    return failed(StatusCode::kInvalidArgument, "returned " + std::to_string(status) + ", which is no status");
  }
  const auto code = static_cast<StatusCode>(status);
  return failed(code, "returned '" + std::string(status_code_name(code)) + "'");
}

Status cancel(dsv4rt_engine& handle, const dsv4rt_step* step, dsv4rt_sequence* emptied, std::size_t capacity,
              std::size_t* count) {
  if (step == nullptr) return null_argument("dsv4rt_step_cancel", "step");
  if (emptied == nullptr) return null_argument("dsv4rt_step_cancel", "emptied");
  if (count == nullptr) return null_argument("dsv4rt_step_cancel", "count");
  if (handle.step_serial != 0 && step->serial == handle.step_serial && capacity < handle.step_entries) {
    return {StatusCode::kInvalidArgument, "dsv4rt_step_cancel: capacity " + std::to_string(capacity) +
                                              "; the step has " + std::to_string(handle.step_entries) + " entries"};
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<SequenceId> sequences, handle.engine->cancel(step_of(*step)));
  handle.step_serial = 0;
  *count = sequences.size();
  for (std::size_t i = 0; i < sequences.size(); ++i) emptied[i] = {sequences[i].index, sequences[i].generation};
  return {};
}

}  // namespace
}  // namespace dsv4rt::c_api

using dsv4rt::Status;
using dsv4rt::StatusCode;
using dsv4rt::c_api::call;
using dsv4rt::c_api::null_argument;
using dsv4rt::c_api::step_of;
using dsv4rt::c_api::Use;

dsv4rt_status dsv4rt_step_prepare(dsv4rt_engine* engine, const dsv4rt_step_entry* entries, size_t count,
                                  const dsv4rt_step_options* options, dsv4rt_step* step) {
  return call(engine, Use::kChange,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::prepare(handle, entries, count, options, step); });
}

dsv4rt_status dsv4rt_step_forward_layer(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t layer,
                                        const dsv4rt_bf16* x, dsv4rt_bf16* out) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (step == nullptr) return null_argument("dsv4rt_step_forward_layer", "step");
    if (x == nullptr) return null_argument("dsv4rt_step_forward_layer", "x");
    if (out == nullptr) return null_argument("dsv4rt_step_forward_layer", "out");
    return handle.engine->forward_layer(step_of(*step), dsv4rt::LayerId{layer}, x, out);
  });
}

dsv4rt_status dsv4rt_step_run(dsv4rt_engine* engine, const dsv4rt_step* step, const dsv4rt_bf16* x,
                              dsv4rt_layer_hook hook, void* user_data) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (step == nullptr) return null_argument("dsv4rt_step_run", "step");
    if (x == nullptr) return null_argument("dsv4rt_step_run", "x");
    if (hook == nullptr) return null_argument("dsv4rt_step_run", "hook");
    const auto run = [&](const dsv4rt::LayerOutput& layer) {
      return dsv4rt::c_api::run_hook(
          handle, layer, [&] { return hook(user_data, layer.layer.value, layer.output, layer.next_input); });
    };
    return handle.engine->step(step_of(*step), x, run, handle.hook_key);
  });
}

dsv4rt_status dsv4rt_step_run_with_outputs(dsv4rt_engine* engine, const dsv4rt_step* step, const dsv4rt_bf16* x,
                                           dsv4rt_layer_output_hook hook, void* user_data) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (step == nullptr) return null_argument("dsv4rt_step_run_with_outputs", "step");
    if (x == nullptr) return null_argument("dsv4rt_step_run_with_outputs", "x");
    if (hook == nullptr) return null_argument("dsv4rt_step_run_with_outputs", "hook");
    const dsv4rt_step running = *step;
    const auto run = [&](const dsv4rt::LayerOutput& layer) {
      const dsv4rt_layer_output output{.struct_size = sizeof(dsv4rt_layer_output),
                                       .step = &running,
                                       .output = layer.output,
                                       .next_input = layer.next_input,
                                       .stream = layer.stream,
                                       .layer = layer.layer.value};
      return dsv4rt::c_api::run_hook(handle, layer, [&] { return hook(user_data, &output); });
    };
    return handle.engine->step(step_of(*step), x, run, handle.hook_key);
  });
}

dsv4rt_status dsv4rt_step_can_prepare(dsv4rt_engine* engine, const dsv4rt_step_entry* entries, size_t count,
                                      const dsv4rt_step_options* options, dsv4rt_block_shortage* shortage) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) {
    return dsv4rt::c_api::can_prepare(handle, entries, count, options, shortage);
  });
}

dsv4rt_status dsv4rt_step_commit(dsv4rt_engine* engine, const dsv4rt_step* step, const int32_t* accepted,
                                 size_t count) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (step == nullptr) return null_argument("dsv4rt_step_commit", "step");
    if (accepted == nullptr && count > 0) return null_argument("dsv4rt_step_commit", "accepted");
    const Status status = handle.engine->commit(step_of(*step), {accepted, count});
    if (status.ok()) handle.step_serial = 0;
    return status;
  });
}

dsv4rt_status dsv4rt_step_commit_from_device(dsv4rt_engine* engine, const dsv4rt_step* step, const int32_t* accepted,
                                             size_t count) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (step == nullptr) return null_argument("dsv4rt_step_commit_from_device", "step");
    if (accepted == nullptr) return null_argument("dsv4rt_step_commit_from_device", "accepted");
    const Status status = handle.engine->commit_from_device(step_of(*step), {accepted, count});
    if (status.ok()) handle.step_serial = 0;
    return status;
  });
}

dsv4rt_status dsv4rt_step_accepted(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t* known, int32_t* accepted,
                                   size_t capacity, size_t* count) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (step == nullptr) return null_argument("dsv4rt_step_accepted", "step");
    if (known == nullptr) return null_argument("dsv4rt_step_accepted", "known");
    if (count == nullptr) return null_argument("dsv4rt_step_accepted", "count");
    if (accepted == nullptr && capacity > 0) return null_argument("dsv4rt_step_accepted", "accepted");
    DSV4RT_ASSIGN_OR_RETURN(const dsv4rt::AcceptedCounts counts, handle.engine->accepted_counts(step_of(*step)));
    *count = counts.accepted.size();
    if (accepted != nullptr && capacity < counts.accepted.size()) {
      return {StatusCode::kInvalidArgument, "dsv4rt_step_accepted: capacity " + std::to_string(capacity) +
                                                "; the step has " + std::to_string(counts.accepted.size()) +
                                                " entries"};
    }
    *known = counts.known ? 1 : 0;
    if (accepted != nullptr) std::copy(counts.accepted.begin(), counts.accepted.end(), accepted);
    return {};
  });
}

dsv4rt_status dsv4rt_engine_settle(dsv4rt_engine* engine) {
  return call(engine, Use::kChange, [](dsv4rt_engine& handle) { return handle.engine->settle(); });
}

dsv4rt_status dsv4rt_step_cancel(dsv4rt_engine* engine, const dsv4rt_step* step, dsv4rt_sequence* emptied,
                                 size_t capacity, size_t* count) {
  return call(engine, Use::kChange,
              [&](dsv4rt_engine& handle) { return dsv4rt::c_api::cancel(handle, step, emptied, capacity, count); });
}

dsv4rt_status dsv4rt_step_output_check(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t* known, int32_t* entries,
                                       size_t capacity, size_t* count) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (step == nullptr) return null_argument("dsv4rt_step_output_check", "step");
    if (known == nullptr) return null_argument("dsv4rt_step_output_check", "known");
    if (count == nullptr) return null_argument("dsv4rt_step_output_check", "count");
    if (entries == nullptr && capacity > 0) return null_argument("dsv4rt_step_output_check", "entries");
    DSV4RT_ASSIGN_OR_RETURN(const dsv4rt::OutputCheck check, handle.engine->output_check(step_of(*step)));
    *count = check.entries.size();
    if (entries != nullptr && capacity < check.entries.size()) {
      return {StatusCode::kInvalidArgument, "dsv4rt_step_output_check: capacity " + std::to_string(capacity) + "; " +
                                                std::to_string(check.entries.size()) + " entries are not finite"};
    }
    *known = check.known ? 1 : 0;
    if (entries != nullptr) std::copy(check.entries.begin(), check.entries.end(), entries);
    return {};
  });
}

dsv4rt_status dsv4rt_engine_non_finite_entries(dsv4rt_engine* engine, int64_t* entries) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) -> Status {
    if (entries == nullptr) return null_argument("dsv4rt_engine_non_finite_entries", "entries");
    *entries = handle.engine->non_finite_entries();
    return {};
  });
}
