// Configs that must be refused: with which code, and what the message must name.

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4rt/model.h"
#include "unit/model/sample_configs.h"

namespace dsv4rt {
namespace {

using Json = nlohmann::json;

constexpr auto kBad = StatusCode::kBadInput;
constexpr auto kNotOffered = StatusCode::kUnsupported;

struct BadConfig {
  std::string name;
  std::function<void(Json&)> edit;
  StatusCode code;
  std::vector<std::string> parts;  // parts of the message, besides the source
};

std::function<void(Json&)> set(const std::string& pointer, const Json& value) {
  return [=](Json& config) { config[Json::json_pointer("/" + pointer)] = value; };
}
std::function<void(Json&)> remove(const std::string& key) {
  return [=](Json& config) { config.erase(key); };
}

void expect_refused(const BadConfig& bad, Json config) {
  bad.edit(config);
  const auto result = test::parse(config);
  ASSERT_FALSE(result.ok()) << bad.name;
  EXPECT_EQ(result.status().code(), bad.code) << bad.name << ": " << result.status().message();
  EXPECT_EQ(result.status().message().rfind("sample.json: ", 0), 0u) << result.status().message();
  for (const std::string& part : bad.parts) {
    EXPECT_NE(result.status().message().find(part), std::string::npos)
        << bad.name << ": no '" << part << "' in: " << result.status().message();
  }
}

TEST(ModelConfigErrors, MissingKeys) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "qk_rope_head_dim",
                          "q_lora_rank", "o_groups", "o_lora_rank", "sliding_window", "index_n_heads",
                          "index_head_dim", "index_topk", "rms_norm_eps", "rope_theta", "compress_rope_theta",
                          "max_position_embeddings", "compress_ratios"}) {
    const std::string name(key);
    expect_refused({"no " + name, remove(name), kBad, {name, "missing", "accepted"}}, test::hugging_face_config());
    expect_refused({"null " + name, set(name, nullptr), kBad, {name, "null"}}, test::hugging_face_config());
  }
  for (const char* key : {"type", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}) {
    const std::string name = std::string("rope_scaling.") + key;
    expect_refused({"no " + name, [&](Json& config) { config["rope_scaling"].erase(key); }, kBad, {name, "missing"}},
                   test::hugging_face_config());
  }
}

