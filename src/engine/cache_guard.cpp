#include "engine/cache_guard.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "base/check.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

constexpr std::byte kEdge{0xc5};
constexpr std::int64_t kGuardBytes = CacheMemory::kGuardBytes;

std::int64_t used_bytes(const BlockShape& shape) {
  return std::int64_t{shape.rows} * shape.row_bytes();
}

}  // namespace

Result<std::unique_ptr<CacheGuard>> CacheGuard::create(Backend& backend, const CacheLayout& layout,
                                                       const CacheMemory& memory) {
  std::int64_t largest = kGuardBytes;
  for (const PoolSpec& pool : layout.pools()) largest = std::max(largest, pool.shape.block_bytes);
  for (const SlotSpec& slot : layout.slots()) largest = std::max(largest, slot.slot_bytes);
  try {
    std::unique_ptr<CacheGuard> guard(new CacheGuard(backend, layout, memory));
    guard->poison_.assign(static_cast<std::size_t>(largest), kPoison);
    guard->read_.resize(static_cast<std::size_t>(largest));
    const std::vector<std::byte> margin(static_cast<std::size_t>(kGuardBytes), kEdge);
    for (const CacheRegion& region : memory.regions()) {
      DSV4RT_RETURN_IF_ERROR(backend.upload(region.data - kGuardBytes, margin.data(), margin.size()));
      DSV4RT_RETURN_IF_ERROR(backend.upload(region.data + region.bytes, margin.data(), margin.size()));
    }
    return guard;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kResourceExhausted,
                  "no host memory for poison_freed_blocks: " + std::to_string(2 * largest) + " bytes asked");
  }
}

Status CacheGuard::check_bytes(const CacheRegion& region, std::int64_t offset, std::int64_t bytes, std::byte expected) {
  const auto count = static_cast<std::size_t>(bytes);
  DSV4RT_RETURN_IF_ERROR(backend_.download(read_.data(), region.data + offset, count));
  const auto end = read_.begin() + bytes;
  const auto wrong = std::find_if(read_.begin(), end, [=](std::byte byte) { return byte != expected; });
  if (wrong == end) return {};
  return {StatusCode::kInternal,
          region.name + ": byte " + std::to_string(offset + (wrong - read_.begin())) + " of " +
              std::to_string(region.bytes) + " holds " + std::to_string(std::to_integer<int>(*wrong)) + " instead of " +
              std::to_string(std::to_integer<int>(expected)) + "; something wrote outside of its rows"};
}

Status CacheGuard::check_edges() {
  for (const CacheRegion& region : memory_.regions()) {
    DSV4RT_RETURN_IF_ERROR(check_bytes(region, -kGuardBytes, kGuardBytes, kEdge));
    DSV4RT_RETURN_IF_ERROR(check_bytes(region, region.bytes, kGuardBytes, kEdge));
  }
  return {};
}

Status CacheGuard::reclaim(const CacheRegion& region, std::int64_t offset, const BlockShape& shape) {
  const std::int64_t used = used_bytes(shape);
  DSV4RT_RETURN_IF_ERROR(check_bytes(region, offset + used, shape.block_bytes - used, std::byte{0}));
  return backend_.upload(region.data + offset, poison_.data(), static_cast<std::size_t>(used));
}

Status CacheGuard::reclaim_blocks(std::span<const FreedBlock> blocks) {
  if (blocks.empty()) return {};
  for (const FreedBlock& freed : blocks) {
    const BlockShape& shape = layout_.pools()[static_cast<std::size_t>(freed.pool)].shape;
    DSV4RT_RETURN_IF_ERROR(reclaim(memory_.pool_region(freed.pool), freed.block.value * shape.block_bytes, shape));
  }
  return check_edges();
}

Status CacheGuard::reclaim_slot(StateSlotId slot) {
  for (std::size_t i = 0; i < layout_.slots().size(); ++i) {
    const SlotSpec& spec = layout_.slots()[i];
    DSV4RT_RETURN_IF_ERROR(reclaim(memory_.ring_region(static_cast<int>(i)), slot.value * spec.slot_bytes, spec.shape));
  }
  return check_edges();
}

Status CacheGuard::check() {
  for (std::size_t pool = 0; pool < layout_.pools().size(); ++pool) {
    const std::int64_t null_block_bytes = layout_.pools()[pool].shape.block_bytes;
    DSV4RT_RETURN_IF_ERROR(check_bytes(memory_.pool_region(static_cast<int>(pool)), 0, null_block_bytes, std::byte{0}));
  }
  return check_edges();
}

void CacheGuard::end_program(const Status& found) noexcept {
  try {
    throw CheckFailure(found.message());
  } catch (...) {
    std::terminate();
  }
}

}  // namespace dsv4rt
