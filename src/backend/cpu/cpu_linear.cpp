#include "backend/cpu/cpu_linear.h"

#include <algorithm>
#include <array>
#include <new>
#include <string>

#include "backend/cpu/cpu_ops.h"
#include "base/arithmetic.h"
#include "base/bfloat16.h"
#include "base/check.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"
#include "layout/rounding.h"

namespace dsv4rt::cpu {
namespace {

constexpr std::int64_t kRoundingBlock = kActivationBlockValues;
// Below this many values, rounding on one thread is quicker than waking the others.
constexpr std::int64_t kSerialRoundingValues = 16 * 1024;

constexpr std::int64_t kInputFloats = kMaxBlockRows * kBlockDepth;
constexpr std::int64_t kSumFloats = kMaxBlockRows * kMaxBlockGroups * kGroupOutputs;
constexpr std::int64_t kWorkerFloats = kInputFloats + kPanelFloats + kSumFloats;

LinearBlockFunction block_function(IsaLevel isa) {
#if defined(__x86_64__)
  if (isa == IsaLevel::kAvx512) return linear_block_avx512;
  if (isa == IsaLevel::kAvx2) return linear_block_avx2;
#endif
  DSV4RT_CHECK(isa == IsaLevel::kPortable);
  return linear_block_portable;
}

std::vector<std::uint8_t> make_fp8_tables() {
  std::vector<std::uint8_t> tables(kFp8ScaleCodes * 256);
  for (int scale = 0; scale < kFp8ScaleCodes; ++scale) {
    const float factor = std::bit_cast<float>(static_cast<std::uint32_t>(kMinFp8ScaleCode + scale) << 23);
    std::uint8_t* table = tables.data() + scale * 256;
    for (std::size_t code = 0; code < 128; ++code) {
      const std::uint16_t bits = to_bf16(kE4m3Values[code] * factor).bits;
      table[code] = static_cast<std::uint8_t>(bits >> 8);
      table[code + 128] = static_cast<std::uint8_t>(bits & 0xff);
    }
  }
  return tables;
}

const CpuPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CpuPackedLinear&>(*call.weight);
}

void check_call(const LinearCall& call) {
  DSV4RT_CHECK(call.x != nullptr && call.weight != nullptr && call.y != nullptr);
  DSV4RT_CHECK(call.x_stride >= call.weight->in_features());
  DSV4RT_CHECK(call.y_stride >= call.weight->out_features());
}

// Rows of a block: all that fit the scratch, fewer when the groups alone do not occupy the team.
std::int64_t block_rows(std::int64_t tokens, std::int64_t groups, int threads) {
  constexpr std::int64_t kMinRows = 32;
  std::int64_t rows = std::min(tokens, kMaxBlockRows);
  while (rows > kMinRows && ceil_div(tokens, rows) * groups < 4 * threads) rows = ceil_div<std::int64_t>(rows, 2);
  return rows < tokens ? round_up<std::int64_t>(rows, 8) : rows;
}

}  // namespace

LinearExecutor::LinearExecutor(const ThreadTeam& team, IsaLevel isa)
    : team_(team), block_(block_function(isa)), fp8_tables_(make_fp8_tables()) {}

Status LinearExecutor::run(std::int32_t tokens, std::span<const LinearCall> calls) {
  DSV4RT_CHECK(tokens >= 0);
  if (tokens == 0 || calls.empty()) return {};
  for (const LinearCall& call : calls) check_call(call);
  if (Status status = prepare(tokens, calls); !status.ok()) return status;
  round_inputs(tokens);
  double total = 0;
  for (const Segment& segment : segments_) total += segment.group_cost * static_cast<double>(segment.groups);
  const int workers = team_.threads();
  team_.parallel_for(workers, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t worker = begin; worker < end; ++worker) {
      run_range(total * static_cast<double>(worker) / workers, total * static_cast<double>(worker + 1) / workers,
                static_cast<int>(worker));
    }
  });
  return {};
}

