// Logs that are broken, hostile or of the wrong block size: each is refused with file, line, field, value and what is
// accepted, in bounded memory; with skip_bad the bad records are counted and the good ones read.
#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>

#include <gtest/gtest.h>

#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/replay/log_files.h"

namespace dsv4rt::replay {
namespace {

using dsv4rt::test::fails_with;
using test::read_log;
using test::ReadLog;

using namespace std::string_literals;

const std::string kGood = "{\"timestamp\":1000,\"input_length\":1000,\"output_length\":5,\"hash_ids\":[1,2]}\n";
const std::string kAzure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,1\n";
const std::string kBurst = "Timestamp,Request tokens,Response tokens\n5,472,18\n";
const std::string kBailian =
    "{\"chat_id\":1,\"parent_chat_id\":-1,\"timestamp\":1.5,\"input_length\":16,\"output_length\":1,\"hash_ids\":[1]}"
    "\n";
const std::string kNoTimes = "{\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n";
const std::string kNoIds = "{\"timestamp\":1000,\"input_length\":5,\"output_length\":1}\n";
const std::string kTokens = "{\"timestamp\":1000,\"input_length\":2,\"output_length\":1,\"tokens\":[1,2]}\n";
const std::string kTurn = "{\"session_id\":\"s\",\"timestamp\":0,\"input_length\":999999999,\"output_length\":1}\n";
const std::string kBatch = "{\"custom_id\":\"a\",\"body\":{\"max_tokens\":4,\"prompt\":[{\"text\":\"one two\"}]}}\n";
const std::string kSimTokens = "{\"input_toks\":2,\"output_toks\":5,\"arrival_time_ns\":0,\"input_tok_ids\":[1,2]}\n";
const std::string kWeka = "{\"block_size\":64,\"requests\":[{\"t\":0,\"in\":10,\"out\":1,\"hash_ids\":[1]}]}\n";
const std::string kSim = "{\"input_toks\":3,\"output_toks\":5,\"arrival_time_ns\":0}\n";

struct Hostile {
  std::string label;
  std::string text;
  std::vector<std::string> mentions;
  // With skip_bad: how many requests are read and why one record is left out; -1 where nothing can be skipped.
  int good = -1;
  BadReason reason = BadReason::kSyntax;
};

void PrintTo(const Hostile& hostile, std::ostream* out) {
  *out << hostile.label;
}

// A Mooncake line between two good ones.
Hostile between(std::string label, const std::string& line, std::vector<std::string> mentions, BadReason reason) {
  mentions.emplace_back("line 2");
  return {std::move(label), kGood + line + "\n" + kGood, std::move(mentions), 2, reason};
}

std::string mooncake(const std::string& time, const std::string& input, const std::string& output,
                     const std::string& ids) {
  return "{\"timestamp\":" + time + ",\"input_length\":" + input + ",\"output_length\":" + output +
         ",\"hash_ids\":" + ids + "}";
}

std::vector<Hostile> hostile_lines() {
  using R = BadReason;
  return {
      between("truncated_json", "{\"timestamp\":1000,\"input_len", {"not valid JSON"}, R::kSyntax),
      between("two_objects", "{} {}", {"not valid JSON"}, R::kSyntax),
      between("array", "[1]", {"JSON object"}, R::kSyntax),
      between("text", "hello", {"not valid JSON"}, R::kSyntax),
      between("bad_utf8", "{\"a\":\"\xff\"}", {"not valid JSON"}, R::kSyntax),
      between("deep", std::string(100'000, '['), {"nested", "64"}, R::kSyntax),
      between("key_twice", "{\"timestamp\":1,\"timestamp\":2}", {"timestamp", "twice"}, R::kSyntax),
      between("huge_numeral", mooncake("1e999", "1", "1", "[1]"), {"1e999", "timestamp"}, R::kSyntax),
      between("nan_time", mooncake("NaN", "1", "1", "[1]"), {"not valid JSON"}, R::kSyntax),
      between("text_time", mooncake("\"nan\"", "1", "1", "[1]"), {"timestamp", "\"nan\"", "a number"}, R::kWrongType),
      between("far_time", mooncake("1e200", "1", "1", "[1]"), {"timestamp", "1e+200", "1e13"}, R::kOutOfRange),
      between("no_time", "{\"input_length\":1,\"output_length\":1,\"hash_ids\":[1]}", {"timestamp", "missing"},
              R::kMissingField),
      between("time_backwards", mooncake("999", "1", "1", "[1]"), {"arrival time", "-1.0", "at least 0.0"},
              R::kTimeOrder),
      between("negative_length", mooncake("1000", "-5", "1", "[1]"), {"input_length", "-5", "0 to 1000000000"},
              R::kOutOfRange),
      between("huge_length", mooncake("1000", "99999999999", "1", "[1]"), {"input_length", "99999999999"},
              R::kOutOfRange),
      between("length_2_64", mooncake("1000", "18446744073709551615", "1", "[1]"), {"18446744073709551615"},
              R::kOutOfRange),
      between("fraction_length", mooncake("1000", "5.5", "1", "[1]"), {"input_length", "5.5", "integer"},
              R::kWrongType),
      between("text_length", mooncake("1000", "\"5\"", "1", "[1]"), {"input_length", "\"5\""}, R::kWrongType),
      between("no_input", "{\"timestamp\":1000,\"output_length\":1,\"hash_ids\":[1]}", {"input_length", "missing"},
              R::kMissingField),
      between("negative_output", mooncake("1000", "5", "-1", "[1]"), {"output_length", "-1"}, R::kOutOfRange),
      between("no_output", "{\"timestamp\":1000,\"input_length\":5,\"hash_ids\":[1]}", {"output_length", "missing"},
              R::kMissingField),
      between("too_few_ids", mooncake("1000", "5000", "1", "[1,2]"),
              {"hash_ids", "2 ids", "5000 tokens", "blocks of 512", "9 or 10 ids", "block size"}, R::kBlockIds),
      between("too_many_ids", mooncake("1000", "5", "1", "[1,2]"), {"hash_ids", "2 ids", "0 or 1 ids"}, R::kBlockIds),
      between("no_ids", "{\"timestamp\":1000,\"input_length\":5,\"output_length\":1}", {"hash_ids", "missing"},
              R::kMissingField),
      between("text_ids", mooncake("1000", "5", "1", "[\"a\"]"), {"hash_ids[0]", "\"a\""}, R::kWrongType),
      between("negative_ids", mooncake("1000", "5", "1", "[-1]"), {"hash_ids[0]", "-1"}, R::kOutOfRange),
      between("ids_no_array", mooncake("1000", "5", "1", "7"), {"hash_ids", "7", "an array"}, R::kWrongType),
      between("late_header", "{\"dsv4_trace\":1}", {"header", "first line"}, R::kSyntax),
      between("negative_delay",
              "{\"session_id\":\"s\",\"timestamp\":1000,\"delay\":-1,\"input_length\":5,"
              "\"output_length\":1,\"hash_ids\":[1]}",
              {"delay", "-1"}, R::kOutOfRange),
      between("session_no_name",
              "{\"session_id\":[],\"timestamp\":1000,\"input_length\":5,\"output_length\":1,"
              "\"hash_ids\":[1]}",
              {"session_id"}, R::kWrongType),
      {"nul_byte", kGood + "{\"a\0\":1}\n"s + kGood, {"line 2", "NUL byte"}, 2, R::kNulByte},
      {"block_size_changes",
       "{\"block_size\":16,\"timestamp\":1,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n"
       "{\"block_size\":512,\"timestamp\":1,\"input_length\":5,\"output_length\":1,\"hash_ids\":[1]}\n",
       {"line 2", "block_size", "512", "16"},
       1,
       R::kBlockIds},
      {"truncated_last_line", kGood + kGood.substr(0, 40), {"line 2", "not valid JSON"}, 1, R::kSyntax},
  };
}

std::vector<Hostile> hostile_files() {
  using R = BadReason;
  return {
      {"empty", "", {"empty"}},
      {"only_blanks", "\n\n  \n", {"no record"}},
      {"unknown_json", "{\"a\":1}\n", {"line 1", "\"a\"", "Mooncake", "Azure"}},
      {"unknown_text", "hello,world\n", {"line 1", "hello,world", "BurstGPT"}},
      {"binary", "\x7f\x45\x4c\x46\x02\x01\x01", {"line 1"}},
      {"gzip", "\x1f\x8b\x08", {"compressed"}},
      {"native_version", "{\"dsv4_trace\":2}\n", {"dsv4_trace", "2", "1 to 1"}},
      {"native_block_tokens", "{\"dsv4_trace\":1,\"block_tokens\":0}\n" + kGood, {"block_tokens", "0"}},
      {"native_identity", "{\"dsv4_trace\":1,\"prefix_identity\":\"x\"}\n", {"prefix_identity", "session"}},
      {"azure_column_twice", "TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n", {"header", "TIMESTAMP", "twice"}},
      {"burst_column_twice", "Timestamp,Request tokens,Response tokens,Request tokens\n", {"Request tokens", "twice"}},
      {"azure_few_fields", kAzure + "2023-11-16 18:17:04,1\n", {"line 3", "2 fields", "3"}, 1, R::kSyntax},
      {"azure_time", kAzure + "yesterday,1,1\n", {"line 3", "TIMESTAMP", "yesterday"}, 1, R::kWrongType},
      {"azure_negative", kAzure + "2023-11-16 18:17:04,-1,1\n", {"line 3", "ContextTokens", "-1"}, 1, R::kOutOfRange},
      {"azure_huge", kAzure + "2023-11-16 18:17:04,1,99999999999999999999\n", {"GeneratedTokens"}, 1, R::kOutOfRange},
      {"azure_empty_field", kAzure + "2023-11-16 18:17:04,,1\n", {"ContextTokens", "empty"}, 1, R::kMissingField},
      {"azure_backwards", kAzure + "2023-11-16 18:17:03.9799599,1,1\n", {"line 3", "arrival time"}, 1, R::kTimeOrder},
      {"azure_thousand_years",
       kAzure + "3023-11-16 18:17:04,1,1\n",
       {"line 3", "arrival time", "1e13"},
       1,
       R::kOutOfRange},
      {"azure_quote", kAzure + "2023-11-16 18:17:04,\"1,1\n", {"line 3", "quote"}, 1, R::kSyntax},
      {"burst_nan", kBurst + "nan,1,1\n", {"line 3", "Timestamp", "nan", "finite"}, 1, R::kOutOfRange},
      {"burst_fraction", kBurst + "6,1.5,1\n", {"line 3", "Request tokens", "1.5"}, 1, R::kWrongType},
      {"bailian_twice", kBailian + kBailian, {"line 2", "chat_id", "1 again"}, 1, R::kDuplicate},
      {"bailian_no_chat", kBailian + "{\"timestamp\":2}\n", {"line 2", "chat_id", "missing"}, 1, R::kMissingField},
      {"sim_tokens",
       kSim + "{\"input_toks\":3,\"output_toks\":5,\"arrival_time_ns\":0,\"input_tok_ids\":[1]}\n",
       {"line 2", "input_tok_ids", "given"},
       1,
       R::kBlockIds},
      {"sim_no_calls",
       kSim + "{\"session_id\":\"s\",\"arrival_time_ns\":0,\"sub_requests\":[]}\n",
       {"line 2", "sub_requests", "empty"},
       1,
       R::kMissingField},
      {"ids_after_none", kNoIds + kGood, {"line 2", "hash_ids", "given", "none"}, 1, R::kBlockIds},
      {"times_after_none", kNoTimes + kGood, {"line 2", "timestamp", "given", "none"}, 1, R::kTimeOrder},
      {"native_turns", "{\"dsv4_trace\":1,\"session_turns\":\"x\"}\n", {"session_turns", "\"x\"", "full or delta"}},
      {"native_tokens",
       kTokens + "{\"timestamp\":1000,\"input_length\":2,\"output_length\":1,\"tokens\":[1]}\n",
       {"line 2", "tokens", "1 token ids", "2, the input_length"},
       1,
       R::kBlockIds},
      {"endless_session",
       kTurn + "{\"session_id\":\"s\",\"input_length\":5,\"output_length\":1}\n",
       {"line 2", "input_length", "1000000005 with the turns before it", "at most 1000000000 tokens"},
       1,
       R::kOutOfRange},
      {"azure_inner_quote",
       kAzure + "2023-11-16 18:17:04,1\"2,1\n",
       {"line 3", "at byte 21", "a quote inside a field"},
       1,
       R::kSyntax},
      {"azure_after_quote",
       kAzure + "2023-11-16 18:17:04,\"1\"2,1\n",
       {"line 3", "at byte 23", "a quote inside a field"},
       1,
       R::kSyntax},
      {"burst_time", kBurst + "soon,1,1\n", {"line 3", "Timestamp", "\"soon\"", "a number"}, 1, R::kWrongType},
      {"sim_token_count",
       kSimTokens + "{\"input_toks\":2,\"output_toks\":5,\"arrival_time_ns\":0,\"input_tok_ids\":[1]}\n",
       {"line 2", "input_tok_ids", "1 token ids", "2, the input_toks"},
       1,
       R::kBlockIds},
      {"sim_call",
       kSim + "{\"session_id\":\"s\",\"arrival_time_ns\":0,\"sub_requests\":[7]}\n",
       {"line 2", "sub_requests[0]", "7", "an object"},
       1,
       R::kWrongType},
      {"weka_block_size",
       kWeka + "{\"block_size\":32,\"requests\":[]}\n",
       {"line 2", "block_size", "32", "64, as the flag or the log's first session says"},
       1,
       R::kBlockIds},
      {"weka_scope",
       kWeka + "{\"block_size\":64,\"hash_id_scope\":\"x\",\"requests\":[]}\n",
       {"line 2", "hash_id_scope", "\"x\"", "local or global"},
       1,
       R::kOutOfRange},
      {"weka_other_scope",
       kWeka + "{\"block_size\":64,\"hash_id_scope\":\"global\",\"requests\":[]}\n",
       {"line 2", "hash_id_scope", "global", "session, as in the log's first session"},
       1,
       R::kBlockIds},
      {"weka_request",
       kWeka + "{\"block_size\":64,\"requests\":[7]}\n",
       {"requests[0]", "7", "an object"},
       1,
       R::kWrongType},
      {"weka_type",
       "{\"block_size\":64,\"requests\":[{\"t\":0,\"type\":\"zz\",\"in\":1,\"out\":1}]}\n",
       {"line 1", "requests[0].type", "zz"}},
      {"weka_ids",
       "{\"block_size\":64,\"requests\":[{\"t\":0,\"in\":1,\"out\":1,\"hash_ids\":[4294967296]}]}\n",
       {"line 1", "requests[0].hash_ids", "4294967296"}},
      {"weka_no_ids",
       "{\"block_size\":64,\"requests\":[{\"t\":0,\"in\":100,\"out\":1}]}\n",
       {"line 1", "requests[0].hash_ids", "0 ids", "100 tokens"}},
      {"weka_truncated", "{\"block_size\":64,\n\"requests\":[{\"t\":0,", {"line 1", "ends inside"}},
      {"array_truncated", "[{\"id\":\"x\",\"conversations\":[]}", {"ends without ]"}},
      {"batch_no_length", "{\"custom_id\":\"a\",\"body\":{\"prompt\":\"x\"}}\n", {"body.max_tokens", "missing"}},
      {"batch_prompt",
       kBatch + "{\"custom_id\":\"b\",\"body\":{\"max_tokens\":4,\"prompt\":7}}\n",
       {"line 2", "body.prompt", "7", "text or an array of parts"},
       1,
       R::kWrongType},
      {"batch_image",
       kBatch + "{\"custom_id\":\"b\",\"body\":{\"max_tokens\":4,\"prompt\":[{\"image\":\"x\"}]}}\n",
       {"line 2", "body.prompt", "a part without text"},
       1,
       R::kUnsupported},
      {"batch_message",
       kBatch + "{\"custom_id\":\"b\",\"body\":{\"max_tokens\":4,\"messages\":[{\"role\":\"user\"}]}}\n",
       {"line 2", "body.messages[0].content", "missing"},
       1,
       R::kMissingField},
      {"chat_wrong", "{\"conversations\":[7]}\n", {"conversations[0]", "7"}},
  };
}

class HostileLogs : public testing::TestWithParam<Hostile> {
 protected:
  ReadLog read(const RequestLogOptions& options) {
    return read_log(test::write_log(directory_ / "bad.log", GetParam().text), options);
  }
  dsv4rt::test::TempDirectory directory_;
};

TEST_P(HostileLogs, AreRefusedWithPlaceAndReason) {
  const AllocationMeter meter;
  const ReadLog log = read({});
  EXPECT_LT(meter.peak_bytes(), std::size_t{8} << 20);
  const StatusCode expected = GetParam().label == "gzip" ? StatusCode::kUnsupported : StatusCode::kBadInput;
  EXPECT_TRUE(fails_with(log.status, expected, {"bad.log"}));
  for (const std::string& part : GetParam().mentions) {
    EXPECT_NE(log.status.message().find(part), std::string::npos) << part << " is not in: " << log.status.message();
  }
}

TEST_P(HostileLogs, AreCountedUnderSkipBad) {
  RequestLogOptions options;
  options.skip_bad = true;
  const ReadLog log = read(options);
  if (GetParam().good < 0) {
    // What is wrong at the start of a log, or between the elements of a document, is not skipped over.
    EXPECT_TRUE(!log.status.ok() || log.requests.empty()) << log.requests.size();
    return;
  }
  EXPECT_OK(log.status);
  EXPECT_EQ(log.requests.size(), static_cast<std::size_t>(GetParam().good));
  EXPECT_GE(log.progress.skipped_records(), 1);
  EXPECT_TRUE(log.progress.skipped.contains(GetParam().reason));
  for (std::size_t i = 0; i < log.requests.size(); ++i) EXPECT_EQ(log.requests[i].index, static_cast<std::int64_t>(i));
}

std::string label_of(const testing::TestParamInfo<Hostile>& info) {
  return info.param.label;
}
INSTANTIATE_TEST_SUITE_P(Lines, HostileLogs, testing::ValuesIn(hostile_lines()), label_of);
INSTANTIATE_TEST_SUITE_P(Files, HostileLogs, testing::ValuesIn(hostile_files()), label_of);

TEST(HostileLogsTable, EveryReasonHasItsOwnName) {
  std::set<std::string_view> names;
  for (int reason = 0; reason <= static_cast<int>(BadReason::kUnsupported); ++reason) {
    const std::string_view name = bad_reason_name(static_cast<BadReason>(reason));
    EXPECT_NE(name, "unknown") << reason;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(bad_reason_name(BadReason::kSyntax), "syntax");
  EXPECT_EQ(bad_reason_name(BadReason::kUnsupported), "unsupported");
}

// A few bytes that ask for the history of 10^8 blocks.
TEST(HostileLogsMemory, HistoriesOfSessionsStayBounded) {
  const dsv4rt::test::TempDirectory directory;
  const AllocationMeter meter;
  const ReadLog log = read_log(test::write_log(
      directory / "long.jsonl",
      "{\"block_size\":1,\"session_id\":\"s\",\"timestamp\":0,\"input_length\":1,\"output_length\":100000000,"
      "\"hash_ids\":[1]}\n"));
  EXPECT_LT(meter.peak_bytes(), std::size_t{8} << 20);
  EXPECT_TRUE(fails_with(log.status, StatusCode::kResourceExhausted,
                         {"long.jsonl line 1", "more than 67108864 blocks", "fewer or shorter sessions"}));
}

TEST(HostileLogsTable, HasAtLeastFortyCases) {
  EXPECT_GE(hostile_lines().size() + hostile_files().size(), 40U);
}

// 1 GiB without a newline, as a sparse file.
TEST(HostileLogsMemory, AGigabyteLineIsNotHeld) {
  const dsv4rt::test::TempDirectory directory;
  const std::string path = test::write_log(directory / "big.jsonl", kGood + "{\"timestamp\": 0");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 30);
  const AllocationMeter meter;
  const ReadLog log = read_log(path);
  EXPECT_TRUE(fails_with(log.status, StatusCode::kBadInput, {"big.jsonl line 2", "too long", "16777216 bytes"}));
  EXPECT_EQ(log.requests.size(), 1U);
  // A string that grows holds its old and its new bytes for a moment.
  EXPECT_LT(meter.peak_bytes(), 4 * kMaxLineBytes);
}

TEST(HostileLogsMemory, AGigabyteObjectIsNotHeld) {
  const dsv4rt::test::TempDirectory directory;
  const std::string path = test::write_log(directory / "big.json", "{\n\"requests\": \"");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 30);
  const AllocationMeter meter;
  EXPECT_TRUE(fails_with(read_log(path).status, StatusCode::kBadInput, {"big.json line 1", "ends inside"}));
  EXPECT_LT(meter.peak_bytes(), std::size_t{200} << 20);
}

TEST(HostileLogsMemory, ALineOfEmptyObjectsStaysBounded) {
  const dsv4rt::test::TempDirectory directory;
  std::string line = "{\"a\":[";
  while (line.size() + 10 < kMaxLineBytes) line += "{},";
  const std::string path = test::write_log(directory / "many.jsonl", kGood + line + "{}]}\n");
  const AllocationMeter meter;
  EXPECT_TRUE(fails_with(read_log(path).status, StatusCode::kBadInput, {"line 2", "input_length", "missing"}));
  EXPECT_LT(meter.peak_bytes(), std::size_t{1} << 30);
}

// A first turn that is left out is no first turn: what would follow it has no time to arrive at.
TEST(HostileLogsSessions, TurnsOfARefusedFirstTurnAreRefusedToo) {
  const dsv4rt::test::TempDirectory directory;
  const auto turn = [](const std::string& fields) {
    return "{" + fields + ",\"input_length\":600,\"output_length\":2,\"hash_ids\":[7,8],\"session_id\":\"s\"}\n";
  };
  const std::string later = turn("\"delay\":3");
  const std::string before = "{\"timestamp\":9,\"input_length\":600,\"output_length\":2,\"hash_ids\":[1,2]}\n";
  RequestLogOptions options;
  options.skip_bad = true;
  for (const std::string& first : {turn("\"timestamp\":3"), turn("\"timestamp\":2e13"), turn("\"priority\":\"x\"")}) {
    const ReadLog log = read_log(test::write_log(directory / "log", before + first + later), options);
    EXPECT_OK(log.status);
    EXPECT_EQ(log.requests.size(), 1U) << first;
    EXPECT_EQ(log.progress.skipped_records(), 2) << first;
    EXPECT_EQ(log.progress.skipped.count(BadReason::kMissingField), 1U) << first;
  }
  EXPECT_EQ(
      read_log(test::write_log(directory / "log", before + turn("\"timestamp\":9") + later), options).requests.size(),
      3U);
}

TEST(HostileLogsOptions, BlockTokensOutsideTheirRangeAreRefused) {
  RequestLogOptions options;
  options.block_tokens = -1;
  EXPECT_TRUE(fails_with(open_request_log("-", options), StatusCode::kInvalidArgument, {"-1", "65536"}));
}

}  // namespace
}  // namespace dsv4rt::replay
