// Two engines of the same checkpoint, on the CPU and on the GPU, that are driven alike and compared.
//
// Layers are compared one by one: each gets the same random input in both engines. In layers with an
// indexer the CPU attends to the rows that the GPU selected, so that outputs can be compared although a
// row of nearly the same score may have been taken for another; how many were is compared as well.
#pragma once

#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "support/forced_selection.h"
#include "support/golden_case.h"
#include "support/synthetic_cache.h"

namespace dsv4rt::test {

struct PairedSequence {
  SequenceId cpu;
  SequenceId gpu;
  std::int64_t length = 0;
};

struct PairedPart {
  PairedSequence* sequence = nullptr;
  std::int64_t tokens = 0;
  std::int64_t rejected = 0;  // tokens at the end that are rejected
};

// What two evaluation orders of the same layer may differ by (tools/lib/trace_check.h says why): about twice the
// largest distances that an H200 showed.
struct PairTolerance {
  double output = 1e-2;         // relative L2 error over all steps of a layer; 7.7e-3
  double step_output = 5e-2;    // relative L2 error of one step of a layer, which may be a single token; 2.3e-2
  double equal_values = 0.998;  // cached values of a role with the same code; most that differed: 9.8e-4
  double state = 3e-6;          // relative L2 error of compressor states; largest: 1.3e-6
  double same_rows = 0.9994;    // selected rows that both chose; most that differed: 2.9e-4
};

class EnginePair {
 public:
  explicit EnginePair(const EngineOptions& options, const PairTolerance& tolerance = {})
      : EnginePair(options, options, tolerance) {}
  // The engines may have other limits.
  EnginePair(EngineOptions cpu, EngineOptions gpu, const PairTolerance& tolerance = {}) : tolerance_(tolerance) {
    cpu.backend = "cpu";
    cpu.threads = 0;
    gpu.backend = "cuda";
    step_tokens_ = std::min(cpu.limits.max_step_tokens, gpu.limits.max_step_tokens);
    cpu_ = make_engine(cpu);
    gpu_ = make_engine(gpu);
    layers_.resize(cpu_->layers().size());
  }

  // What the tolerances rest on.
  ~EnginePair() {
    std::printf("[     INFO ] at most: a step's outputs %.2e, values of a role %.2e, states %.2e\n", largest_step_,
                largest_unequal_, largest_state_);
  }
  EnginePair(const EnginePair&) = delete;
  EnginePair& operator=(const EnginePair&) = delete;

  [[nodiscard]] Engine& cpu() { return *cpu_; }
  [[nodiscard]] Engine& gpu() { return *gpu_; }

  PairedSequence create() { return both(cpu_->create_sequence(), gpu_->create_sequence(), 0); }
  PairedSequence fork(const PairedSequence& parent) {
    return both(cpu_->fork(parent.cpu), gpu_->fork(parent.gpu), parent.length);
  }
  void truncate(PairedSequence& sequence, std::int64_t length) {
    ASSERT_OK(cpu_->truncate(sequence.cpu, length));
    ASSERT_OK(gpu_->truncate(sequence.gpu, length));
    sequence.length = length;
  }
  void release(const PairedSequence& sequence) {
    EXPECT_OK(cpu_->release(sequence.cpu));
    EXPECT_OK(gpu_->release(sequence.gpu));
  }

  // Appends `tokens` tokens with random cache contents instead of computing them.
  void append_synthetic(PairedSequence& sequence, std::int64_t tokens) {
    append_uncomputed(*cpu_, sequence.cpu, tokens, step_tokens_);
    append_uncomputed(*gpu_, sequence.gpu, tokens, step_tokens_);
    sequence.length += tokens;
    SyntheticCache(++seed_, {{cpu_.get(), sequence.cpu}, {gpu_.get(), sequence.gpu}}).fill();
  }

