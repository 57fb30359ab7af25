// Runs random operations on a KVCacheManager with a prefix cache and on a fake device, and compares contents.
//
// A token's tag is a digest of the sequence's salt and of all token ids up to it: what a real row depends on. So every
// row, ring row and boundary state says what it was computed from, and a sequence that began with a hit must read
// exactly what a cold run of the same ids would have left. The model is the list of ids of every sequence; nothing of
// the cache's own bookkeeping is repeated.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_cache_manager.h"
#include "fake_device.h"
#include "operation.h"

namespace dsv4rt::property {

inline constexpr std::int32_t kUnit = 128;  // tokens

struct PrefixSetup {
  std::vector<std::int32_t> ratios;  // per layer
  std::int32_t window = 8;
  std::int32_t csa_rows_per_block = 16;
  std::int32_t hca_rows_per_block = 1;
  std::int32_t draft_budget = 0;
  std::int32_t max_sequences = 3;
  std::int32_t max_context = 520;
  std::int32_t max_step_tokens = 200;
  std::int32_t boundary_states = 4;
  std::int32_t quota_units = 0;
  std::int32_t contexts = 1;      // longest sequences that the pools hold at once
  std::int32_t spare_blocks = 0;  // a pool, beyond these
};
std::ostream& operator<<(std::ostream& out, const PrefixSetup& setup);

// How often the interesting things happened.
struct PrefixCounts {
  std::uint64_t operations = 0, creates = 0, hits = 0, hit_tokens = 0, shorter_hits = 0, branches = 0;
  std::uint64_t branches_without_state = 0, cuts_to_boundaries = 0, pins = 0, refused_pins = 0, unpins = 0;
  std::uint64_t evicted_on_request = 0, evicted_for_space = 0, evicted_by_quota = 0, states_taken = 0;
  std::uint64_t states_removed = 0, states_refused = 0, detached = 0, captures = 0, boundary_copies = 0;
  std::uint64_t dropped_copies = 0, block_copies = 0, undone_copies = 0, rejected = 0, emptied = 0, forks = 0;
  std::uint64_t short_steps = 0, reserved_steps = 0, evicting_steps = 0, poisoned_blocks = 0, sequences_ended = 0;
};

class PrefixMachine {
 public:
  PrefixMachine(const PrefixSetup& setup, PrefixCounts& counts);
  // Both throw Divergence.
  void apply(const Operation& operation);
  // Ends every sequence, unpins and clears everything: all blocks and states must be free then.
  void finish();

 private:
  struct Sequence {
    SequenceId id;
    std::int32_t slot = 0;
    std::int64_t reserve_tokens = 0;
    std::uint32_t salt = 0;
    std::uint32_t stream = 0;  // where its further ids come from
    std::vector<std::int32_t> ids;
    std::vector<std::uint64_t> tags;
    [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(ids.size()); }
  };
  struct Entry {
    std::size_t sequence = 0;
    std::vector<std::int32_t> ids;
    bool with_ids = true;
  };
  struct Outstanding {
    StepPlan plan;
    std::vector<Entry> entries;
  };
  struct Pin {
    std::uint32_t salt = 0;
    std::vector<std::int32_t> ids;  // the pinned prefix
  };

  void create(const Operation& op);
  void create_without_ids(const Operation& op);
  void fork(const Operation& op);
  void branch(const Operation& op);
  void truncate(const Operation& op);
  void truncate_to_boundary(const Operation& op);
  void release(const Operation& op);
  void pin(const Operation& op);
  void unpin(const Operation& op);
  void evict(const Operation& op);
  void prepare(const Operation& op);
  void commit(const Operation& op);
  void rollback(const Operation& op, StepProgress progress);

  [[nodiscard]] std::int32_t stream_id(std::uint32_t stream, std::int64_t position) const;
  [[nodiscard]] std::vector<std::int32_t> prompt(const Operation& op) const;
  [[nodiscard]] std::vector<Entry> choose_batch(const Operation& op);
  [[nodiscard]] PrefixPolicy policy(std::uint16_t value) const;
  static void add(Sequence& sequence, std::int32_t id);
  static void cut(Sequence& sequence, std::int64_t length);
  void begin(SequenceId id, std::uint32_t salt, std::uint32_t stream, std::int64_t reserve,
             std::vector<std::int32_t> ids);
  void restore_slot(const Sequence& sequence, const BoundaryCopyPlan& copy);
  void run_step();
  void end_step(const std::vector<std::int32_t>& accepted);
  // Whether a pool could have been short of what the entries may need at most.
  [[nodiscard]] bool may_be_short(const std::vector<Entry>& entries) const;
  [[nodiscard]] bool anything_reserved() const;
  [[nodiscard]] bool rings_serve(const Sequence& sequence, std::int64_t length) const;
  void follow_events();
  void note_free(std::vector<std::int64_t>& free) const;
  void check_freed(const std::vector<std::int64_t>& before);
  void verify();
  void verify_content(const Sequence& sequence);
  void verify_pools();

  PrefixSetup setup_;
  PrefixCounts& counts_;
  LayerSchedule schedule_;
  std::unique_ptr<KVCacheManager> manager_;
  std::vector<FakePool> pools_;
  std::unique_ptr<FakeDevice> device_;
  std::vector<Sequence> sequences_;
  std::optional<Outstanding> step_;
  std::vector<Pin> pins_;
  std::int32_t junk_ = 0;
  std::vector<std::int64_t> taken_;  // [pools] blocks that the operation took
  struct Unit {
    PrefixDigest parent{};
    PrefixDigest root{};
    std::int64_t end_tokens = 0;
    std::int32_t children = 0;
    bool state = false;
  };
  std::map<PrefixDigest, Unit> units_;  // what the events told of
  std::map<PrefixDigest, std::int32_t> units_of_root_;
};

}  // namespace dsv4rt::property
