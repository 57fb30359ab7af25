#include "bench_shapes.h"

#include <charconv>
#include <string_view>
#include <system_error>

#include "base/message_text.h"

namespace dsv4rt::cli {

Result<std::vector<StepShape>> parse_step_shapes(const std::vector<std::string>& texts) {
  std::vector<StepShape> shapes;
  for (const std::string& text : texts) {
    StepShape shape;
    const char* const end = text.data() + text.size();
    auto parsed = std::from_chars(text.data(), end, shape.batch);
    const bool has_context = parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == 'x';
    if (has_context) parsed = std::from_chars(parsed.ptr + 1, end, shape.context_tokens);
    constexpr std::string_view kTo = "..";
    const bool several = has_context && parsed.ec == std::errc() && std::string_view(parsed.ptr, end).starts_with(kTo);
    if (several) {
      shape.shortest_tokens = shape.context_tokens;
      parsed = std::from_chars(parsed.ptr + kTo.size(), end, shape.context_tokens);
    }
    if (!has_context || parsed.ec != std::errc() || parsed.ptr != end || (several && shape.shortest_tokens < 1) ||
        !check_step_shape(shape).ok()) {
      return Status{StatusCode::kInvalidArgument,
                    "--whole-step: '" + printable(text) +
                        "'; accepted: SEQUENCESxTOKENS or SEQUENCESxSHORTEST..LONGEST, e.g. 32x8192"};
    }
    shapes.push_back(shape);
  }
  return shapes;
}

Result<std::vector<PrefillShape>> parse_prefill_shapes(const std::vector<std::string>& texts) {
  std::vector<PrefillShape> shapes;
  for (const std::string& text : texts) {
    PrefillShape shape;
    const char* const end = text.data() + text.size();
    auto parsed = std::from_chars(text.data(), end, shape.tokens);
    if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '@') {
      parsed = std::from_chars(parsed.ptr + 1, end, shape.context_tokens);
    }
    if (parsed.ec != std::errc() || parsed.ptr != end || shape.tokens < 1 || shape.context_tokens < 0) {
      return Status{StatusCode::kInvalidArgument,
                    "--whole-prefill: '" + printable(text) + "'; accepted: TOKENS or TOKENS@CONTEXT, e.g. 2048@32768"};
    }
    shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace dsv4rt::cli
