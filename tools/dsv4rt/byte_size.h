// Sizes and counts as people write them on the command line.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt::cli {

// "80GiB", "512MiB", "1.5GB", "4096": bytes. Decimal units (KB, MB, GB, TB) are powers of 1000,
// binary ones (KiB, ...) of 1024. kInvalidArgument naming `flag` and the text.
Result<std::int64_t> parse_byte_size(const std::string& flag, const std::string& text);

// "4096", "1M", "1.5Mi": tokens. K, M and G are powers of 1000, Ki, Mi and Gi of 1024; "inf" is the largest value.
// kInvalidArgument naming `flag` and the text.
Result<std::int64_t> parse_token_count(const std::string& flag, const std::string& text);

// "0-3" or "2": an inclusive range of layers. kInvalidArgument naming `flag` and the text.
struct LayerRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
};
Result<LayerRange> parse_layer_range(const std::string& flag, const std::string& text);

}  // namespace dsv4rt::cli
