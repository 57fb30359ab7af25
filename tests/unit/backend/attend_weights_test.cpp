// Weights of attention on the CPU: against their definition in double precision, and of what each of them depends on.
#include "backend/attend_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cpu/row_kernels.h"
#include "support/weights_reference.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kLn2 = std::numbers::ln2;

// One head's rows, the window's first.
struct Head {
  std::vector<float> scores;
  float sink = -1.0f;
};

struct Weighed {
  std::vector<float> weights;
  float denominator = 0;
};

// Weights of heads that lie in lanes side by side and have equally many rows.
std::vector<Weighed> weigh(cpu::IsaLevel level, const std::vector<Head>& heads, int window, bool by_power = false) {
  const std::size_t padded = (heads.size() + cpu::kHeadLanes - 1) / cpu::kHeadLanes * cpu::kHeadLanes;
  const std::size_t count = heads[0].scores.size();
  std::vector<float> scores(count * padded);
  std::vector<float> sink(padded);
  std::vector<float> denominator(padded);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    sink[h] = heads[h].sink;
    for (std::size_t r = 0; r < count; ++r) scores[r * padded + h] = heads[h].scores[r];
  }
  cpu::row_kernels(level).softmax(scores.data(), static_cast<int>(count), window, static_cast<int>(padded), 1.0f,
                                  by_power, sink.data(), denominator.data());
  std::vector<Weighed> out(heads.size());
  for (std::size_t h = 0; h < heads.size(); ++h) {
    out[h].denominator = denominator[h];
    for (std::size_t r = 0; r < count; ++r) out[h].weights.push_back(scores[r * padded + h]);
  }
  return out;
}

// Rows of which `window` have scores around `base`, the others around base + ln 2 * x.
Head head_of(std::uint64_t seed, int rows, int window, double base, double x) {
  Random random(seed);
  Head head;
  for (int r = 0; r < rows; ++r) {
    const double around = r < window ? base : base + x * kLn2;
    head.scores.push_back(static_cast<float>(around + static_cast<double>(random.normal())));
  }
  head.sink = static_cast<float>(base) + random.normal();
  return head;
}

// Weights equal the definition's but where FP32 cannot tell to which neighbour a value rounds.
void expect_defined(const Head& head, const Weighed& out, int window, bool by_power = false) {
  const std::vector<double> scores(head.scores.begin(), head.scores.end());
  const WeightsReference reference(scores, static_cast<std::size_t>(window), by_power);
  double sum = reference.weight(static_cast<double>(head.sink));
  std::size_t ties = 0;
  for (std::size_t r = 0; r < scores.size(); ++r) {
    const double exact = reference.weight(scores[r]);
    sum += exact;
    const auto actual = static_cast<double>(out.weights[r]);
    if (exact < 0x1p-126 ? actual <= 0x1p-126 : actual == reference.rounded(scores[r])) continue;
    ++ties;
    EXPECT_LE(std::abs(actual - exact), exact * (0x1p-8 + 0x1p-14)) << "row " << r << " of score " << scores[r];
  }
  EXPECT_LE(ties, 1 + scores.size() / 50);
  EXPECT_NEAR(static_cast<double>(out.denominator) / sum, 1.0, 1e-4);
}

// Greatest x from far below the window's to where weights are relative to 2^64, 2^128 and more.
constexpr double kExponents[] = {-300, -90, -3, 0, 20, 50, 57, 60, 63, 100, 121, 124, 127, 130, 188, 200, 300, 1000};

TEST(AttendWeights, AreTheDefinitions) {
  for (const cpu::IsaLevel level : available_levels()) {
    SCOPED_TRACE(cpu::isa_level_name(level));
    // Windows of one row, shorter than a tile, and longer than one.
    for (const int window : {1, 5, 128}) {
      std::vector<Head> heads;
      for (const double x : kExponents) {
        heads.push_back(head_of(heads.size() + 1, window + 500, window, 3.0 - static_cast<double>(heads.size()), x));
      }
      const auto out = weigh(level, heads, window);
      for (std::size_t h = 0; h < heads.size(); ++h) {
        SCOPED_TRACE(testing::Message() << "window " << window << " x " << kExponents[h]);
        expect_defined(heads[h], out[h], window);
      }
    }
  }
}

TEST(AttendWeights, OfWindowRowsAlone) {
  for (const cpu::IsaLevel level : available_levels()) {
    for (const int window : {1, 2, 31, 128}) {
      const Head head = head_of(7, window, window, 30.0, 0);
      const auto out = weigh(level, {head}, window);
      expect_defined(head, out[0], window);
      EXPECT_EQ(*std::max_element(out[0].weights.begin(), out[0].weights.end()), 1.0f);
    }
  }
}

