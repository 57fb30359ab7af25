// Lesson 17: model files are hostile input. Every file here breaks one rule of the format; each must be
// refused with the right code and a message that names file and field, without allocating by a number
// that the file merely claims.
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_reader.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

struct HostileFile {
  std::string label;
  std::string bytes;
  StatusCode code;
  std::vector<std::string> mentions;  // parts of the message besides the file's name
};

void PrintTo(const HostileFile& file, std::ostream* out) {
  *out << file.label;
}

// One U8 tensor "t" with the given shape and offsets, as JSON texts.
std::string tensor_json(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  std::string json = R"({"t":{"dtype":)";
  return json.append(dtype).append(R"(,"shape":)").append(shape).append(R"(,"data_offsets":)").append(offsets) + "}}";
}

const std::string kValidJson = tensor_json("\"U8\"", "[4]", "[0,4]");

HostileFile json_case(std::string label, const std::string& json, std::string data, std::vector<std::string> mentions,
                      StatusCode code = StatusCode::kBadInput) {
  return {std::move(label), safetensors_bytes(json, data), code, std::move(mentions)};
}

std::vector<HostileFile> length_cases() {
  std::vector<HostileFile> cases;
  const std::string valid = safetensors_bytes(kValidJson, "abcd");
  for (std::size_t size = 1; size < 8; ++size) {
    cases.push_back({"cut_in_length_" + std::to_string(size),
                     valid.substr(0, size),
                     StatusCode::kBadInput,
                     {std::to_string(size) + " bytes", "header length"}});
  }
  cases.push_back({"empty", "", StatusCode::kBadInput, {"empty"}});
  cases.push_back({"cut_after_length", valid.substr(0, 8), StatusCode::kBadInput, {"header length", "truncated"}});
  cases.push_back({"cut_in_header", valid.substr(0, 30), StatusCode::kBadInput, {"header length", "truncated"}});
  cases.push_back({"cut_before_last_brace",
                   valid.substr(0, 8 + kValidJson.size() - 1),
                   StatusCode::kBadInput,
                   {"header length", "truncated"}});
  cases.push_back({"cut_before_data",
                   valid.substr(0, 8 + kValidJson.size()),
                   StatusCode::kBadInput,
                   {"\"t\"", "[0, 4]", "0 bytes of tensor data"}});
  cases.push_back({"cut_in_data",
                   valid.substr(0, valid.size() - 1),
                   StatusCode::kBadInput,
                   {"\"t\"", "data offset 0", "3 bytes of tensor data"}});
  cases.push_back({"length_zero", length_field(0) + "abcd", StatusCode::kBadInput, {"begin with '{'"}});
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, std::uint64_t{1} << 40, std::uint64_t{1} << 63,
                                     ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    cases.push_back({"length_" + std::to_string(length),
                     length_field(length) + kValidJson,
                     StatusCode::kBadInput,
                     {std::to_string(length), "100000000"}});
  }
  cases.push_back(
      {"length_beyond_file", length_field(99'999'999) + kValidJson, StatusCode::kBadInput, {"99999999", "truncated"}});
  return cases;
}

std::vector<HostileFile> json_cases() {
  return {
      json_case("starts_with_space", std::string(" ").append(kValidJson), "abcd", {"begin with '{'"}),
      json_case("starts_with_bom", std::string("\xef\xbb\xbf").append(kValidJson), "abcd", {"begin with '{'"}),
      json_case("header_is_array", "[1]", "", {"begin with '{'"}),
      json_case("unclosed", R"({"t":{"dtype":"U8")", "", {"not valid JSON"}),
      json_case("trailing_comma", R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},})", "abcd",
                {"not valid JSON"}),
      json_case("second_value", kValidJson + "{}", "abcd", {"not valid JSON"}),
      json_case("nul_then_garbage", kValidJson + std::string("\0garbage", 8), "abcd", {"NUL byte"}),
      json_case("invalid_utf8_name", "{\"t\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd",
                {"not valid JSON"}),
      json_case("overlong_utf8", "{\"t\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd",
                {"not valid JSON"}),
      json_case("utf16_surrogate", R"({"t\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd",
                {"not valid JSON"}),
      json_case("control_character", "{\"t\n\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "abcd",
                {"not valid JSON"}),
      json_case("deep_arrays", R"({"t":{"shape":)" + std::string(1'000'000, '['), "", {"nested deeper", "3 levels"}),
      json_case("deep_objects",
                [] {
                  std::string json;
                  for (int i = 0; i < 200'000; ++i) json += R"({"a":)";
                  return json;
                }(),
                "", {"unknown key \"a\""}),
      json_case("number_overflow", tensor_json("\"U8\"", "[1e999]", "[0,4]"), "abcd", {"not valid JSON"}),
      json_case("comment", "{/* */}", "", {"not valid JSON"}),
      json_case("nan_literal", tensor_json("\"U8\"", "[NaN]", "[0,4]"), "abcd", {"not valid JSON"}),
  };
}

