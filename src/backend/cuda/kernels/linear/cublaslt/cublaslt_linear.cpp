#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"

#include <algorithm>
#include <new>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/linear/cublaslt/encode_nvfp4_input.h"
#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "base/arithmetic.h"
#include "base/try.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr int kUnitBytes = 16;

// Products that are kept. A server that prefills chunks of every length meets more; then all are made again.
constexpr std::size_t kMaxProducts = 4096;

// FP8 products take rows in fours: the scales of x must lie whole 16-byte units apart.
constexpr std::int32_t kRowUnit = 4;

// How the scratch memory is cut for FP8. Whole units of rows come first in codes and scales; up to three rows that
// remain are the last unit's, whose outputs are computed apart because y has no rows for the rest of it.
struct Fp8Parts {
  std::int64_t codes = 0;      // offset of E4M3 [T, K]
  std::int64_t scales = 0;     // offset of float [K / 128, T] of the whole units, then [K / 128, 4]
  std::int64_t last_unit = 0;  // offset of its outputs [4, N]
  std::int64_t bytes = 0;      // size of all parts and of the workspace, which comes first
};

Fp8Parts fp8_parts(std::int32_t tokens, std::int64_t inputs, std::int64_t outputs) {
  const std::int64_t rows = round_up<std::int64_t>(tokens, kRowUnit);
  Fp8Parts parts;
  parts.codes = kProductWorkspaceBytes;
  parts.scales = parts.codes + round_up(rows * inputs, kAlignment);
  parts.last_unit =
      parts.scales + round_up(rows * (inputs / kScaleBlockInputs) * std::int64_t{sizeof(float)}, kAlignment);
  parts.bytes = parts.last_unit + kRowUnit * outputs * std::int64_t{sizeof(float)};
  return parts;
}

// How the scratch memory is cut for NVFP4.
struct Nvfp4Parts {
  std::int64_t codes = 0;   // offset of E2M1 [T, K / 2]
  std::int64_t scales = 0;  // offset of E4M3 [T, K / 16] in tiles
  std::int64_t bytes = 0;   // size of all parts and of the workspace, which comes first
};

Nvfp4Parts nvfp4_parts(std::int32_t tokens, std::int64_t inputs) {
  Nvfp4Parts parts;
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
         packed(a).encoding() == packed(b).encoding() && packed(a).input_scale() == packed(b).input_scale();
}

// Codes and scales of x, of the whole units of rows and of the last one.
Status encode_fp8(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  const std::int64_t inputs = call.weight->in_features();
  const Fp8Parts parts = fp8_parts(tokens, inputs, call.weight->out_features());
  const std::int32_t whole = tokens / kRowUnit * kRowUnit;
  EncodeInputParams params{.x = call.x,
                           .x_stride = call.x_stride,
                           .to = {.codes = reinterpret_cast<std::uint8_t*>(memory + parts.codes),
                                  .width = inputs,
                                  .scales = reinterpret_cast<float*>(memory + parts.scales),
                                  .scale_stride = whole},
                           .tokens = whole};
  if (whole > 0) DSV4RT_RETURN_IF_ERROR(encode_input(params, 0, stream));
  if (whole == tokens) return {};
  params.x += whole * call.x_stride;
  params.to.codes += whole * inputs;
  params.to.scales += std::int64_t{whole} * (inputs / kEncodedBlockValues);
  params.to.scale_stride = kRowUnit;
  params.tokens = tokens - whole;
  return encode_input(params, 0, stream);
}

Status encode_nvfp4(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  const std::int64_t inputs = call.weight->in_features();
  const Nvfp4Parts parts = nvfp4_parts(tokens, inputs);
  return encode_nvfp4_input({.x = call.x,
                             .x_stride = call.x_stride,
                             .codes = reinterpret_cast<std::uint8_t*>(memory + parts.codes),
                             .scales = reinterpret_cast<std::uint8_t*>(memory + parts.scales),
                             .global_scale = packed(call).input_scale(),
                             .tokens = tokens,
                             .inputs = static_cast<std::int32_t>(inputs)},
                            stream);
}

// cuBLASLt documents NVFP4 from 10.0 on; other families are left out until a run there says that it pays.
RowCopies row_copies_on(int compute_major, const CublasLt& lt, cublasLtHandle_t handle) {
  if (compute_major == 9) return RowCopies::kBf16AndFp8;
  return compute_major == 10 && has_nvfp4_products(lt, handle) ? RowCopies::kBf16AndNvfp4 : RowCopies::kBf16;
}

}  // namespace

Result<std::unique_ptr<CublasLtLinear>> CublasLtLinear::create(int compute_major, std::int64_t least_work) {
  DSV4RT_ASSIGN_OR_RETURN(const CublasLt lt, load_cublaslt());
  DSV4RT_ASSIGN_OR_RETURN(CublasLtHandle handle, create_cublaslt_handle(lt));
  const RowCopies row_copies = row_copies_on(compute_major, lt, handle.get());
  return std::make_unique<CublasLtLinear>(lt, std::move(handle), row_copies, least_work);
}

