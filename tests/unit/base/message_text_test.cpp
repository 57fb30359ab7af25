#include "base/message_text.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace dsv4rt {
namespace {

TEST(MessageTextTest, NothingThatATerminalActsOnIsLeft) {
  EXPECT_EQ(printable("plain text, 100 % of it: ~"), "plain text, 100 % of it: ~");
  EXPECT_EQ(printable("a\nerror: fake line\r\t"), "a\\x0aerror: fake line\\x0d\\x09");
  EXPECT_EQ(printable("\x1b[31mred\x1b]0;title\x07"), "\\x1b[31mred\\x1b]0;title\\x07");
  EXPECT_EQ(printable(std::string_view("nul\0\x7f", 5)), "nul\\x00\\x7f");
  EXPECT_EQ(printable("\"\\\""), "\\x22\\x5c\\x22");
  EXPECT_EQ(quote("a\"b"), "\"a\\x22b\"");
}

TEST(MessageTextTest, ReadableTextOfAnyScriptStays) {
  const std::string text = "m\xc3\xbcller \xe6\xa8\xa1\xe5\x9e\x8b \xf0\x9f\x98\x80";
  EXPECT_EQ(printable(text), text);
  EXPECT_EQ(shown(std::filesystem::path("/data/\xc3\xa4.json")), "/data/\xc3\xa4.json");
}

TEST(MessageTextTest, WhatDeceivesReadersIsEscaped) {
  // A C1 control (CSI as one character), bidirectional override and isolate, zero width, line separator, mark of order,
  // a tag, a private use character.
  for (const std::uint32_t code : {0x9bU, 0x202eU, 0x2066U, 0x200bU, 0x2028U, 0xfeffU, 0xe0041U, 0xe000U}) {
    std::string text;
    append_utf8(text, code);
    const std::string shown_text = printable("a" + text + "b");
    EXPECT_EQ(shown_text.size(), 2 + 4 * text.size()) << code;
    EXPECT_EQ(shown_text.find(text), std::string::npos) << code;
  }
}

TEST(MessageTextTest, WhatIsNotUtf8IsEscapedByteByByte) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xe6\xa8"), "\\xe6\\xa8");                    // cut
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  for (int byte = 0; byte < 256; ++byte) {
    for (const char c : printable(std::string(1, static_cast<char>(byte)))) EXPECT_TRUE(c >= ' ' && c <= '~') << byte;
  }
}

TEST(MessageTextTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable(std::string(161, 'x')), std::string(160, 'x') + "...");
  EXPECT_EQ(printable(std::string(160, 'x')), std::string(160, 'x'));
  EXPECT_EQ(printable(std::string(159, 'x') + "\xc3\xa4"), std::string(159, 'x') + "...");
  EXPECT_LE(printable(std::string(1000000, '\x1b')).size(), 4 * kShownBytes + 3);
}

TEST(MessageTextTest, MessagesOfSeveralLinesKeepTheirLines) {
  EXPECT_EQ(printable_lines("2 problems:\n  \"a\\x1b\"\x1b[2J\n"), "2 problems:\n  \"a\\x1b\"\\x1b[2J\n");
}

}  // namespace
}  // namespace dsv4rt
