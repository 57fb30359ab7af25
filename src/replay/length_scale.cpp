#include "replay/length_scale.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/try.h"

namespace dsv4rt::replay {
namespace {

std::int64_t scaled(std::int64_t tokens, double factor) {
  const auto whole = static_cast<std::int64_t>(std::floor(static_cast<double>(tokens) * factor));
  return tokens > 0 ? std::max<std::int64_t>(whole, 1) : tokens;
}

}  // namespace

Request scaled_lengths(Request request, double factor) {
  if (request.block_tokens > 0) {
    const auto block = std::max<std::int32_t>(1, static_cast<std::int32_t>(std::lround(request.block_tokens * factor)));
    factor = static_cast<double>(block) / request.block_tokens;
    request.block_tokens = block;
  }
  request.input_tokens = scaled(request.input_tokens, factor);
  request.output_tokens = scaled(request.output_tokens, factor);
  return request;
}

Result<RequestSupply> scaled_supply(RequestSupply supply, double factor) {
  if (!(factor > 0 && factor <= 1)) {
    return Status{StatusCode::kInvalidArgument,
                  "scale_lengths = " + std::to_string(factor) + "; accepted: above 0, up to 1"};
  }
  if (factor == 1) return supply;
  return RequestSupply([supply = std::move(supply), factor]() mutable -> Result<std::optional<Request>> {
    DSV4RT_ASSIGN_OR_RETURN(std::optional<Request> request, supply());
    if (request) *request = scaled_lengths(std::move(*request), factor);
    return request;
  });
}

}  // namespace dsv4rt::replay
