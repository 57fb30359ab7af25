// Lines of bounded length, and the objects of JSON documents.
#include "replay/line_reader.h"

#include <gtest/gtest.h>

#include "replay/json_element_reader.h"
#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "unit/replay/log_files.h"

namespace dsv4rt::replay {
namespace {

using dsv4rt::test::fails_with;

class RecordReaders : public testing::Test {
 protected:
  LogBytes open(std::string_view text) { return LogBytes::open(test::write_log(directory_ / "log", text)).value(); }
  // All records; "!" for a failure that reading goes on after, "!!" for one that ends it.
  static std::vector<std::string> all(RecordReader& reader) {
    std::vector<std::string> records;
    for (;;) {
      const auto record = reader.next();
      if (!record) {
        records.emplace_back(reader.can_continue() ? "!" : "!!");
        if (!reader.can_continue()) return records;
        continue;
      }
      if (!*record) return records;
      records.emplace_back(**record);
    }
  }
  std::vector<std::string> lines(std::string_view text, std::size_t max_bytes = kMaxLineBytes) {
    LogBytes bytes = open(text);
    RecordErrors errors(bytes.name());
    LineReader reader(bytes, errors, max_bytes);
    return all(reader);
  }
  std::vector<std::string> elements(std::string_view text, std::size_t max_bytes = kMaxElementBytes) {
    LogBytes bytes = open(text);
    RecordErrors errors(bytes.name());
    JsonElementReader reader(bytes, errors, max_bytes);
    return all(reader);
  }

  dsv4rt::test::TempDirectory directory_;
};

using Texts = std::vector<std::string>;

TEST_F(RecordReaders, LinesEndWithLfOrCrlfOrTheLog) {
  EXPECT_EQ(lines("a\nb\r\nc"), (Texts{"a", "b", "c"}));
  EXPECT_EQ(lines("a\n\n\r\nb\n"), (Texts{"a", "", "", "b"}));
  EXPECT_EQ(lines(""), Texts{});
  EXPECT_EQ(lines("\n"), Texts{""});
}

TEST_F(RecordReaders, AnOverlongLineIsReadPast) {
  EXPECT_EQ(lines("abcd\nabcde\nab\r\n", 4), (Texts{"abcd", "!", "ab"}));
  EXPECT_EQ(lines("abcd\r\nabcde\r\n", 4), (Texts{"abcd", "!"}));
  // Across buffers, too.
  const std::string big(3 * LogBytes::kBufferBytes, 'x');
  EXPECT_EQ(lines(big + "\nok\n", 1000), (Texts{"!", "ok"}));
  EXPECT_EQ(lines(big + "\nok\n"), (Texts{big, "ok"}));
}

TEST_F(RecordReaders, ErrorsNameTheLine) {
  using namespace std::string_literals;
  LogBytes bytes = open("a\nb\0b\nc\n"s);
  RecordErrors errors("x.jsonl");
  LineReader reader(bytes, errors);
  ASSERT_OK(reader.next());
  EXPECT_TRUE(fails_with(reader.next(), StatusCode::kBadInput, {"x.jsonl line 2", "NUL byte at byte 1"}));
  EXPECT_EQ(errors.last_reason(), BadReason::kNulByte);
  EXPECT_EQ(**reader.next(), "c");
  EXPECT_EQ(errors.line(), 3);
}

TEST_F(RecordReaders, ObjectsOfADocumentAreFoundByBracketsAndStrings) {
  EXPECT_EQ(elements("[{\"a\":\"}\\\"]\"},\n {\"b\":[{}]}\n]\n"), (Texts{"{\"a\":\"}\\\"]\"}", "{\"b\":[{}]}"}));
  EXPECT_EQ(elements("{\n\"a\": 1\n}\n{\"b\":2}"), (Texts{"{\n\"a\": 1\n}", "{\"b\":2}"}));
  EXPECT_EQ(elements("[]"), Texts{});
  EXPECT_EQ(elements(" [ {} ] "), Texts{"{}"});
}

TEST_F(RecordReaders, BrokenDocumentsEndTheReading) {
  EXPECT_EQ(elements("[{} {}]"), (Texts{"{}", "!!"}));
  EXPECT_EQ(elements("[{},{\"a\":1"), (Texts{"{}", "!!"}));
  EXPECT_EQ(elements("[{}"), (Texts{"{}", "!!"}));
  EXPECT_EQ(elements("[{}] {}"), (Texts{"{}", "!!"}));
  EXPECT_EQ(elements("[1]"), Texts{"!!"});
  EXPECT_EQ(elements("[{\"a\":\"12345\"},{}]", 6), (Texts{"!", "{}"}));
}

TEST_F(RecordReaders, FilesThatCannotBeReadAreTypedErrors) {
  EXPECT_TRUE(fails_with(LogBytes::open((directory_ / "none").string()), StatusCode::kNotFound, {"none", "open"}));
  auto folder = LogBytes::open(directory_.path().string());
  ASSERT_OK(folder);
  EXPECT_TRUE(fails_with(folder->peek(1), StatusCode::kBadInput, {"read"}));
  RecordErrors errors(folder->name());
  LineReader reader(*folder, errors, kMaxLineBytes);
  EXPECT_TRUE(fails_with(reader.next(), StatusCode::kBadInput, {"read"}));
  EXPECT_FALSE(reader.can_continue());
}

TEST_F(RecordReaders, TheDigestIsThatOfTheFile) {
  LogBytes bytes = open("abc");
  ASSERT_OK(bytes.peek(1));
  EXPECT_FALSE(bytes.at_end());
  bytes.skip(3);
  ASSERT_OK(bytes.peek(1));
  EXPECT_TRUE(bytes.at_end());
  EXPECT_EQ(bytes.sha256_hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace dsv4rt::replay
