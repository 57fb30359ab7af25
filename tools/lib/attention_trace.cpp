#include "tools/lib/attention_trace.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/message_text.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

constexpr std::string_view kPrefix = "layers.";
constexpr std::string_view kCounts[] = {"n_prefill", "n_decode"};
constexpr std::int64_t kMaxTraceTokens = std::int64_t{1} << 24;

// One tensor of the file with what messages need.
struct Field {
  const SafetensorsReader& file;
  const TensorView& tensor;

  [[nodiscard]] Status error(const std::string& reason) const {
    return {StatusCode::kBadInput, shown(file.path()) + ": tensor " + quote(tensor.name) + ": " + reason};
  }
};

// Copies a tensor of the expected dtype and shape; a dimension of -1 accepts any size.
template <class T>
Result<std::vector<T>> read_tensor(const Field& field, TensorDtype dtype, const std::vector<std::int64_t>& expected) {
  const TensorView& tensor = field.tensor;
  if (tensor.dtype != dtype) {
    return field.error("dtype " + std::string(tensor_dtype_name(tensor.dtype)) + ", expected " +
                       std::string(tensor_dtype_name(dtype)));
  }
  bool fits = tensor.shape.size() == expected.size();
  for (std::size_t i = 0; fits && i < expected.size(); ++i) {
    fits = expected[i] == -1 || expected[i] == tensor.shape[i];
  }
  if (!fits) return field.error("shape " + shape_text(tensor.shape) + ", expected " + shape_text(expected));
  DSV4RT_RETURN_IF_ERROR(field.file.read(tensor.data));
  std::vector<T> values(tensor.data.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), values.size() * sizeof(T));
  field.file.image().drop(tensor.data);
  return values;
}

Result<std::int64_t> read_count(const SafetensorsReader& file, const std::string& key) {
  const auto entry = file.metadata().find(key);
  if (entry == file.metadata().end()) {
    return Status{StatusCode::kBadInput, shown(file.path()) + ": metadata '" + printable(key) + "' is missing"};
  }
  const std::string& text = entry->second;
  std::int64_t value = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size() || value < 0 || value > kMaxTraceTokens) {
    return Status{StatusCode::kBadInput, shown(file.path()) + ": metadata '" + printable(key) + "' is '" +
                                             printable(text) + "'; accepted: an integer from 0 to " +
                                             std::to_string(kMaxTraceTokens)};
  }
  return value;
}

// "layers.N.field" -> N and field.
struct TraceName {
  std::int32_t layer = 0;
  std::string_view field;
};
std::optional<TraceName> parse_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  TraceName parsed;
  const auto number = std::from_chars(name.data(), name.data() + name.size(), parsed.layer);
  if (number.ec != std::errc{} || number.ptr == name.data() + name.size() || *number.ptr != '.') return std::nullopt;
  parsed.field = name.substr(static_cast<std::size_t>(number.ptr - name.data()) + 1);
  return parsed;
}

Status read_field(const Field& field, std::string_view name, const ModelConfig& config, const LayerSpec& spec,
                  std::int64_t tokens, LayerTrace& layer) {
  const std::int64_t rows = spec.ratio == 0 ? 0 : tokens / spec.ratio;
  const bool of_indexer = name == "index_k" || name == "topk" || name == "topk_margin";
  if ((of_indexer && !spec.indexer) || (name == "compressed_kv" && spec.ratio == 0)) {
    return field.error("recorded for a layer of kind " + std::string(attention_kind_name(spec.kind)) +
                       ", which has no such rows");
  }
  if (name == "input") {
    DSV4RT_ASSIGN_OR_RETURN(layer.input, read_tensor<bf16>(field, TensorDtype::kBf16, {tokens, config.hidden_size}));
  } else if (name == "output") {
    DSV4RT_ASSIGN_OR_RETURN(layer.output, read_tensor<bf16>(field, TensorDtype::kBf16, {tokens, config.hidden_size}));
  } else if (name == "compressed_kv") {
    DSV4RT_ASSIGN_OR_RETURN(layer.compressed_kv, read_tensor<bf16>(field, TensorDtype::kBf16, {rows, kHeadDim}));
  } else if (name == "index_k") {
    DSV4RT_ASSIGN_OR_RETURN(layer.index_k, read_tensor<bf16>(field, TensorDtype::kBf16, {rows, kIndexHeadDim}));
  } else if (name == "topk") {
    DSV4RT_ASSIGN_OR_RETURN(layer.topk, read_tensor<std::int32_t>(field, TensorDtype::kI32, {tokens, -1}));
    layer.top_k = field.tensor.shape[1];
  } else if (name == "topk_margin") {
    DSV4RT_ASSIGN_OR_RETURN(layer.topk_margin, read_tensor<float>(field, TensorDtype::kF32, {tokens}));
  } else if (name == "window_kv_last") {
    const std::int64_t window = std::min(tokens, config.sliding_window);
    DSV4RT_ASSIGN_OR_RETURN(layer.window_kv_last, read_tensor<bf16>(field, TensorDtype::kBf16, {window, kHeadDim}));
  } else {
    return field.error(
        "unknown field; accepted: input, output, compressed_kv, index_k, topk, topk_margin, "
        "window_kv_last");
  }
  return {};
}

}  // namespace

const LayerTrace* AttentionTrace::find(LayerId layer) const noexcept {
  const auto at = std::find_if(layers.begin(), layers.end(), [&](const LayerTrace& l) { return l.layer == layer; });
  return at == layers.end() ? nullptr : &*at;
}

Result<AttentionTrace> AttentionTrace::open(const std::filesystem::path& path, const ModelConfig& config, LayerId first,
                                            LayerId last) {
  DSV4RT_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::open(path, kCounts));
  AttentionTrace trace;
  trace.path = path;
  DSV4RT_ASSIGN_OR_RETURN(trace.prefill_tokens, read_count(file, "n_prefill"));
  DSV4RT_ASSIGN_OR_RETURN(trace.decode_tokens, read_count(file, "n_decode"));
  if (trace.tokens() == 0) {
    return Status{StatusCode::kBadInput, shown(path) + ": metadata n_prefill + n_decode is 0; expected at least 1"};
  }

  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(config));
  std::map<std::int32_t, LayerTrace> layers;
  for (const TensorView& tensor : file.tensors()) {
    const Field field{file, tensor};
    const std::optional<TraceName> name = parse_name(tensor.name);
    if (!name) return field.error("name is not layers.N.<field>");
    if (name->layer < 0 || name->layer >= config.num_hidden_layers) {
      return field.error("layer " + std::to_string(name->layer) + " is outside the model's 0 to " +
                         std::to_string(config.num_hidden_layers - 1));
    }
    if (name->layer < first.value || name->layer > last.value) continue;
    LayerTrace& layer = layers[name->layer];
    layer.layer = LayerId(name->layer);
    DSV4RT_RETURN_IF_ERROR(read_field(field, name->field, config, schedule.layer(layer.layer), trace.tokens(), layer));
  }
  for (auto& [number, layer] : layers) {
    if (layer.input.empty()) {
      return Status{StatusCode::kBadInput,
                    shown(path) + ": tensor 'layers." + std::to_string(number) + ".input' is missing"};
    }
    trace.layers.push_back(std::move(layer));
  }
  for (std::int32_t layer = first.value; layer <= last.value; ++layer) {
    if (trace.find(LayerId(layer)) != nullptr) continue;
    return Status{StatusCode::kBadInput,
                  shown(path) + ": tensor 'layers." + std::to_string(layer) + ".input' is missing"};
  }
  return trace;
}

}  // namespace dsv4rt
