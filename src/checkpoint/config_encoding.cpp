#include "checkpoint/config_encoding.h"

#include <string>

#include <nlohmann/json.hpp>

#include "base/input_file.h"
#include "base/message_text.h"
#include "base/try.h"
#include "model/json_document.h"

namespace dsv4rt {

Result<WeightEncoding> weight_encoding_of_config(const std::filesystem::path& config_file) {
  DSV4RT_ASSIGN_OR_RETURN(const std::string text, read_whole_file(config_file, kMaxJsonTextBytes));
  DSV4RT_ASSIGN_OR_RETURN(const JsonDocument document, parse_json_object(text, config_file.native()));
  const auto found = document.root().find("quantization_config");
  if (found == document.root().end() || found->is_null()) return WeightEncoding::kBf16;
  const std::string where = shown(config_file) + ": quantization_config";
  if (!found->is_object()) return Status{StatusCode::kBadInput, where + ": is no object: " + describe_json(*found)};
  const auto value = [&](const char* key) {
    const auto entry = found->find(key);
    return entry == found->end() ? nlohmann::json() : *entry;
  };
  const nlohmann::json method = value("quant_method");
  if (method == "fp8") {
    const nlohmann::json block = value("weight_block_size");
    if (block.is_null() || block == nlohmann::json({128, 128})) return WeightEncoding::kFp8Block128;
    return Status{StatusCode::kUnsupported,
                  where + ".weight_block_size: " + describe_json(block) + "; accepted: [128, 128]"};
  }
  if (method == "modelopt" && value("quant_algo") == "NVFP4") return WeightEncoding::kNvfp4;
  return Status{StatusCode::kUnsupported, where + ": quant_method " + describe_json(method) + ", quant_algo " +
                                              describe_json(value("quant_algo")) +
                                              "; accepted: fp8, or modelopt with NVFP4, or no quantization_config"};
}

}  // namespace dsv4rt
