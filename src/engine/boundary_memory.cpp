#include "engine/boundary_memory.h"

#include "base/try.h"

namespace dsv4rt {

Result<BoundaryMemory> BoundaryMemory::allocate(Backend& backend, const CacheLayout& layout, const CacheMemory& memory,
                                                const MemoryPlan& plan) {
  BoundaryMemory boundary;
  if (plan.limits.boundary_states == 0) return boundary;
  DSV4RT_ASSIGN_OR_RETURN(boundary.states_,
                          backend.allocate(static_cast<std::size_t>(plan.boundary_state_bytes), "boundary states"));
  DSV4RT_ASSIGN_OR_RETURN(boundary.table_row_,
                          backend.allocate(static_cast<std::size_t>(plan.table_row_bytes), "block-table row"));
  boundary.state_bytes_ = plan.bytes_per_boundary_state;
  for (const BoundarySpec& spec : layout.boundary()) {
    const CacheRings& rings = memory.rings()[static_cast<std::size_t>(spec.slot)];
    boundary.rows_.push_back({.rings = rings.base,
                              .slot_bytes = rings.slot_bytes,
                              .ring = layout.slots()[static_cast<std::size_t>(spec.slot)].shape,
                              .state_offset = spec.offset,
                              .state = spec.shape});
  }
  boundary.ids_.resize(static_cast<std::size_t>(plan.table_row_bytes) / sizeof(std::int32_t));
  boundary.columns_.resize(layout.pools().size());
  // A step's boundaries: those that its tokens pass, and one more a sequence.
  const auto most =
      static_cast<std::size_t>(plan.limits.max_step_tokens / plan.prefix_unit_tokens + plan.limits.max_sequences);
  boundary.copies_.reserve(most);
  boundary.captures_.reserve(most);
  return boundary;
}

Status BoundaryMemory::restore_rings(Backend& backend, const BoundaryCopyPlan& restore) {
  const BoundaryCopy copy{
      .slot = restore.slot, .state = restore.state, .boundary = restore.boundary, .end = restore.boundary};
  return backend.ops().copy_boundary_rows(BoundaryDirection::kToRings, {&copy, 1}, rows_, states());
}

Status BoundaryMemory::write_table_row(Backend& backend, const CacheMemory& memory, const KVCacheManager& manager,
                                       StateSlotId slot) {
  const std::size_t ids = manager.table_row(slot, ids_, columns_);
  if (ids == 0) return {};
  DSV4RT_RETURN_IF_ERROR(backend.upload_step(table_row_.data(), ids_.data(), ids * sizeof(std::int32_t)));
  return backend.ops().write_table_rows(slot.value, table_row_.as<std::int32_t>(), columns_, memory.tables());
}

Status BoundaryMemory::take(Backend& backend, std::span<const BoundaryCopyPlan> copies) {
  if (copies.empty()) return {};
  copies_.clear();
  for (const BoundaryCopyPlan& copy : copies) {
    copies_.push_back({.slot = copy.slot, .state = copy.state, .boundary = copy.boundary, .end = copy.boundary});
  }
  return backend.ops().copy_boundary_rows(BoundaryDirection::kFromRings, copies_, rows_, states());
}

Status BoundaryMemory::begin_captures(Backend& backend, std::span<const PlannedCapture> captures,
                                      const StepView& step) {
  captures_.clear();
  if (captures.empty()) return {};
  copies_.clear();
  for (const PlannedCapture& capture : captures) {
    copies_.push_back(
        {.slot = capture.slot, .state = capture.state, .boundary = capture.boundary, .end = capture.start});
    captures_.push_back({.first_token = step.sequence_first_token[capture.segment],
                         .start = capture.start,
                         .boundary = capture.boundary,
                         .state = capture.state});
  }
  return backend.ops().copy_boundary_rows(BoundaryDirection::kFromRings, copies_, rows_, states());
}

BoundaryKeep BoundaryMemory::keep(const CacheLayout& layout, const LayerSpec& layer) const {
  BoundaryKeep keep{.captures = captures_, .states = states(), .window = {}, .state = {}, .index_state = {}};
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const SlotSpec& slot = layout.slots()[static_cast<std::size_t>(layout.boundary()[i].slot)];
    if (slot.layer != layer.id) continue;
    if (slot.role == CacheRole::kSwaKv) keep.window = rows_[i];
    if (slot.role == CacheRole::kCsaState) keep.state = rows_[i];
    if (slot.role == CacheRole::kIndexState) keep.index_state = rows_[i];
  }
  return keep;
}

}  // namespace dsv4rt
