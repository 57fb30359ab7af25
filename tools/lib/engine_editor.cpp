#include "tools/lib/engine_editor.h"

#include <algorithm>
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {
namespace {

std::string place(LayerId layer, CacheRole role) {
  return std::string(cache_role_name(role)) + " of layer " + std::to_string(layer.value);
}

Status check_size(LayerId layer, CacheRole role, std::size_t given, std::int64_t expected) {
  if (static_cast<std::int64_t>(given) == expected) return {};
  return {StatusCode::kInvalidArgument,
          place(layer, role) + ": " + std::to_string(given) + " B; accepted: " + std::to_string(expected)};
}

}  // namespace

Status EngineEditor::skip_layers(const Step& step) {
  DSV4RT_RETURN_IF_ERROR(impl_.check_outstanding(step));
  if (!impl_.step.started) DSV4RT_RETURN_IF_ERROR(impl_.start_step());
  std::fill(impl_.step.layer_done.begin(), impl_.step.layer_done.end(), true);
  return {};
}

Result<int> EngineEditor::pool_number(LayerId layer, CacheRole role) const {
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_.local_layer(layer));
  const int pool = impl_.layout.pool_index(LayerId(static_cast<std::int32_t>(local)), role);
  if (pool < 0) return Status{StatusCode::kNotFound, "there is no paged " + place(layer, role)};
  return pool;
}

Result<int> EngineEditor::ring_number(LayerId layer, CacheRole role) const {
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_.local_layer(layer));
  const int ring = impl_.layout.slot_index(LayerId(static_cast<std::int32_t>(local)), role);
  if (ring < 0) return Status{StatusCode::kNotFound, "there is no ring for " + place(layer, role)};
  return ring;
}

const PoolSpec* EngineEditor::pool(LayerId layer, CacheRole role) const {
  const auto number = pool_number(layer, role);
  return number ? &impl_.layout.pools()[static_cast<std::size_t>(*number)] : nullptr;
}

const SlotSpec* EngineEditor::ring(LayerId layer, CacheRole role) const {
  const auto number = ring_number(layer, role);
  return number ? &impl_.layout.slots()[static_cast<std::size_t>(*number)] : nullptr;
}

Result<std::byte*> EngineEditor::block_address(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index) {
  DSV4RT_ASSIGN_OR_RETURN(const int number, pool_number(layer, role));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<BlockId> blocks, impl_.manager->blocks(sequence, number));
  if (index < 0 || index >= static_cast<std::int64_t>(blocks.size())) {
    return Status{StatusCode::kNotFound, place(layer, role) + ": block " + std::to_string(index) +
                                             "; the sequence has " + std::to_string(blocks.size())};
  }
  const CacheTable& table = impl_.cache.tables()[static_cast<std::size_t>(number)];
  return table.blocks + blocks[static_cast<std::size_t>(index)].value * table.block_bytes;
}

Result<std::vector<std::byte>> EngineEditor::read_block(LayerId layer, CacheRole role, SequenceId sequence,
                                                        std::int64_t index) {
  DSV4RT_ASSIGN_OR_RETURN(const std::byte* address, block_address(layer, role, sequence, index));
  std::vector<std::byte> bytes(static_cast<std::size_t>(pool(layer, role)->shape.block_bytes));
  DSV4RT_RETURN_IF_ERROR(impl_.backend->download(bytes.data(), address, bytes.size()));
  return bytes;
}

Status EngineEditor::write_block(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index,
                                 std::span<const std::byte> bytes) {
  DSV4RT_ASSIGN_OR_RETURN(std::byte * address, block_address(layer, role, sequence, index));
  DSV4RT_RETURN_IF_ERROR(check_size(layer, role, bytes.size(), pool(layer, role)->shape.block_bytes));
  return impl_.backend->upload(address, bytes.data(), bytes.size());
}

Result<std::vector<std::byte>> EngineEditor::read_ring(LayerId layer, CacheRole role, SequenceId sequence) {
  DSV4RT_ASSIGN_OR_RETURN(const int number, ring_number(layer, role));
  return ring_bytes(number, sequence);
}

Status EngineEditor::write_ring(LayerId layer, CacheRole role, SequenceId sequence, std::span<const std::byte> bytes) {
  DSV4RT_ASSIGN_OR_RETURN(const int number, ring_number(layer, role));
  const CacheRings& rings = impl_.cache.rings()[static_cast<std::size_t>(number)];
  DSV4RT_RETURN_IF_ERROR(check_size(layer, role, bytes.size(), rings.slot_bytes));
  DSV4RT_ASSIGN_OR_RETURN(const StateSlotId slot, impl_.manager->slot(sequence));
  return impl_.backend->upload(rings.base + slot.value * rings.slot_bytes, bytes.data(), bytes.size());
}

Status EngineEditor::write_table_entry(LayerId layer, CacheRole role, SequenceId sequence, std::int64_t index,
                                       std::int32_t block) {
  DSV4RT_ASSIGN_OR_RETURN(const int number, pool_number(layer, role));
  const CacheTable& table = impl_.cache.tables()[static_cast<std::size_t>(number)];
  if (index < 0 || index >= table.stride) {
    return {StatusCode::kInvalidArgument, place(layer, role) + ": table entry " + std::to_string(index) +
                                              "; accepted: 0 to " + std::to_string(table.stride - 1)};
  }
  DSV4RT_ASSIGN_OR_RETURN(const StateSlotId slot, impl_.manager->slot(sequence));
  return impl_.backend->upload(table.block_table + slot.value * table.stride + index, &block, sizeof(block));
}

Ops& EngineEditor::backend_ops() {
  return impl_.backend->ops();
}

Status EngineEditor::forward_layer_with(Ops& ops, const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) {
  DSV4RT_RETURN_IF_ERROR(impl_.check_outstanding(step));
  DSV4RT_ASSIGN_OR_RETURN(const std::size_t local, impl_.local_layer(layer));
  if (!impl_.step.started) DSV4RT_RETURN_IF_ERROR(impl_.start_step());
  impl_.step.layer_done[local] = true;
  return impl_.layers[local].forward(ops, impl_.step.view, reinterpret_cast<const bf16*>(x),
                                     reinterpret_cast<bf16*>(out), impl_.workspace, nullptr, nullptr, nullptr,
                                     impl_.step.dealt);
}

}  // namespace dsv4rt
