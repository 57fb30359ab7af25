// Runs operations on KVCacheManager, the reference model and the fake device, and compares them
// after each one.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache_manager.h"
#include "cache_model.h"
#include "fake_device.h"
#include "operation.h"

namespace dsv4rt::property {

struct CacheSetup {
  std::vector<std::int32_t> ratios;  // per layer
  std::int32_t window = 8;
  std::int32_t csa_rows_per_block = 16;
  std::int32_t hca_rows_per_block = 1;
  std::int32_t draft_budget = 0;
  std::int32_t max_sequences = 3;
  std::int32_t max_context = 300;
  std::int32_t max_step_tokens = 100;
  std::vector<std::int32_t> spare_blocks;  // per layer: beyond what one longest sequence needs
};

std::ostream& operator<<(std::ostream& out, const CacheSetup& setup);

// How often the interesting things happened: a run in which one never did proves little.
struct CacheEvents {
  std::uint64_t block_copies = 0;
  std::uint64_t padded_steps = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t refused_rollbacks = 0;
  std::uint64_t undone_copies = 0;  // copies for steps rolled back before they started
  std::uint64_t kept_copies = 0;    // copies for steps rolled back after they started
  std::uint64_t emptied = 0;        // sequences that a rollback could not bring back
  std::uint64_t broke_emptied = 0;  // rollbacks that end reservations which could not have been kept
  std::uint64_t restored = 0;
  std::uint64_t freed_blocks = 0;   // reported
  std::uint64_t short_creates = 0;  // refused for want of blocks
  std::uint64_t short_forks = 0;
  std::uint64_t short_truncates = 0;
  std::uint64_t short_steps = 0;
  std::uint64_t reserved_steps = 0;  // every entry within its reservation
};

class CacheMachine {
 public:
  // Adds to `events`.
  CacheMachine(const CacheSetup& setup, CacheEvents& events);
  // Throws Divergence.
  void apply(const Operation& operation);

 private:
  struct Outstanding {
    StepPlan plan;
    std::vector<ModelAppend> entries;  // listed in batch order
    CacheModel before;
  };

  void create(const Operation& op);
  void fork(const Operation& op);
  void truncate(const Operation& op);
  void release(const Operation& op);
  void prepare(const Operation& op);
  void prepare_invalid(const Operation& op);
  void commit(const Operation& op);
  void rollback_prepared(const Operation& op);
  void rollback_started(const Operation& op);
  void restore(const Operation& op);
  void use_stale_id(const Operation& op);

  [[nodiscard]] std::vector<ModelAppend> choose_batch(const Operation& op) const;
  void check_metadata(const std::vector<ModelAppend>& entries, std::int32_t rows);
  void check_tokens(const StepView& view, std::size_t entry, const ModelAppend& append) const;
  [[nodiscard]] StepView view() const;
  // Whether every ring still holds what a sequence cut to `length` needs; read from the device.
  [[nodiscard]] bool rings_serve(const ModelSequence& sequence, std::int64_t length) const;
  [[nodiscard]] std::int64_t earliest_length(const ModelSequence& sequence) const;
  // Every entry stays within its reservation, so the step must succeed.
  [[nodiscard]] bool within_reservations(const std::vector<ModelAppend>& entries) const;
  [[nodiscard]] std::int64_t reserve_from(std::uint16_t value) const;
  // The device runs the outstanding step; every token leaves its tag.
  void run_step();
  // Blocks that have an owner, by pool and id.
  [[nodiscard]] std::vector<std::uint64_t> owned_blocks() const;
  // freed_blocks() must name what had an owner before the operation and has none now, each once.
  void check_freed();
  void verify();
  void verify_content(const ModelSequence& sequence);

  CacheSetup setup_;
  CacheEvents& events_;
  LayerSchedule schedule_;
  std::unique_ptr<KVCacheManager> manager_;
  CacheModel model_;
  std::unique_ptr<FakeDevice> device_;
  std::optional<Outstanding> step_;
  std::vector<SequenceId> stale_;
  std::vector<std::uint64_t> owned_;  // blocks before the operation
  bool frees_ = false;                // the operation gave blocks back, so the manager reports on it
};

}  // namespace dsv4rt::property