TEST(AttendWeights, RelativeToAPowerAreTheDefinitions) {
  for (const cpu::IsaLevel level : available_levels()) {
    for (const double x : {-100.0, 0.0, 50.0, 300.0}) {
      const Head head = head_of(11, 1300, 128, 2.0, x);
      expect_defined(head, weigh(level, {head}, 128, true)[0], 128, true);
    }
  }
}

// Rows can be weighed before later ones are known: what these do is scale by a power of two.
TEST(AttendWeights, RoundingDoesNotDependOnLaterRows) {
  constexpr int kWindow = 40;
  constexpr int kRows = 20000;  // few of them would round otherwise, relative to another power
  for (const cpu::IsaLevel level : available_levels()) {
    for (const double x : {-40.0, 10.0, 59.0, 90.0, 126.0, 250.0}) {
      SCOPED_TRACE(testing::Message() << cpu::isa_level_name(level) << " x " << x);
      Head head = head_of(21, kRows, kWindow, 1.0, -10);
      const auto alone = weigh(level, {head}, kWindow)[0];
      head.scores.push_back(head.scores[0] + static_cast<float>(x * kLn2));
      const auto more = weigh(level, {head}, kWindow)[0];
      const auto greatest = *std::max_element(head.scores.begin(), head.scores.begin() + kWindow);
      const double last = (static_cast<double>(head.scores.back()) - static_cast<double>(greatest)) / kLn2;
      const int shift = last > 60 ? static_cast<int>(64 * std::ceil((last - 60) / 64)) : 0;
      for (std::size_t r = 0; r < static_cast<std::size_t>(kRows); ++r) {
        float expected = std::ldexp(alone.weights[r], -shift);
        if (shift > 126) expected = 0.0f;
        ASSERT_EQ(more.weights[r], expected) << "row " << r;
      }
    }
  }
}

// Heads beside one another in lanes have nothing to do with each other.
TEST(AttendWeights, AShiftIsOfOneHead) {
  constexpr int kWindow = 17;
  for (const cpu::IsaLevel level : available_levels()) {
    std::vector<Head> heads;
    for (const double x : kExponents) heads.push_back(head_of(heads.size() + 40, 200, kWindow, 0.0, x));
    for (std::size_t h = 0; h < heads.size(); ++h) heads[h].sink = 7.0f * static_cast<float>(h);  // up to e^119
    const auto together = weigh(level, heads, kWindow);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const auto alone = weigh(level, {heads[h]}, kWindow)[0];
      EXPECT_TRUE(same_bytes(together[h].weights, alone.weights)) << "head " << h;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(together[h].denominator), std::bit_cast<std::uint32_t>(alone.denominator))
          << "head " << h;
    }
  }
}

TEST(AttendWeights, InfiniteAndNanScores) {
  for (const cpu::IsaLevel level : available_levels()) {
    const Head head{{0.0f, -kInf, 1.0f, -kInf, 100.0f, kNan}, 0.0f};
    for (const int rows : {4, 5}) {
      Head finite = head;
      finite.scores.resize(static_cast<std::size_t>(rows));
      const auto out = weigh(level, {finite}, 3)[0];
      EXPECT_EQ(out.weights[1], 0.0f);
      EXPECT_EQ(out.weights[3], 0.0f);
      expect_defined(finite, out, 3);
    }
    const auto out = weigh(level, {head}, 3)[0];
    EXPECT_TRUE(std::isnan(out.weights[5]));
    EXPECT_TRUE(std::isnan(out.denominator));
    EXPECT_TRUE(std::isnan(weigh(level, {{{0.0f, kInf}, 0.0f}}, 1)[0].denominator));
    EXPECT_TRUE(std::isnan(weigh(level, {{{kNan, 0.0f}, 0.0f}}, 1)[0].denominator));
  }
}

// Sinks far above and far below, with a shift and without: a sink that outweighs all rows leaves nothing to them.
TEST(AttendWeights, SinksFarAway) {
  for (const cpu::IsaLevel level : available_levels()) {
    for (const double x : {0.0, 100.0, 200.0}) {
      for (const float sink : {-1000.0f, -80.0f, 40.0f, 80.0f, 100.0f, 150.0f}) {
        SCOPED_TRACE(testing::Message() << "x " << x << " sink " << sink);
        Head head = head_of(77, 100, 20, 0.0, x);
        head.sink = sink;
        const auto out = weigh(level, {head}, 20)[0];
        const std::vector<double> scores(head.scores.begin(), head.scores.end());
        if (WeightsReference(scores, 20, false).weight(static_cast<double>(sink)) < 1e38) {
          expect_defined(head, out, 20);
        } else {
          EXPECT_EQ(out.denominator, kInf);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4rt
