// What a page is made of was in a file that anybody may have written: whatever stands there, the page is made or the
// field is named.
#include "report/replay_page.h"

#include <string>
#include <vector>

#include "report/saved_report.h"
#include "saved_run.h"
#include "support/temp_directory.h"

namespace dsv4rt::report::test {
namespace {

using dsv4rt::test::fails_with;

// Pointers of all values, of an array the first and last element only.
void pointers_of(const Document& value, const std::string& path, std::vector<std::string>& found) {
  if (!path.empty()) found.push_back(path);
  if (value.is_object()) {
    for (const auto& [key, below] : value.items()) pointers_of(below, path + "/" + key, found);
  } else if (value.is_array() && !value.empty()) {
    pointers_of(value.front(), path + "/0", found);
    if (value.size() > 1) pointers_of(value.back(), path + "/" + std::to_string(value.size() - 1), found);
  }
}

TEST(ReplayPage, IsMadeOfTheDocumentAlone) {
  const Document document = busy_report();
  const auto page = replay_page(document, "report");
  ASSERT_OK(page);
  const auto again = replay_page(Document::parse(document.dump(2)), "report");
  ASSERT_OK(again);
  EXPECT_EQ(*page, *again);
  EXPECT_NE(page->find("Replay of log.jsonl"), std::string::npos);
  EXPECT_NE(page->find("The queue was full"), std::string::npos);
  EXPECT_EQ(page->find("nan"), std::string::npos);
}

TEST(ReplayPage, EveryFieldMayHoldAnythingOrBeMissing) {
  const Document document = busy_report();
  std::vector<std::string> pointers;
  pointers_of(document, "", pointers);
  ASSERT_GT(pointers.size(), 200U);
  const std::vector<Document> replacements{nullptr,
                                           -1,
                                           1e300,
                                           std::int64_t{1} << 62,
                                           "<b>x</b>",
                                           Document::array(),
                                           Document::array({1, "a"}),
                                           Document::object(),
                                           Document::array({Document::array({0, 0.5}), Document::array({-3, 7})})};
  int made = 0;
  int refused = 0;
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    const Document::json_pointer pointer(pointers[i]);
    Document changed = document;
    // One replacement a pointer, another one for the next: all kinds meet all parts of the page.
    if (i % 10 == 9) {
      Document& above = changed[pointer.parent_pointer()];
      if (above.is_object()) above.erase(pointer.back());
    } else {
      changed[pointer] = replacements[i % 10];
    }
    const auto page = replay_page(changed, "report.json");
    if (page.ok()) {
      ++made;
      EXPECT_EQ(page->find("<b>"), std::string::npos) << pointers[i];
      EXPECT_EQ(page->find("nan"), std::string::npos) << pointers[i];
      EXPECT_EQ(page->find("inf\""), std::string::npos) << pointers[i];
      EXPECT_LT(page->size(), std::size_t{1} << 20) << pointers[i];
    } else {
      ++refused;
      EXPECT_TRUE(fails_with(page, StatusCode::kBadInput, {"report.json: field /"})) << pointers[i];
    }
  }
  EXPECT_GT(made, 20);
  EXPECT_GT(refused, 100);
}

TEST(ReplayPage, LongArraysAreRefused) {
  Document document = busy_report();
  document["run"]["slowest"] = Document::array();
  for (int i = 0; i < 5000; ++i) document["run"]["slowest"].push_back(1);
  EXPECT_TRUE(fails_with(replay_page(document, "r"), StatusCode::kBadInput, {"/run/slowest", "5000", "4096"}));
}

TEST(ReplayPage, LongFilesAreRefused) {
  const dsv4rt::test::TempDirectory folder;
  std::ofstream(folder / "r\n.json").put('{');
  std::filesystem::resize_file(folder / "r\n.json", (std::uintmax_t{64} << 20) + 1);  // with a hole
  EXPECT_TRUE(fails_with(read_saved_report(folder / "r\n.json"), StatusCode::kBadInput, {"r\\x0a.json", "64 MiB"}));
  std::filesystem::resize_file(folder / "r\n.json", std::uintmax_t{64} << 20);
  EXPECT_TRUE(fails_with(read_saved_report(folder / "r\n.json"), StatusCode::kBadInput, {"r\\x0a.json: is no JSON"}));
}

TEST(ReplayPage, FieldsOfTheWrongKindAreRefused) {
  const Document document = {{"text", "t"}, {"list", {1, 2}}, {"large", 1e19}, {"whole", 3}};
  const auto reading = [&](auto read) {
    return read_document(document, "r", [&](const Field& field) { return read(field), true; });
  };
  const auto refused = [&](auto read, const char* message) {
    return fails_with(reading(read), StatusCode::kBadInput, {message});
  };
  EXPECT_OK(reading([](const Field& f) { return f["list"][1].integer(); }));
  EXPECT_TRUE(Field(document)["text"].is_text());
  EXPECT_FALSE(Field(document)["whole"].is_text());
  EXPECT_TRUE(refused([](const Field& f) { return f["text"]["x"].path(); }, "/text is string; accepted: an object"));
  EXPECT_TRUE(refused([](const Field& f) { return f["text"].find("x"); }, "/text is string; accepted: an object"));
  EXPECT_TRUE(refused([](const Field& f) { return f["none"].path(); }, "/none is missing"));
  EXPECT_TRUE(refused([](const Field& f) { return f["list"][2].path(); }, "/list/2 is missing"));
  EXPECT_TRUE(refused([](const Field& f) { return f["text"].size(); }, "/text is string; accepted: an array"));
  EXPECT_TRUE(refused([](const Field& f) { return f["text"].number(); }, "/text is string; accepted: a number"));
  EXPECT_TRUE(refused([](const Field& f) { return f["large"].number(); }, "/large is beyond 1e18"));
  EXPECT_TRUE(refused([](const Field& f) { return f["large"].integer(); }, "accepted: a whole number"));
  EXPECT_TRUE(refused([](const Field& f) { return f["whole"].text(); }, "/whole is number; accepted: a text"));
  EXPECT_TRUE(refused([](const Field& f) { return f["whole"].boolean(); }, "accepted: true or false"));
  EXPECT_TRUE(refused([](const Field& f) { return f["list"].shown(); }, "/list is array; accepted: a number, a text"));
  EXPECT_TRUE(refused([](const Field& f) { return f["list"].object().size(); }, "/list is array; accepted: an object"));
}

TEST(ReplayPage, WhatIsNoReportIsNamed) {
  const dsv4rt::test::TempDirectory folder;
  const auto file = [&](const std::string& text) {
    std::ofstream(folder / "r.json", std::ios::binary) << text;
    return read_saved_report(folder / "r.json");
  };
  EXPECT_TRUE(fails_with(file("{\"command\":"), StatusCode::kBadInput, {"r.json", "no JSON"}));
  EXPECT_TRUE(fails_with(file(""), StatusCode::kBadInput, {"r.json", "no JSON"}));
  // What is built of a file stays bounded by what reports have, not by the file.
  EXPECT_OK(file(std::string(30, '[') + std::string(30, ']')));
  EXPECT_TRUE(fails_with(file(std::string(1 << 20, '[')), StatusCode::kBadInput, {"r.json", "deeper than 32 levels"}));
  std::string ones = "[1";
  for (int i = 0; i < 1 << 20; ++i) ones += ",1";
  EXPECT_TRUE(fails_with(file(ones + "]"), StatusCode::kBadInput, {"r.json", "more than 1048576 values"}));
  EXPECT_TRUE(fails_with(read_saved_report(folder / "none"), StatusCode::kBadInput, {"none", "cannot be read"}));
  EXPECT_TRUE(fails_with(read_saved_report(folder.path()), StatusCode::kBadInput, {"cannot be read"}));
  EXPECT_TRUE(fails_with(replay_page(*file("{\"command\":\"bench\"}"), "r.json"), StatusCode::kBadInput, {"/command"}));
  EXPECT_TRUE(fails_with(replay_page(*file("[1]"), "r.json"), StatusCode::kBadInput, {"an object"}));
}

}  // namespace
}  // namespace dsv4rt::report::test
