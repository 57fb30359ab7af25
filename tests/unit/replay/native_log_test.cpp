// What the native writer writes reads back as the same requests.
#include "replay/native_log.h"

#include <gtest/gtest.h>

#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "unit/replay/log_files.h"

namespace dsv4rt::replay {
namespace {

using test::read_log;
using test::ReadLog;

class NativeLog : public testing::TestWithParam<const char*> {};

TEST_P(NativeLog, RoundTrip) {
  const dsv4rt::test::TempDirectory directory;
  const ReadLog log = read_log(test::shipped_log(GetParam()));
  ASSERT_OK(log.status);
  ASSERT_FALSE(log.requests.empty());
  std::string text = native_log_header(log.info);
  for (const Request& request : log.requests) text += native_log_line(request, log.info);
  const ReadLog again = read_log(test::write_log(directory / "native", text));
  ASSERT_OK(again.status);
  EXPECT_EQ(again.info.format, "native");
  EXPECT_EQ(again.info.identity, log.info.identity);
  EXPECT_EQ(again.info.block_tokens, log.info.block_tokens);
  EXPECT_EQ(again.info.arrival_times, log.info.arrival_times);
  EXPECT_EQ(again.info.arrivals_ordered, log.info.arrivals_ordered);
  ASSERT_EQ(again.requests.size(), log.requests.size());
  for (std::size_t i = 0; i < log.requests.size(); ++i) {
    const Request& before = log.requests[i];
    const Request& after = again.requests[i];
    SCOPED_TRACE(i);
    EXPECT_TRUE(after.id == before.id || before.id.starts_with("line ")) << after.id;
    EXPECT_EQ(after.index, before.index);
    EXPECT_EQ(after.arrival_ms, before.arrival_ms);
    EXPECT_EQ(after.session, before.session);
    EXPECT_EQ(after.delay_ms, before.delay_ms);
    EXPECT_EQ(after.input_tokens, before.input_tokens);
    EXPECT_EQ(after.output_tokens, before.output_tokens);
    EXPECT_EQ(after.block_ids, before.block_ids);
    EXPECT_EQ(after.block_tokens, before.block_tokens);
    EXPECT_EQ(after.priority, before.priority);
  }
}

INSTANTIATE_TEST_SUITE_P(Shipped, NativeLog,
                         testing::Values("mooncake_conversation_head1000.jsonl", "mooncake_synthetic_head200.jsonl",
                                         "weka_claudecode_trace_0026.json", "azure_llm_2023_conv_head100.csv",
                                         "burstgpt_format_sample.csv", "aiperf_sessions_format_sample.jsonl"));

TEST(NativeLog, EstimatesAndMissingTimesSurvive) {
  const dsv4rt::test::TempDirectory directory;
  const ReadLog log = read_log(test::write_log(
      directory / "chat",
      "{\"conversations\":[{\"from\":\"human\",\"value\":\"a b\"},{\"from\":\"gpt\",\"value\":\"c\"}]}"));
  ASSERT_OK(log.status);
  const ReadLog again = read_log(
      test::write_log(directory / "native", native_log_header(log.info) + native_log_line(log.requests[0], log.info)));
  ASSERT_OK(again.status);
  EXPECT_TRUE(again.info.lengths_estimated);
  EXPECT_FALSE(again.info.arrival_times);
  EXPECT_EQ(again.info.identity, PrefixIdentity::kNone);
}

}  // namespace
}  // namespace dsv4rt::replay
