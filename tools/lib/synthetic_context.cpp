// EngineEditor::skip_tokens and fill_caches: long contexts without computing them.

#include <algorithm>
#include <string>
#include <vector>

#include "base/arithmetic.h"
#include "base/try.h"
#include "checkpoint/synthetic_values.h"
#include "engine/engine_impl.h"
#include "layout/bytes.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt {
namespace {

// Distinct blocks of a pool, repeated over it. Many, so that index scores rarely tie.
constexpr std::int64_t kDistinctBlocks = 256;

// Encoded rows of normal values.
template <class Format>
std::vector<std::byte> random_blocks(Format format, const BlockShape& shape, std::int64_t dim, std::int64_t blocks,
                                     const SyntheticStream& stream) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(blocks * shape.block_bytes));
  std::vector<float> values(static_cast<std::size_t>(dim));
  std::uint64_t index = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      for (float& value : values) value = to_float(to_bf16(stream.normal(index++)));
      encode_row(format, shape, values.data(), bytes.data() + block * shape.block_bytes, row);
    }
  }
  return bytes;
}

std::vector<std::byte> random_floats(std::int64_t count, const SyntheticStream& stream) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * sizeof(float));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = stream.normal(static_cast<std::uint64_t>(i));
    store_bytes(bytes.data() + i * static_cast<std::int64_t>(sizeof(float)), value);
  }
  return bytes;
}

// Fills `bytes` of backend memory with the pattern, again and again.
Status repeat_upload(Backend& backend, std::byte* target, std::int64_t bytes, std::span<const std::byte> pattern) {
  for (std::int64_t at = 0; at < bytes;) {
    const std::int64_t part = std::min(bytes - at, static_cast<std::int64_t>(pattern.size()));
    DSV4RT_RETURN_IF_ERROR(backend.upload(target + at, pattern.data(), static_cast<std::size_t>(part)));
    at += part;
  }
  return {};
}

}  // namespace

Status EngineEditor::fill_caches(std::uint64_t seed) {
  Backend& backend = *impl_.backend;
  const CacheFormats& formats = impl_.layout.formats();
  for (std::size_t i = 0; i < impl_.layout.pools().size(); ++i) {
    const PoolSpec& spec = impl_.layout.pools()[i];
    const SyntheticStream stream(seed, "pool " + std::to_string(i));
    const std::int64_t blocks = impl_.memory.cache.pool_blocks[i] - 1;  // but the null block, which stays zero
    const std::int64_t distinct = std::min(blocks, kDistinctBlocks);
    const auto pattern = spec.role == CacheRole::kIndexK
                             ? random_blocks(formats.index_keys, spec.shape, kIndexHeadDim, distinct, stream)
                             : random_blocks(formats.rows, spec.shape, kHeadDim, distinct, stream);
    DSV4RT_RETURN_IF_ERROR(repeat_upload(backend, impl_.cache.tables()[i].blocks + spec.shape.block_bytes,
                                         blocks * spec.shape.block_bytes, pattern));
  }
  for (std::size_t i = 0; i < impl_.layout.slots().size(); ++i) {
    const SlotSpec& spec = impl_.layout.slots()[i];
    const SyntheticStream stream(seed, "ring " + std::to_string(i));
    const auto pattern = spec.role == CacheRole::kSwaKv
                             ? random_blocks(formats.rows, spec.shape, kHeadDim, 1, stream)
                             : random_floats(spec.slot_bytes / static_cast<std::int64_t>(sizeof(float)), stream);
    const std::int64_t bytes = std::int64_t{impl_.options.limits.max_sequences} * spec.slot_bytes;
    DSV4RT_RETURN_IF_ERROR(repeat_upload(backend, impl_.cache.rings()[i].base, bytes, pattern));
  }
  return {};
}

Status EngineEditor::skip_tokens(std::span<const SequenceId> sequences, std::int64_t tokens) {
  const auto members = static_cast<std::int64_t>(sequences.size());
  const std::int64_t most = impl_.options.limits.max_step_tokens / std::max<std::int64_t>(members, 1);
  if (most == 0) {
    return {StatusCode::kInvalidArgument, "skip_tokens: " + std::to_string(members) +
                                              " sequences do not fit a step of max_step_tokens = " +
                                              std::to_string(impl_.options.limits.max_step_tokens)};
  }
  std::vector<StepEntry> entries;
  for (const SequenceId sequence : sequences) entries.push_back({sequence, 0});
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t part = std::min(most, tokens - done);
    for (StepEntry& entry : entries) entry.tokens = static_cast<std::int32_t>(part);
    DSV4RT_ASSIGN_OR_RETURN(const Step step, engine_.prepare(entries));
    DSV4RT_RETURN_IF_ERROR(skip_layers(step));
    DSV4RT_RETURN_IF_ERROR(engine_.commit(step));
    done += part;
  }
  return {};
}

Status EngineEditor::skip_contexts(std::span<const SequenceId> sequences, const StepShape& shape) {
  if (shape.shortest_tokens == 0) return skip_tokens(sequences, shape.context_tokens);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t tokens = context_of(shape, static_cast<std::int32_t>(i));
    DSV4RT_RETURN_IF_ERROR(skip_tokens(sequences.subspan(i, 1), tokens));
  }
  return {};
}

}  // namespace dsv4rt
