// Headers and indexes made to take time and memory: both are bounded, whatever the text.
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/weight_index.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kMaxBeside = std::size_t{64} << 20;
constexpr std::string_view kEntry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";

struct HostileText {
  std::string label;
  std::function<std::string(std::size_t bytes)> make;
  bool refused;
};

void PrintTo(const HostileText& text, std::ostream* out) {
  *out << text.label;
}

// `part(i)` joined by commas until the text is long enough.
std::string joined(std::size_t bytes, const std::function<std::string(std::size_t)>& part) {
  std::string text;
  text.reserve(bytes + 256);
  for (std::size_t i = 0; text.size() < bytes; ++i) text.append(i > 0 ? "," : "").append(part(i));
  return text;
}

std::string repeated(std::string_view piece, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + piece.size());
  while (text.size() < bytes) text.append(piece);
  return text;
}

std::vector<HostileText> hostile_headers() {
  return {
      {"metadata_keys",
       [](std::size_t bytes) {
         return R"({"__metadata__":{)" +
                joined(bytes, [](std::size_t i) { return "\"" + std::to_string(i) + "\":\"\""; }) + "}}";
       },
       true},
      {"metadata_value",
       [](std::size_t bytes) { return R"({"__metadata__":{"a":")" + std::string(bytes, 'x') + "\"}}"; }, false},
      {"metadata_escapes",
       [](std::size_t bytes) { return R"({"__metadata__":{"a":")" + repeated("\\u0041", bytes) + "\"}}"; }, true},
      {"tensors",
       [](std::size_t bytes) {
         return "{" +
                joined(bytes, [](std::size_t i) { return "\"" + std::to_string(i) + "\":" + std::string(kEntry); }) +
                "}";
       },
       true},
      {"many_dimensions",
       [](std::size_t bytes) {
         return "{" +
                joined(bytes,
                       [](std::size_t i) {
                         return "\"" + std::to_string(i) +
                                R"(":{"dtype":"U8","shape":[0,1,1,1,1,1,1,1],"data_offsets":[0,0]})";
                       }) +
                "}";
       },
       true},
      {"long_name",
       [](std::size_t bytes) { return "{\"" + std::string(bytes, 'n') + "\":" + std::string(kEntry) + "}"; }, true},
      {"long_escaped_name",
       [](std::size_t bytes) { return "{\"" + repeated("\\n", bytes) + "\":" + std::string(kEntry) + "}"; }, true},
      {"escaped_names",
       [](std::size_t bytes) {
         return "{" +
                joined(bytes,
                       [](std::size_t i) { return "\"\\u0041" + std::to_string(i) + "\":" + std::string(kEntry); }) +
                "}";
       },
       true},
      {"long_dtype",
       [](std::size_t bytes) {
         return R"({"t":{"dtype":")" + std::string(bytes, 'x') + R"(","shape":[0],"data_offsets":[0,0]}})";
       },
       true},
      {"spaces", [](std::size_t bytes) { return "{" + std::string(bytes, ' ') + "}"; }, false},
      {"braces", [](std::size_t bytes) { return "{\"" + std::string(bytes, '{'); }, true},
      {"long_number",
       [](std::size_t bytes) { return R"({"t":{"dtype":"U8","shape":[)" + std::string(bytes, '1') + "]}}"; }, true},
  };
}

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

class BoundedHeaderTest : public testing::TestWithParam<HostileText> {};

// 12 MB of text: the largest that is accepted is eight times this, and scripts may ask for it.
TEST_P(BoundedHeaderTest, TakesLittleMemoryAndTimeInProportion) {
  const char* const wanted = std::getenv("DSV4RT_TEST_HEADER_BYTES");
  const std::size_t text_bytes = wanted == nullptr ? 12'000'000 : std::stoul(wanted);
  constexpr std::size_t kParts = 8;
  const std::string part = safetensors_bytes(GetParam().make(text_bytes / kParts), "");
  const double part_began = cpu_seconds();
  static_cast<void>(parse_safetensors(as_bytes(part), "part"));
  const double part_seconds = cpu_seconds() - part_began;
  const std::string file = safetensors_bytes(GetParam().make(text_bytes), "");
  const AllocationMeter meter;
  const double before = cpu_seconds();
  const auto header = parse_safetensors(as_bytes(file), "file");
  const double seconds = cpu_seconds() - before;
  EXPECT_LE(meter.peak_bytes(), kMaxBeside);
  if (GetParam().label != "tensors" && GetParam().label != "many_dimensions") {
    EXPECT_EQ(header.ok(), !GetParam().refused) << header.status().to_string();
  } else if (text_bytes > 40'000'000) {
    EXPECT_FALSE(header.ok());
  }
  EXPECT_LT(header.status().message().size(), 2000U);
  // Compared with itself, so that the machine does not matter: a time that grows with the square of the text is twice
  // beyond this, however unevenly a busy machine gives its time.
  EXPECT_LT(seconds, 4.0 * kParts * part_seconds + 0.1);
  RecordProperty("ms", static_cast<int>(seconds * 1e3));
  RecordProperty("peak_bytes", std::to_string(meter.peak_bytes()));
}

INSTANTIATE_TEST_SUITE_P(Texts, BoundedHeaderTest, testing::ValuesIn(hostile_headers()),
                         [](const auto& info) { return info.param.label; });

TEST(BoundedIndexTest, TakesLittleMemory) {
  const auto map_of = [](std::size_t bytes, const std::function<std::string(std::size_t)>& part) {
    return "{\"weight_map\":{" + joined(bytes, part) + "}}";
  };
  const std::string shards = map_of(8'000'000, [](std::size_t i) {
    return "\"" + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  });
  const std::string tensors =
      map_of(12'000'000, [](std::size_t i) { return "\"" + std::to_string(i) + "\":\"a.safetensors\""; });
  for (const std::string* text : {&shards, &tensors}) {
    const AllocationMeter meter;
    const auto index = parse_weight_index(*text, "index");
    EXPECT_FALSE(index.ok());
    EXPECT_NE(index.status().message().find("are accepted"), std::string::npos) << index.status().to_string();
    EXPECT_LE(meter.peak_bytes(), kMaxBeside);
  }
}

// Many files are no way around what one file may take.
TEST(BoundedCheckpointTest, TheSumOverShardsIsBounded) {
  const TempDirectory directory;
  const std::string header =
      R"({"__metadata__":{"a":")" + std::string(40'000'000, 'x') + R"("},"NAME":)" + std::string(kEntry) + "}";
  std::string map;
  for (const char c : {'a', 'b', 'c'}) {
    std::string json = header;
    json.replace(json.find("NAME"), 4, 1, c);
    const std::string shard = std::string(1, c) + ".safetensors";
    write_bytes(directory / shard, safetensors_bytes(json, ""));
    map += (map.empty() ? "\"" : ",\"") + std::string(1, c) + "\":\"" + shard + "\"";
  }
  write_bytes(directory / kWeightIndexFileName, "{\"weight_map\":{" + map + "}}");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.status().code(), StatusCode::kBadInput);
  EXPECT_NE(checkpoint.status().message().find("up to \"c.safetensors\""), std::string::npos)
      << checkpoint.status().to_string();
}

}  // namespace
}  // namespace dsv4rt
