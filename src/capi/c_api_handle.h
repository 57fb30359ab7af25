// What a dsv4rt_engine is, and the wall that no exception passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4rt/c_api.h"
#include "dsv4rt/engine.h"

namespace dsv4rt::c_api {

// The text of a failure. Storing one never fails: without memory for it a constant takes its place.
class ErrorText {
 public:
  void set(std::string_view text) noexcept;
  [[nodiscard]] const char* c_str() const noexcept { return text_; }

 private:
  std::string storage_;
  const char* text_ = "";  // storage_ or a constant
};

// The status code of `status`; its message goes to `error` when it is a failure.
dsv4rt_status report(const Status& status, ErrorText& error) noexcept;

// Only inside a catch block: the code and text of the exception being handled. Out of memory is
// DSV4RT_RESOURCE_EXHAUSTED, everything else is a defect: DSV4RT_INTERNAL.
dsv4rt_status report_exception(ErrorText& error) noexcept;

// Runs `body`, which returns a Status, and turns what comes out of it into a code and a text.
template <class Body>
dsv4rt_status run_guarded(ErrorText& error, Body&& body) noexcept {
  try {
    return report(body(), error);
  } catch (...) {
    return report_exception(error);
  }
}

}  // namespace dsv4rt::c_api

struct dsv4rt_engine {
  std::unique_ptr<dsv4rt::Engine> engine;
  dsv4rt::c_api::ErrorText error;
  // Scratch of dsv4rt_step_prepare and of dsv4rt_step_can_prepare, which a receiver of warnings may call during the
  // first; their capacity is the largest number of entries a step can have.
  std::vector<dsv4rt::StepEntry> entries;
  std::vector<dsv4rt::StepEntry> asked_entries;
  std::uint64_t step_serial = 0;  // outstanding step, 0: none
  std::size_t step_entries = 0;   // number of entries of that step
  std::uint64_t hook_key = 0;     // what the caller gave as that step's hook key
  std::uint64_t warnings = 0;     // number of warnings that the engine gave
  bool in_hook = false;
  // An exception that is not a lack of memory came out of a call: what it left half done is unknown.
  bool defective = false;
  dsv4rt::c_api::ErrorText defect;  // what every later call answers
};

namespace dsv4rt::c_api {

enum class Use : std::uint8_t {
  kFact,    // fixed at creation: always answered
  kQuery,   // reads the state
  kChange,  // changes the state: refused inside a hook
};

// Marks the engine as inside a hook or an event callback until the end of the scope.
class HookScope {
 public:
  explicit HookScope(dsv4rt_engine& handle) : handle_(handle), before_(handle.in_hook) { handle_.in_hook = true; }
  ~HookScope() { handle_.in_hook = before_; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  dsv4rt_engine& handle_;
  bool before_;
};

// While PrefixCacheOptions::on_event runs, the handle refuses to be changed.
void guard_events(dsv4rt_engine& handle, EngineOptions& options);

// Creates the engine of a new handle: make(options) does, or it comes from options.checkpoint.
using MakeEngine = std::function<Result<std::unique_ptr<Engine>>(const EngineOptions& options)>;
Status open(dsv4rt_engine& handle, EngineOptions options, const MakeEngine& make = {});

// DSV4RT_OK, or why `handle` cannot be used that way now; the text is stored then.
dsv4rt_status check_use(dsv4rt_engine& handle, Use use) noexcept;

// Only inside a catch block: as report_exception. A defect is what later calls answer.
dsv4rt_status report_exception(dsv4rt_engine& handle, Use use) noexcept;

// Runs `body(handle)` for one API function. A body that runs out of memory has changed nothing by then: the engine's
// calls throw nothing, and what follows a call that succeeded takes no memory.
template <class Body>
dsv4rt_status call(dsv4rt_engine* handle, Use use, Body&& body) noexcept {
  if (handle == nullptr) return DSV4RT_INVALID_ARGUMENT;
  if (const dsv4rt_status usable = check_use(*handle, use); usable != DSV4RT_OK) return usable;
  try {
    return report(body(*handle), handle->error);
  } catch (...) {
    return report_exception(*handle, use);
  }
}

inline SequenceId id_of(dsv4rt_sequence sequence) {
  return {.index = sequence.index, .generation = sequence.generation};
}

// Copies a text to the caller's buffer, cut to fit and terminated; null or 0 bytes: nowhere.
void copy_text(const char* text, char* buffer, std::size_t buffer_bytes) noexcept;

// "<call>: <argument> must not be null".
Status null_argument(const char* function, const char* argument);

}  // namespace dsv4rt::c_api
