// The C interface: creating an engine, from a directory or from tensors in memory.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/try.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"
#include "checkpoint/safetensors_header.h"
#include "dsv4rt/c_api.h"

namespace dsv4rt::c_api {
namespace {

Status create(GivenOptions given, const MakeEngine& make, dsv4rt_engine** engine) {
  auto handle = std::make_unique<dsv4rt_engine>();
  guard_events(*handle, given.engine);
  if (given.ranks != nullptr) DSV4RT_RETURN_IF_ERROR(meet_ranks(*given.ranks, given.engine));
  DSV4RT_RETURN_IF_ERROR(open(*handle, std::move(given.engine), make));
  *engine = handle.release();
  return {};
}

Status create_from_directory(const dsv4rt_engine_options* given, dsv4rt_engine** engine) {
  if (given == nullptr) return null_argument("dsv4rt_engine_create", "options");
  DSV4RT_ASSIGN_OR_RETURN(GivenOptions options, read_engine_options(given));
  if (options.engine.checkpoint.empty()) {
    return {StatusCode::kInvalidArgument, "dsv4rt_engine_options.checkpoint: null or empty; a directory is required"};
  }
  return create(std::move(options), {}, engine);
}

Status create_sharing(dsv4rt_engine* owner, const dsv4rt_engine_options* given, dsv4rt_engine** engine) {
  constexpr char kName[] = "dsv4rt_engine_create_sharing";
  if (owner == nullptr) return null_argument(kName, "owner");
  if (given == nullptr) return null_argument(kName, "options");
  DSV4RT_ASSIGN_OR_RETURN(GivenOptions options, read_engine_options(given));
  if (options.ranks != nullptr) {
    return {StatusCode::kUnsupported,
            "create_sharing: parallel: given; accepted: null, since an engine of several ranks "
            "has weights of its own"};
  }
  return create(
      std::move(options), [&](const EngineOptions& known) { return owner->engine->create_sharing(known); }, engine);
}

Result<MemoryTensor> read_tensor(const dsv4rt_tensor* given, std::size_t index) {
  dsv4rt_tensor known{};
  DSV4RT_RETURN_IF_ERROR(read_struct(given, "dsv4rt_tensor", known));
  const auto refused = [index](const std::string& why) {
    return Status{StatusCode::kInvalidArgument, "tensors[" + std::to_string(index) + "]" + why};
  };
  if (known.name == nullptr) return refused(".name: null");
  if (known.dtype == nullptr) return refused(".dtype: null");
  if (known.shape == nullptr && known.dimensions > 0) return refused(".shape: null");
  if (known.dimensions > kMaxTensorDims) {
    return refused(".dimensions: " + std::to_string(known.dimensions) + "; accepted: up to " +
                   std::to_string(kMaxTensorDims));
  }
  if (known.memory != DSV4RT_TENSOR_ON_HOST && known.memory != DSV4RT_TENSOR_ON_DEVICE) {
    return refused(".memory: " + std::to_string(known.memory) +
                   "; accepted: DSV4RT_TENSOR_ON_HOST (0) and DSV4RT_TENSOR_ON_DEVICE (1)");
  }
  if (known.data == nullptr && known.bytes > 0) return refused(".data: null");
  return MemoryTensor{.name = known.name,
                      .dtype = known.dtype,
                      .shape = {known.shape, known.dimensions},
                      .data = {static_cast<const std::byte*>(known.data), known.bytes},
                      .memory = known.memory == DSV4RT_TENSOR_ON_HOST ? TensorMemory::kHost : TensorMemory::kDevice};
}

Result<std::vector<MemoryTensor>> read_tensors(const dsv4rt_tensor* tensors, std::size_t count) {
  std::vector<MemoryTensor> out;
  if (count == 0) return out;
  if (count > kMaxTensors) {
    return Status{StatusCode::kInvalidArgument, "dsv4rt_engine_create_from_tensors: count " + std::to_string(count) +
                                                    "; accepted: up to " + std::to_string(kMaxTensors)};
  }
  out.reserve(count);
  // The caller's elements may be longer than this library's.
  const auto* const bytes = reinterpret_cast<const std::byte*>(tensors);
  const std::size_t stride = tensors->struct_size;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t struct_bytes = 0;
    std::memcpy(&struct_bytes, bytes + i * stride, sizeof(struct_bytes));
    if (struct_bytes != stride) {
      return Status{StatusCode::kInvalidArgument, "tensors[" + std::to_string(i) +
                                                      "].struct_size: " + std::to_string(struct_bytes) +
                                                      "; accepted: that of the first, " + std::to_string(stride)};
    }
    DSV4RT_ASSIGN_OR_RETURN(const MemoryTensor tensor,
                            read_tensor(reinterpret_cast<const dsv4rt_tensor*>(bytes + i * stride), i));
    out.push_back(tensor);
  }
  return out;
}

Status create_from_tensors(const dsv4rt_engine_options* given, const char* config_json, const dsv4rt_tensor* tensors,
                           std::size_t count, dsv4rt_engine** engine) {
  constexpr char kName[] = "dsv4rt_engine_create_from_tensors";
  if (given == nullptr) return null_argument(kName, "options");
  if (config_json == nullptr) return null_argument(kName, "config_json");
  if (tensors == nullptr && count > 0) return null_argument(kName, "tensors");
  DSV4RT_ASSIGN_OR_RETURN(GivenOptions options, read_engine_options(given));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<MemoryTensor> known, read_tensors(tensors, count));
  const MemoryCheckpoint checkpoint{.config_json = config_json, .tensors = known};
  return create(
      std::move(options), [&](const EngineOptions& with) { return Engine::create(with, checkpoint); }, engine);
}

// What both ways have in common; `body` returns a Status.
template <class Body>
dsv4rt_status create_call(const char* name, dsv4rt_engine** engine, char* message, std::size_t message_bytes,
                          Body&& body) noexcept {
  ErrorText error;
  if (engine != nullptr) *engine = nullptr;
  const dsv4rt_status status = run_guarded(error, [&]() -> Status {
    if (engine == nullptr) return null_argument(name, "engine");
    if (message == nullptr && message_bytes > 0) return null_argument(name, "message");
    return body();
  });
  copy_text(error.c_str(), message, message_bytes);
  return status;
}

}  // namespace
}  // namespace dsv4rt::c_api

dsv4rt_status dsv4rt_engine_create(const dsv4rt_engine_options* options, dsv4rt_engine** engine, char* message,
                                   size_t message_bytes) {
  return dsv4rt::c_api::create_call("dsv4rt_engine_create", engine, message, message_bytes,
                                    [&] { return dsv4rt::c_api::create_from_directory(options, engine); });
}

dsv4rt_status dsv4rt_engine_create_sharing(dsv4rt_engine* owner, const dsv4rt_engine_options* options,
                                           dsv4rt_engine** engine, char* message, size_t message_bytes) {
  return dsv4rt::c_api::create_call("dsv4rt_engine_create_sharing", engine, message, message_bytes,
                                    [&] { return dsv4rt::c_api::create_sharing(owner, options, engine); });
}

dsv4rt_status dsv4rt_engine_create_from_tensors(const dsv4rt_engine_options* options, const char* config_json,
                                                const dsv4rt_tensor* tensors, size_t count, dsv4rt_engine** engine,
                                                char* message, size_t message_bytes) {
  return dsv4rt::c_api::create_call("dsv4rt_engine_create_from_tensors", engine, message, message_bytes, [&] {
    return dsv4rt::c_api::create_from_tensors(options, config_json, tensors, count, engine);
  });
}
