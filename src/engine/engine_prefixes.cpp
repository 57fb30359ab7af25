// The engine's calls about cached prefixes: what the cache manager decides, carried out by the backend.
#include <string>
#include <utility>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {

Result<SequenceStart> Engine::create_sequence(std::span<const std::int32_t> token_ids, const SequenceOptions& options) {
  return impl_->call("create_sequence", Impl::Use::kChange, [&]() -> Result<SequenceStart> {
    DSV4RT_ASSIGN_OR_RETURN(const PrefixStart start, impl_->manager->create_sequence(token_ids, options));
    DSV4RT_RETURN_IF_ERROR(impl_->reclaim());
    if (start.hit_tokens > 0) DSV4RT_RETURN_IF_ERROR(impl_->fill_from_prefix(start.sequence, start.restore));
    return SequenceStart{.sequence = start.sequence, .hit_tokens = start.hit_tokens};
  });
}

Result<SequenceId> Engine::branch(SequenceId parent, std::int64_t length, std::int64_t reserve_tokens) {
  return impl_->call("branch", Impl::Use::kChange, [&]() -> Result<SequenceId> {
    DSV4RT_RETURN_IF_ERROR(impl_->check_held_here("branch", parent));
    DSV4RT_ASSIGN_OR_RETURN(const PrefixStart start, impl_->manager->branch(parent, length, reserve_tokens));
    DSV4RT_RETURN_IF_ERROR(impl_->fill_from_prefix(start.sequence, start.restore));
    return start.sequence;
  });
}

// Where the rings do not reach, a boundary state does. Its copy into the rings is the last change: should the backend
// refuse it, nobody knows what they hold.
Status Engine::truncate(SequenceId sequence, std::int64_t new_length) {
  return impl_->call("truncate", Impl::Use::kChange, [&]() -> Status {
    Impl& engine = *impl_;
    DSV4RT_RETURN_IF_ERROR(engine.check_held_here("truncate", sequence));
    Status status = engine.manager->truncate(sequence, new_length);
    if (status.ok()) {
      engine.forget_saved(sequence, new_length);
      if (new_length > 0) return engine.reclaim();
      const StateSlotId slot = engine.manager->slot(sequence).value();
      return engine.reclaim({&slot, 1});
    }
    const bool out_of_reach = status.code() == StatusCode::kFailedPrecondition && engine.step.plan.serial == 0;
    if (!out_of_reach || engine.manager->prefix_unit_tokens() == 0) return status;
    const Result<BoundaryCopyPlan> restore = engine.manager->truncate_to_boundary(sequence, new_length);
    if (!restore.ok()) {
      if (restore.status().code() != StatusCode::kFailedPrecondition) return restore.status();
      return {status.code(), status.message() + "; " + restore.status().message()};
    }
    engine.forget_saved(sequence, new_length);
    DSV4RT_RETURN_IF_ERROR(engine.reclaim());
    Status restored = engine.boundaries.restore_rings(*engine.backend, *restore);
    return restored.ok() ? restored : engine.latch(std::move(restored));
  });
}

Status Engine::Impl::fill_from_prefix(SequenceId sequence, const BoundaryCopyPlan& restore) {
  const StateSlotId slot(restore.slot);
  Status filled = boundaries.write_table_row(*backend, cache, *manager, slot);
  if (filled.ok()) filled = boundaries.restore_rings(*backend, restore);
  if (filled.ok()) return filled;
  DSV4RT_RETURN_IF_ERROR(manager->release(sequence));
  DSV4RT_RETURN_IF_ERROR(reclaim({&slot, 1}));
  return latch_if_broken(std::move(filled));
}

Status Engine::Impl::take_boundaries() noexcept {
  try {
    Status taken = boundaries.take(*backend, manager->boundary_copies());
    if (taken.ok()) return taken;
    manager->drop_boundary_copies();
    if (taken.code() == StatusCode::kFaulted || taken.code() == StatusCode::kInternal) return latch(std::move(taken));
    warn("boundary states were not taken: " + taken.message());
    return {};
  } catch (...) {
    return latch(Status(StatusCode::kInternal, "no boundary"));  // a text that takes no memory
  }
}

void Engine::Impl::tell_prefix_events() noexcept {
  if (manager == nullptr || manager->prefix_events().empty()) return;
  for (const PrefixEventRecord& record : manager->prefix_events()) {
    const bool unit = record.kind == PrefixEvent::Kind::kUnitStored || record.kind == PrefixEvent::Kind::kUnitRemoved;
    PrefixEvent event{.kind = record.kind,
                      .digest = record.digest,
                      .parent = record.parent,
                      .end_tokens = record.end_tokens,
                      .token_ids = {},
                      .roles = unit ? unit_roles : state_roles,
                      .medium = options.backend.c_str(),
                      .removal = record.removal};
    if (options.prefix_cache.event_token_ids) event.token_ids = manager->event_token_ids(record);
    tell(event);
  }
  manager->clear_prefix_events();
}

// ---- Calls that the manager answers alone -------------------------------------------------------

std::int64_t Engine::prefix_unit_tokens() const noexcept {
  return impl_->manager->prefix_unit_tokens();
}

Result<PrefixLookup> Engine::prefix_lookup(std::span<const std::int32_t> token_ids,
                                           std::span<const std::byte> salt) const {
  return impl_->call("prefix_lookup", Impl::Use::kRead, [&] { return impl_->manager->prefix_lookup(token_ids, salt); });
}

Result<std::int64_t> Engine::pin_prefix(std::span<const std::int32_t> token_ids, std::span<const std::byte> salt) {
  return impl_->call("pin_prefix", Impl::Use::kChange, [&] { return impl_->manager->pin_prefix(token_ids, salt); });
}

Result<std::int64_t> Engine::unpin_prefix(std::span<const std::int32_t> token_ids, std::span<const std::byte> salt) {
  return impl_->call("unpin_prefix", Impl::Use::kChange, [&] { return impl_->manager->unpin_prefix(token_ids, salt); });
}

Result<std::int64_t> Engine::evict_prefix(std::span<const std::int32_t> token_ids, std::span<const std::byte> salt) {
  return impl_->call("evict_prefix", Impl::Use::kChange, [&]() -> Result<std::int64_t> {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t tokens, impl_->manager->evict_prefix(token_ids, salt));
    DSV4RT_RETURN_IF_ERROR(impl_->reclaim());
    return tokens;
  });
}

Status Engine::clear_prefixes() {
  return impl_->call("clear_prefixes", Impl::Use::kChange, [&]() -> Status {
    DSV4RT_RETURN_IF_ERROR(impl_->manager->clear_prefixes());
    return impl_->reclaim();
  });
}

PrefixStats Engine::prefix_stats() const {
  return impl_->manager->prefix_stats();
}

}  // namespace dsv4rt
