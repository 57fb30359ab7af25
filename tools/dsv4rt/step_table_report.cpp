#include "step_table_report.h"

#include <ctime>
#include <iostream>
#include <memory>
#include <thread>

#include <spdlog/spdlog.h>

#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_devices.h"
#endif
#include "base/try.h"
#include "checkpoint/output_file.h"
#include "dsv4rt/version.h"
#include "layout/row_format.h"
#include "provenance.h"
#include "stop_on_interrupt.h"
#include "text_table.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::cli {
namespace {

std::string device_text(const EngineOptions& options) {
#if defined(DSV4RT_HAVE_CUDA)
  if (options.backend == "cuda") {
    const CudaSystem system = inspect_cuda();
    const std::string versions = "CUDA " + system.toolkit_version + ", driver serves " + system.driver_version;
    return (system.devices.empty() ? "unknown GPU" : system.devices.front().name) + " (" + versions + ")";
  }
#endif
  const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
  return processor_name() + ", " + std::to_string(threads) + " threads, " + build_info().cpu_isa;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

const char* kind_name(replay::StepKind kind) {
  return kind == replay::StepKind::kDecode ? "decode" : "prefill";
}

void print_points(const replay::StepTable& table) {
  TextTable text({"kind", "sequences", "context", "tokens", "ms"});
  for (const replay::StepPoint& point : table.points) {
    text.add_row({kind_name(point.kind), std::to_string(point.sequences), std::to_string(point.context_tokens),
                  std::to_string(point.tokens), fixed(point.microseconds / 1e3, 3)});
  }
  std::cout << text.to_string();
}

std::string shapes_text(Engine& engine) {
  const EngineInspector inspector(engine);
  return std::to_string(engine.layers().size()) + " layers, hidden size " +
         std::to_string(engine.config().hidden_size) + ", rows " +
         std::string(row_format_name(inspector.row_format())) + ", index keys " +
         std::string(index_key_format_name(inspector.index_format())) + "; attention and cache only, no experts";
}

}  // namespace

Status write_step_table(EngineOptions options, const StepTableGrid& grid, const std::string& revision,
                        const std::string& path) {
  options.limits = step_table_limits(grid);
  options.draft_budget_tokens = 1;
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  const auto tell = [](const replay::StepPoint& point, std::int64_t done, std::int64_t total) {
    // As they come: a run that is cut short has said what it knew.
    spdlog::info("step table: {} of {}: {}, {} sequences, context {}, {} tokens: {:.3f} ms", done, total,
                 kind_name(point.kind), point.sequences, point.context_tokens, point.tokens, point.microseconds / 1e3);
  };
  const StopOnInterrupt interrupts;
  WorkWatch watch(StopOnInterrupt::interrupted);
  DSV4RT_ASSIGN_OR_RETURN(replay::StepTable table, measure_step_table(*engine, grid, tell, &watch));
  if (watch.stopped()) {
    print_points(table);
    return {StatusCode::kFailedPrecondition, "stopped after " + std::to_string(table.points.size()) + " of " +
                                                 std::to_string(grid.decode.size() + grid.prefill.size()) +
                                                 " points: --step-table writes whole tables only"};
  }
  table.provenance = {
      {"device", device_text(options)},
      {"commit", revision.empty() ? build_commit() : revision},
      {"version", build_info().version},
      {"date", today()},
      {"shapes", shapes_text(*engine)},
      {"deterministic", EngineInspector(*engine).deterministic() ? "yes" : "no"},
      {"linear precision", std::string(linear_precision_name(EngineInspector(*engine).linear_precision()))},
      {"measured", "steps that are waited for; decode: captured, median of " + std::to_string(grid.steps.steps) +
                       "; prefill: eager, median of " + std::to_string(grid.prefill_repeats)},
      {"not measured", "mixed and verify steps"}};
  DSV4RT_RETURN_IF_ERROR(table.validate("step table"));
  print_points(table);
  return write_text_file(path, table.to_json());
}

}  // namespace dsv4rt::cli
