#include "dist/share_header.h"

namespace dsv4rt {
namespace {

std::string place_text(const ShareHeader& header) {
  return "layer " + std::to_string(header.layer) + " of shared step " + std::to_string(header.step);
}

}  // namespace

ShareHeader share_header(std::span<const SharedPart> parts, const SharePlace& place) {
  std::uint64_t digest = 0xcbf29ce484222325U;  // FNV-1a
  for (const SharedPart& part : parts) {
    for (const std::int64_t value :
         {part.bytes, std::int64_t{part.root}, std::int64_t{part.first_reader}, std::int64_t{part.readers}}) {
      digest = (digest ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
    }
  }
  return {.step = place.step, .content = place.content, .parts = digest, .layer = place.layer};
}

std::string share_difference(std::span<const ShareHeader> all, std::int32_t own_rank) {
  const ShareHeader& own = all[static_cast<std::size_t>(own_rank)];
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const ShareHeader& other = all[rank];
    const std::string who = "begin_share: rank " + std::to_string(rank) + " ";
    if (other.step != own.step || other.layer != own.layer) {
      return who + "is at " + place_text(other) + " and this rank at " + place_text(own) +
             ": the ranks are out of step";
    }
    if (other.content != own.content) {
      return who + "runs other tokens in " + place_text(own) + ": the ranks' steps differ";
    }
    if (other.parts != own.parts) return who + "was called with other parts: the ranks' steps differ";
  }
  return {};
}

}  // namespace dsv4rt
