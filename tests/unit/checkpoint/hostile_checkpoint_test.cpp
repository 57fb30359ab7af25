// Lesson 17 for sets of files: indexes, shards and the directories they lie in.
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_index.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

namespace fs = std::filesystem;

std::string shard(const std::string& tensor) {
  return safetensors_bytes("{\"" + tensor + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xy");
}

void write_index(const TempDirectory& directory, const std::string& weight_map) {
  write_bytes(directory / kWeightIndexFileName, R"({"metadata":{"total_size":4},"weight_map":)" + weight_map + "}");
}

struct HostileDirectory {
  std::string label;
  std::function<void(const TempDirectory&)> make;
  StatusCode code;
  std::vector<std::string> mentions;
};

void PrintTo(const HostileDirectory& directory, std::ostream* out) {
  *out << directory.label;
}

HostileDirectory index_case(std::string label, std::string index_text, std::vector<std::string> mentions) {
  mentions.emplace_back(kWeightIndexFileName);
  return {std::move(label),
          [text = std::move(index_text)](const TempDirectory& d) {
            write_bytes(d / "a.safetensors", shard("a"));
            write_bytes(d / kWeightIndexFileName, text);
          },
          StatusCode::kBadInput, std::move(mentions)};
}

// The index places tensor "a" in `shard_name`.
HostileDirectory escape_case(std::string label, const std::string& shard_name) {
  return index_case(std::move(label), R"({"weight_map":{"a":")" + shard_name + R"("}})",
                    {"\"a\"", "file name in the same directory"});
}

std::vector<HostileDirectory> index_cases() {
  std::string deep = R"({"metadata":)";
  for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
  return {
      escape_case("escape_parent", "../a.safetensors"),
      escape_case("escape_absolute", "/etc/a.safetensors"),
      escape_case("escape_subdirectory", "sub/a.safetensors"),
      escape_case("escape_backslash", "sub\\\\a.safetensors"),
      escape_case("escape_dots", ".."),
      escape_case("escape_hidden", "..safetensors"),
      escape_case("escape_nul", "a\\u0000.safetensors"),
      escape_case("empty_shard_name", ""),
      escape_case("suffix_only", ".safetensors"),
      escape_case("other_suffix", "a.bin"),
      escape_case("index_lists_itself", "model.safetensors.index.json"),
      index_case("shard_is_number", R"({"weight_map":{"a":1}})", {"\"a\"", "must be a string"}),
      index_case("shard_is_object", R"({"weight_map":{"a":{"b":"c"}}})", {"\"a\"", "an object"}),
      index_case("map_is_array", R"({"weight_map":[]})", {"\"weight_map\"", "must be an object"}),
      index_case("map_missing", R"({"metadata":{}})", {"\"weight_map\"", "missing"}),
      index_case("map_twice", R"({"weight_map":{},"weight_map":{}})", {"twice"}),
      index_case("tensor_twice", R"({"weight_map":{"a":"a.safetensors","a":"a.safetensors"}})",
                 {"weight_map.a", "twice"}),
      index_case("index_is_array", "[]", {"must be an object"}),
      index_case("index_truncated", R"({"weight_map":{"a":"a.safe)", {"not valid JSON"}),
      index_case("index_not_utf8", "{\"weight_map\":{\"\xff\":\"a.safetensors\"}}", {"not valid JSON"}),
      index_case("index_with_nul", std::string("{\"weight_map\":{}}\0{", 19), {"NUL"}),
      index_case("index_deep", deep, {"nested deeper"}),
      index_case("index_empty", "", {"empty"}),
  };
}

std::vector<HostileDirectory> shard_cases() {
  return {
      {"missing_shard",
       [](const TempDirectory& d) { write_index(d, R"({"a":"a.safetensors"})"); },
       StatusCode::kNotFound,
       {"a.safetensors", "named by", std::string(kWeightIndexFileName)}},
      {"directory_shard",
       [](const TempDirectory& d) {
         fs::create_directory(d / "a.safetensors");
         write_index(d, R"({"a":"a.safetensors"})");
       },
       StatusCode::kBadInput,
       {"a.safetensors", "directory"}},
      {"looping_shard",
       [](const TempDirectory& d) {
         fs::create_symlink("b.safetensors", d / "a.safetensors");
         fs::create_symlink("a.safetensors", d / "b.safetensors");
         write_index(d, R"({"a":"a.safetensors"})");
       },
       StatusCode::kBadInput,
       {"a.safetensors", "cannot open"}},
      {"looping_index",
       [](const TempDirectory& d) { fs::create_symlink(kWeightIndexFileName, d / kWeightIndexFileName); },
       StatusCode::kBadInput,
       {std::string(kWeightIndexFileName), "cannot open"}},
      {"dangling_single_file",
       [](const TempDirectory& d) { fs::create_symlink("gone", d / kSingleWeightFileName); },
       StatusCode::kNotFound,
       {std::string(kSingleWeightFileName)}},
      {"malformed_shard",
       [](const TempDirectory& d) {
         write_bytes(d / "a.safetensors", "12345678901234");
         write_index(d, R"({"a":"a.safetensors"})");
       },
       StatusCode::kBadInput,
       {"a.safetensors", "header length"}},
      {"absent_tensor",
       [](const TempDirectory& d) {
         write_bytes(d / "a.safetensors", shard("a"));
         write_index(d, R"({"a":"a.safetensors","b":"a.safetensors"})");
       },
       StatusCode::kBadInput,
       {"\"b\"", "\"a.safetensors\"", "does not hold"}},
      {"unlisted_tensor",
       [](const TempDirectory& d) {
         write_bytes(d / "a.safetensors", shard("a"));
         write_bytes(d / "b.safetensors", shard("hidden"));
         write_index(d, R"({"a":"a.safetensors","b":"b.safetensors"})");
       },
       StatusCode::kBadInput,
       {"\"hidden\"", "b.safetensors", "not listed"}},
      {"tensor_elsewhere",
       [](const TempDirectory& d) {
         write_bytes(d / "a.safetensors", shard("a"));
         write_bytes(d / "b.safetensors", shard("b"));
         write_index(d, R"({"a":"b.safetensors","b":"a.safetensors"})");
       },
       StatusCode::kBadInput,
       {"\"a\"", "\"a.safetensors\"", "\"b.safetensors\""}},
      {"tensor_in_two_shards",
       [](const TempDirectory& d) {
         write_bytes(d / "a.safetensors", shard("a"));
         write_bytes(d / "b.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                                            R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                                            "xy"));
         write_index(d, R"({"a":"a.safetensors","b":"b.safetensors"})");
       },
       StatusCode::kBadInput,
       {"\"a\"", "both", "\"a.safetensors\"", "\"b.safetensors\""}},
      {"no_weights",
       [](const TempDirectory&) {},
       StatusCode::kNotFound,
       {std::string(kWeightIndexFileName), std::string(kSingleWeightFileName)}},
      {"weights_under_another_name",
       [](const TempDirectory& d) { write_bytes(d / "other.safetensors", shard("a")); },
       StatusCode::kNotFound,
       {"\"other.safetensors\"", "give the path"}},
  };
}

class HostileCheckpointTest : public testing::TestWithParam<HostileDirectory> {};

TEST_P(HostileCheckpointTest, IsRefusedWithNamesInBoundedMemory) {
  const HostileDirectory& hostile = GetParam();
  const TempDirectory directory;
  hostile.make(directory);
  const AllocationMeter meter;
  const auto opened = Checkpoint::open(directory.path());
  const std::size_t peak = meter.peak_bytes();
  ASSERT_FALSE(opened.ok());
  const Status status = opened.status();
  EXPECT_EQ(status.code(), hostile.code) << status.to_string();
  EXPECT_NE(status.message().find(directory.path().string()), std::string::npos) << status.to_string();
  for (const std::string& part : hostile.mentions) {
    EXPECT_NE(status.message().find(part), std::string::npos) << "no '" << part << "' in: " << status.to_string();
  }
  // Beside the index itself, which is held while it is read.
  std::error_code ignored;
  const std::uintmax_t index_bytes = fs::file_size(directory / kWeightIndexFileName, ignored);
  EXPECT_LT(peak, 256U * 1024 + (index_bytes == static_cast<std::uintmax_t>(-1) ? 0 : index_bytes));
}

std::string directory_label(const testing::TestParamInfo<HostileDirectory>& info) {
  return info.param.label;
}

INSTANTIATE_TEST_SUITE_P(Index, HostileCheckpointTest, testing::ValuesIn(index_cases()), directory_label);
INSTANTIATE_TEST_SUITE_P(Shards, HostileCheckpointTest, testing::ValuesIn(shard_cases()), directory_label);

TEST(CheckpointTest, OpensEveryForm) {
  const TempDirectory directory;
  write_bytes(directory / "a.safetensors", shard("a"));
  write_bytes(directory / "b.safetensors", shard("b"));
  ASSERT_TRUE(
      write_weight_index(directory / kWeightIndexFileName, {{"b", "b.safetensors"}, {"a", "a.safetensors"}}, 4).ok());
  // A shard behind a symbolic link, as download caches lay them out.
  fs::rename(directory / "b.safetensors", directory / "blob");
  fs::create_symlink("blob", directory / "b.safetensors");

  for (const fs::path& path : {directory.path(), directory / kWeightIndexFileName}) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    EXPECT_EQ(checkpoint->path(), path);
    EXPECT_EQ(checkpoint->files().size(), 2U);
    ASSERT_EQ(checkpoint->tensors().size(), 2U);
    EXPECT_EQ(checkpoint->tensors()[0].view->name, "a");
    const CheckpointTensor b = checkpoint->find("b");
    ASSERT_NE(b.view, nullptr);
    EXPECT_EQ(b.file->path().filename(), "b.safetensors");
    ASSERT_TRUE(checkpoint->read(b.view->data).ok());
    EXPECT_EQ(std::to_integer<char>(b.view->data[1]), 'y');
    EXPECT_EQ(checkpoint->find("c").view, nullptr);
  }
  const auto single = Checkpoint::open(directory / "a.safetensors");
  ASSERT_TRUE(single.ok());
  EXPECT_EQ(single->tensors().size(), 1U);
  EXPECT_NE(single->files()[0].find("a"), nullptr);
  EXPECT_EQ(single->files()[0].find("b"), nullptr);
  EXPECT_TRUE(single->files()[0].metadata().empty());
}

TEST(CheckpointTest, ViewsSurviveMoves) {
  const TempDirectory directory;
  write_bytes(directory / kSingleWeightFileName, shard("a"));
  auto opened = Checkpoint::open(directory.path());
  ASSERT_TRUE(opened.ok());
  const CheckpointTensor before = opened->find("a");
  ASSERT_TRUE(opened->read(before.view->data).ok());
  const Checkpoint moved = std::move(*opened);
  EXPECT_EQ(moved.find("a").view, before.view);
  EXPECT_EQ(std::to_integer<char>(before.view->data[0]), 'x');
}

TEST(CheckpointTest, MissingPath) {
  const TempDirectory directory;
  EXPECT_EQ(Checkpoint::open(directory / "nowhere").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Checkpoint::open(directory / "nowhere.json").status().code(), StatusCode::kNotFound);
}

TEST(CheckpointTest, RunningOutOfMemoryIsAStatus) {
  const TempDirectory directory;
  std::string map = "{";
  for (int i = 0; i < 400; ++i) map += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":"a.safetensors")";
  std::string header = "{";
  for (int i = 0; i < 400; ++i) {
    header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  write_bytes(directory / "a.safetensors", safetensors_bytes(header + "}", ""));
  write_index(directory, map + "}");
  ASSERT_TRUE(Checkpoint::open(directory.path()).ok());
  // Every size at which some step may fail first.
  for (std::size_t limit_bytes = 512; limit_bytes < 60'000; limit_bytes += 1024) {
    Status status;
    {
      const AllocationLimit limit(limit_bytes);
      status = Checkpoint::open(directory.path()).status();
    }
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
  }
}

TEST(WeightIndexTest, WritesWhatItReads) {
  const TempDirectory directory;
  const std::map<std::string, std::string> shard_of = {{"x", "model-00001-of-00002.safetensors"},
                                                       {"y", "model-00002-of-00002.safetensors"}};
  const auto path = directory / kWeightIndexFileName;
  ASSERT_TRUE(write_weight_index(path, shard_of, 1234).ok());
  const std::string text = read_bytes(path);
  EXPECT_NE(text.find("\"total_size\": 1234"), std::string::npos) << text;
  const auto parsed = parse_weight_index(text, "index");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  for (const auto& [name, shard] : shard_of) {
    ASSERT_NE(parsed->shard_of(name), nullptr) << name;
    EXPECT_EQ(*parsed->shard_of(name), shard);
  }
  EXPECT_EQ(parsed->entries.size(), 2U);
  EXPECT_EQ(parsed->shard_of("z"), nullptr);
  EXPECT_EQ(write_weight_index(directory / "gone/index.json", shard_of, 0).code(), StatusCode::kNotFound);
  EXPECT_EQ(write_weight_index(path, {{"\xff", "a.safetensors"}}, 0).code(), StatusCode::kInvalidArgument);
}

TEST(WeightIndexTest, RefusesTextBeyondTheLimit) {
  const std::string text(kMaxWeightIndexBytes + 1, ' ');
  const auto parsed = parse_weight_index(text, "index");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("100000000"), std::string::npos) << parsed.status().to_string();
}

TEST(WeightIndexTest, SkipsUnknownKeysOfAnyKind) {
  const auto parsed =
      parse_weight_index(R"({"metadata":{"total_size":-1.5e3,"list":[1,[2,{"a":null}]],"ok":true},"format":"x",)"
                         R"("weight_map":{"a":"a.safetensors"}})",
                         "index");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->entries.size(), 1U);
}

}  // namespace
}  // namespace dsv4rt
