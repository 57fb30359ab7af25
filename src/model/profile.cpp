#include "dsv4rt/model.h"

namespace dsv4rt {

Profile Profile::deepseek_v4() {
  return {};
}

Profile Profile::seed() {
  return {.rope_anchor = RopeAnchor::kLastToken,
          .compressor_norm = false,
          .index_rope = false,
          .index_hadamard = false,
          .default_row_format = RowFormat::kFp8Row,
          .default_index_format = IndexKeyFormat::kNvfp4};
}

Result<Profile> Profile::from_name(std::string_view name) {
  if (name == "deepseek-v4") return deepseek_v4();
  if (name == "seed") return seed();
  constexpr std::size_t kMaxShownCharacters = 60;
  return Status(StatusCode::kInvalidArgument, "profile \"" + std::string(name.substr(0, kMaxShownCharacters)) +
                                                  "\" is unknown; accepted: deepseek-v4, seed");
}

}  // namespace dsv4rt
