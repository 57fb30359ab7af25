// dsv4rt inspect: what a checkpoint or config holds, and whether its layers would load, without reading tensor data.

#include <iostream>
#include <map>
#include <memory>

#include "base/message_text.h"
#include "base/try.h"
#include "byte_size.h"
#include "checkpoint/attention_loader.h"
#include "checkpoint/checkpoint.h"
#include "command.h"
#include "dsv4rt/model.h"
#include "outputs.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  std::string path;
  std::string layers;
  std::string json;
  Outputs outputs;
  bool tensors = false;
};

struct TensorTotals {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;
  std::map<std::string, std::int64_t> bytes_by_dtype;

  void add(const TensorView& tensor) {
    ++tensors;
    bytes += static_cast<std::int64_t>(tensor.data.size());
    bytes_by_dtype[std::string(tensor_dtype_name(tensor.dtype))] += static_cast<std::int64_t>(tensor.data.size());
  }
};

// Layer of an attention tensor's name, in either naming; -1 for tensors that are not loaded.
std::int64_t attention_layer_of(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  if (!name.starts_with("layers.")) return -1;
  name.remove_prefix(7);
  std::int64_t layer = 0;
  std::size_t digits = 0;
  while (digits < name.size() && digits < 9 && name[digits] >= '0' && name[digits] <= '9') {
    layer = layer * 10 + (name[digits++] - '0');
  }
  const std::string_view rest = name.substr(digits);
  return digits > 0 && (rest.starts_with(".attn.") || rest.starts_with(".self_attn.")) ? layer : -1;
}

std::string dtype_text(const TensorTotals& totals) {
  std::string text;
  for (const auto& [dtype, bytes] : totals.bytes_by_dtype) {
    text += (text.empty() ? "" : ", ") + dtype + " " + human_bytes(static_cast<double>(bytes));
  }
  return text.empty() ? "-" : text;
}

std::string rope_text(const LayerSpec& spec, const ModelConfig& config) {
  const bool plain = spec.rope == RopeChoice::kPlain;
  std::string text = "theta " + fixed(plain ? config.rope_theta : config.compress_rope_theta, 0);
  if (!plain && config.rope_scaling) text += " yarn x" + fixed(config.rope_scaling->factor, 0);
  return text;
}

struct Inspection {
  ModelConfig config;
  LayerSchedule schedule;
  std::map<std::int64_t, TensorTotals> layers;  // empty for a config alone
  TensorTotals skipped;
  Json tensors = Json::array();
  Status complete;  // what the loader would say of the layers asked for
};

// The layers that --layers names; all of them without it.
Result<std::span<const LayerSpec>> layers_to_check(const InspectFlags& flags, const LayerSchedule& schedule) {
  const auto all = schedule.layers();
  if (flags.layers.empty()) return all;
  DSV4RT_ASSIGN_OR_RETURN(const LayerRange range, parse_layer_range("--layers", flags.layers));
  if (range.last >= static_cast<std::int64_t>(all.size())) {
    return Status{StatusCode::kInvalidArgument, "--layers: '" + printable(flags.layers) +
                                                    "'; the model has layers 0 to " + std::to_string(all.size() - 1)};
  }
  return all.subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.last - range.first + 1));
}

Status read_tensors(const std::filesystem::path& path, bool list, std::span<const LayerSpec> layers,
                    Inspection& inspection) {
  DSV4RT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(path));
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const TensorView& view = *tensor.view;
    const std::int64_t layer = attention_layer_of(view.name);
    const bool loaded = layer >= 0 && layer < inspection.config.num_hidden_layers;
    (loaded ? inspection.layers[layer] : inspection.skipped).add(view);
    if (!list) continue;
    inspection.tensors.push_back({{"name", view.name},
                                  {"dtype", tensor_dtype_name(view.dtype)},
                                  {"shape", std::vector<std::int64_t>(view.shape.begin(), view.shape.end())},
                                  {"bytes", view.data.size()},
                                  {"file", tensor.file->path().filename().native()},
                                  {"loaded", loaded}});
  }
  inspection.complete = check_attention_tensors(checkpoint, inspection.config, layers);
  return {};
}

