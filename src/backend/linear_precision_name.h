// The precision of linears by name.
#pragma once

#include <string_view>

#include "base/message_text.h"
#include "dsv4rt/linear_precision.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// kInvalidArgument naming what is accepted.
inline Result<LinearPrecision> linear_precision_from_name(std::string_view name) {
  for (const LinearPrecision precision : kLinearPrecisions) {
    if (linear_precision_name(precision) == name) return precision;
  }
  return Status{StatusCode::kInvalidArgument,
                "linear precision '" + printable(name) + "'; accepted: exact, fp8, nvfp4"};
}

}  // namespace dsv4rt