std::int64_t CublasLtLinear::scratch_bytes(std::int32_t tokens, std::int64_t inputs, std::int64_t outputs) {
  return std::max(fp8_parts(tokens, inputs, outputs).bytes, nvfp4_parts(tokens, inputs).bytes);
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

Status CublasLtLinear::multiply(const ProductShape& shape, const ProductOperands& operands, cudaStream_t stream) {
  DSV4RT_ASSIGN_OR_RETURN(const CublasLtProduct* made, product(shape, operands));
  return made->run(lt_, handle_.get(), operands, stream);
}

Status CublasLtLinear::run_bf16(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  return multiply({.outputs = call.weight->out_features(),
                   .inputs = call.weight->in_features(),
                   .tokens = tokens,
                   .operands = WeightEncoding::kBf16,
                   .output = call.output,
                   .x_stride = call.x_stride,
                   .y_stride = call.y_stride},
                  {.weight = packed(call).row_codes(), .x = call.x, .y = call.y, .workspace = memory}, stream);
}

Status CublasLtLinear::run_fp8(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  const std::int64_t inputs = call.weight->in_features();
  const std::int64_t outputs = call.weight->out_features();
  const Fp8Parts parts = fp8_parts(tokens, inputs, outputs);
  const std::int32_t whole = tokens / kRowUnit * kRowUnit;
  ProductShape shape{.outputs = outputs,
                     .inputs = inputs,
                     .tokens = whole,
                     .operands = WeightEncoding::kFp8Block128,
                     .output = call.output,
                     .x_stride = inputs,
                     .y_stride = call.y_stride};
  ProductOperands operands{.weight = packed(call).row_codes(),
                           .x = memory + parts.codes,
                           .y = call.y,
                           .weight_scales = packed(call).row_scales(),
                           .x_scales = memory + parts.scales,
                           .workspace = memory};
  if (whole > 0) DSV4RT_RETURN_IF_ERROR(multiply(shape, operands, stream));
  if (whole == tokens) return {};
  shape.tokens = kRowUnit;
  shape.y_stride = outputs;
  operands.x = memory + parts.codes + whole * inputs;
  operands.x_scales = memory + parts.scales + whole * (inputs / kScaleBlockInputs) * std::int64_t{sizeof(float)};
  operands.y = memory + parts.last_unit;
  DSV4RT_RETURN_IF_ERROR(multiply(shape, operands, stream));
  const auto row_bytes = static_cast<std::size_t>(outputs * value_bytes(call.output));
  const auto stride_bytes = static_cast<std::size_t>(call.y_stride * value_bytes(call.output));
  DSV4RT_CUDA_TRY(cudaMemcpy2DAsync(static_cast<std::byte*>(call.y) + static_cast<std::size_t>(whole) * stride_bytes,
                                    stride_bytes, operands.y, row_bytes, row_bytes,
                                    static_cast<std::size_t>(tokens - whole), cudaMemcpyDeviceToDevice, stream));
  return {};
}

Status CublasLtLinear::run_nvfp4(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream) {
  const std::int64_t inputs = call.weight->in_features();
  const Nvfp4Parts parts = nvfp4_parts(tokens, inputs);
  return multiply({.outputs = call.weight->out_features(),
                   .inputs = inputs,
                   .tokens = tokens,
                   .operands = WeightEncoding::kNvfp4,
                   .output = call.output,
                   .x_stride = inputs,
                   .y_stride = call.y_stride},
                  {.weight = packed(call).row_codes(),
                   .x = memory + parts.codes,
                   .y = call.y,
                   .weight_scales = packed(call).row_scales(),
                   .x_scales = memory + parts.scales,
                   .global_scale = packed(call).input_scale() * packed(call).global_scale(),
                   .workspace = memory},
                  stream);
}

Status CublasLtLinear::run(std::int32_t tokens, std::span<const LinearCall> calls, const Scratch& scratch,
                           cudaStream_t stream) {
  const LinearCall* encoded = nullptr;  // the call whose input lies in scratch
  for (const LinearCall& call : calls) {
    if (!takes(tokens, call)) continue;
    const WeightEncoding encoding = packed(call).encoding();
    const bool encodes = encoding != WeightEncoding::kBf16;
    const std::int64_t bytes = encodes ? scratch_bytes(tokens, call.weight->in_features(), call.weight->out_features())
                                       : kProductWorkspaceBytes;
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch.take(static_cast<std::size_t>(bytes), "linear"));
    const bool new_input = encodes && (encoded == nullptr || !same_encoded_input(*encoded, call));
    if (encodes) encoded = &call;
    switch (encoding) {
      case WeightEncoding::kBf16:
        DSV4RT_RETURN_IF_ERROR(run_bf16(tokens, call, memory, stream));
        break;
      case WeightEncoding::kFp8Block128:
        if (new_input) DSV4RT_RETURN_IF_ERROR(encode_fp8(tokens, call, memory, stream));
        DSV4RT_RETURN_IF_ERROR(run_fp8(tokens, call, memory, stream));
        break;
      case WeightEncoding::kNvfp4:
        if (new_input) DSV4RT_RETURN_IF_ERROR(encode_nvfp4(tokens, call, memory, stream));
        DSV4RT_RETURN_IF_ERROR(run_nvfp4(tokens, call, memory, stream));
        break;
    }
  }
  return {};
}

}  // namespace dsv4rt::cuda
