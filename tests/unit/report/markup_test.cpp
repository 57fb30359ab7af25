#include "report/markup.h"

#include <gtest/gtest.h>

namespace dsv4rt::report::test {
namespace {

TEST(Markup, TextsBecomeNoMarkup) {
  EXPECT_EQ(escaped("<a href=\"x\" b='y'>&"), "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;");
  EXPECT_EQ(escaped("\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80"), "\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(escaped(std::string_view("a\0b\x1b\x7f", 5)),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(escaped("\xff\xc3"), "\xef\xbf\xbd\xef\xbf\xbd") << "no UTF-8";
  EXPECT_EQ(escaped("a\nb"), "a b");
}

TEST(Markup, NumbersAreReadable) {
  EXPECT_EQ(count_text(13732944), "13,732,944");
  EXPECT_EQ(count_text(-1234), "-1,234");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(0.0123456), "0.01235");
  EXPECT_EQ(number_text(4.51), "4.510");
  EXPECT_EQ(number_text(227.092), "227.1");
  EXPECT_EQ(number_text(13732.9), "13,733");
  EXPECT_EQ(number_text(5000), "5,000");
  EXPECT_EQ(number_text(1e17), "1e+17");
  EXPECT_EQ(bytes_text(3683123456), "3.43 GiB");
  EXPECT_EQ(bytes_text(584), "584 B");
}

TEST(Markup, NumbersOfADocumentSayWhereTheyCameFrom) {
  const Document document = {{"run", {{"hit_rate", 0.21574}, {"count", 12345}}}};
  const Field run = Field(document)["run"];
  EXPECT_EQ(shown_share(run["hit_rate"], 1), "<span data-json=\"/run/hit_rate\" data-scale=\"100\">21.6</span>&nbsp;%");
  EXPECT_EQ(shown_count(run["count"]), "<span data-json=\"/run/count\">12,345</span>");
  EXPECT_EQ(shown_count_or_dash(run, "none"), "-");
}

}  // namespace
}  // namespace dsv4rt::report::test
