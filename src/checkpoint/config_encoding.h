// How a model's config says that its linears are stored.
#pragma once

#include <filesystem>

#include "checkpoint/host_linear.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// By `quantization_config` of a config.json: without it BF16, `quant_method` "fp8" in blocks of 128 x 128, or
// "modelopt" with `quant_algo` "NVFP4". A checkpoint's tensors need not agree; the loader goes by them. Errors: those
// of read_whole_file and parse_json_object; kBadInput for values of other kinds; kUnsupported for other methods, naming
// those that are accepted.
Result<WeightEncoding> weight_encoding_of_config(const std::filesystem::path& config_file);

}  // namespace dsv4rt
