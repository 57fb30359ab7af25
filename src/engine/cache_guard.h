// CacheGuard: finds reads of dead cache rows and writes outside of a region, for debugging.
//
// * Blocks and rings that become free are filled with kPoison, which every format decodes to NaN, so
//   that whoever still reads them shows it in the output.
// * Every region lies between guard bytes of known values. Within a region two more places
//   never change: the null block of a pool, and the zero padding at the end of a block or ring.
//
// Nothing of it changes what valid reads and writes give. Costs: a copy per freed block, and on a
// backend with its own memory a few transfers per region whenever something becomes free.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "engine/cache_memory.h"

namespace dsv4rt {

class CacheGuard {
 public:
  // E4M3 and E8M0 NaN as a byte, BF16 and FP32 NaN when repeated. E2M1 has no NaN, but its scales do.
  static constexpr std::byte kPoison{0xff};

  // Writes the guard bytes. `memory` was allocated with guard bytes; all arguments outlive the object.
  static Result<std::unique_ptr<CacheGuard>> create(Backend& backend, const CacheLayout& layout,
                                                    const CacheMemory& memory);

  // Checks the padding of blocks that became free, poisons them, and checks the guard bytes. kInternal
  // naming role, layer and byte of what was overwritten.
  Status reclaim_blocks(std::span<const FreedBlock> blocks);
  // The same for the rings of a slot.
  Status reclaim_slot(StateSlotId slot);
  // The guard bytes of every region, and that no null block was ever written.
  Status check();
  // Serves a destructor that finds the cache overwritten and has nobody to tell: calls std::terminate with a
  // CheckFailure as the exception in flight, whose text the standard handler prints.
  [[noreturn]] static void end_program(const Status& found) noexcept;

 private:
  CacheGuard(Backend& backend, const CacheLayout& layout, const CacheMemory& memory)
      : backend_(backend), layout_(layout), memory_(memory) {}

  Status check_bytes(const CacheRegion& region, std::int64_t offset, std::int64_t bytes, std::byte expected);
  Status check_edges();
  Status reclaim(const CacheRegion& region, std::int64_t offset, const BlockShape& shape);

  Backend& backend_;
  const CacheLayout& layout_;
  const CacheMemory& memory_;
  std::vector<std::byte> poison_;  // poison for the largest block or ring
  std::vector<std::byte> read_;    // host copy of what is checked
};

}  // namespace dsv4rt
