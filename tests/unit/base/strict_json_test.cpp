// The parser accepts what nlohmann's accepts, but for what it refuses on purpose, and gives the same values.
#include "base/strict_json.h"

#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace dsv4rt {
namespace {

// Writes the events back as JSON.
class Echo : public JsonVisitor {
 public:
  Status value(const JsonPath& path, const JsonValue& value) override {
    place(path);
    switch (value.kind) {
      case JsonKind::kNull:
        text_ += "null";
        break;
      case JsonKind::kBoolean:
        text_ += value.number != 0 ? "true" : "false";
        break;
      case JsonKind::kUnsigned:
        text_ += std::to_string(value.number);
        break;
      case JsonKind::kNegative:
        text_ += std::to_string(static_cast<std::int64_t>(value.number));
        break;
      case JsonKind::kFloat:
        text_ += nlohmann::json(value.real).dump();
        break;
      case JsonKind::kString:
        text_ += nlohmann::json(std::string(value.text)).dump();
        break;
      case JsonKind::kObject:
        text_ += '{';
        break;
      case JsonKind::kArray:
        text_ += '[';
        break;
    }
    return {};
  }
  Status end(const JsonPath&, JsonKind kind) override {
    text_ += kind == JsonKind::kObject ? '}' : ']';
    return {};
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void place(const JsonPath& path) {
    if (path.empty()) return;
    if (text_.back() != '{' && text_.back() != '[') text_ += ',';
    if (!path.back().array) text_ += nlohmann::json(path.back().key).dump() + ":";
  }
  std::string text_;
};

// Whether some object of the text has a key twice.
class DuplicateFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool found = false;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    found |= !keys_.back().insert(name).second;
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> keys_;
};

void expect_agreement(const std::string& text) {
  Echo echo;
  const Status status = parse_strict_json(text, "text", {}, echo);
  const nlohmann::json reference = nlohmann::json::parse(text, nullptr, false);
  DuplicateFinder duplicates;
  (void)nlohmann::json::sax_parse(text, &duplicates);
  const bool accepted = !reference.is_discarded() && !duplicates.found && text.find('\0') == std::string::npos;
  ASSERT_EQ(status.ok(), accepted) << text << "\n" << status.to_string();
  if (!accepted) return;
  ASSERT_EQ(nlohmann::json::parse(echo.text()), reference) << text << "\n" << echo.text();
}

TEST(StrictJsonTest, AgreesWithAnotherParserOnChosenTexts) {
  for (const char* text : {"",
                           " ",
                           "0",
                           "-0",
                           "01",
                           "1.",
                           ".5",
                           "-",
                           "+1",
                           "1e",
                           "1e+",
                           "1E5",
                           "1e400",
                           "-1e400",
                           "1e-400",
                           "0.0e999",
                           "18446744073709551615",
                           "18446744073709551616",
                           "-9223372036854775808",
                           "-9223372036854775809",
                           "1.5e3",
                           "true",
                           "tru",
                           "truee",
                           "null",
                           "nul",
                           "\"",
                           "\"\\\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud83d\\ude00\"",
                           "\"\\ud83d\\u0041\"",
                           "\"\\ud83d",
                           "\"\\x41\"",
                           "\"\t\"",
                           "\"\xff\"",
                           "\"\xc3\xa4\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xc0\x80\"",
                           "{}",
                           "{ }",
                           "{,}",
                           "{\"a\":1,}",
                           "{\"a\":1 \"b\":2}",
                           "{\"a\"}",
                           "{1:2}",
                           "{\"a\":1,\"a\":2}",
                           "{\"a\":1,\"\\u0061\":2}",
                           "[]",
                           "[,]",
                           "[1,]",
                           "[1 2]",
                           "[[],[[]],{}]",
                           "[1]]",
                           "{}{}",
                           "1 2",
                           "// x\n1",
                           "NaN",
                           "Infinity",
                           "\xef\xbb\xbf{}",
                           "{\"a\":{\"a\":{\"a\":[{\"a\":1}]}}}"}) {
    expect_agreement(text);
  }
}

TEST(StrictJsonTest, AgreesWithAnotherParserOnMutants) {
  const std::string valid =
      R"({"rope_scaling":{"factor":16,"type":"yarn","x":[-1,2.5e-3,true,null,"\u00e4\n\ud83d\ude00"]},)"
      R"("layer_types":["a","b\"",{}],"n":-9223372036854775808,"m":18446744073709551615,"e":[[],{"":0}]})";
  constexpr std::string_view kTokens[] = {"{",    "}", "[", "]", ",",    ":",      "\"",      "\\",
                                          "-",    "0", "9", "e", ".",    "null",   "\\u00",   "\\ud83d",
                                          "\xc3", " ", "1", "+", "true", "\"a\":", "\xe2\x82"};
  std::mt19937_64 random(20261122);
  for (int i = 0; i < 30'000; ++i) {
    std::string text = valid;
    for (std::size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 6);
          break;
        case 2:
          text.insert(at, kTokens[random() % std::size(kTokens)]);
          break;
        default:
          text.insert(random() % text.size(), text.substr(at, random() % 30));
      }
      if (text.empty()) text = "{";
    }
    expect_agreement(text);
    if (HasFatalFailure()) return;
  }
}

TEST(StrictJsonTest, BoundsAreKept) {
  const auto refused = [](const std::string& text, const JsonBounds& bounds) {
    Echo echo;
    return parse_strict_json(text, "text", bounds, echo).message();
  };
  EXPECT_NE(refused("[[[]]]", {.depth = 2}).find("deeper than the 2"), std::string::npos);
  EXPECT_EQ(refused("[[[]]]", {.depth = 3}), "");
  EXPECT_NE(refused(R"({"a":1,"b":2,"c":3})", {.keys = 2}).find("more than 2 keys"), std::string::npos);
  EXPECT_EQ(refused(R"([{"a":1,"b":2},{"c":3}])", {.keys = 2}), "");
  EXPECT_NE(refused(R"({"x":{"abcd":1}})", {.key_bytes = 3}).find("a key in x has 4 bytes"), std::string::npos);
  EXPECT_NE(refused(R"({"x":"\n23"})", {.text_bytes = 3}).find("at x has 4 bytes"), std::string::npos);
  EXPECT_EQ(refused(R"({"x":"1234"})", {.text_bytes = 3}), "");
}

// A duplicate is found among few keys and among many.
TEST(StrictJsonTest, FindsAKeyGivenTwiceWhereverItIs) {
  for (const int count : {2, 15, 16, 17, 18, 64, 65, 1000}) {
    for (const int twice : {0, count / 2, count - 1}) {
      std::string text = "{";
      for (int i = 0; i < count; ++i) text += "\"k" + std::to_string(i) + "\":0,";
      Echo unique;
      EXPECT_TRUE(parse_strict_json(text + "\"last\":0}", "text", {}, unique).ok());
      Echo echo;
      const Status status = parse_strict_json(text + "\"k" + std::to_string(twice) + "\":0}", "text", {}, echo);
      EXPECT_NE(status.message().find("key k" + std::to_string(twice) + " is given twice"), std::string::npos)
          << count << " " << status.to_string();
    }
  }
}

}  // namespace
}  // namespace dsv4rt
