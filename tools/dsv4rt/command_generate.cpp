// dsv4rt gen-checkpoint, gen-trace: synthetic weights and inputs of any model's shapes.

#include <iostream>
#include <memory>
#include <vector>

#include "base/bfloat16.h"
#include "base/message_text.h"
#include "base/try.h"
#include "byte_size.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "checkpoint/synthetic_values.h"
#include "command.h"
#include "console.h"
#include "outputs.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

struct GenerateFlags {
  std::string config;
  std::string out;
  std::string layers;
  std::uint64_t seed = 0;
  std::string encoding = "fp8";
  std::string max_shard_size;
  std::int64_t prefill = 512;
  std::int64_t decode = 64;
  Outputs outputs;  // gen-trace has them
};

struct ModelLayers {
  ModelConfig config;
  std::vector<LayerSpec> layers;
};

Result<ModelLayers> select_layers(const GenerateFlags& flags) {
  ModelLayers model;
  DSV4RT_ASSIGN_OR_RETURN(model.config, ModelConfig::from_file(flags.config));
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(model.config));
  LayerRange range{0, static_cast<std::int32_t>(model.config.num_hidden_layers - 1)};
  if (!flags.layers.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(range, parse_layer_range("--layers", flags.layers));
  }
  if (range.last >= model.config.num_hidden_layers) {
    return Status{StatusCode::kInvalidArgument, "--layers: '" + printable(flags.layers) +
                                                    "'; the model has layers 0 to " +
                                                    std::to_string(model.config.num_hidden_layers - 1)};
  }
  for (std::int32_t layer = range.first; layer <= range.last; ++layer) {
    model.layers.push_back(schedule.layer(LayerId(layer)));
  }
  return model;
}

Status generate_checkpoint(const GenerateFlags& flags) {
  DSV4RT_ASSIGN_OR_RETURN(const ModelLayers model, select_layers(flags));
  SyntheticCheckpointOptions options;
  options.seed = flags.seed;
  DSV4RT_ASSIGN_OR_RETURN(options.encoding, weight_encoding_from_name(flags.encoding));
  if (!flags.max_shard_size.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t bytes, parse_byte_size("--max-shard-size", flags.max_shard_size));
    options.max_shard_bytes = static_cast<std::uint64_t>(bytes);
  }
  Status written = write_synthetic_checkpoint(flags.out, model.config, model.layers, options);
  if (written.code() == StatusCode::kFailedPrecondition) {
    return {StatusCode::kInvalidArgument, "--out " + written.message()};
  }
  DSV4RT_RETURN_IF_ERROR(written);
  std::cout << shown(flags.out) << ": " << model.layers.size() << " layers, " << flags.encoding << ", seed "
            << flags.seed << "\n";
  return {};
}

// Inputs as a block's norm gives them: zero mean, unit variance, per layer and token.
Status generate_trace(const GenerateFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  DSV4RT_ASSIGN_OR_RETURN(const ModelLayers model, select_layers(flags));
  const std::int64_t tokens = flags.prefill + flags.decode;
  if (flags.prefill < 0 || flags.decode < 0 || tokens < 1 || tokens > model.config.max_position_embeddings) {
    return {StatusCode::kInvalidArgument, "--prefill " + std::to_string(flags.prefill) + " --decode " +
                                              std::to_string(flags.decode) + "; accepted: together 1 to " +
                                              std::to_string(model.config.max_position_embeddings)};
  }
  std::vector<TensorDeclaration> tensors;
  for (const LayerSpec& layer : model.layers) {
    tensors.push_back({.name = "layers." + std::to_string(layer.id.value) + ".input",
                       .dtype = TensorDtype::kBf16,
                       .shape = {tokens, model.config.hidden_size}});
  }
  DSV4RT_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::create(flags.out, tensors,
                                                    {{"n_prefill", std::to_string(flags.prefill)},
                                                     {"n_decode", std::to_string(flags.decode)}},
                                                    flags.outputs.existing()));
  std::vector<bf16> row(static_cast<std::size_t>(model.config.hidden_size));
  ProgressLine progress("gen-trace", "layers");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SyntheticStream stream(flags.seed, tensors[i].name);
    std::uint64_t index = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (bf16& value : row) value = to_bf16(stream.normal(index++));
      DSV4RT_RETURN_IF_ERROR(writer.write(tensors[i].name, std::as_bytes(std::span(row))));
    }
    progress.update(static_cast<std::int64_t>(i + 1), static_cast<std::int64_t>(tensors.size()));
  }
  DSV4RT_RETURN_IF_ERROR(writer.finish());
  if (flags.out == "-") return {};
  std::cout << shown(flags.out) << ": " << tensors.size() << " layers, " << flags.prefill << " + " << flags.decode
            << " tokens, seed " << flags.seed << "\n";
  return {};
}

void add_common(CLI::App& command, GenerateFlags& flags, const char* out_help) {
  command.add_option("--config", flags.config, "config.json of the model")->required();
  command.add_option("--out", flags.out, out_help)->required();
  command.add_option("--layers", flags.layers, "Layers A-B, or one; default all");
  command.add_option("--seed", flags.seed, "Same seed, same bytes")->capture_default_str();
}

}  // namespace

void add_generate_commands(CLI::App& app, Action& chosen) {
  auto checkpoint_flags = std::make_shared<GenerateFlags>();
  CLI::App* checkpoint =
      app.add_subcommand("gen-checkpoint", "Write random weights with the released names, dtypes and shapes");
  add_common(*checkpoint, *checkpoint_flags, "Directory to create");
  checkpoint->add_option("--encoding", checkpoint_flags->encoding, "Linears: fp8, bf16 or nvfp4")
      ->capture_default_str();
  checkpoint->add_option("--max-shard-size", checkpoint_flags->max_shard_size,
                         "Start a new shard after so much, e.g. 5GB");
  checkpoint->callback(
      [checkpoint_flags, &chosen] { chosen = [checkpoint_flags] { return generate_checkpoint(*checkpoint_flags); }; });

  auto trace_flags = std::make_shared<GenerateFlags>();
  CLI::App* trace = app.add_subcommand("gen-trace", "Write an attention trace with random inputs");
  add_common(*trace, *trace_flags, "Trace file to write, or - for stdout");
  trace_flags->outputs.add_to(*trace, {"--out"});
  trace->add_option("--prefill", trace_flags->prefill, "Prompt tokens")->capture_default_str();
  trace->add_option("--decode", trace_flags->decode, "Tokens after the prompt")->capture_default_str();
  trace->callback([trace_flags, &chosen] { chosen = [trace_flags] { return generate_trace(*trace_flags); }; });
}

}  // namespace dsv4rt::cli
