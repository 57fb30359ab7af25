// The error of a cache call that asks for what it does not accept.
#pragma once

#include <string>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt {

inline Status invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace dsv4rt