std::vector<HostileFile> key_cases() {
  const std::string entry = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  return {
      json_case("duplicate_tensor", R"({"t":)" + entry + R"(,"t":)" + entry + "}", "abcd", {"key t ", "twice"}),
      json_case("duplicate_by_escape", R"({"t":)" + entry + R"(,"\u0074":)" + entry + "}", "abcd", {"key t ", "twice"}),
      json_case("duplicate_field", R"({"t":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd",
                {"t.dtype", "twice"}),
      json_case("duplicate_metadata_key", R"({"__metadata__":{"a":"1","a":"2"},"t":)" + entry + "}", "abcd",
                {"__metadata__.a", "twice"}),
      json_case("duplicate_metadata", R"({"__metadata__":{},"t":)" + entry + R"(,"__metadata__":{}})", "abcd",
                {"__metadata__", "twice"}),
      json_case("unknown_field", R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1}})", "abcd",
                {"\"t\"", "\"extra\"", "dtype, shape, data_offsets"}),
      json_case("missing_dtype", R"({"t":{"shape":[4],"data_offsets":[0,4]}})", "abcd",
                {"\"t\"", "\"dtype\"", "missing"}),
      json_case("missing_shape", R"({"t":{"dtype":"U8","data_offsets":[0,4]}})", "abcd", {"\"t\"", "\"shape\""}),
      json_case("missing_offsets", R"({"t":{"dtype":"U8","shape":[4]}})", "abcd", {"\"t\"", "\"data_offsets\""}),
      json_case("metadata_number", R"({"__metadata__":{"n":600},"t":)" + entry + "}", "abcd",
                {"__metadata__", "\"n\"", "must be a string"}),
      json_case("metadata_nested", R"({"__metadata__":{"n":{}},"t":)" + entry + "}", "abcd", {"\"n\"", "an object"}),
      json_case("metadata_is_string", R"({"__metadata__":"x","t":)" + entry + "}", "abcd", {"must be an object"}),
      json_case("entry_is_number", R"({"t":5})", "", {"\"t\"", "must be an object"}),
      json_case("entry_is_null", R"({"t":null})", "", {"\"t\"", "null"}),
      json_case("entry_is_boolean", R"({"t":true})", "", {"\"t\"", "a boolean"}),
      json_case("dtype_is_number", tensor_json("8", "[4]", "[0,4]"), "abcd", {"\"dtype\"", "must be a string"}),
      json_case("shape_is_object", tensor_json("\"U8\"", "{}", "[0,4]"), "abcd", {"\"shape\"", "must be an array"}),
      json_case("offsets_is_string", tensor_json("\"U8\"", "[4]", "\"0,4\""), "abcd", {"\"data_offsets\""}),
  };
}

