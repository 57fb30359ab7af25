// What doctor tells of the kernels that serve a model, on devices that a stand-in describes.
#include "backend/cuda/kernel_report.h"

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "backend/cuda/device/cuda_device.h"
#include "support/expect_ok.h"
#include "support/fake_device_driver.h"

namespace dsv4rt::test {
namespace {

std::vector<KernelUse> uses_on(const FakeDevice& fake, const KernelQuestion& question) {
  FakeDeviceDriver driver({fake});
  const auto device = cuda::CudaDevice::create(0, driver);
  EXPECT_OK(device);
  const auto uses = cuda::kernel_uses(**device, question);
  EXPECT_OK(uses);
  return uses.ok() ? *uses : std::vector<KernelUse>{};
}

KernelQuestion question_of(const char* config) {
  const auto path = std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / config;
  return {.config = ModelConfig::from_file(path).value()};
}

// The ranges of every operation follow each other from 1 to the largest step.
void expect_whole_ranges(const std::vector<KernelUse>& uses, std::int32_t largest) {
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const std::string& steps = uses[i].steps;
    const int first = std::stoi(steps);
    const int last = std::stoi(steps.substr(steps.find('-') + 1));
    const bool begins = i == 0 || uses[i - 1].operation != uses[i].operation;
    const bool ends = i + 1 == uses.size() || uses[i + 1].operation != uses[i].operation;
    if (begins) {
      EXPECT_EQ(first, 1) << uses[i].operation;
    } else {
      EXPECT_EQ(first, std::stoi(uses[i - 1].steps.substr(uses[i - 1].steps.find('-') + 1)) + 1) << steps;
      EXPECT_NE(uses[i].kernel, uses[i - 1].kernel);
    }
    EXPECT_TRUE(!ends || last == largest) << uses[i].operation << " ends at " << last;
  }
}

std::vector<std::string> operations_of(const std::vector<KernelUse>& uses) {
  std::vector<std::string> names;
  for (const KernelUse& use : uses) {
    if (names.empty() || names.back() != use.operation) names.push_back(use.operation);
  }
  return names;
}

TEST(KernelReport, HopperServesFlashByItsOwnKernels) {
  const auto uses = uses_on(FakeDevice{}, question_of("deepseek-v4-flash.json"));
  EXPECT_EQ(operations_of(uses),
            (std::vector<std::string>{"attend swa, decode", "attend swa, prefill", "write_kv swa", "linear x swa",
                                      "attend csa, decode", "attend csa, prefill", "indexer_topk, decode",
                                      "indexer_topk, prefill", "write_kv csa", "linear x csa", "attend hca, decode",
                                      "attend hca, prefill", "write_kv hca", "linear x hca", "linear wq_b",
                                      "linear wo_a", "linear wo_b"}));
  expect_whole_ranges(uses, 8192);
  for (const KernelUse& use : uses) {
    EXPECT_TRUE(use.slow.empty()) << use.operation << ": " << use.slow;
    EXPECT_EQ(use.kernel.find("portable"), std::string::npos) << use.operation << ": " << use.kernel;
  }
}

// Tokens of one sequence share decoded rows where none are selected; sequences of one token do not.
TEST(KernelReport, PrefillsWithoutSelectionAreServedAsRuns) {
  std::vector<std::string> runs;
  for (const KernelUse& use : uses_on(FakeDevice{}, question_of("deepseek-v4-flash.json"))) {
    if (use.kernel.find("runs of tokens, 64 heads each") == 0) runs.push_back(use.operation + " " + use.steps);
  }
  EXPECT_EQ(runs,
            (std::vector<std::string>{"attend swa, prefill 133-8192 tokens", "attend hca, prefill 133-8192 tokens"}));
}

// Where many tokens read each row, and in no step of one token a sequence.
TEST(KernelReport, LongPrefillsOfSelectedRowsFindThemDecoded) {
  std::vector<std::string> decoded;
  for (const KernelUse& use : uses_on(FakeDevice{}, question_of("deepseek-v4-flash.json"))) {
    const std::string last = use.steps.substr(use.steps.find('-') + 1);
    if (use.kernel.find("; rows decoded before") != std::string::npos) decoded.push_back(use.operation + " to " + last);
  }
  EXPECT_EQ(decoded, (std::vector<std::string>{"attend csa, prefill to 8192 tokens"}));
}

// Up to 768 tokens a layer's FP8 and BF16 weights share launches; beyond, each kind has its own.
TEST(KernelReport, ProductsOfCodesNameEveryLaunch) {
  KernelQuestion question = question_of("deepseek-v4-flash.json");
  question.linear_precision = LinearPrecision::kFp8;
  const auto uses = uses_on(FakeDevice{}, question);
  expect_whole_ranges(uses, 8192);
  const auto serves = [&](const std::string& operation, std::int32_t tokens) {
    for (const KernelUse& use : uses) {
      const int last = std::stoi(use.steps.substr(use.steps.find('-') + 1));
      if (use.operation == operation && tokens <= last) return use.kernel;
    }
    return std::string();
  };
  for (const char* operation : {"linear x csa", "linear x hca"}) {
    EXPECT_EQ(serves(operation, 1), "gemv");
    for (const std::int32_t tokens : {64, 65, 128, 192, 512, 768}) {
      EXPECT_EQ(serves(operation, tokens).find(';'), std::string::npos) << operation << " T " << tokens;
    }
    // The FP8 weights first, as they are multiplied first; then what BF16 weights have without FP8 ones.
    for (const std::int32_t tokens : {769, 1024, 1280, 2048, 8192}) {
      const std::string kernels = serves(operation, tokens);
      const std::size_t end = std::min(kernels.find("; "), kernels.size());
      EXPECT_EQ(kernels.substr(0, end), serves("linear x swa", tokens)) << operation << " T " << tokens;
      EXPECT_LT(end, kernels.size()) << operation << " T " << tokens << ": " << kernels;
    }
  }
  // As the costs have it that were measured.
  EXPECT_EQ(serves("linear x csa", 256), "fp8 128r1");
  EXPECT_EQ(serves("linear x csa", 8192), "fp8 192; prefill 192");
  EXPECT_EQ(serves("linear x hca", 8192).substr(0, 8), "fp8 192;");
  EXPECT_EQ(serves("linear wq_b", 8192), "fp8 192");
  EXPECT_EQ(serves("linear wo_a", 8192), "fp8 192");
}

TEST(KernelReport, ABuildWithoutCodeForHopperIsSlowEverywhere) {
  const auto uses = uses_on(FakeDevice{.sm90a_code = false}, question_of("deepseek-v4-flash.json"));
  expect_whole_ranges(uses, 8192);
  int slow = 0;
  for (const KernelUse& use : uses) {
    EXPECT_EQ(use.kernel.find("warpgroup"), std::string::npos) << use.operation << ": " << use.kernel;
    slow += use.slow.find("90a") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(slow, 5);
}

TEST(KernelReport, LongContextsAndOtherFormatsSayWhatIsSlow) {
  KernelQuestion question = question_of("deepseek-v4-flash.json");
  question.context_tokens = question.config.max_position_embeddings;
  question.max_step_tokens = 64;
  const auto slow_of = [&](const char* operation) {
    std::string slow;
    for (const KernelUse& use : uses_on(FakeDevice{}, question)) {
      if (use.operation == operation) slow += use.slow;
    }
    return slow;
  };
  EXPECT_TRUE(slow_of("attend hca, decode").empty());
  bool dense = false;
  for (const KernelUse& use : uses_on(FakeDevice{}, question)) {
    dense = dense || (use.operation == "attend hca, decode" &&
                      use.kernel.find("of more than 1152 rows dense") != std::string::npos);
  }
  EXPECT_TRUE(dense);
  EXPECT_TRUE(slow_of("attend csa, decode").empty());
  question.row_format = RowFormat::kNvfp4;
  EXPECT_NE(slow_of("attend csa, decode").find("fp8_ds_mla"), std::string::npos);
  question.csa_rows_per_block = 48;
  EXPECT_NE(slow_of("indexer_topk, decode").find("multiples of 64"), std::string::npos);
}

TEST(KernelReport, OtherDevicesHaveNothingSlow) {
  const FakeDevice blackwell{.compute_major = 10, .multiprocessors = 148, .sm90a_code = false};
  for (const KernelUse& use : uses_on(blackwell, question_of("deepseek-v4-pro.json"))) {
    EXPECT_TRUE(use.slow.empty()) << use.operation << ": " << use.slow;
  }
}

}  // namespace
}  // namespace dsv4rt::test
