// Every format of recorded logs, told by content, with the field traps each has.
#include <gtest/gtest.h>

#include "replay/text_parser.h"
#include "replay/time_stamp.h"
#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "unit/replay/log_files.h"

namespace dsv4rt::replay {
namespace {

using dsv4rt::test::fails_with;
using test::read_log;
using test::ReadLog;
using test::shipped_log;
using Ids = std::vector<std::uint64_t>;

class Importers : public testing::Test {
 protected:
  ReadLog read(std::string_view text, const RequestLogOptions& options = {}) {
    return read_log(test::write_log(directory_ / "log", text), options);
  }
  dsv4rt::test::TempDirectory directory_;
};

TEST_F(Importers, Mooncake) {
  const ReadLog log = read_log(shipped_log("mooncake_conversation_head1000.jsonl"));
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "mooncake");
  EXPECT_EQ(log.info.identity, PrefixIdentity::kGlobal);
  EXPECT_EQ(log.info.block_tokens, 512);
  ASSERT_EQ(log.requests.size(), 1000U);
  EXPECT_EQ(log.progress.input_tokens, 13'732'944);
  EXPECT_EQ(log.progress.arrival_step_ms, 2999);  // a clock of 3 s
  EXPECT_EQ(log.progress.shared_arrivals, 889);
  const Request& second = log.requests[1];
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(second.id, "line 2");
  EXPECT_EQ(second.input_tokens, 7322);
  EXPECT_EQ(second.output_tokens, 490);
  EXPECT_EQ(second.block_ids[1], 14U);
  EXPECT_EQ(second.session, -1);
  EXPECT_EQ(*log.requests.back().arrival_ms, 330'000);
  EXPECT_EQ(log.sha256.size(), 64U);
}

TEST_F(Importers, TheBlockSizeOfAMooncakeLogMayBeGivenAndAWrongOneIsRefused) {
  RequestLogOptions options;
  options.block_tokens = 16;
  EXPECT_TRUE(fails_with(read_log(shipped_log("mooncake_conversation_head1000.jsonl"), options).status,
                         StatusCode::kBadInput, {"line 1", "hash_ids", "14 ids", "6758 tokens", "blocks of 16"}));
  options.block_tokens = 1024;  // prompts would look shorter than their blocks
  EXPECT_TRUE(fails_with(read_log(shipped_log("mooncake_conversation_head1000.jsonl"), options).status,
                         StatusCode::kBadInput, {"line 1", "hash_ids", "6 or 7 ids"}));
  options.block_tokens = 16;
  EXPECT_OK(read("{\"timestamp\":0,\"input_length\":33,\"output_length\":1,\"hash_ids\":[1,2,3]}", options).status);
  // A partial block at the end may have no id.
  EXPECT_OK(read("{\"timestamp\":0,\"input_length\":33,\"output_length\":1,\"hash_ids\":[1,2]}", options).status);
}

TEST_F(Importers, AzureKeepsSevenDigitsAndNeedsNoLastNewline) {
  const ReadLog log = read_log(shipped_log("azure_llm_2023_code_head100.csv"));
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "azure");
  EXPECT_EQ(log.info.identity, PrefixIdentity::kNone);
  ASSERT_EQ(log.requests.size(), 100U);
  EXPECT_EQ(log.requests[0].input_tokens, 4808);
  EXPECT_EQ(log.requests[0].output_tokens, 10);
  EXPECT_EQ(*log.requests[0].arrival_ms, 0);
  EXPECT_EQ(*log.requests[1].arrival_ms, 52);  // 18:17:04.0319600 - 18:17:03.9799600
  EXPECT_TRUE(log.requests[0].block_ids.empty());
  EXPECT_OK(read_log(shipped_log("azure_llm_2023_conv_head100.csv")).status);
  // 2024: six digits and an offset.
  const ReadLog newer = read(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
      "2024-05-10 01:00:00.010030+01:00,2399,6\n2024-05-10 00:00:01+00:00,1,0");
  ASSERT_OK(newer.status);
  EXPECT_EQ(*newer.requests[1].arrival_ms, 0.1);
  EXPECT_EQ(newer.progress.arrival_step_ms, 0.1);
}

TEST_F(Importers, TimeStamps) {
  EXPECT_EQ(parse_time_stamp("1970-01-01 00:00:01"), 10'000'000);
  EXPECT_EQ(parse_time_stamp("1970-01-01T00:00:00.000000199Z"), 1);
  EXPECT_EQ(parse_time_stamp("1970-01-01 02:00:00-01:30"), 10'000'000LL * 12'600);
  EXPECT_EQ(parse_time_stamp("2024-02-29 00:00:00"), 10'000'000LL * 1'709'164'800);
  for (const char* const text :
       {"", "2023-02-29 00:00:00", "2023-11-16", "2023-11-16 18:17", "2023-11-16 24:00:00", "2023-11-16 18:17:03.",
        "2023-11-16 18:17:03.1234567890", "2023-11-16 18:17:03 x", "nan", "2023-11-16 18:17:03+0100"}) {
    EXPECT_FALSE(parse_time_stamp(text)) << text;
  }
}

TEST_F(Importers, BurstGptByHeader) {
  const ReadLog log = read_log(shipped_log("burstgpt_format_sample.csv"));
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "burstgpt");
  ASSERT_EQ(log.requests.size(), 3U);
  EXPECT_EQ(log.requests[2].input_tokens, 417);
  EXPECT_EQ(*log.requests[2].arrival_ms, 113'000);
  const ReadLog newer = read(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "1.5,7,2.25,GPT-4,10,0,10,Conversation log\n2.5,,1,GPT-4,11,3,14,API log\n3,7,1,ChatGPT,12,4,16,Conversation "
      "log");
  ASSERT_OK(newer.status);
  EXPECT_EQ(newer.requests[0].output_tokens, 0);
  EXPECT_EQ(newer.requests[0].session, 0);
  EXPECT_EQ(newer.requests[1].session, -1);
  EXPECT_EQ(newer.requests[2].session, 0);
  EXPECT_EQ(*newer.requests[2].arrival_ms, 1500);
}

TEST_F(Importers, FieldsOfCsvMayBeQuoted) {
  const ReadLog log = read(
      "\"Timestamp\",Model,\"Request tokens\",Response tokens\n"
      "\"5\",\"Chat \"\"GPT\"\", 4\", \"\" ,18\n");
  EXPECT_TRUE(fails_with(log.status, StatusCode::kBadInput, {"line 2", "a quote inside a field"}));
  const ReadLog quoted = read(
      "\"Timestamp\",Model,\"Request tokens\",Response tokens\n"
      "\"5\",\"Chat \"\"GPT\"\", 4\",\"472\",18\n");
  ASSERT_OK(quoted.status);
  ASSERT_EQ(quoted.requests.size(), 1U);
  EXPECT_EQ(quoted.requests[0].input_tokens, 472);
  EXPECT_EQ(quoted.requests[0].output_tokens, 18);
}

TEST_F(Importers, BailianIsInSecondsWithBlocksOfSixteen) {
  const ReadLog log = read(
      "{\"chat_id\":159,\"parent_chat_id\":-1,\"timestamp\":61.114,\"input_length\":33,\"output_length\":132,"
      "\"type\":\"text\",\"turn\":1,\"hash_ids\":[1089,1090,1091]}\n"
      "{\"chat_id\":161,\"parent_chat_id\":12,\"timestamp\":61.5,\"input_length\":16,\"output_length\":1,\"hash_ids\":["
      "5]}\n"
      "{\"chat_id\":160,\"parent_chat_id\":159,\"timestamp\":62.5,\"input_length\":50,\"output_length\":80,"
      "\"turn\":2,\"hash_ids\":[1089,1090,77,78]}\n");
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "bailian");
  EXPECT_EQ(log.info.block_tokens, 16);
  EXPECT_EQ(*log.requests[2].arrival_ms, 1386);
  EXPECT_EQ(log.requests[0].session, 0);
  EXPECT_EQ(log.requests[1].session, 1);
  EXPECT_EQ(log.requests[2].session, 0);
  // The sample of its documentation has shortened ids.
  EXPECT_TRUE(fails_with(read_log(shipped_log("qwen_bailian_format_sample.jsonl")).status, StatusCode::kBadInput,
                         {"line 1", "hash_ids", "5 ids for a prompt of 521 tokens in blocks of 16", "32 or 33 ids"}));
}

TEST_F(Importers, WekaSessions) {
  const ReadLog log = read_log(shipped_log("weka_claudecode_trace_0021.json"));
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "weka");
  EXPECT_EQ(log.info.identity, PrefixIdentity::kSession);
  EXPECT_EQ(log.info.block_tokens, 64);
  ASSERT_EQ(log.requests.size(), 14U);
  EXPECT_EQ(log.progress.input_tokens, 401'061);
  EXPECT_EQ(log.requests[0].block_ids.size(), 241U);  // 15,485 tokens: the partial block has no id
  EXPECT_EQ(*log.requests[0].arrival_ms, 0);
  EXPECT_FALSE(log.requests[1].arrival_ms);
  EXPECT_EQ(log.requests[1].delay_ms, 11'000);
  EXPECT_EQ(log.requests[1].id, "trace_0021#1");
}

TEST_F(Importers, WekaIdsOfDifferentSessionsDiffer) {
  const std::string session =
      "{\"id\":\"s\",\"block_size\":64,\"hash_id_scope\":\"local\",\"requests\":[{\"t\":5,\"type\":\"s\",\"in\":64,"
      "\"out\":1,\"hash_ids\":[1]}]}\n";
  const ReadLog log = read(session + session);
  ASSERT_OK(log.status);
  ASSERT_EQ(log.requests.size(), 2U);
  EXPECT_NE(log.requests[0].block_ids, log.requests[1].block_ids);
  EXPECT_EQ(log.requests[1].session, 1);
}

TEST_F(Importers, WekaSubagentsAreSessionsWithTheirParentsIds) {
  const ReadLog log = read(R"({
    "id": "s", "block_size": 64, "requests": [
      {"t": 0, "type": "n", "in": 64, "out": 1, "hash_ids": [1]},
      {"t": 10, "type": "subagent", "agent_id": "a", "requests": [
        {"t": 0.5, "type": "s", "in": 130, "out": 2, "hash_ids": [1, 2]},
        {"t": 11.5, "type": "s", "in": 5, "out": 2, "think_time": 1.5}]},
      {"t": 20, "type": "n", "in": 128, "out": 1, "hash_ids": [1, 3], "think_time": 4}]})");
  ASSERT_OK(log.status);
  ASSERT_EQ(log.requests.size(), 4U);
  EXPECT_EQ(log.requests[1].session, 1);
  EXPECT_EQ(*log.requests[1].arrival_ms, 10'500);  // relative to its entry
  EXPECT_EQ(log.requests[1].block_ids, (Ids{1, 2}));
  EXPECT_EQ(log.requests[2].delay_ms, 1500);
  EXPECT_TRUE(log.requests[2].block_ids.empty());
  EXPECT_EQ(log.requests[3].session, 0);
  EXPECT_EQ(log.requests[3].delay_ms, 4000);
}

TEST_F(Importers, AiperfTurnsAddUp) {
  const ReadLog log = read_log(shipped_log("aiperf_sessions_format_sample.jsonl"));
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "aiperf");
  ASSERT_EQ(log.requests.size(), 3U);
  EXPECT_EQ(log.requests[0].input_tokens, 578);
  EXPECT_EQ(log.requests[1].input_tokens, 578 + 393 + 1816);
  EXPECT_EQ(log.requests[2].input_tokens, 578 + 393 + 1816 + 247 + 1489);
  EXPECT_EQ(log.requests[0].block_ids, (Ids{208067, 208068}));
  EXPECT_EQ(log.requests[1].block_ids.size(), 6U);  // ceil(2787 / 512)
  EXPECT_EQ(log.requests[2].block_ids.size(), 9U);  // ceil(4523 / 512)
  EXPECT_EQ(log.requests[1].block_ids[0], 208067U);
  EXPECT_NE(log.requests[1].block_ids[1], 208068U);  // the first turn's partial block has been filled by its answer
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(log.requests[2].block_ids[i], log.requests[1].block_ids[i]) << i;
  EXPECT_NE(log.requests[2].block_ids[5], log.requests[1].block_ids[5]);
  EXPECT_EQ(*log.requests[0].arrival_ms, 0);
  EXPECT_FALSE(log.requests[1].arrival_ms);
  EXPECT_EQ(log.requests[1].delay_ms, 6573.6);
}

TEST_F(Importers, SessionTurnsThatRepeatTheirPromptAreWhole) {
  const std::string whole =
      "{\"session_id\":\"a\",\"timestamp\":0,\"input_length\":512,\"output_length\":9,\"hash_ids\":[7]}\n"
      "{\"session_id\":\"a\",\"delay\":5,\"input_length\":1024,\"output_length\":9,\"hash_ids\":[7,8]}\n";
  const ReadLog log = read(whole);
  ASSERT_OK(log.status);
  EXPECT_EQ(log.requests[0].block_ids, Ids{7});
  EXPECT_EQ(log.requests[1].input_tokens, 1024);
  EXPECT_EQ(log.requests[1].block_ids, (Ids{7, 8}));
  RequestLogOptions options;
  options.session_turns = SessionTurns::kDelta;
  EXPECT_EQ(read(whole, options).requests[1].input_tokens, 512 + 9 + 1024);
  options.session_turns = SessionTurns::kFull;
  EXPECT_EQ(read_log(shipped_log("aiperf_sessions_format_sample.jsonl"), options).requests[1].input_tokens, 1816);
}

TEST_F(Importers, LlmServingSim) {
  RequestLogOptions options;
  options.block_tokens = 2;
  const ReadLog log = read(
      "{\"input_toks\":3,\"output_toks\":5,\"arrival_time_ns\":1000000,\"input_tok_ids\":[4,5,6]}\n"
      "{\"session_id\":\"s\",\"arrival_time_ns\":500000,\"sub_requests\":["
      "{\"input_toks\":2,\"output_toks\":1,\"tool_duration_ns\":2500000,\"input_tok_ids\":[4,5]},"
      "{\"input_toks\":4,\"output_toks\":1,\"input_tok_ids\":[4,5,6,6]}]}\n",
      options);
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "llmservingsim");
  EXPECT_EQ(log.info.identity, PrefixIdentity::kGlobal);
  ASSERT_EQ(log.requests.size(), 3U);
  EXPECT_EQ(*log.requests[1].arrival_ms, -0.5);  // any order of arrivals
  EXPECT_EQ(log.requests[2].delay_ms, 2.5);
  EXPECT_EQ(log.requests[2].session, 0);
  EXPECT_EQ(log.requests[0].block_ids.size(), 2U);
  EXPECT_EQ(log.requests[0].block_ids[0], log.requests[1].block_ids[0]);
  EXPECT_EQ(log.requests[0].block_ids[0], log.requests[2].block_ids[0]);
  EXPECT_NE(log.requests[0].block_ids[1], log.requests[2].block_ids[1]);
  EXPECT_EQ(read("{\"input_toks\":3,\"output_toks\":5,\"arrival_time_ns\":0}").info.identity, PrefixIdentity::kNone);
}

TEST_F(Importers, TextIsEstimatedAndSaysSo) {
  EXPECT_EQ(estimate_tokens(""), 0);
  EXPECT_EQ(estimate_tokens("one two  three\n"), 4);
  EXPECT_EQ(estimate_tokens("a"), 2);
  EXPECT_EQ(estimate_tokens("\xe4\xbd\xa0\xe5\xa5\xbd"), 2);
  const ReadLog batch = read(
      "{\"custom_id\":\"r1\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"model\":\"m\","
      "\"messages\":[{\"role\":\"system\",\"content\":\"one two three\"},{\"role\":\"user\",\"content\":"
      "[{\"type\":\"text\",\"text\":\"four five six\"}]}],\"max_tokens\":7}}\n");
  ASSERT_OK(batch.status);
  EXPECT_EQ(batch.info.format, "openai_batch");
  EXPECT_TRUE(batch.info.lengths_estimated);
  EXPECT_FALSE(batch.info.arrival_times);
  EXPECT_EQ(batch.requests[0].input_tokens, 8);
  EXPECT_EQ(batch.requests[0].output_tokens, 7);
  EXPECT_EQ(batch.requests[0].id, "r1");
  const ReadLog chats = read(
      "[{\"id\":\"x\",\"conversations\":[{\"from\":\"human\",\"value\":\"a b c\"},{\"from\":\"gpt\",\"value\":\"d e "
      "f\"},"
      "{\"from\":\"human\",\"value\":\"g h i\"},{\"from\":\"gpt\",\"value\":\"j k l\"}]}]");
  ASSERT_OK(chats.status);
  EXPECT_EQ(chats.info.format, "sharegpt");
  ASSERT_EQ(chats.requests.size(), 2U);
  EXPECT_EQ(chats.requests[0].input_tokens, 4);
  EXPECT_EQ(chats.requests[1].input_tokens, 12);
  EXPECT_EQ(chats.requests[1].session, 0);
  RequestLogOptions options;
  options.tokenizer = "tokenizer.json";
  EXPECT_TRUE(fails_with(read("[]", options).status, StatusCode::kUnsupported, {"tokenizer.json", "estimate"}));
}

TEST_F(Importers, NativeTokensAndSalts) {
  const ReadLog log = read(
      "{\"dsv4_trace\":1,\"block_tokens\":2}\n"
      "{\"timestamp\":1,\"input_length\":3,\"output_length\":1,\"tokens\":[1,2,3]}\n"
      "{\"timestamp\":2,\"input_length\":2,\"output_length\":1,\"tokens\":[1,2]}\n"
      "{\"timestamp\":3,\"input_length\":2,\"output_length\":1,\"tokens\":[1,2],\"salt\":\"x\",\"priority\":3,"
      "\"request_id\":\"r\"}\n");
  ASSERT_OK(log.status);
  EXPECT_EQ(log.info.format, "native");
  EXPECT_EQ(log.requests[0].block_ids.size(), 2U);
  EXPECT_EQ(log.requests[0].block_ids[0], log.requests[1].block_ids[0]);
  EXPECT_NE(log.requests[2].block_ids[0], log.requests[1].block_ids[0]);
  EXPECT_EQ(log.requests[2].priority, 3);
  EXPECT_EQ(log.requests[2].id, "r");
  EXPECT_EQ(*log.requests[2].arrival_ms, 2);
}

TEST_F(Importers, AByteOrderMarkAndBlankLinesAreNoMatter) {
  EXPECT_OK(read("\xef\xbb\xbf\n{\"timestamp\":0,\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}\n\n").status);
}

}  // namespace
}  // namespace dsv4rt::replay
