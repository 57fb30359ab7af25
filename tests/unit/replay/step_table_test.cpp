#include "replay/step_table.h"

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

std::string with_points(const std::string& points, const std::string& provenance = R"({"device": "x"})") {
  return R"({"format": "dsv4rt-step-table", "version": 1, "provenance": )" + provenance + R"(, "points": [)" + points +
         "]}";
}
const std::string kDecodePoint =
    R"({"kind": "decode", "sequences": 1, "context": 8, "tokens": 1, "microseconds": 2.5})";
const std::string kPrefillPoint =
    R"({"kind": "prefill", "sequences": 1, "context": 0, "tokens": 64, "microseconds": 50})";

TEST(StepTable, TheShippedTableIsRead) {
  const auto table = StepTable::from_file(DSV4RT_SOURCE_DIR "/configs/step-table-h200.json");
  ASSERT_OK(table);
  EXPECT_EQ(table->points.size(), 41U);
  EXPECT_EQ(table->provenance.size(), 7U);
}

TEST(StepTable, WhatIsWrittenIsReadBack) {
  const StepTable table = small_table();
  const auto again = StepTable::from_json(table.to_json(), "again");
  ASSERT_OK(again);
  EXPECT_EQ(again->to_json(), table.to_json());
}

TEST(StepTable, WhatIsWrongIsNamed) {
  struct Case {
    std::string text;
    std::vector<std::string> parts;
  };
  const auto point = [](const std::string& field, const std::string& value) {
    std::string changed = kDecodePoint;
    const std::size_t at = changed.find("\"" + field + "\": ") + field.size() + 4;
    return with_points(kPrefillPoint + "," + changed.replace(at, changed.find_first_of(",}", at) - at, value));
  };
  const std::vector<Case> cases{
      {"{", {"t.json"}},
      {R"({"version": 1})", {"format", "missing"}},
      {R"({"format": "other"})", {"format", "other"}},
      {R"({"format": "dsv4rt-step-table", "version": 2})", {"version", "2"}},
      {with_points(kDecodePoint + "," + kPrefillPoint, "{}"), {"provenance.device"}},
      {with_points(kDecodePoint + "," + kPrefillPoint, R"({"device": 3})"), {"provenance.device", "3"}},
      {with_points(kDecodePoint), {"prefill"}},
      {with_points(kPrefillPoint), {"decode"}},
      {with_points(kPrefillPoint + "," + kDecodePoint + "," + kDecodePoint), {"points[2]", "shape"}},
      {with_points("7"), {"points[0]", "7"}},
      {point("kind", "\"verify\""), {"points[1].kind", "verify"}},
      {point("sequences", "0"), {"points[1].sequences", "0"}},
      {point("sequences", "1.5"), {"points[1].sequences", "1.5"}},
      {point("context", "-1"), {"points[1].context", "-1"}},
      {point("tokens", "99999999999"), {"points[1].tokens", "99999999999"}},
      {point("tokens", "18446744073709551615"), {"points[1].tokens"}},
      {point("microseconds", "0"), {"points[1].microseconds"}},
      {point("microseconds", "1e13"), {"points[1].microseconds"}},
      {point("microseconds", "\"5\""), {"points[1].microseconds", "5"}},
      {point("microseconds", "5, \"more\": 1"), {"points[1].more"}},
  };
  for (const Case& wrong : cases) {
    const auto table = StepTable::from_json(wrong.text, "t.json");
    ASSERT_FALSE(table.ok()) << wrong.text;
    EXPECT_EQ(table.status().code(), StatusCode::kBadInput);
    for (const std::string& part : wrong.parts) {
      EXPECT_NE(table.status().message().find(part), std::string::npos) << part << ": " << table.status().message();
    }
    EXPECT_NE(table.status().message().find("t.json"), std::string::npos);
  }
  EXPECT_OK(StepTable::from_json(with_points(kDecodePoint + "," + kPrefillPoint), "t.json"));
  EXPECT_TRUE(fails_with(StepTable::from_file("no such file"), StatusCode::kNotFound, {"no such file"}));
}

}  // namespace
}  // namespace dsv4rt::replay::test
