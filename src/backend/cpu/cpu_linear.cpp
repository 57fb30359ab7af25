#include "backend/cpu/cpu_linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>

#include "backend/cpu/cpu_ops.h"
#include "base/arithmetic.h"
#include "base/bfloat16.h"
#include "base/check.h"
#include "base/try.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"
#include "layout/rounding.h"

namespace dsv4rt::cpu {
namespace {

constexpr std::int64_t kRoundingBlock = kActivationBlockValues;
// Below this many values, rounding on one thread is quicker than waking the others.
constexpr std::int64_t kSerialRoundingValues = 16 * 1024;
// And below this many products of a weight of 16 outputs with a row, decoding counted as four rows: some 100
// microseconds of one thread.
constexpr double kSerialCost = 1 << 18;

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

bool rounds_input(const LinearCall& call) {
  return packed(call).activation() == ActivationRounding::kFp8Block128;
}

bool reads_same_input(const LinearCall& one, const LinearCall& other) {
  return one.x == other.x && one.x_stride == other.x_stride && one.weight->in_features() == other.weight->in_features();
}

// Whether a call before calls[index] already has its input rounded.
bool reads_input_of_earlier(std::span<const LinearCall> calls, std::size_t index) {
  const auto earlier = calls.first(index);
  return std::any_of(earlier.begin(), earlier.end(), [&](const LinearCall& call) {
    return rounds_input(call) && reads_same_input(call, calls[index]);
  });
}

void check_call(const LinearCall& call) {
  DSV4RT_CHECK(call.x != nullptr && call.weight != nullptr && call.y != nullptr);
  DSV4RT_CHECK(!call.encoded);
  DSV4RT_CHECK(call.x_stride >= call.weight->in_features());
  DSV4RT_CHECK(call.y_stride >= call.weight->out_features());
}

// Rows of a block: all that fit the scratch, fewer when the groups alone do not occupy the team, but not fewer
// than kFewestBlockRows while the step has them.
constexpr std::int64_t kFewestBlockRows = 16;
std::int64_t block_rows(std::int64_t tokens, std::int64_t groups, int threads) {
  constexpr std::int64_t kMinRows = 2 * kFewestBlockRows;
  std::int64_t rows = std::min(tokens, kMaxBlockRows);
  while (rows > kMinRows && ceil_div(tokens, rows) * groups < 4 * threads) rows = ceil_div<std::int64_t>(rows, 2);
  return rows < tokens ? round_up<std::int64_t>(rows, 8) : rows;
}

}  // namespace

LinearExecutor::LinearExecutor(const ThreadTeam& team, const Scratch& scratch, IsaLevel isa)
    : team_(team), scratch_(scratch), block_(block_function(isa)), fp8_tables_(make_fp8_tables()) {}

Status LinearExecutor::run(std::int32_t tokens, std::span<const LinearCall> calls) {
  DSV4RT_CHECK(tokens >= 0);
  if (tokens == 0 || calls.empty()) return {};
  for (const LinearCall& call : calls) check_call(call);
  DSV4RT_RETURN_IF_ERROR(prepare(tokens, calls));
  DSV4RT_RETURN_IF_ERROR(round_inputs(tokens));
  double total = 0;
  for (const Segment& segment : segments()) total += segment.group_cost * static_cast<double>(segment.groups);
  // Parts of equal cost.
  const std::int64_t parts = total < kSerialCost ? 1 : team_.most_ranges();
  const auto run_parts = [&](std::int64_t begin, std::int64_t end, int worker) {
    run_range(total * static_cast<double>(begin) / static_cast<double>(parts),
              total * static_cast<double>(end) / static_cast<double>(parts), worker);
  };
  return team_.parallel_for(parts, run_parts);
}

LinearExecutor::ScratchLayout LinearExecutor::scratch_layout(int threads, std::int64_t rounded_values,
                                                             std::int64_t inputs, std::int64_t segments) {
  constexpr std::int64_t kLine = 64;
  ScratchLayout layout;
  layout.rounded = threads * kWorkerFloats * static_cast<std::int64_t>(sizeof(float));
  layout.inputs = layout.rounded + round_up(rounded_values * static_cast<std::int64_t>(sizeof(bf16)), kLine);
  layout.segments = layout.inputs + round_up(inputs * static_cast<std::int64_t>(sizeof(RoundedInput)), kLine);
  layout.total = layout.segments + segments * static_cast<std::int64_t>(sizeof(Segment));
  return layout;
}

std::int64_t LinearExecutor::most_scratch_bytes(const LinearGroupShape& shape, std::int32_t max_tokens, int threads) {
  const std::int64_t row_blocks = ceil_div<std::int64_t>(max_tokens, kFewestBlockRows);
  return scratch_layout(threads, shape.inputs * max_tokens * shape.in_features, shape.matrices,
                        shape.matrices * row_blocks)
      .total;
}

// Lists the distinct inputs to round and the segments of work.
Status LinearExecutor::prepare(std::int32_t tokens, std::span<const LinearCall> calls) {
  std::int64_t groups = 0;
  for (const LinearCall& call : calls) groups += ceil_div<std::int64_t>(call.weight->out_features(), kGroupOutputs);
  const std::int64_t rows = block_rows(tokens, groups, team_.threads());
  DSV4RT_CHECK(rows >= std::min<std::int64_t>(tokens, kFewestBlockRows));
  // The lists come to lie behind the rounded values, whose number they tell: counted first, without a list.
  std::int64_t rounded_values = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (rounds_input(calls[i]) && !reads_input_of_earlier(calls, i)) {
      rounded_values += tokens * calls[i].weight->in_features();
    }
  }
  const auto matrices = static_cast<std::int64_t>(calls.size());
  const ScratchLayout layout =
      scratch_layout(team_.threads(), rounded_values, matrices, matrices * ceil_div<std::int64_t>(tokens, rows));
  DSV4RT_ASSIGN_OR_RETURN(std::byte* const base, scratch_.take(static_cast<std::size_t>(layout.total), "linear"));
  worker_blocks_ = reinterpret_cast<float*>(base);
  rounded_ = reinterpret_cast<bf16*>(base + layout.rounded);
  inputs_ = reinterpret_cast<RoundedInput*>(base + layout.inputs);
  segments_ = reinterpret_cast<Segment*>(base + layout.segments);
  input_count_ = 0;
  segment_count_ = 0;
  std::size_t offset = 0;
  for (const LinearCall& call : calls) {
    const PackedView& view = packed(call).view();
    if (rounds_input(call) && rounded_input(call) == nullptr) {
      std::construct_at(inputs_ + input_count_++, RoundedInput{call.x, call.x_stride, view.in_features, offset});
      offset += static_cast<std::size_t>(tokens * view.in_features);
    }
    for (std::int64_t row = 0; row < tokens; row += rows) {
      const std::int64_t count = std::min(rows, tokens - row);
      // Decoding a weight costs about as much as multiplying it with four rows.
      std::construct_at(segments_ + segment_count_++,
                        Segment{&call, row, count, ceil_div<std::int64_t>(view.out_features, kGroupOutputs),
                                static_cast<double>(count + 4) * static_cast<double>(view.depth)});
    }
  }
  return {};
}

