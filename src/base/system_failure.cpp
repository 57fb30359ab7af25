#include "base/system_failure.h"

#include <cerrno>
#include <new>
#include <system_error>

#include "base/message_text.h"

namespace dsv4rt {

Status system_failure(const std::string& name, const std::string& action, int error) {
  const std::string message = printable(name, kShownPathBytes) + ": cannot " + action + ": " +
                              std::error_code(error, std::generic_category()).message();
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return {StatusCode::kNotFound, message};
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return {StatusCode::kResourceExhausted, message};
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return {StatusCode::kFaulted, message};
    default:
      return {StatusCode::kBadInput, message};
  }
}

Status out_of_memory(std::string_view name, std::string_view doing) noexcept {
  // Short enough to lie inside the string.
  constexpr const char* kShort = "out of memory";
  try {
    return {StatusCode::kResourceExhausted,
            printable(name, kShownPathBytes) + ": " + kShort + " while " + std::string(doing)};
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, kShort};
  }
}

}  // namespace dsv4rt
