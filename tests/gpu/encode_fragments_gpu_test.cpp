// Blocks that kernels encode from the registers of a matrix instruction are what the reference's rounding makes of
// them, whatever the values.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gpu/support/encode_rows.h"
#include "gpu/support/gpu.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/rounding.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

constexpr std::size_t kBlock = kActivationBlockValues;

class EncodeFragmentsGpuTest : public GpuTest {
 protected:
  static void expect_encoded(const std::vector<bf16>& values) {
    const std::size_t rows = values.size() / kBlock;
    const DeviceArray<bf16> device_values(gpu(), values);
    const DeviceArray<std::uint8_t> codes(gpu(), std::vector<std::uint8_t>(values.size(), 0x5a));
    const DeviceArray<std::uint8_t> scales(gpu(), std::vector<std::uint8_t>(rows, 0x5a));
    ASSERT_OK(gpu().synchronize());
    ASSERT_EQ(encode_rows(device_values.data(), static_cast<std::int32_t>(rows), codes.data(), scales.data()),
              cudaSuccess);
    const std::vector<std::uint8_t> found = codes.download();
    const std::vector<std::uint8_t> found_scales = scales.download();
    for (std::size_t row = 0; row < rows; ++row) {
      float greatest = 0;
      std::vector<float> expected(kBlock);
      for (std::size_t i = 0; i < kBlock; ++i) {
        expected[i] = to_float(values[row * kBlock + i]);
        if (std::isfinite(expected[i])) greatest = std::max(greatest, std::fabs(expected[i]));
      }
      ASSERT_EQ(found_scales[row], e8m0_scale_for_e4m3(greatest)) << "row " << row;
      const float scale = std::ldexp(1.0F, int{found_scales[row]} - 127);
      round_activation_fp8(expected.data(), kBlock);
      for (std::size_t i = 0; i < kBlock; ++i) {
        const float value = decode_e4m3(found[row * kBlock + i]) * scale;
        const bool same = std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected[i]) ||
                          (std::isnan(value) && std::isnan(expected[i]));
        ASSERT_TRUE(same) << "row " << row << " value " << i << ": " << value << " for " << expected[i] << " of "
                          << to_float(values[row * kBlock + i]);
      }
    }
  }
};

// Every BF16 value, NaN and infinities too: beside its neighbours, which share its exponent; beside values from
// everywhere; and as the only one that is not small.
TEST_F(EncodeFragmentsGpuTest, EveryValue) {
  std::vector<bf16> values(std::size_t{1} << 16);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = {static_cast<std::uint16_t>(i)};
  expect_encoded(values);
  std::shuffle(values.begin(), values.end(), std::mt19937(3));
  expect_encoded(values);
  std::mt19937 random(4);
  std::vector<bf16> among(values.size() * kBlock / 16);
  for (bf16& value : among) value = to_bf16(std::ldexp(static_cast<float>(random() % 512), -9));
  for (std::size_t i = 0; i < among.size() / kBlock; ++i)
    among[i * kBlock + random() % kBlock] = values[i * 16 % values.size()];
  expect_encoded(among);
}

// Finite values of a few exponents with one that is none, at every place of a row.
TEST_F(EncodeFragmentsGpuTest, OneThatIsNoNumber) {
  for (const unsigned special : {0x7f80U, 0xff80U, 0x7fc0U, 0xffffU, 0x7f81U}) {
    std::mt19937 random(special);
    std::vector<bf16> values(kBlock * kBlock);
    for (bf16& value : values) {
      const float magnitude = std::ldexp(static_cast<float>(1 + random() % 255), static_cast<int>(random() % 12) - 6);
      value = to_bf16((random() & 1) != 0 ? -magnitude : magnitude);
    }
    for (std::size_t row = 0; row < kBlock; ++row) values[row * kBlock + row] = {static_cast<std::uint16_t>(special)};
    expect_encoded(values);
  }
}

}  // namespace
}  // namespace dsv4rt::test