// Lists the distinct inputs to round and the segments of work, and grows the scratch.
Status LinearExecutor::prepare(std::int32_t tokens, std::span<const LinearCall> calls) {
  inputs_.clear();
  segments_.clear();
  std::size_t rounded_values = 0;
  try {
    std::int64_t groups = 0;
    for (const LinearCall& call : calls) groups += ceil_div<std::int64_t>(call.weight->out_features(), kGroupOutputs);
    const std::int64_t rows = block_rows(tokens, groups, team_.threads());
    for (const LinearCall& call : calls) {
      const PackedView& view = packed(call).view();
      if (packed(call).activation() == ActivationRounding::kFp8Block128 && rounded_input(call) == nullptr) {
        inputs_.push_back({call.x, call.x_stride, view.in_features, rounded_values});
        rounded_values += static_cast<std::size_t>(tokens * view.in_features);
      }
      for (std::int64_t row = 0; row < tokens; row += rows) {
        const std::int64_t count = std::min(rows, tokens - row);
        // Decoding a weight costs about as much as multiplying it with four rows.
        segments_.push_back({&call, row, count, ceil_div<std::int64_t>(view.out_features, kGroupOutputs),
                             static_cast<double>(count + 4) * static_cast<double>(view.depth)});
      }
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no memory for the work list of a linear operation"};
  }
  const auto scratch = static_cast<std::size_t>(team_.threads() * kWorkerFloats) * sizeof(float);
  if (!rounded_.reserve(rounded_values * sizeof(bf16)) || !worker_scratch_.reserve(scratch)) {
    return {StatusCode::kResourceExhausted, "no memory for the scratch of a linear operation: " +
                                                std::to_string(rounded_values * sizeof(bf16) + scratch) + " bytes"};
  }
  return {};
}

const LinearExecutor::RoundedInput* LinearExecutor::rounded_input(const LinearCall& call) const {
  for (const RoundedInput& input : inputs_) {
    if (input.x == call.x && input.x_stride == call.x_stride && input.width == call.weight->in_features()) {
      return &input;
    }
  }
  return nullptr;
}

// Rounding blocks start at multiples of 128 of a row, so a row may be divided between workers there.
void LinearExecutor::round_inputs(std::int32_t tokens) const {
  for (const RoundedInput& input : inputs_) {
    bf16* copy = reinterpret_cast<bf16*>(rounded_.data()) + input.offset;
    const std::int64_t row_blocks = ceil_div(input.width, kRoundingBlock);
    const auto round = [&](std::int64_t begin, std::int64_t end, int) {
      std::array<float, kRoundingBlock> values;
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t row = item / row_blocks;
        const std::int64_t column = item % row_blocks * kRoundingBlock;
        const auto count = static_cast<std::size_t>(std::min(kRoundingBlock, input.width - column));
        const bf16* from = input.x + row * input.x_stride + column;
        bf16* to = copy + row * input.width + column;
        for (std::size_t i = 0; i < count; ++i) values[i] = to_float(from[i]);
        round_activation_fp8(values.data(), count);
        // Four significant bits: cutting the FP32 value is exact.
        for (std::size_t i = 0; i < count; ++i) {
          to[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i]) >> 16);
        }
      }
    };
    if (tokens * input.width <= kSerialRoundingValues) {
      round(0, tokens * row_blocks, 0);
    } else {
      team_.parallel_for(tokens * row_blocks, round);
    }
  }
}

// The groups whose cost ends in (begin, end] of the run's total, in the order of the segments.
void LinearExecutor::run_range(double begin, double end, int worker) const {
  double before = 0;
  for (const Segment& segment : segments_) {
    // Both sides of a cut compute the same number, so that ranges cover every group once.
    const auto group_at = [&](double cost) {
      const double groups = (cost - before) / segment.group_cost + 0.5;
      return std::clamp(static_cast<std::int64_t>(groups), std::int64_t{0}, segment.groups);
    };
    const std::int64_t group_begin = group_at(begin);
    const std::int64_t group_end = group_at(end);
    if (group_begin < group_end) run_segment(segment, group_begin, group_end, worker);
    before += segment.group_cost * static_cast<double>(segment.groups);
  }
}

void LinearExecutor::run_segment(const Segment& segment, std::int64_t group_begin, std::int64_t group_end,
                                 int worker) const {
  const LinearCall& call = *segment.call;
  LinearBlock block;
  block.weight = packed(call).view();
  block.group_begin = group_begin;
  block.group_end = group_end;
  const bf16* x = call.x;
  block.x_stride = call.x_stride;
  if (packed(call).activation() == ActivationRounding::kFp8Block128) {
    x = reinterpret_cast<const bf16*>(rounded_.data()) + rounded_input(call)->offset;
    block.x_stride = block.weight.in_features;
  }
  block.x = reinterpret_cast<const std::uint16_t*>(x + segment.row * block.x_stride);
  block.rows = segment.rows;
  block.y_is_float = call.output == OutputType::kF32;
  const std::int64_t value_bytes = block.y_is_float ? sizeof(float) : sizeof(bf16);
  block.y = static_cast<std::byte*>(call.y) + segment.row * call.y_stride * value_bytes;
  block.y_stride = call.y_stride;
  block.e4m3_values = kE4m3Values.data();
  block.e2m1_values = kE2m1Values.data();
  block.fp8_tables = fp8_tables_.data();
  block.inputs = reinterpret_cast<float*>(worker_scratch_.data()) + worker * kWorkerFloats;
  block.panel = block.inputs + kInputFloats;
  block.sums = block.panel + kPanelFloats;
  block_(block);
}

Status CpuOps::linear(std::int32_t tokens, std::span<const LinearCall> calls) {
  return linear_->run(tokens, calls);
}

}  // namespace dsv4rt::cpu