const LinearExecutor::RoundedInput* LinearExecutor::rounded_input(const LinearCall& call) const {
  for (const RoundedInput& input : inputs()) {
    if (input.x == call.x && input.x_stride == call.x_stride && input.width == call.weight->in_features()) {
      return &input;
    }
  }
  return nullptr;
}

// Rounding blocks start at multiples of 128 of a row, so a row may be divided between workers there.
Status LinearExecutor::round_inputs(std::int32_t tokens) const {
  for (const RoundedInput& input : inputs()) {
    bf16* copy = rounded_ + input.offset;
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
      DSV4RT_RETURN_IF_ERROR(team_.parallel_for(tokens * row_blocks, round));
    }
  }
  return {};
}

// The groups whose cost ends in (begin, end] of the run's total, in the order of the segments.
void LinearExecutor::run_range(double begin, double end, int worker) const {
  double before = 0;
  for (const Segment& segment : segments()) {
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
  if (rounds_input(call)) {
    x = rounded_ + rounded_input(call)->offset;
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
  block.inputs = worker_blocks_ + worker * kWorkerFloats;
  block.panel = block.inputs + kInputFloats;
  block.sums = block.panel + kPanelFloats;
  block_(block);
}

Status CpuOps::linear(std::int32_t tokens, std::span<const LinearCall> calls) {
  return linear_->run(tokens, calls);
}

Status CpuOps::normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) {
  DSV4RT_RETURN_IF_ERROR(rms_norm(norm));
  return linear(norm.tokens, calls);
}

}  // namespace dsv4rt::cpu
