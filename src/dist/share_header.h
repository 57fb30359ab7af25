// What ranks compare before a share: whether they are at the same place and were called with the same parts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "dsv4rt/communicator.h"

namespace dsv4rt {

// As it goes from rank to rank.
struct ShareHeader {
  std::uint64_t step = 0;
  std::uint64_t content = 0;
  std::uint64_t parts = 0;  // a digest of the parts' lengths, roots and readers
  std::int64_t layer = 0;
};
static_assert(std::is_trivially_copyable_v<ShareHeader> && sizeof(ShareHeader) == 32);

ShareHeader share_header(std::span<const SharedPart> parts, const SharePlace& place);

// In what the first rank that differs does, for the text of a loss; empty if none does. all[r]: that of rank r.
std::string share_difference(std::span<const ShareHeader> all, std::int32_t own_rank);

}  // namespace dsv4rt
