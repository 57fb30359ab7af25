#include "dsv4rt/profile.h"

#include "base/message_text.h"

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
  return Status(StatusCode::kInvalidArgument,
                "profile \"" + printable(name, 60) + "\" is unknown; accepted: deepseek-v4, seed");
}

}  // namespace dsv4rt
