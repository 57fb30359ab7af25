// A backend with the cache of a model and the manager that hands it out: what an engine has below its
// layers, open to tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "cache/memory_plan.h"
#include "dsv4rt/model.h"
#include "engine/cache_memory.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

class CacheRig {
 public:
  CacheRig(std::unique_ptr<Backend> backend, const ModelConfig& config, const CacheFormats& formats,
           const CacheLimits& limits)
      : backend_(std::move(backend)),
        schedule_(LayerSchedule::create(config).value()),
        layout_(CacheLayout::create(config, schedule_, formats).value()),
        plan_(plan_memory(config, schedule_, layout_, limits).value()),
        manager_(KVCacheManager::create(schedule_, layout_, plan_).value()) {
    std::vector<std::int32_t> strides;
    for (std::size_t i = 0; i < layout_.pools().size(); ++i) {
      strides.push_back(manager_->table_stride(static_cast<int>(i)));
    }
    memory_ = CacheMemory::allocate(*backend_, layout_, plan_, strides).value();
    metadata_ = backend_->allocate(manager_->step_offsets().total_bytes, "step metadata").value();
  }

  [[nodiscard]] Backend& backend() { return *backend_; }
  [[nodiscard]] Ops& ops() { return backend_->ops(); }
  [[nodiscard]] const LayerSchedule& schedule() const { return schedule_; }
  [[nodiscard]] const CacheLayout& layout() const { return layout_; }
  [[nodiscard]] KVCacheManager& manager() { return *manager_; }
  [[nodiscard]] const CacheMemory& memory() const { return memory_; }
  [[nodiscard]] LayerCache layer_cache(int layer) const { return memory_.layer_cache(schedule_.layer(LayerId(layer))); }

  SequenceId create_sequence() { return manager_->create_sequence().value(); }

  // Prepares a step and starts it; the view, of backend memory, stays valid until the next one. With
  // `masked`, no token completes a block as far as the device is told.
  StepView begin(std::span<const StepEntry> entries, const StepOptions& options = {}, bool masked = false) {
    const auto plan = manager_->prepare_forward(entries, options);
    EXPECT_OK(plan);
    serial_ = plan->serial;
    host_metadata_.assign(plan->metadata.begin(), plan->metadata.end());
    const StepOffsets& offsets = manager_->step_offsets();
    if (masked) {
      for (std::size_t c = 0; c < schedule_.ratios().size(); ++c) {
        std::fill_n(host_metadata_.data() + offsets.valid_mask[c], plan->counts.tokens, std::byte{0});
      }
    }
    host_step_ = step_view(host_metadata_.data(), offsets, plan->counts);
    EXPECT_OK(backend_->upload(metadata_.data(), host_metadata_.data(), host_metadata_.size()));
    const StepView view = step_view(metadata_.data(), offsets, plan->counts);
    EXPECT_OK(ops().begin_step(view, memory_.tables()));
    return view;
  }
  // The step's metadata in host memory.
  [[nodiscard]] const StepView& host_step() const { return host_step_; }
  void commit() { EXPECT_OK(manager_->commit(serial_)); }

  // Bytes of a whole pool, of every block.
  [[nodiscard]] std::vector<std::byte> pool_bytes(int pool) const { return download(pool_region(pool)); }
  void fill_pool(int pool, std::byte value) { fill(pool_region(pool), value); }
  // Bytes of a sequence's ring.
  [[nodiscard]] std::vector<std::byte> ring_bytes(int slot_spec, SequenceId sequence) const {
    return download(ring_region(slot_spec, sequence));
  }
  void fill_ring(int slot_spec, SequenceId sequence, std::byte value) { fill(ring_region(slot_spec, sequence), value); }
  void write_ring(int slot_spec, SequenceId sequence, std::span<const std::byte> bytes) {
    const auto region = ring_region(slot_spec, sequence);
    ASSERT_EQ(bytes.size(), region.size());
    EXPECT_OK(backend_->upload(region.data(), bytes.data(), bytes.size()));
  }

  // De-quantized row `row` of a sequence in a pool.
  [[nodiscard]] std::vector<float> row_values(int pool, SequenceId sequence, std::int64_t row) const {
    const PoolSpec& spec = layout_.pools()[static_cast<std::size_t>(pool)];
    const auto blocks = manager_->blocks(sequence, pool).value();
    const CacheTable& table = memory_.tables()[static_cast<std::size_t>(pool)];
    const BlockId id = blocks.at(static_cast<std::size_t>(row / spec.shape.rows));
    const auto bytes = download({table.blocks + id.value * table.block_bytes, block_size(table)});
    const std::byte* block = bytes.data();
    const bool key = spec.role == CacheRole::kIndexK;
    std::vector<float> values(static_cast<std::size_t>(key ? kIndexHeadDim : kHeadDim));
    if (key) {
      decode_row(layout_.formats().index_keys, spec.shape, block, row % spec.shape.rows, values.data());
    } else {
      decode_row(layout_.formats().rows, spec.shape, block, row % spec.shape.rows, values.data());
    }
    return values;
  }

 private:
  // A region of backend memory: its bytes are host memory on the CPU only.
  using Region = std::span<std::byte>;

  static std::size_t block_size(const CacheTable& table) { return static_cast<std::size_t>(table.block_bytes); }
  [[nodiscard]] Region pool_region(int pool) const {
    const CacheTable& table = memory_.tables()[static_cast<std::size_t>(pool)];
    return {table.blocks,
            static_cast<std::size_t>(plan_.pool_blocks[static_cast<std::size_t>(pool)]) * block_size(table)};
  }
  [[nodiscard]] Region ring_region(int slot_spec, SequenceId sequence) const {
    const CacheRings& rings = memory_.rings()[static_cast<std::size_t>(slot_spec)];
    return {rings.base + manager_->slot(sequence)->value * rings.slot_bytes,
            static_cast<std::size_t>(rings.slot_bytes)};
  }
  [[nodiscard]] std::vector<std::byte> download(Region region) const {
    std::vector<std::byte> bytes(region.size());
    EXPECT_OK(backend_->download(bytes.data(), region.data(), bytes.size()));
    return bytes;
  }
  void fill(Region region, std::byte value) {
    const std::vector<std::byte> bytes(region.size(), value);
    EXPECT_OK(backend_->upload(region.data(), bytes.data(), bytes.size()));
  }

  std::unique_ptr<Backend> backend_;
  LayerSchedule schedule_;
  CacheLayout layout_;
  MemoryPlan plan_;
  std::unique_ptr<KVCacheManager> manager_;
  CacheMemory memory_;
  Buffer metadata_;
  std::vector<std::byte> host_metadata_;
  StepView host_step_;
  std::uint64_t serial_ = 0;
};

}  // namespace dsv4rt::test
