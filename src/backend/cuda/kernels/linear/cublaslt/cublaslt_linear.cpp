#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"

#include <new>

#include "backend/cuda/kernels/linear/cublaslt/encode_nvfp4_input.h"
#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "base/arithmetic.h"
#include "base/try.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr int kUnitBytes = 16;

// Products that are kept. A server that prefills chunks of every length meets more; then all are made again.
constexpr std::size_t kMaxProducts = 4096;

// How the scratch memory is cut.
struct Parts {
  std::int64_t codes = 0;   // offset of E2M1 [T, K / 2]
  std::int64_t scales = 0;  // offset of E4M3 [T, K / 16] in tiles
  std::int64_t bytes = 0;   // size of all parts and of the workspace, which comes first
};

Parts parts_of(std::int32_t tokens, std::int64_t inputs) {
  Parts parts;
  parts.codes = kProductWorkspaceBytes;
  parts.scales = parts.codes + round_up(tokens * inputs / 2, kAlignment);
  parts.bytes = parts.scales + nvfp4_scale_bytes(tokens, ceil_div<std::int64_t>(inputs, kNvfp4GroupValues));
  return parts;
}

std::int64_t value_bytes(OutputType output) {
  return output == OutputType::kF32 ? 4 : 2;
}

const CudaPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CudaPackedLinear&>(*call.weight);
}

bool aligned(std::int64_t offset) {
  return offset % kUnitBytes == 0;
}

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kUnitBytes == 0;
}

bool same_encoded_input(const LinearCall& a, const LinearCall& b) {
  return a.x == b.x && a.x_stride == b.x_stride && a.weight->in_features() == b.weight->in_features() &&
         packed(a).input_scale() == packed(b).input_scale();
}

Status encode_nvfp4(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  const std::int64_t inputs = call.weight->in_features();
  const Parts parts = parts_of(tokens, inputs);
  return encode_nvfp4_input({.x = call.x,
                             .x_stride = call.x_stride,
                             .codes = reinterpret_cast<std::uint8_t*>(memory + parts.codes),
                             .scales = reinterpret_cast<std::uint8_t*>(memory + parts.scales),
                             .global_scale = packed(call).input_scale(),
                             .tokens = tokens,
                             .inputs = static_cast<std::int32_t>(inputs)},
                            stream);
}

// cuBLASLt documents NVFP4 from here on; other families are left out until a run there says that it pays.
constexpr int kNvfp4Major = 10;

}  // namespace

Result<std::unique_ptr<CublasLtLinear>> CublasLtLinear::create(int compute_major, std::int64_t least_work) {
  std::unique_ptr<CublasLtLinear> none;
  if (compute_major != kNvfp4Major) return none;
  DSV4RT_ASSIGN_OR_RETURN(const CublasLt lt, load_cublaslt());
  DSV4RT_ASSIGN_OR_RETURN(CublasLtHandle handle, create_cublaslt_handle(lt));
  if (!has_nvfp4_products(lt, handle.get())) return none;
  return std::make_unique<CublasLtLinear>(lt, std::move(handle), least_work);
}

std::int64_t CublasLtLinear::scratch_bytes(std::int32_t tokens, std::int64_t inputs) {
  return parts_of(tokens, inputs).bytes;
}

bool CublasLtLinear::takes(std::int32_t tokens, const LinearCall& call) const {
  const std::int64_t work = tokens * call.weight->in_features() * call.weight->out_features();
  return work >= least_work_ && packed(call).row_codes() != nullptr && aligned(call.x) && aligned(call.y) &&
         aligned(call.x_stride * std::int64_t{sizeof(bf16)}) && aligned(call.y_stride * value_bytes(call.output));
}

Result<const CublasLtProduct*> CublasLtLinear::product(const ProductShape& shape, const ProductOperands& example) {
  if (const auto found = products_.find(shape); found != products_.end()) return &found->second;
  try {
    if (products_.size() >= kMaxProducts) products_.clear();
    DSV4RT_ASSIGN_OR_RETURN(CublasLtProduct made, CublasLtProduct::create(lt_, handle_.get(), shape, example));
    return &products_.emplace(shape, std::move(made)).first->second;
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, "linear: host memory for a product of cuBLASLt"};
  }
}

Status CublasLtLinear::multiply(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  const std::int64_t inputs = call.weight->in_features();
  const Parts parts = parts_of(tokens, inputs);
  const ProductShape shape{.outputs = call.weight->out_features(),
                           .inputs = inputs,
                           .tokens = tokens,
                           .output = call.output,
                           .y_stride = call.y_stride};
  const ProductOperands operands{.weight = packed(call).row_codes(),
                                 .x = memory + parts.codes,
                                 .y = call.y,
                                 .weight_scales = packed(call).row_scales(),
                                 .x_scales = memory + parts.scales,
                                 .global_scale = packed(call).input_scale() * packed(call).global_scale(),
                                 .workspace = memory};
  DSV4RT_ASSIGN_OR_RETURN(const CublasLtProduct* made, product(shape, operands));
  return made->run(lt_, handle_.get(), operands, stream);
}

Status CublasLtLinear::run(std::int32_t tokens, std::span<const LinearCall> calls, const Scratch& scratch,
                           cudaStream_t stream) {
  const LinearCall* encoded = nullptr;  // the call whose input lies in scratch
  for (const LinearCall& call : calls) {
    if (!takes(tokens, call)) continue;
    const std::int64_t bytes = scratch_bytes(tokens, call.weight->in_features());
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch.take(static_cast<std::size_t>(bytes), "linear"));
    if (encoded == nullptr || !same_encoded_input(*encoded, call)) {
      DSV4RT_RETURN_IF_ERROR(encode_nvfp4(tokens, call, memory, stream));
      encoded = &call;
    }
    DSV4RT_RETURN_IF_ERROR(multiply(tokens, call, memory, stream));
  }
  return {};
}

}  // namespace dsv4rt::cuda