  void feed(PairedSequence& sequence, std::int64_t tokens) {
    const PairedPart part{&sequence, tokens};
    step({&part, 1});
  }
  void feed_to(PairedSequence& sequence, std::int64_t length, std::int64_t chunk) {
    while (sequence.length < length && !testing::Test::HasFatalFailure()) {
      feed(sequence, std::min(chunk, length - sequence.length));
    }
  }
  // One step with random inputs; `padding` rows follow the real ones.
  void step(std::span<const PairedPart> parts, std::int64_t padding = 0) {
    std::vector<StepEntry> cpu_entries;
    std::vector<StepEntry> gpu_entries;
    std::vector<std::int32_t> accepted;
    std::int64_t tokens = 0;
    for (const PairedPart& part : parts) {
      cpu_entries.push_back({part.sequence->cpu, static_cast<std::int32_t>(part.tokens)});
      gpu_entries.push_back({part.sequence->gpu, static_cast<std::int32_t>(part.tokens)});
      accepted.push_back(static_cast<std::int32_t>(part.tokens - part.rejected));
      tokens += part.tokens;
    }
    const StepOptions options{.pad_to_tokens = static_cast<std::int32_t>(padding == 0 ? 0 : tokens + padding)};
    const auto cpu_step = cpu_->prepare(cpu_entries, options);
    const auto gpu_step = gpu_->prepare(gpu_entries, options);
    ASSERT_OK(cpu_step);
    ASSERT_OK(gpu_step);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) run_layer(*cpu_step, *gpu_step, layer);
    ASSERT_OK(cpu_->commit(*cpu_step, accepted));
    ASSERT_OK(gpu_->commit(*gpu_step, accepted));
    for (const PairedPart& part : parts) part.sequence->length += part.tokens - part.rejected;
  }

