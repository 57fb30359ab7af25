// Early return on failure, for functions that return Status or Result.
#pragma once

#include "dsv4rt/status.h"

#define DSV4RT_TRY_CONCAT_INNER(a, b) a##b
#define DSV4RT_TRY_CONCAT(a, b) DSV4RT_TRY_CONCAT_INNER(a, b)

// Returns the Status of `expression` when it is not ok.
#define DSV4RT_RETURN_IF_ERROR(expression)                              \
  do {                                                                  \
    if (::dsv4rt::Status try_status = (expression); !try_status.ok()) { \
      return try_status;                                                \
    }                                                                   \
  } while (false)

// Declares `target` from the value of a Result, or returns its Status.
#define DSV4RT_ASSIGN_OR_RETURN(target, expression) \
  DSV4RT_ASSIGN_OR_RETURN_AS(DSV4RT_TRY_CONCAT(try_result_, __LINE__), target, expression)
#define DSV4RT_ASSIGN_OR_RETURN_AS(result, target, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.status();                    \
  target = std::move(result).value()
