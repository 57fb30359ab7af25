// Profile: the variants of compressor and indexer.
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv4rt/export.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// The compressor's and indexer's variant; one code path, these settings. docs/model.md "Profiles".
struct Profile {
  enum class RopeAnchor : std::uint8_t { kFirstToken, kLastToken };
  RopeAnchor rope_anchor = RopeAnchor::kFirstToken;  // position of a compressed row
  bool compressor_norm = true;                       // RMSNorm of the pooled row
  bool index_rope = true;                            // rotate index keys and queries
  bool index_hadamard = true;                        // Hadamard-transform index keys and queries
  RowFormat default_row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat default_index_format = IndexKeyFormat::kMxfp4;

  DSV4RT_EXPORT static Profile deepseek_v4();
  DSV4RT_EXPORT static Profile seed();
  // "deepseek-v4" or "seed"; kInvalidArgument naming both otherwise.
  DSV4RT_EXPORT static Result<Profile> from_name(std::string_view name);
};

}  // namespace dsv4rt
