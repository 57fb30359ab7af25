// A checkpoint that its owner holds in memory: for hosts that have loaded a model themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dsv4rt {

enum class TensorMemory : std::uint8_t {
  kHost,
  // Memory of any CUDA device, with backend "cuda" only (kUnsupported). Its content is there before the call, or will
  // be by the order of EngineOptions::stream.
  kDevice,
};

// One tensor, of row-major values without gaps.
struct MemoryTensor {
  // As in a checkpoint: "[model.]layers.<N>.attn.<...>" of the released ones, or "[model.]layers.<N>.self_attn.<...>"
  // of transformers. Tensors of other names are skipped.
  std::string_view name;
  // As safetensors files spell it: "BF16", "F32", "F8_E4M3", "F8_E8M0", "U8" (two NVFP4 codes), ...
  std::string_view dtype;
  std::span<const std::int64_t> shape;
  // Any alignment. As many bytes as dtype and shape say.
  std::span<const std::byte> data;
  TensorMemory memory = TensorMemory::kHost;
};

// What a checkpoint directory holds. Everything belongs to the caller and is used only during Engine::create.
struct MemoryCheckpoint {
  // Text of config.json.
  std::string_view config_json;
  // In any order; no name twice.
  std::span<const MemoryTensor> tensors;
};

}  // namespace dsv4rt
