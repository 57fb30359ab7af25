#include "capi/c_api_handle.h"

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/try.h"

namespace dsv4rt::c_api {

void ErrorText::set(std::string_view text) noexcept {
  try {
    storage_.assign(text);
    text_ = storage_.c_str();
  } catch (...) {
    text_ = "there is no memory left for the text of this failure";
  }
}

dsv4rt_status report(const Status& status, ErrorText& error) noexcept {
  if (!status.ok()) error.set(status.message());
  return static_cast<dsv4rt_status>(status.code());
}

dsv4rt_status report_exception(ErrorText& error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    error.set("the host has no memory left");
    return DSV4RT_RESOURCE_EXHAUSTED;
  } catch (const std::exception& exception) {
    error.set(exception.what());
  } catch (...) {
    error.set("an exception of unknown type");
  }
  return DSV4RT_INTERNAL;
}

Status open(dsv4rt_engine& handle, EngineOptions options, const MakeEngine& make) {
  options.on_warning = [&handle, tell = std::move(options.on_warning)](std::string_view text) {
    ++handle.warnings;
    if (!tell) return;
    const HookScope scope(handle);
    tell(text);
  };
  DSV4RT_ASSIGN_OR_RETURN(handle.engine, make ? make(options) : Engine::create(options));
  handle.entries.reserve(static_cast<std::size_t>(options.limits.max_sequences));
  handle.asked_entries.reserve(static_cast<std::size_t>(options.limits.max_sequences));
  return {};
}

void guard_events(dsv4rt_engine& handle, EngineOptions& options) {
  if (!options.prefix_cache.on_event) return;
  options.prefix_cache.on_event = [&handle, tell = std::move(options.prefix_cache.on_event)](const PrefixEvent& event) {
    const HookScope scope(handle);
    tell(event);
  };
}

dsv4rt_status check_use(dsv4rt_engine& handle, Use use) noexcept {
  if (handle.defective && use != Use::kFact) {
    handle.error.set(handle.defect.c_str());
    return DSV4RT_FAULTED;
  }
  if (handle.in_hook && use == Use::kChange) {
    handle.error.set("a layer hook or event callback must not change the engine that calls it");
    return DSV4RT_FAILED_PRECONDITION;
  }
  return DSV4RT_OK;
}

dsv4rt_status report_exception(dsv4rt_engine& handle, Use use) noexcept {
  const dsv4rt_status status = report_exception(handle.error);
  if (status != DSV4RT_INTERNAL || use == Use::kFact) return status;
  handle.defective = true;
  try {
    handle.defect.set(std::string("an earlier call ended in a defect of the library, destroy the engine: ") +
                      handle.error.c_str());
  } catch (...) {
    handle.defect.set("engine latched");
  }
  return status;
}

void copy_text(const char* text, char* buffer, std::size_t buffer_bytes) noexcept {
  if (buffer == nullptr || buffer_bytes == 0) return;
  const std::size_t length = std::min(std::strlen(text), buffer_bytes - 1);
  std::memcpy(buffer, text, length);
  buffer[length] = '\0';
}

Status null_argument(const char* function, const char* argument) {
  return {StatusCode::kInvalidArgument, std::string(function) + ": " + argument + " must not be null"};
}

}  // namespace dsv4rt::c_api
