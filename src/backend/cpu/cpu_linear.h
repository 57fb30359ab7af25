// Linear layers on the CPU: packed weights, and the executor of Ops::linear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_linear_block.h"
#include "backend/cpu/parallel.h"
#include "backend/ops.h"
#include "backend/scratch.h"
#include "backend/step_shapes.h"
#include "checkpoint/host_linear.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cpu {

// Cache-line aligned memory.
class AlignedBytes {
 public:
  // False when the memory cannot be had; the old memory is kept then.
  [[nodiscard]] bool reserve(std::size_t bytes);
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

class CpuPackedLinear final : public PackedLinear {
 public:
  CpuPackedLinear(PackedView view, ActivationRounding activation, AlignedBytes codes, std::vector<std::uint8_t> scales);
  [[nodiscard]] const PackedView& view() const noexcept { return view_; }
  [[nodiscard]] ActivationRounding activation() const noexcept { return activation_; }

 private:
  PackedView view_;
  ActivationRounding activation_;
  AlignedBytes codes_;
  std::vector<std::uint8_t> scales_;
};

// Memory that a matrix takes once it is packed, by its encoding and shape: whole groups of 16 rows.
std::int64_t cpu_packed_bytes(const HostLinear& weight);

// Errors: kUnsupported (slice not on a 16-row boundary, scale outside 2^-64..2^64), kBadInput (sizes that do
// not match the shape, NaN scale), each naming the tensor; kResourceExhausted.
Result<std::unique_ptr<PackedLinear>> pack_cpu_linear(const HostLinear& weight);

// Runs linears on a thread team. What a call needs besides its operands lies in the scratch memory: the workers'
// blocks, the rounded inputs and the list of the work. One caller at a time.
class LinearExecutor {
 public:
  // Team and scratch outlive the object.
  LinearExecutor(const ThreadTeam& team, const Scratch& scratch, IsaLevel isa);
  Status run(std::int32_t tokens, std::span<const LinearCall> calls);

  // What a call of this shape takes of the scratch memory with `max_tokens` tokens, at least as much as with fewer.
  static std::int64_t most_scratch_bytes(const LinearGroupShape& shape, std::int32_t max_tokens, int threads);

 private:
  // Distinct (x, stride, width) of a run whose weights want FP8 inputs, and their rounded copies.
  struct RoundedInput {
    const bf16* x;
    std::int64_t x_stride;
    std::int64_t width;
    std::size_t offset;  // offset of the copy [tokens, width], in values
  };
  // Rows [row, row + rows) of one call; its work is its weight's groups.
  struct Segment {
    const LinearCall* call;
    std::int64_t row;
    std::int64_t rows;
    std::int64_t groups;
    double group_cost;
  };

  Status prepare(std::int32_t tokens, std::span<const LinearCall> calls);
  [[nodiscard]] Status round_inputs(std::int32_t tokens) const;
  void run_range(double begin, double end, int worker) const;
  void run_segment(const Segment& segment, std::int64_t group_begin, std::int64_t group_end, int worker) const;
  [[nodiscard]] const RoundedInput* rounded_input(const LinearCall& call) const;

  // Where the parts of the scratch memory begin, in bytes.
  struct ScratchLayout {
    std::int64_t rounded = 0;
    std::int64_t inputs = 0;
    std::int64_t segments = 0;
    std::int64_t total = 0;
  };
  static ScratchLayout scratch_layout(int threads, std::int64_t rounded_values, std::int64_t inputs,
                                      std::int64_t segments);
  [[nodiscard]] std::span<const RoundedInput> inputs() const { return {inputs_, input_count_}; }
  [[nodiscard]] std::span<const Segment> segments() const { return {segments_, segment_count_}; }

  const ThreadTeam& team_;
  const Scratch& scratch_;
  LinearBlockFunction block_;
  std::vector<std::uint8_t> fp8_tables_;
  // These belong to the call under way and lie in scratch memory.
  float* worker_blocks_ = nullptr;
  bf16* rounded_ = nullptr;
  RoundedInput* inputs_ = nullptr;
  std::size_t input_count_ = 0;
  Segment* segments_ = nullptr;
  std::size_t segment_count_ = 0;
};

}  // namespace dsv4rt::cpu
