// Attention on the GPU: one cache of several sequences, attended by steps of any cut, against the CPU and itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"
#include "gpu/support/gpu.h"
#include "support/attend_case.h"
#include "support/test_backend.h"

namespace dsv4rt::test {

// Scratch memory that is zero between operations, of the backend's.
inline constexpr std::size_t kZeroBytes = cuda::kSelectStateBytes;

// The kernels that serve a step.
inline cuda::AttendPlan attend_plan(Backend& gpu, const AttendSetup& setup, const std::vector<AttendPart>& parts,
                                    std::int32_t padding, std::size_t scratch_bytes) {
  const AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
  const DeviceArray<std::byte> blocks(gpu, setup.pool.bytes);
  const DeviceArray<std::int32_t> table(gpu, setup.pool.table);
  const AttendArrays arrays(gpu, inputs, setup.pool, blocks.data(), table.data());
  const auto device = cuda::CudaDevice::create(0);
  EXPECT_OK(device);
  auto plan = cuda::plan_attend(**device, arrays.params, scratch_bytes, kZeroBytes);
  EXPECT_OK(plan);
  return plan.ok() ? *plan : cuda::AttendPlan{};
}

class AttendGpuTest : public GpuTest {
 protected:
  struct Setup : AttendSetup {
    using AttendSetup::AttendSetup;
    float query_scale = 1.0F;
    std::int32_t scaled_head = -1;  // the head whose queries are scaled; -1: all
  };

  // Room for the splits of a few tokens at once, so that many take turns.
  static constexpr std::size_t kScratchBytes = std::size_t{40} << 20;
  void SetUp() override {
    GpuTest::SetUp();
    if (gpu_backend().ok()) {
      ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
    }
  }

  // Where the longest of the parts ends.
  static std::int32_t end_of(const std::vector<AttendPart>& parts) {
    std::int32_t end = 0;
    for (const AttendPart& part : parts) end = std::max(end, part.start + part.count);
    return end;
  }
  // Slots and positions for all of the parts.
  static Setup setup_for(const AttendShape& shape, const std::vector<AttendPart>& parts) {
    std::int32_t slots = 0;
    for (const AttendPart& part : parts) slots = std::max(slots, part.slot + 1);
    return Setup(shape, slots, end_of(parts));
  }

  // Tokens of `tokens` sequences, of lengths from a few rows to all that they can have.
  static std::vector<AttendPart> decode(std::int32_t tokens, std::int32_t longest) {
    std::vector<AttendPart> parts;
    for (std::int32_t i = 0; i < tokens; ++i) parts.push_back({i, i % 5 == 0 ? i * longest / tokens : longest - i, 1});
    return parts;
  }

  // A step's inputs, queries scaled as the setup says.
  static AttendInputs inputs_of(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding) {
    AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
    if (setup.query_scale == 1.0F) return inputs;
    for (std::size_t i = 0; i < inputs.q.size(); ++i) {
      const auto head = static_cast<std::int32_t>(i / kHeadDim) % setup.shape.heads;
      if (setup.scaled_head >= 0 && head != setup.scaled_head) continue;
      inputs.q[i] = to_bf16(to_float(inputs.q[i]) * setup.query_scale);
    }
    return inputs;
  }

  static std::vector<bf16> run(Backend& backend, const Setup& setup, const std::vector<AttendPart>& parts,
                               std::int32_t padding = 0, std::int32_t context_end = 0) {
    AttendInputs inputs = inputs_of(setup, parts, padding);
    inputs.counts.context_end = std::max(inputs.counts.context_end, context_end);
    const DeviceArray<std::byte> blocks(backend, setup.pool.bytes);
    const DeviceArray<std::int32_t> table(backend, setup.pool.table);
    const AttendArrays arrays(backend, inputs, setup.pool, blocks.data(), table.data());
    EXPECT_OK(backend.ops().attend(arrays.params));
    std::vector<bf16> out;
    EXPECT_OK(arrays.output(out));
    return out;
  }

  static cuda::AttendPlan plan_of(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding = 0,
                                  std::size_t scratch_bytes = kScratchBytes) {
    return attend_plan(gpu(), setup, parts, padding, scratch_bytes);
  }

