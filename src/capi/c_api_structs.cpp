#include "capi/c_api_structs.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "backend/linear_precision_name.h"
#include "base/try.h"
#include "layout/row_format.h"

namespace dsv4rt::c_api {
namespace {

Result<bool> read_switch(const char* field, std::int64_t value) {
  if (value == 0 || value == 1) return value == 1;
  return Status{StatusCode::kInvalidArgument,
                "dsv4rt_engine_options." + std::string(field) + ": " + std::to_string(value) + "; accepted: 0 or 1"};
}

}  // namespace

dsv4rt_engine_options default_engine_options() {
  const EngineOptions defaults;
  dsv4rt_engine_options options{};
  options.struct_size = sizeof(options);
  options.profile = "deepseek-v4";
  options.backend = "cpu";
  options.threads = defaults.threads;
  options.first_layer = defaults.first_layer;
  options.layer_count = defaults.layer_count;
  options.max_sequences = defaults.limits.max_sequences;
  options.max_context_tokens = defaults.limits.max_context_tokens;
  options.pool_tokens = defaults.limits.pool_tokens;
  options.max_step_tokens = defaults.limits.max_step_tokens;
  options.csa_rows_per_block = defaults.csa_rows_per_block;
  options.hca_rows_per_block = defaults.hca_rows_per_block;
  options.draft_budget_tokens = defaults.draft_budget_tokens;
  options.memory_limit_bytes = defaults.memory_limit_bytes;
  options.device = defaults.device;
  options.max_graphs = defaults.graphs.max_graphs;
  options.max_graph_tokens = defaults.graphs.max_tokens;
  options.stream = defaults.stream;
  options.allow_non_finite_weights = defaults.allow_non_finite_weights ? 1 : 0;
  options.check_outputs = defaults.check_outputs ? 1 : 0;
  return options;
}

Result<GivenOptions> read_engine_options(const dsv4rt_engine_options* given) {
  dsv4rt_engine_options known = default_engine_options();
  DSV4RT_RETURN_IF_ERROR(read_struct(given, "dsv4rt_engine_options", known));
  EngineOptions options;
  if (known.checkpoint != nullptr) options.checkpoint = known.checkpoint;
  if (known.profile != nullptr) options.profile = known.profile;
  if (known.backend != nullptr) options.backend = known.backend;
  if (known.row_format != nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(options.row_format, row_format_from_name(known.row_format));
  }
  if (known.index_format != nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(options.index_format, index_key_format_from_name(known.index_format));
  }
  if (known.linear_precision != nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(options.linear_precision, linear_precision_from_name(known.linear_precision));
  }
  options.threads = known.threads;
  options.first_layer = known.first_layer;
  options.layer_count = known.layer_count;
  options.limits.max_sequences = known.max_sequences;
  options.limits.max_context_tokens = known.max_context_tokens;
  options.limits.pool_tokens = known.pool_tokens;
  options.limits.max_step_tokens = known.max_step_tokens;
  options.csa_rows_per_block = known.csa_rows_per_block;
  options.hca_rows_per_block = known.hca_rows_per_block;
  options.draft_budget_tokens = known.draft_budget_tokens;
  options.memory_limit_bytes = known.memory_limit_bytes;
  options.device = known.device;
  options.graphs.max_graphs = known.max_graphs;
  options.graphs.max_tokens =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(known.max_graph_tokens, -1, INT32_MAX));
  options.stream = known.stream;
  if (known.nondeterministic != 0) {
    return Status{StatusCode::kUnsupported, "nondeterministic: " + std::to_string(known.nondeterministic) +
                                                "; accepted: 0. linear_precision \"fp8\" is faster, and its results "
                                                "do not depend on a step's other sequences"};
  }
  DSV4RT_ASSIGN_OR_RETURN(options.allow_non_finite_weights,
                          read_switch("allow_non_finite_weights", known.allow_non_finite_weights));
  DSV4RT_ASSIGN_OR_RETURN(options.check_outputs, read_switch("check_outputs", known.check_outputs));
  if (known.on_warning != nullptr) {
    options.on_warning = [tell = known.on_warning, user_data = known.warning_user_data](std::string_view text) {
      tell(user_data, std::string(text).c_str());
    };
  }
  if (known.prefix_cache != nullptr) DSV4RT_RETURN_IF_ERROR(read_prefix_options(*known.prefix_cache, options));
  return GivenOptions{.engine = std::move(options), .ranks = known.parallel};
}

}  // namespace dsv4rt::c_api