std::vector<HostileFile> number_cases() {
  return {
      json_case("negative_dim", tensor_json("\"U8\"", "[-4]", "[0,4]"), "abcd", {"\"t\"", "\"shape\"", "negative"}),
      json_case("float_dim", tensor_json("\"U8\"", "[4.0]", "[0,4]"), "abcd", {"\"shape\"", "not an integer"}),
      json_case("string_dim", tensor_json("\"U8\"", "[\"4\"]", "[0,4]"), "abcd", {"\"shape\"", "a string"}),
      json_case("dim_above_u64", tensor_json("\"U8\"", "[18446744073709551616]", "[0,4]"), "abcd",
                {"\"shape\"", "not an integer of 64 bits"}),
      json_case("dim_above_i64", tensor_json("\"U8\"", "[9223372036854775808]", "[0,4]"), "abcd",
                {"9223372036854775808", "2^63"}),
      json_case("nested_dim", tensor_json("\"U8\"", "[[4]]", "[0,4]"), "abcd", {"nested deeper"}),
      json_case("nine_dims", tensor_json("\"U8\"", "[1,1,1,1,1,1,1,1,4]", "[0,4]"), "abcd", {"more than the 8"}),
      json_case("product_overflow", tensor_json("\"U8\"", "[4294967296,4294967296]", "[0,4]"), "abcd",
                {"4294967296", "overflows"}),
      // 2^62 * 4 bytes wraps to 0.
      json_case("byte_overflow", tensor_json("\"F32\"", "[4611686018427387904]", "[0,0]"), "", {"overflows"}),
      json_case("overflow_to_small", tensor_json("\"U8\"", "[9223372036854775807,2,3]", "[0,4]"), "abcd",
                {"overflows"}),
      json_case("dims_beyond_data", tensor_json("\"U8\"", "[1000000000000]", "[0,4]"), "abcd",
                {"1000000000000 bytes", "hold 4"}),
      json_case("dims_below_data", tensor_json("\"U8\"", "[3]", "[0,4]"), "abcd", {"takes 3 bytes", "hold 4"}),
      json_case("dtype_size_mismatch", tensor_json("\"F32\"", "[4]", "[0,4]"), "abcd", {"F32", "takes 16 bytes"}),
      json_case("half_a_byte", tensor_json("\"F4\"", "[3]", "[0,2]"), "ab", {"F4", "whole bytes"}),
      json_case("end_before_begin", tensor_json("\"U8\"", "[4]", "[4,0]"), "abcd", {"[4, 0]", "before they begin"}),
      json_case("offsets_outside", tensor_json("\"U8\"", "[4]", "[4,8]"), "abcd", {"[4, 8]", "outside"}),
      json_case("offsets_huge", tensor_json("\"U8\"", "[4]", "[18446744073709551611,18446744073709551615]"), "abcd",
                {"18446744073709551611", "outside"}),
      json_case("offset_negative", tensor_json("\"U8\"", "[4]", "[-4,0]"), "abcd", {"\"data_offsets\"", "negative"}),
      json_case("offset_float", tensor_json("\"U8\"", "[4]", "[0,4.5]"), "abcd", {"\"data_offsets\""}),
      json_case("one_offset", tensor_json("\"U8\"", "[4]", "[4]"), "abcd", {"1 entries", "must have 2"}),
      json_case("no_offset", tensor_json("\"U8\"", "[4]", "[]"), "abcd", {"0 entries"}),
      json_case("three_offsets", tensor_json("\"U8\"", "[4]", "[0,4,4]"), "abcd", {"more than 2"}),
      json_case("unknown_dtype", tensor_json("\"F7_E3M3\"", "[4]", "[0,4]"), "abcd",
                {"\"t\"", "data offset 0", "\"F7_E3M3\"", "BF16", "F8_E8M0"}, StatusCode::kUnsupported),
      json_case("lower_case_dtype", tensor_json("\"bf16\"", "[2]", "[0,4]"), "abcd", {"\"bf16\""},
                StatusCode::kUnsupported),
      json_case("empty_dtype", tensor_json("\"\"", "[4]", "[0,4]"), "abcd", {"unknown dtype"},
                StatusCode::kUnsupported),
  };
}

std::vector<HostileFile> coverage_cases() {
  const auto two = [](const std::string& first, const std::string& second) {
    const auto entry = [](const std::string& name, const std::string& offsets) {
      return std::string("\"").append(name) + R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}";
    };
    return std::string("{").append(entry("a", first)).append(",").append(entry("b", second)) + "}";
  };
  return {
      json_case("overlap", two("[0,4]", "[2,6]"), "abcdef", {"\"b\"", "data offset 2", "overlaps"}),
      json_case("same_bytes", two("[0,4]", "[0,4]"), "abcd", {"data offset 0", "overlaps"}),
      json_case("hole", two("[0,4]", "[6,10]"), "abcdefghij", {"\"b\"", "data offset 6", "hole"}),
      json_case("hole_at_start", two("[2,6]", "[6,10]"), "abcdefghij", {"\"a\"", "data offset 2", "hole"}),
      json_case("trailing_bytes", two("[0,4]", "[4,8]"), "abcdefghX", {"1 bytes", "data offset 8", "no tensor"}),
      json_case("data_without_tensors", "{}", "abcd", {"4 bytes", "no tensor"}),
  };
}

class HostileFileTest : public testing::TestWithParam<HostileFile> {};

