// Flags that several commands share: which checkpoint, layers, formats and threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include "backend/linear_precision_name.h"
#include "byte_size.h"
#include "dsv4rt/engine.h"
#include "layout/row_format.h"

namespace dsv4rt::cli {

struct EngineFlags {
  std::string checkpoint;
  std::string layers;
  std::string cache_format;
  std::string index_format;
  std::string profile = "deepseek-v4";
  std::string backend = "cpu";
  std::string memory_limit;
  std::int32_t threads = 0;
  std::string linear_precision = "exact";
  bool profiler_ranges = false;
  bool allow_non_finite = false;

  void add_to(CLI::App& command) {
    command.add_option("--checkpoint", checkpoint, "Directory with config.json and safetensors")->required();
    command.add_option("--layers", layers, "Layers A-B, or one; default all");
    command.add_option("--threads", threads, "CPU threads; 0: all cores. Results do not depend on it")
        ->capture_default_str();
    command.add_option("--cache-format", cache_format, "Rows: fp8_ds_mla, fp8_row, nvfp4 or bf16; default by profile");
    command.add_option("--index-format", index_format, "Index keys: mxfp4, nvfp4, fp8 or bf16; default by profile");
    command.add_option("--profile", profile, "deepseek-v4 or seed")->capture_default_str();
    command.add_option("--backend", backend, "cpu, or cuda where it is built in")->capture_default_str();
    command
        .add_option(
            "--linear-precision", linear_precision,
            "Products of quantized weights (backend cuda): exact; fp8, which is faster and moves outputs by about "
            "4 %; nvfp4, by cuBLASLt on compute capability 10.x, which depend on the shape of steps")
        ->capture_default_str();
    command.add_flag("--profiler-ranges", profiler_ranges, "Name layers and stages to a profiler (NVTX; backend cuda)");
    command.add_flag("--allow-non-finite", allow_non_finite, "Load weights that are NaN or infinite");
    command.add_option("--memory-limit", memory_limit, "Refuse to start beyond this many bytes, e.g. 24GiB");
  }

  // Everything but the limits. kInvalidArgument naming the flag.
  [[nodiscard]] Result<EngineOptions> to_options() const {
    EngineOptions options;
    options.checkpoint = checkpoint;
    options.profile = profile;
    options.backend = backend;
    options.threads = threads;
    options.profiler_ranges = profiler_ranges;
    options.allow_non_finite_weights = allow_non_finite;
    options.on_warning = [](std::string_view text) { spdlog::warn("{}", text); };
    if (!layers.empty()) {
      auto range = parse_layer_range("--layers", layers);
      if (!range) return range.status();
      options.first_layer = range->first;
      options.layer_count = range->last - range->first + 1;
    }
    if (!cache_format.empty()) {
      auto format = row_format_from_name(cache_format);
      if (!format) return Status{format.status().code(), "--cache-format: " + format.status().message()};
      options.row_format = *format;
    }
    if (!index_format.empty()) {
      auto format = index_key_format_from_name(index_format);
      if (!format) return Status{format.status().code(), "--index-format: " + format.status().message()};
      options.index_format = *format;
    }
    const auto precision = linear_precision_from_name(linear_precision);
    if (!precision) return Status{precision.status().code(), "--linear-precision: " + precision.status().message()};
    options.linear_precision = *precision;
    if (!memory_limit.empty()) {
      auto bytes = parse_byte_size("--memory-limit", memory_limit);
      if (!bytes) return bytes.status();
      options.memory_limit_bytes = *bytes;
    }
    return options;
  }
};

}  // namespace dsv4rt::cli