TEST(ModelConfigErrors, WrongTypes) {
  const std::vector<BadConfig> cases = {
      {"string", set("hidden_size", "128"), kBad, {"hidden_size = \"128\"", "integer"}},
      {"fraction", set("hidden_size", 128.5), kBad, {"hidden_size = 128.5", "integer"}},
      {"boolean", set("num_hidden_layers", true), kBad, {"num_hidden_layers = true", "integer"}},
      {"array", set("head_dim", {512}), kBad, {"head_dim = an array of 1 values", "integer"}},
      {"object", set("o_groups", Json::object()), kBad, {"o_groups = an object", "integer"}},
      {"huge float", set("index_topk", 1e300), kBad, {"index_topk = 1e+300", "integer"}},
      {"above int64", set("index_topk", 18446744073709551615ull), kBad, {"index_topk = 18446744073709551615"}},
      {"string real", set("rope_theta", "10000"), kBad, {"rope_theta = \"10000\"", "finite number"}},
      {"boolean real", set("rms_norm_eps", false), kBad, {"rms_norm_eps = false", "number"}},
      {"list real", set("compress_rope_theta", {1}), kBad, {"compress_rope_theta", "array", "number"}},
      {"ratios text", set("compress_ratios", "0,4"), kBad, {"compress_ratios = \"0,4\"", "array"}},
      {"ratios object", set("compress_ratios", Json::object()), kBad, {"compress_ratios", "object", "array"}},
      {"ratio text", set("compress_ratios/1", "4"), kBad, {"compress_ratios", "entry 1 = \"4\"", "integers"}},
      {"ratio fraction", set("compress_ratios/2", 4.5), kBad, {"compress_ratios", "entry 2 = 4.5"}},
      {"ratio negative", set("compress_ratios/0", -4), kBad, {"compress_ratios", "entry 0 = -4"}},
      {"ratio above int32", set("compress_ratios/3", 4294967300), kBad, {"entry 3 = 4294967300", "2147483647"}},
      {"ratios too many", set("compress_ratios", std::vector<int>(5000, 0)), kBad, {"5000 values", "4096"}},
      {"scaling text", set("rope_scaling", "yarn"), kBad, {"rope_scaling = \"yarn\"", "object"}},
      {"factor text", set("rope_scaling/factor", "16"), kBad, {"rope_scaling.factor = \"16\"", "number"}},
      {"type number", set("rope_scaling/type", 3), kBad, {"rope_scaling.type = 3", "string"}},
      {"model type", set("model_type", 4), kBad, {"model_type = 4", "string"}},
      {"bias text", set("attention_bias", "no"), kBad, {"attention_bias = \"no\"", "true or false"}},
      {"long text is cut", set("hidden_size", std::string(5000, 'x')), kBad, {"hidden_size = \"xxx", "..."}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::hugging_face_config());
}

TEST(ModelConfigErrors, FixedGeometry) {
  const std::vector<BadConfig> cases = {
      {"head_dim", set("head_dim", 576), kNotOffered, {"head_dim = 576", "512"}},
      {"rope dim", set("qk_rope_head_dim", 128), kNotOffered, {"qk_rope_head_dim = 128", "64"}},
      {"index dim", set("index_head_dim", 64), kNotOffered, {"index_head_dim = 64", "128"}},
      {"kv heads", set("num_key_value_heads", 8), kNotOffered, {"num_key_value_heads = 8", "only 1"}},
      {"partial factor", set("partial_rotary_factor", 0.25), kNotOffered, {"partial_rotary_factor = 0.25", "0.125"}},
      {"bias", set("attention_bias", true), kNotOffered, {"attention_bias = true", "false"}},
      {"other model", set("model_type", "deepseek_v3"), kNotOffered, {"\"deepseek_v3\"", "deepseek_v4"}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::hugging_face_config());
}

TEST(ModelConfigErrors, IntegerRanges) {
  const std::vector<BadConfig> cases = {
      {"negative", set("hidden_size", -128), kBad, {"hidden_size = -128", "64 to 65536"}},
      {"zero layers", set("num_hidden_layers", 0), kBad, {"num_hidden_layers = 0", "1 to 1024"}},
      {"many layers", set("num_hidden_layers", 1025), kNotOffered, {"num_hidden_layers = 1025", "1024"}},
      {"absurd layers", set("num_hidden_layers", 1ll << 62), kNotOffered, {"4611686018427387904"}},
      {"wide", set("hidden_size", 65600), kNotOffered, {"hidden_size = 65600", "65536"}},
      {"hidden off", set("hidden_size", 96), kNotOffered, {"hidden_size = 96", "multiples of 64"}},
      {"q rank off", set("q_lora_rank", 100), kNotOffered, {"q_lora_rank = 100", "multiples of 64"}},
      {"o rank off", set("o_lora_rank", 60), kNotOffered, {"o_lora_rank = 60", "multiples of 16"}},
      {"q rank big", set("q_lora_rank", 1 << 20), kNotOffered, {"q_lora_rank = 1048576", "16384"}},
      {"heads off", set("num_attention_heads", 12), kNotOffered, {"num_attention_heads = 12", "multiples of 8"}},
      {"heads few", set("num_attention_heads", 4), kNotOffered, {"num_attention_heads = 4", "8 to 128"}},
      {"heads many", set("num_attention_heads", 136), kNotOffered, {"num_attention_heads = 136", "8 to 128"}},
      {"groups", set("o_groups", 3), kBad, {"o_groups = 3", "divisor", "8"}},
      {"groups zero", set("o_groups", 0), kBad, {"o_groups = 0", "1 to 128"}},
      {"window zero", set("sliding_window", 0), kBad, {"sliding_window = 0", "1 to 4096"}},
      {"window big", set("sliding_window", 4097), kNotOffered, {"sliding_window = 4097", "4096"}},
      {"index heads", set("index_n_heads", 9), kNotOffered, {"index_n_heads = 9", "multiples of 8"}},
      {"topk zero", set("index_topk", 0), kBad, {"index_topk = 0", "65536"}},
      {"topk big", set("index_topk", 65537), kNotOffered, {"index_topk = 65537", "65536"}},
      {"positions", set("max_position_embeddings", (16 << 20) + 1), kNotOffered, {"16777217", "16777216"}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::hugging_face_config());
}

TEST(ModelConfigErrors, RealRangesAndYarn) {
  const std::vector<BadConfig> cases = {
      {"eps zero", set("rms_norm_eps", 0), kBad, {"rms_norm_eps = 0", "accepted"}},
      {"eps negative", set("rms_norm_eps", -1e-6), kBad, {"rms_norm_eps = -", "accepted"}},
      {"theta one", set("rope_theta", 1), kBad, {"rope_theta = 1", "2 to"}},
      {"theta huge", set("compress_rope_theta", 1e300), kBad, {"compress_rope_theta", "1e+300"}},
      {"factor small", set("rope_scaling/factor", 0.5), kBad, {"rope_scaling.factor = 0.5", "1 to"}},
      {"beta zero", set("rope_scaling/beta_slow", 0), kBad, {"rope_scaling.beta_slow = 0"}},
      {"betas swapped", set("rope_scaling/beta_fast", 0.5), kBad, {"beta_fast = 0.5", "beta_slow = 1"}},
      {"original zero", set("rope_scaling/original_max_position_embeddings", 0), kBad,
       {"rope_scaling.original_max_position_embeddings = 0"}},
      {"linear", set("rope_scaling/type", "linear"), kNotOffered, {"rope_scaling.type = \"linear\"", "yarn"}},
      {"dynamic", set("rope_scaling", {{"rope_type", "dynamic"}}), kNotOffered,
       {"rope_scaling.rope_type = \"dynamic\"", "yarn"}},
      {"two types", set("rope_scaling/rope_type", "default"), kBad, {"rope_scaling.type", "rope_scaling.rope_type"}},
      {"mscale", set("rope_scaling/mscale", 0.707), kNotOffered, {"rope_scaling.mscale = 0.707", "only 1"}},
      {"attention factor", set("rope_scaling/attention_factor", 1.277), kNotOffered, {"attention_factor = 1.277"}},
      {"truncate", set("rope_scaling/truncate", false), kNotOffered, {"rope_scaling.truncate = false", "true"}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::hugging_face_config());
}

TEST(ModelConfigErrors, Layers) {
  const std::vector<BadConfig> cases = {
      {"short", set("compress_ratios", {0, 4, 128}), kBad, {"compress_ratios", "3 values", "num_hidden_layers = 4"}},
      {"empty", set("compress_ratios", Json::array()), kBad, {"compress_ratios", "0 values"}},
      {"ratio 1", set("compress_ratios/1", 1), kNotOffered, {"compress_ratios[1] = 1", "layer 1", "0 (swa)"}},
      {"ratio 2", set("compress_ratios/3", 2), kNotOffered, {"compress_ratios[3] = 2", "4 (csa)", "128 (hca)"}},
      {"type contradicts", set("layer_types", std::vector<std::string>(4, "sliding_attention")), kBad,
       {"compress_ratios[1] = 4", "layer_types[1]"}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::hugging_face_config());

  const std::vector<BadConfig> typed_cases = {
      {"unknown type", set("layer_types/2", "full_attention"), kNotOffered,
       {"layer_types[2] = \"full_attention\"", "sliding_attention"}},
      {"type number", set("layer_types/2", 4), kBad, {"layer_types", "entry 2 = 4", "strings"}},
      {"types short", set("layer_types", {"sliding_attention"}), kBad, {"layer_types", "1 values"}},
      {"csa rate", set("compress_rates/compressed_sparse_attention", 8), kNotOffered,
       {"compress_rates.compressed_sparse_attention = 8", "only 4"}},
      {"rates swapped", set("compress_rates/heavily_compressed_attention", 4), kNotOffered, {"= 4", "only 128"}},
      {"unknown rate", set("compress_rates/full_attention", 1), kNotOffered, {"compress_rates.full_attention"}},
      {"old rate key", set("compress_rate_csa", 8), kBad, {"compress_rate_csa = 8", "contradicts"}},
      {"main scaled", set("rope_parameters/main/rope_type", "yarn"), kNotOffered, {"rope_parameters.main.rope_type"}},
  };
  for (const BadConfig& bad : typed_cases) expect_refused(bad, test::layer_types_config());
}

// Two spellings of one fact that differ: the message names both keys and both values.
TEST(ModelConfigErrors, Contradictions) {
  const std::vector<BadConfig> cases = {
      {"dim", set("dim", 256), kBad, {"dim = 256", "hidden_size = 128"}},
      {"n_layers", set("n_layers", 5), kBad, {"n_layers = 5", "num_hidden_layers = 4"}},
      {"n_heads", set("n_heads", 16), kBad, {"n_heads = 16", "num_attention_heads = 8"}},
      {"window", set("window_size", 64), kBad, {"window_size = 64", "sliding_window = 128"}},
      {"rope dim", set("rope_head_dim", 32), kBad, {"rope_head_dim = 32", "qk_rope_head_dim = 64"}},
      {"eps", set("norm_eps", 1e-5), kBad, {"norm_eps = 1e-05", "rms_norm_eps = 1e-06"}},
      {"factor", set("rope_factor", 40), kBad, {"rope_factor = 40", "rope_scaling.factor = 16"}},
      {"original", set("original_seq_len", 4096), kBad,
       {"original_seq_len = 4096", "rope_scaling.original_max_position_embeddings = 65536"}},
      {"beta", set("beta_fast", 16), kBad, {"beta_fast = 16", "rope_scaling.beta_fast = 32"}},
      {"length", set("max_seq_len", 4096), kBad, {"max_seq_len = 4096", "max_position_embeddings = 1048576"}},
      {"theta", set("rope_parameters/main/rope_theta", 5000), kBad,
       {"rope_parameters.main.rope_theta = 5000", "rope_theta = 10000"}},
      {"compressed theta", set("rope_parameters/compress/rope_theta", 10000), kBad,
       {"rope_parameters.compress.rope_theta = 10000", "compress_rope_theta = 160000"}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::hugging_face_config());
}

// Errors of an inference-style config name the keys that it uses.
TEST(ModelConfigErrors, InferenceStyleKeysAreNamedAsWritten) {
  const std::vector<BadConfig> cases = {
      {"dim", set("dim", 100), kNotOffered, {"dim = 100", "multiples of 64"}},
      {"window", set("window_size", 0), kBad, {"window_size = 0"}},
      {"rope dim", set("rope_head_dim", 32), kNotOffered, {"rope_head_dim = 32"}},
      {"factor", set("rope_factor", 0), kBad, {"rope_factor = 0"}},
      {"length", set("original_seq_len", -1), kBad, {"original_seq_len = -1"}},
      {"no layers", remove("n_layers"), kBad, {"num_hidden_layers or n_layers", "missing"}},
  };
  for (const BadConfig& bad : cases) expect_refused(bad, test::inference_config());
}

struct BadText {
  std::string name;
  std::string text;
  std::vector<std::string> parts;
};

TEST(ModelConfigErrors, Documents) {
  std::string duplicate = test::hugging_face_config().dump();
  duplicate.insert(1, "\"head_dim\":512,");
  std::string inner_duplicate = test::hugging_face_config().dump();
  inner_duplicate.replace(inner_duplicate.find("\"factor\":16"), 11, "\"factor\":16,\"factor\":16");
  std::string overflow = test::hugging_face_config().dump();
  overflow.replace(overflow.find("\"rope_theta\":10000"), 18, "\"rope_theta\":1e999");
  const std::string open(1000000, '[');
  std::string many = "{\"a\":[0";
  for (int i = 0; i < (1 << 20); ++i) many += ",0";
  const std::vector<BadText> cases = {
      {"empty", "", {"not valid JSON"}},
      {"blank", "  \n", {"not valid JSON"}},
      {"array", "[1]", {"top level is an array", "object"}},
      {"scalar", "3", {"top level is 3", "object"}},
      {"cut", test::hugging_face_config().dump().substr(0, 200), {"not valid JSON at byte 20"}},
      {"trailing", test::hugging_face_config().dump() + "x", {"not valid JSON"}},
      {"NaN", "{\"rope_theta\":NaN}", {"not valid JSON", "near key rope_theta"}},
      {"Infinity", "{\"rope_theta\":-Infinity}", {"not valid JSON", "rope_theta"}},
      {"overflow", overflow, {"1e999", "near key rope_theta", "finite"}},
      {"bad UTF-8", "{\"a\":\"\xff\"}", {"not valid JSON"}},
      {"zero byte", std::string("{\"a\":\0 1}", 9), {"not valid JSON"}},
      {"duplicate", duplicate, {"key head_dim is given twice"}},
      {"inner duplicate", inner_duplicate, {"key rope_scaling.factor is given twice"}},
      {"deep arrays", "{\"a\":" + open, {"nested deeper than the 64 levels"}},
      {"deep closed", "{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", {"nested deeper"}},
      {"many values", many + "]}", {"more than 1048576 values"}},
      {"long text", std::string((std::size_t{16} << 20) + 1, ' '), {"16777217 bytes", "16777216"}},
  };
  for (const BadText& bad : cases) {
    const auto result = ModelConfig::from_json(bad.text, "text.json");
    ASSERT_FALSE(result.ok()) << bad.name;
    EXPECT_EQ(result.status().code(), StatusCode::kBadInput) << bad.name;
    EXPECT_EQ(result.status().message().rfind("text.json: ", 0), 0u) << result.status().message();
    EXPECT_LT(result.status().message().size(), 400u) << bad.name;
    for (const std::string& part : bad.parts) {
      EXPECT_NE(result.status().message().find(part), std::string::npos)
          << bad.name << ": no '" << part << "' in: " << result.status().message();
    }
  }
}

// Names that a hostile file chooses must not make messages of unbounded length.
TEST(ModelConfigErrors, MessagesStayShort) {
  const std::string name(100000, 'k');
  Json config = test::layer_types_config();
  config["compress_rates"][name] = 1;
  EXPECT_LT(test::parse(config).status().message().size(), 400u);
  config = test::layer_types_config();
  config["layer_types"][0] = name;
  EXPECT_LT(test::parse(config).status().message().size(), 400u);
  const std::string twice = "{\"" + name + "\":1,\"" + name + "\":1}";
  EXPECT_LT(ModelConfig::from_json(twice, "t").status().message().size(), 400u);
}

}  // namespace
}  // namespace dsv4rt