TEST_P(HostileFileTest, IsRefusedWithNamesInBoundedMemory) {
  const HostileFile& hostile = GetParam();
  const TempDirectory directory;
  const auto path = directory / (hostile.label + ".safetensors");
  write_bytes(path, hostile.bytes);

  const AllocationMeter meter;
  const auto opened = SafetensorsReader::open(path);
  const std::size_t peak = meter.peak_bytes();

  ASSERT_FALSE(opened.ok());
  const Status status = opened.status();
  EXPECT_EQ(status.code(), hostile.code) << status.to_string();
  EXPECT_NE(status.message().find(path.string()), std::string::npos) << status.to_string();
  for (const std::string& part : hostile.mentions) {
    EXPECT_NE(status.message().find(part), std::string::npos) << "no '" << part << "' in: " << status.to_string();
  }
  EXPECT_LT(status.message().size(), 2000U);
  EXPECT_LT(peak, 64 * 1024 + 8 * hostile.bytes.size());
}

std::string file_label(const testing::TestParamInfo<HostileFile>& info) {
  return info.param.label;
}

INSTANTIATE_TEST_SUITE_P(Length, HostileFileTest, testing::ValuesIn(length_cases()), file_label);
INSTANTIATE_TEST_SUITE_P(Json, HostileFileTest, testing::ValuesIn(json_cases()), file_label);
INSTANTIATE_TEST_SUITE_P(Keys, HostileFileTest, testing::ValuesIn(key_cases()), file_label);
INSTANTIATE_TEST_SUITE_P(Numbers, HostileFileTest, testing::ValuesIn(number_cases()), file_label);
INSTANTIATE_TEST_SUITE_P(Coverage, HostileFileTest, testing::ValuesIn(coverage_cases()), file_label);

TEST(SafetensorsHeaderTest, AcceptsWhatTheRulesAllow) {
  // Padding after the JSON, tensors in any order, empty tensors, scalars, sub-byte types.
  const std::string file = safetensors_bytes(R"({"b":{"dtype":"F4","shape":[2,3],"data_offsets":[4,7]},)"
                                             R"("__metadata__":{"k":"v","skipped":"w"},)"
                                             R"("e":{"dtype":"F64","shape":[3,0],"data_offsets":[4,4]},)"
                                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
                                             "abcdefg");
  constexpr std::string_view kWanted[] = {"k", "absent"};
  const auto header = parse_safetensors(as_bytes(file), "file", kWanted);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  ASSERT_EQ(header->tensors.size(), 3U);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_TRUE(header->tensors[0].shape.empty());
  EXPECT_EQ(header->tensors[0].data.size(), 4U);
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].dtype, TensorDtype::kF4);
  EXPECT_EQ(std::to_integer<char>(header->tensors[1].data[0]), 'e');
  EXPECT_EQ(header->tensors[2].name, "e");
  EXPECT_TRUE(header->tensors[2].data.empty());
  EXPECT_EQ(header->metadata, (SafetensorsMetadata{{"k", "v"}}));
  EXPECT_TRUE(parse_safetensors(as_bytes(safetensors_bytes("{}", "")), "file").ok());
}

TEST(SafetensorsHeaderTest, RunningOutOfMemoryIsAStatus) {
  std::string json = "{";
  for (int i = 0; i < 1000; ++i) {
    json.append(i > 0 ? ",\"" : "\"").append(std::to_string(i));
    json += R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  const std::string file = safetensors_bytes(json + "}", "");
  ASSERT_TRUE(parse_safetensors(as_bytes(file), "file").ok());
  StatusCode code = StatusCode::kOk;
  {
    const AllocationLimit limit(20'000);
    code = parse_safetensors(as_bytes(file), "file").status().code();
  }
  EXPECT_EQ(code, StatusCode::kResourceExhausted);
}

TEST(SafetensorsHeaderTest, MessagesEscapeAndCutNames) {
  std::string json = R"({"\u001b[31m)";
  json.append(5000, 'n').append(R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,0]}})");
  const auto header = parse_safetensors(as_bytes(safetensors_bytes(json, "")), "file");
  ASSERT_FALSE(header.ok());
  EXPECT_NE(header.status().message().find("\\x1b[31mnnn"), std::string::npos) << header.status().message();
  EXPECT_LT(header.status().message().size(), 500U);
}

TEST(TensorDtypeTest, NamesAndSizes) {
  const std::pair<const char*, int> expected[] = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, bits] : expected) {
    const auto dtype = tensor_dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(tensor_dtype_name(*dtype), name);
    EXPECT_EQ(tensor_dtype_bits(*dtype), bits) << name;
  }
  EXPECT_FALSE(tensor_dtype_from_name("F8").has_value());
  const std::int64_t negative[] = {2, -1};
  EXPECT_FALSE(tensor_bytes(TensorDtype::kU8, negative).has_value());
}

}  // namespace
}  // namespace dsv4rt
