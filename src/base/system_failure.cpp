#include "base/system_failure.h"

#include <cerrno>
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
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return {StatusCode::kResourceExhausted, message};
    default:
      return {StatusCode::kBadInput, message};
  }
}

}  // namespace dsv4rt