void print_inspection(const Inspection& inspection, bool list_tensors) {
  const ModelConfig& config = inspection.config;
  std::cout << "hidden " << config.hidden_size << ", heads " << config.num_attention_heads << ", q rank "
            << config.q_lora_rank << ", output rank " << config.o_groups << " x " << config.o_lora_rank << ", window "
            << config.sliding_window << ", indexer " << config.index_n_heads << " heads top-" << config.index_topk
            << "\n";
  TextTable table({"layer", "kind", "ratio", "rope", "tensors", "bytes", "dtypes"});
  for (const LayerSpec& spec : inspection.schedule.layers()) {
    const auto found = inspection.layers.find(spec.id.value);
    const TensorTotals totals = found == inspection.layers.end() ? TensorTotals{} : found->second;
    table.add_row({std::to_string(spec.id.value), std::string(attention_kind_name(spec.kind)),
                   std::to_string(spec.ratio), rope_text(spec, config), std::to_string(totals.tensors),
                   std::to_string(totals.bytes), dtype_text(totals)});
  }
  std::cout << table.to_string();
  if (inspection.skipped.tensors > 0) {
    std::cout << "skipped unread: " << inspection.skipped.tensors << " tensors, "
              << human_bytes(static_cast<double>(inspection.skipped.bytes)) << "\n";
  }
  if (!list_tensors) return;
  TextTable tensors({"tensor", "dtype", "shape", "bytes", "file"});
  for (const Json& tensor : inspection.tensors) {
    tensors.add_row({tensor["name"], tensor["dtype"], tensor["shape"].dump(),
                     std::to_string(tensor["bytes"].get<std::uint64_t>()), tensor["file"]});
  }
  std::cout << tensors.to_string();
}

Json inspection_json(const Inspection& inspection) {
  const ModelConfig& config = inspection.config;
  Json json;
  json["hidden_size"] = config.hidden_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["sliding_window"] = config.sliding_window;
  json["index_topk"] = config.index_topk;
  for (const LayerSpec& spec : inspection.schedule.layers()) {
    Json layer{{"layer", spec.id.value},
               {"kind", attention_kind_name(spec.kind)},
               {"ratio", spec.ratio},
               {"rope", rope_text(spec, config)}};
    if (const auto found = inspection.layers.find(spec.id.value); found != inspection.layers.end()) {
      layer["tensors"] = found->second.tensors;
      layer["bytes"] = found->second.bytes;
      layer["bytes_by_dtype"] = found->second.bytes_by_dtype;
    }
    json["layers"].push_back(std::move(layer));
  }
  json["skipped_tensors"] = inspection.skipped.tensors;
  json["skipped_bytes"] = inspection.skipped.bytes;
  json["tensors"] = inspection.tensors;
  json["loads"] = inspection.complete.ok();
  json["problems"] = inspection.complete.message();
  return json;
}

Status inspect(const InspectFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  const std::filesystem::path path = flags.path;
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(path, ignored);
  Inspection inspection;
  DSV4RT_ASSIGN_OR_RETURN(inspection.config, ModelConfig::from_file(directory ? path / "config.json" : path));
  DSV4RT_ASSIGN_OR_RETURN(inspection.schedule, LayerSchedule::create(inspection.config));
  DSV4RT_ASSIGN_OR_RETURN(const auto layers, layers_to_check(flags, inspection.schedule));
  if (directory) DSV4RT_RETURN_IF_ERROR(read_tensors(path, flags.tensors || !flags.json.empty(), layers, inspection));
  if (flags.json != "-") print_inspection(inspection, flags.tensors);
  if (!flags.json.empty()) {
    Provenance provenance;
    DSV4RT_RETURN_IF_ERROR(directory ? provenance.add_checkpoint(path) : provenance.add_file(path));
    DSV4RT_RETURN_IF_ERROR(
        write_json_report(inspection_json(inspection), provenance, flags.json, flags.outputs.existing()));
  }
  return inspection.complete;
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command =
      app.add_subcommand("inspect", "Show a checkpoint's or config's layers, dtypes and bytes; say what is missing");
  command->add_option("path", flags->path, "Checkpoint directory, or a config.json")->required();
  command->add_option("--layers", flags->layers, "Layers A-B, or one, that have to be complete; default all");
  command->add_flag("--tensors", flags->tensors, "List every tensor");
  command->add_option("--json", flags->json, "Write as JSON to a file, or - for stdout instead of the table");
  flags->outputs.add_to(*command, {"--json"});
  command->callback([flags, &chosen] { chosen = [flags] { return inspect(*flags); }; });
}

}  // namespace dsv4rt::cli
