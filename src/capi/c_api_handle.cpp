#include "capi/c_api_handle.h"

#include <exception>
#include <new>

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

Status check_use(const dsv4rt_engine& handle, Use use) {
  if (handle.defective && use != Use::kFact) {
    return {StatusCode::kFaulted,
            "an earlier call ended in a defect of the library; this engine can only be destroyed"};
  }
  if (handle.in_hook && use == Use::kChange) {
    return {StatusCode::kFailedPrecondition, "a layer hook must not change the engine that runs it"};
  }
  return {};
}

Status null_argument(const char* function, const char* argument) {
  return {StatusCode::kInvalidArgument, std::string(function) + ": " + argument + " must not be null"};
}

}  // namespace dsv4rt::c_api