  // Relative errors of `together` neighbouring values, all of a head's or some of them. A weight that rounds to the
  // other BF16 neighbour is up to 0.8 % away; that is rare. It moves outputs by its share of them, which is more than
  // half only where one compressed row outweighs all others and the window: of 500 heads one may.
  struct Bounds {
    double most = 8e-3;
    double usual = 4e-3;  // one in 500 may lie beyond
    double mean = 5e-4;
    std::size_t together = kHeadDim;
  };
  static void expect_agrees(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding = 0) {
    expect_agrees(setup, parts, padding, Bounds{});
  }
  static void expect_agrees(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding,
                            const Bounds& bounds) {
    static const std::unique_ptr<Backend> cpu = std::move(create_cpu_test_backend()).value();
    const auto expected = run(*cpu, setup, parts, padding);
    const auto actual = run(gpu(), setup, parts, padding);
    ASSERT_EQ(actual.size(), expected.size());
    const std::size_t together = bounds.together;
    double sum = 0;
    std::size_t unusual = 0;
    const std::size_t groups = actual.size() / together;
    for (std::size_t group = 0; group < groups; ++group) {
      double error = 0;
      double norm = 0;
      for (std::size_t i = group * together; i < (group + 1) * together; ++i) {
        const auto want = static_cast<double>(to_float(expected[i]));
        error += std::pow(static_cast<double>(to_float(actual[i])) - want, 2);
        norm += want * want;
      }
      const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
      const std::size_t head = group * together / kHeadDim;
      ASSERT_LT(relative, bounds.most) << "token " << head / static_cast<std::size_t>(setup.shape.heads) << " head "
                                       << head % static_cast<std::size_t>(setup.shape.heads) << " value "
                                       << group * together % kHeadDim;
      sum += relative;
      if (relative >= bounds.usual) ++unusual;
    }
    EXPECT_LT(sum, bounds.mean * static_cast<double>(groups));
    EXPECT_LE(unusual, groups / 500) << "of " << groups;
  }

  // Rows whose groups of 64 values have scales that are far apart. Multiplied by 2^20, with queries that are as much
  // smaller, they leave outputs that are 2^20 times as large, to the bit: what decodes scales of more than 2^7 in two
  // products loses nothing and leaves nothing out.
  static void expect_scales(AttendShape shape, std::int32_t slots, const std::vector<AttendPart>& parts,
                            std::int64_t positions) {
    constexpr int kMore = 20;
    shape.row_exponent = 12;  // scales of 2^6 at most
    shape.row_steps = 4;
    Setup plain(shape, slots, positions);
    plain.query_scale = std::ldexp(1.0F, -shape.row_exponent);
    expect_agrees(plain, parts, 0, {.most = 8e-3, .usual = 8e-3, .together = RowBank::kGroupValues});
    shape.row_exponent += kMore;
    Setup larger(shape, slots, positions);
    larger.query_scale = std::ldexp(1.0F, -shape.row_exponent);
    const auto expected = run(gpu(), plain, parts);
    const auto actual = run(gpu(), larger, parts);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(to_float(actual[i]), std::ldexp(to_float(expected[i]), kMore))
          << "value " << i % kHeadDim << " of head " << i / kHeadDim;
    }
  }

  // Compressed rows that are 2^exponent times as large as the window's: of scores far above the window's, so that most
  // heads' weights are relative to 2^64 or up to 2^320, or far below. A single row's weight may then be nearly all of a
  // head's: its other BF16 neighbour is up to 0.8 % away, and the output's again. Larger scores differ by more.
  static constexpr std::int32_t kFarExponents[] = {4, 6, -6};
  static void expect_agrees_far_apart(AttendShape shape, std::int32_t slots, const std::vector<AttendPart>& parts,
                                      std::int64_t positions) {
    for (const std::int32_t exponent : kFarExponents) {
      SCOPED_TRACE("exponent " + std::to_string(exponent));
      shape.compressed_exponent = exponent;
      expect_agrees(Setup(shape, slots, positions), parts, 2,
                    {.most = 1.2e-2, .usual = 1.2e-2, .mean = exponent > 4 ? 1e-3 : 5e-4});
    }
  }

  static void expect_same(const std::vector<bf16>& part, const std::vector<bf16>& whole, std::size_t first_value,
                          const std::string& what) {
    ASSERT_LE(first_value + part.size(), whole.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      ASSERT_EQ(part[i].bits, whole[first_value + i].bits)
          << what << ": value " << i % kHeadDim << " of head " << i / kHeadDim;
    }
  }
};

}  // namespace dsv4rt::test