  // Outputs and selections of all steps so far.
  void expect_close_outputs() const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      SCOPED_TRACE("layer " + std::to_string(cpu_->layers()[i].value));
      const LayerTotals& totals = layers_[i];
      ASSERT_GT(totals.norm, 0.0);
      std::printf("[     INFO ] layer %d: outputs differ by %.2e, %lld of %lld selected rows in common\n",
                  cpu_->layers()[i].value, std::sqrt(totals.error / totals.norm),
                  static_cast<long long>(totals.same_rows), static_cast<long long>(totals.rows));
      EXPECT_LE(std::sqrt(totals.error / totals.norm), tolerance_.output);
      EXPECT_GE(static_cast<double>(totals.same_rows), tolerance_.same_rows * static_cast<double>(totals.rows));
    }
  }
  // Every row and state that the sequence's future depends on.
  void expect_close_caches(const PairedSequence& sequence) {
    for (const LayerId layer : cpu_->layers()) {
      for (int number = 0; number < kCacheRoleCount; ++number) {
        const auto role = static_cast<CacheRole>(number);
        SCOPED_TRACE(std::string(cache_role_name(role)) + " of layer " + std::to_string(layer.value));
        EngineEditor editor(*cpu_);
        if (editor.pool(layer, role) != nullptr) {
          expect_equal_values(EngineInspector(*cpu_).paged_values(layer, role, sequence.cpu).value(),
                              EngineInspector(*gpu_).paged_values(layer, role, sequence.gpu).value());
        }
        const SlotSpec* ring = editor.ring(layer, role);
        if (ring == nullptr) continue;
        if (role == CacheRole::kSwaKv) {
          expect_equal_values(EngineInspector(*cpu_).window_values(layer, sequence.cpu).value(),
                              EngineInspector(*gpu_).window_values(layer, sequence.gpu).value());
        } else {
          expect_close_states(layer, role, *ring, sequence);
        }
      }
    }
  }

 private:
  struct LayerTotals {
    double error = 0;  // squared
    double norm = 0;
    std::int64_t rows = 0;  // selected
    std::int64_t same_rows = 0;
  };

  static PairedSequence both(const Result<SequenceId>& cpu, const Result<SequenceId>& gpu, std::int64_t length) {
    EXPECT_OK(cpu);
    EXPECT_OK(gpu);
    return {cpu.value(), gpu.value(), length};
  }

  void run_layer(const Step& cpu_step, const Step& gpu_step, std::size_t index) {
    const LayerId layer = cpu_->layers()[index];
    const auto values = static_cast<std::size_t>(cpu_step.tokens * cpu_->config().hidden_size);
    std::vector<Bf16Bits> x(values);
    for (Bf16Bits& value : x) value = to_bf16(inputs_.normal(input_index_++)).bits;
    std::vector<Bf16Bits> cpu_out(values, Bf16Bits{0x7fc0});  // NaN
    std::vector<Bf16Bits> gpu_out(values, Bf16Bits{0x7fc0});
    ASSERT_OK(gpu_->forward_layer_from_host(gpu_step, layer, x.data(), gpu_out.data()));
    TopkRows selection;
    if (EngineInspector(*gpu_).layer_spec(layer).indexer) {
      selection = EngineInspector(*gpu_).last_selection(layer, gpu_step.valid_tokens).value();
    }
    EngineEditor editor(*cpu_);
    ForcedSelectionOps ops(editor.backend_ops(), selection);
    ASSERT_OK(editor.forward_layer_with(ops, cpu_step, layer, x.data(), cpu_out.data()));
    compare_outputs(cpu_out, gpu_out, cpu_step, layers_[index]);
    compare_selections(ops.own, selection, layers_[index]);
  }

  void compare_outputs(const std::vector<Bf16Bits>& cpu, const std::vector<Bf16Bits>& gpu, const Step& step,
                       LayerTotals& totals) {
    const auto real = static_cast<std::size_t>(step.valid_tokens * cpu_->config().hidden_size);
    double error = 0;
    double norm = 0;
    for (std::size_t i = 0; i < gpu.size(); ++i) {
      const double ours = to_float(bf16{gpu[i]});
      ASSERT_TRUE(std::isfinite(ours)) << "output value " << i << ", real tokens end at " << real;
      if (i >= real) continue;  // padding holds any finite value
      const double reference = to_float(bf16{cpu[i]});
      error += (ours - reference) * (ours - reference);
      norm += reference * reference;
    }
    largest_step_ = std::max(largest_step_, std::sqrt(error / norm));
    EXPECT_LE(std::sqrt(error / norm), tolerance_.step_output) << "one step's outputs differ";
    totals.error += error;
    totals.norm += norm;
  }

  static void compare_selections(const TopkRows& cpu, const TopkRows& gpu, LayerTotals& totals) {
    ASSERT_EQ(cpu.counts, gpu.counts);
    for (std::size_t t = 0; t < gpu.counts.size(); ++t) {
      const auto* own = cpu.rows.data() + t * static_cast<std::size_t>(cpu.top_k);
      const auto* other = gpu.rows.data() + t * static_cast<std::size_t>(gpu.top_k);
      const std::int32_t count = gpu.counts[t];
      ASSERT_TRUE(std::is_sorted(other, other + count)) << "selected rows are listed in ascending order";
      std::vector<std::int32_t> common;
      std::set_intersection(own, own + count, other, other + count, std::back_inserter(common));
      totals.rows += count;
      totals.same_rows += static_cast<std::int64_t>(common.size());
    }
  }

  void expect_equal_values(const std::vector<float>& cpu, const std::vector<float>& gpu) {
    ASSERT_EQ(cpu.size(), gpu.size());
    std::size_t equal = 0;
    for (std::size_t i = 0; i < cpu.size(); ++i) equal += cpu[i] == gpu[i] ? 1 : 0;
    if (!cpu.empty()) {
      largest_unequal_ = std::max(largest_unequal_, 1 - static_cast<double>(equal) / static_cast<double>(cpu.size()));
    }
    EXPECT_GE(static_cast<double>(equal), tolerance_.equal_values * static_cast<double>(cpu.size()))
        << cpu.size() - equal << " of " << cpu.size() << " values differ";
  }

  void expect_close_states(LayerId layer, CacheRole role, const SlotSpec& spec, const PairedSequence& sequence) {
    const auto cpu = EngineEditor(*cpu_).read_ring(layer, role, sequence.cpu).value();
    const auto gpu = EngineEditor(*gpu_).read_ring(layer, role, sequence.gpu).value();
    const auto row_values = static_cast<std::size_t>(spec.row_bytes) / sizeof(float);
    double error = 0;
    double norm = 0;
    for (std::int64_t p = first_needed_position(spec, sequence.length); p < sequence.length; ++p) {
      const auto* ours = reinterpret_cast<const float*>(gpu.data() + p % spec.ring_rows * spec.row_bytes);
      const auto* reference = reinterpret_cast<const float*>(cpu.data() + p % spec.ring_rows * spec.row_bytes);
      for (std::size_t i = 0; i < row_values; ++i) {
        error += std::pow(ours[i] - reference[i], 2);
        norm += std::pow(reference[i], 2);
      }
    }
    if (norm > 0) largest_state_ = std::max(largest_state_, std::sqrt(error / norm));
    EXPECT_TRUE(error <= tolerance_.state * tolerance_.state * norm) << "squared error " << error << " of " << norm;
  }

  PairTolerance tolerance_;
  double largest_step_ = 0;
  double largest_unequal_ = 0;  // share
  double largest_state_ = 0;
  std::int64_t step_tokens_ = 0;
  std::unique_ptr<Engine> cpu_;
  std::unique_ptr<Engine> gpu_;
  std::vector<LayerTotals> layers_;
  SyntheticStream inputs_{0x51de, "paired inputs"};
  std::uint64_t input_index_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace dsv4rt::test
