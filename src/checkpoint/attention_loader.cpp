#include "checkpoint/attention_loader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/message_text.h"
#include "base/system_failure.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/finite_weights.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/weights_digest.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt {
namespace {

// Codes of 2^-64 and 2^64.
constexpr int kMinScaleCode = kE8m0Bias - 64;
constexpr int kMaxScaleCode = kE8m0Bias + 64;

struct Problem {
  StatusCode code = StatusCode::kBadInput;
  std::string text;
};

std::string describe(TensorDtype dtype, std::span<const std::int64_t> shape) {
  return std::string(tensor_dtype_name(dtype)) + " " + shape_text(shape);
}

template <class T>
T read_value(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

bool is_scalar(const TensorView& view) {
  return view.shape.empty() || (view.shape.size() == 1 && view.shape[0] == 1);
}

enum class Depth : std::uint8_t {
  kDeclarations,  // names, dtypes and shapes; no data is read and no weights result
  kData,
};

// The rows and columns of a stored matrix that are wanted.
struct MatrixPart {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_column = 0;
  std::int64_t columns = 0;
};

// Columns over which weights, and the rounding of what they multiply, share a scale.
std::int64_t scale_columns(WeightEncoding encoding) {
  switch (encoding) {
    case WeightEncoding::kBf16:
      return 1;
    case WeightEncoding::kFp8Block128:
      return kFp8ScaleBlock;
    case WeightEncoding::kNvfp4:
      return 16;
  }
  return 1;
}

// Collects one layer's weights; what it cannot accept becomes a problem and loading goes on.
class LayerLoader {
 public:
  LayerLoader(const TensorSource& source, const NamingScheme& scheme, const ModelConfig& config, const LayerSpec& spec,
              NonFinite vectors, Depth depth, const TensorShard& shard, std::vector<Problem>& problems)
      : source_(source),
        scheme_(scheme),
        spec_(spec),
        vectors_(vectors),
        depth_(depth),
        shard_(shard),
        tensors_(attention_tensor_specs(config, spec)),
        problems_(problems) {}

  HostAttentionWeights load() {
    weights_.spec = spec_;
    weights_.attn_sink = floats(AttentionTensor::kAttnSink);
    weights_.wq_a = linear(AttentionTensor::kWqA);
    weights_.q_norm = norm(AttentionTensor::kQNorm);
    weights_.wq_b = linear(AttentionTensor::kWqB);
    weights_.wkv = linear(AttentionTensor::kWkv);
    weights_.kv_norm = norm(AttentionTensor::kKvNorm);
    weights_.wo_a = linear(AttentionTensor::kWoA);
    // The published model uses this one as BF16 after de-quantization.
    weights_.wo_a.activation = ActivationRounding::kNone;
    weights_.wo_b = linear(AttentionTensor::kWoB);
    if (spec_.ratio > 0) {
      weights_.compressor =
          HostCompressor{linear(AttentionTensor::kCompressorWkv), linear(AttentionTensor::kCompressorWgate),
                         floats(AttentionTensor::kCompressorApe), norm(AttentionTensor::kCompressorNorm)};
    }
    if (spec_.indexer) {
      weights_.indexer =
          HostIndexer{linear(AttentionTensor::kIndexerWqB), linear(AttentionTensor::kIndexerWeightsProj),
                      HostCompressor{linear(AttentionTensor::kIndexerWkv), linear(AttentionTensor::kIndexerWgate),
                                     floats(AttentionTensor::kIndexerApe), norm(AttentionTensor::kIndexerNorm)}};
    }
    return std::move(weights_);
  }

 private:
  [[nodiscard]] const AttentionTensorSpec& spec_of(AttentionTensor tensor) const {
    return *std::find_if(tensors_.begin(), tensors_.end(), [tensor](const auto& row) { return row.tensor == tensor; });
  }

  void report(StatusCode code, std::string_view name, const std::string& found, const std::string& expected) {
    problems_.push_back({code, printable(name) + ": found " + found + ", expected " + expected});
  }

  const TensorView* require(const std::string& name, const std::string& expected) {
    const TensorView* view = source_.find_tensor(name);
    if (view == nullptr) report(StatusCode::kNotFound, name, "nothing", expected);
    return view;
  }

  // Returns false when the tensor's data cannot be read, which it reports, or is not to be.
  bool read(const TensorView& view) {
    if (depth_ == Depth::kDeclarations) return false;
    const Status status = source_.read(view.data);
    if (!status.ok()) problems_.push_back({status.code(), printable(view.name) + ": " + status.message()});
    return status.ok();
  }

  // Reports and returns false unless the shape is `shape`, the dtype one of `dtypes` and the data has been read: what
  // has another shape may be of any size.
  bool matches(const TensorView& view, std::span<const std::int64_t> shape, std::initializer_list<TensorDtype> dtypes) {
    return fits(view, shape, dtypes) && read(view);
  }

  // The same without reading.
  bool fits(const TensorView& view, std::span<const std::int64_t> shape, std::initializer_list<TensorDtype> dtypes) {
    const bool dtype_ok = std::find(dtypes.begin(), dtypes.end(), view.dtype) != dtypes.end();
    const bool shape_ok = std::equal(view.shape.begin(), view.shape.end(), shape.begin(), shape.end());
    if (dtype_ok && shape_ok) return true;
    std::string expected;
    for (const TensorDtype dtype : dtypes) {
      expected += (expected.empty() ? "" : " or ") + std::string(tensor_dtype_name(dtype));
    }
    report(shape_ok ? StatusCode::kUnsupported : StatusCode::kBadInput, view.name, describe(view.dtype, view.shape),
           expected + " " + shape_text(shape));
    return false;
  }

  // A vector of the layer's own, so that nothing depends on the alignment of the file's data.
  template <class T>
  std::span<T> own(std::size_t count) {
    auto values = std::make_shared<std::vector<T>>(count);
    weights_.owned.push_back(values);
    return *values;
  }

  std::span<const float> floats(AttentionTensor tensor) {
    const AttentionTensorSpec& row = spec_of(tensor);
    const std::string name = attention_stem(scheme_, spec_.id, tensor);
    const TensorView* view = require(name, describe(TensorDtype::kF32, row.shape));
    if (view == nullptr || !matches(*view, row.shape, {TensorDtype::kF32, TensorDtype::kBf16})) return {};
    const bool wide = view->dtype == TensorDtype::kF32;
    const auto values = own<float>(view->data.size() / (wide ? sizeof(float) : sizeof(bf16)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = wide ? read_value<float>(view->data, i) : to_float(read_value<bf16>(view->data, i));
    }
    check_finite<float>(name, values);
    return values;
  }

  // The name that the source has of the two there may be.
  std::string norm_name(AttentionTensor tensor) {
    std::string name = attention_stem(scheme_, spec_.id, tensor).append(kWeightSuffix);
    std::string saved = saved_attention_stem(scheme_, spec_.id, tensor);
    if (saved.empty() || source_.find_tensor(saved.append(kWeightSuffix)) == nullptr) return name;
    if (source_.find_tensor(name) == nullptr) return saved;
    report(StatusCode::kBadInput, name, "also " + printable(saved), "one of the two");
    return name;
  }

  std::span<const bf16> norm(AttentionTensor tensor) {
    const AttentionTensorSpec& row = spec_of(tensor);
    const std::string name = norm_name(tensor);
    const TensorView* view = require(name, describe(TensorDtype::kBf16, row.shape));
    if (view == nullptr || !matches(*view, row.shape, {TensorDtype::kBf16, TensorDtype::kF32})) return {};
    const bool wide = view->dtype == TensorDtype::kF32;
    const auto values = own<bf16>(view->data.size() / (wide ? sizeof(float) : sizeof(bf16)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = wide ? to_bf16(read_value<float>(view->data, i)) : read_value<bf16>(view->data, i);
    }
    check_finite<bf16>(name, values);
    return values;
  }

  // Of what the engine will use: a large FP32 value may have become infinite in BF16.
  template <class T>
  void check_finite(const std::string& name, std::span<const T> values) {
    if (vectors_ == NonFinite::kAllowed) return;
    const std::optional<std::size_t> at = first_non_finite(values);
    if (!at) return;
    const float value = to_float(values[*at]);
    report(StatusCode::kBadInput, name, (std::isnan(value) ? "NaN" : "infinity") + (" at index " + std::to_string(*at)),
           kFiniteValuesAccepted);
  }
  static float to_float(float value) { return value; }
  static float to_float(bf16 value) { return dsv4rt::to_float(value); }

  // The matrices that ranks share are the rank's rows, or its columns of wo_b; all others are whole.
  [[nodiscard]] MatrixPart part_of(AttentionTensor tensor, std::int64_t rows, std::int64_t columns) const {
    if (tensor == AttentionTensor::kWqB || tensor == AttentionTensor::kWoA) {
      return {shard_.first(rows), shard_.count(rows), 0, columns};
    }
    if (tensor == AttentionTensor::kWoB) return {0, rows, shard_.first(columns), shard_.count(columns)};
    return {0, rows, 0, columns};
  }

  HostLinear linear(AttentionTensor tensor) {
    const AttentionTensorSpec& row = spec_of(tensor);
    const std::string stem = attention_stem(scheme_, spec_.id, tensor);
    HostLinear out;
    out.name = stem + std::string(kWeightSuffix);
    out.out_features = row.shape[0];
    out.in_features = row.shape[1];
    const bool quantizable = row.kind == AttentionTensorKind::kQuantizedLinear;
    const std::string dtypes = quantizable ? "BF16, F8_E4M3 or U8 (NVFP4)" : "BF16";
    const TensorView* view = require(out.name, dtypes + " " + shape_text(row.shape));
    if (view == nullptr) return out;
    const MatrixPart part = part_of(tensor, out.out_features, out.in_features);
    if (quantizable && view->dtype == TensorDtype::kF8E4M3) {
      fill_fp8(out, stem, *view, part);
    } else if (quantizable && view->dtype == TensorDtype::kU8) {
      fill_nvfp4(out, stem, *view, part);
    } else if (view->dtype == TensorDtype::kBf16) {
      fill_bf16(out, *view, part);
    } else {
      report(StatusCode::kUnsupported, view->name, describe(view->dtype, view->shape),
             dtypes + " " + shape_text(row.shape));
    }
    return out;
  }

  static bool is_whole(const HostLinear& matrix, const MatrixPart& part) {
    return part.rows == matrix.out_features && part.columns == matrix.in_features;
  }

  // Bytes of part of a stored array, made readable: `rows` rows from `first_row`, and of each `count` of its
  // `row_bytes` bytes from `first`. Rows are read where they lie; of columns an own copy is made, with few rows in
  // memory at a time. Empty after a report.
  std::span<const std::byte> read_part(const TensorView& view, std::int64_t row_bytes, std::int64_t first_row,
                                       std::int64_t rows, std::int64_t first, std::int64_t count) {
    constexpr std::int64_t kBandBytes = std::int64_t{4} << 20;
    const auto bytes_of = [&](std::int64_t row, std::int64_t number) {
      return view.data.subspan(static_cast<std::size_t>(row * row_bytes), static_cast<std::size_t>(number * row_bytes));
    };
    const auto readable = [&](std::span<const std::byte> bytes) {
      const Status status = source_.read(bytes);
      if (!status.ok()) problems_.push_back({status.code(), printable(view.name) + ": " + status.message()});
      return status.ok();
    };
    if (count == row_bytes) {
      const auto whole_rows = bytes_of(first_row, rows);
      return readable(whole_rows) ? whole_rows : std::span<const std::byte>();
    }
    const auto copy = own<std::byte>(static_cast<std::size_t>(rows * count));
    const std::int64_t band = std::max<std::int64_t>(1, kBandBytes / row_bytes);
    for (std::int64_t row = 0; row < rows; row += band) {
      const auto stored = bytes_of(first_row + row, std::min(band, rows - row));
      if (!readable(stored)) return {};
      for (std::int64_t i = 0; i * row_bytes < static_cast<std::int64_t>(stored.size()); ++i) {
        std::memcpy(copy.data() + (row + i) * count, stored.data() + i * row_bytes + first,
                    static_cast<std::size_t>(count));
      }
      source_.drop(stored);
    }
    return copy;
  }

  // The rank's part of a matrix with one scale per `scale_rows` rows and `scale_columns` columns, as it is stored. Sets
  // everything but the encoding; `scale` is the array of scales where it has been read as a whole already.
  void take_part(HostLinear& out, const TensorView& view, const TensorView* scale_view,
                 std::span<const std::byte> scale, const MatrixPart& part) {
    const bool whole = is_whole(out, part);
    const std::int64_t block_rows = out.encoding == WeightEncoding::kFp8Block128 ? kFp8ScaleBlock : 1;
    const std::int64_t block_columns = scale_columns(out.encoding);
    if (!whole && part.columns != out.in_features && part.columns % block_columns != 0) {
      report(StatusCode::kUnsupported, view.name,
             std::to_string(out.in_features) + " columns, which are " + std::to_string(part.columns) + " for each of " +
                 std::to_string(shard_.size) + " ranks",
             "a multiple of " + std::to_string(block_columns) + " columns a rank: so many share a scale");
      return;
    }
    if (depth_ == Depth::kDeclarations) return;
    const auto weight_bytes = static_cast<std::int64_t>(view.data.size());
    const std::int64_t row_bytes = weight_bytes / out.out_features;
    const std::int64_t base = part.first_row / block_rows * block_rows;
    const std::int64_t rows = part.first_row + part.rows - base;
    const auto in_row = [&](std::int64_t column) { return column * row_bytes / out.in_features; };
    out.weight = read_part(view, row_bytes, base, rows, in_row(part.first_column), in_row(part.columns));
    if (whole) {
      if (scale_view != nullptr) scale = read(*scale_view) ? scale_view->data : std::span<const std::byte>();
      out.scale = scale;
      return;
    }
    const std::span<const std::byte> all_scales = scale_view != nullptr ? scale_view->data : scale;
    out.stored = HostLinear::Stored{out.out_features, out.in_features, view.data, all_scales};
    if (!all_scales.empty()) take_scales(out, scale_view, all_scales, part, base, block_rows, block_columns);
    out.first_row = part.first_row - base;
    out.out_features = part.rows;
    out.in_features = part.columns;
    for (const std::span<const std::byte> stored : {view.data, all_scales}) {
      if (stored.data() == scale.data()) continue;  // codes of F32 scales, which are no file's
      for (const auto page : sampled_pages(stored)) {
        if (const Status status = source_.read(page); !status.ok()) {
          problems_.push_back({status.code(), printable(view.name) + ": " + status.message()});
          return;
        }
      }
    }
  }

  // Scales of the rank's blocks; `out` still has the whole matrix's shape.
  void take_scales(HostLinear& out, const TensorView* scale_view, std::span<const std::byte> all,
                   const MatrixPart& part, std::int64_t base, std::int64_t block_rows, std::int64_t block_columns) {
    const auto blocks = [](std::int64_t values, std::int64_t block) { return (values + block - 1) / block; };
    const std::int64_t stride = blocks(out.in_features, block_columns);
    const std::int64_t first_row = base / block_rows;
    const std::int64_t rows = blocks(part.first_row + part.rows, block_rows) - first_row;
    const std::int64_t first = part.first_column / block_columns;
    const std::int64_t count = blocks(part.columns, block_columns);
    if (scale_view != nullptr) {
      out.scale = read_part(*scale_view, stride, first_row, rows, first, count);
      return;
    }
    if (count == stride) {
      out.scale = all.subspan(static_cast<std::size_t>(first_row * stride), static_cast<std::size_t>(rows * stride));
      return;
    }
    const auto copy = own<std::byte>(static_cast<std::size_t>(rows * count));
    for (std::int64_t row = 0; row < rows; ++row) {
      std::memcpy(copy.data() + row * count, all.data() + (first_row + row) * stride + first,
                  static_cast<std::size_t>(count));
    }
    out.scale = copy;
  }

  void fill_bf16(HostLinear& out, const TensorView& view, const MatrixPart& part) {
    const std::int64_t shape[] = {out.out_features, out.in_features};
    if (!fits(view, shape, {TensorDtype::kBf16})) return;
    take_part(out, view, nullptr, {}, part);
    if (reinterpret_cast<std::uintptr_t>(out.weight.data()) % alignof(bf16) == 0) return;
    const auto copy = own<bf16>(out.weight.size() / sizeof(bf16));
    std::memcpy(copy.data(), out.weight.data(), out.weight.size());
    if (!out.stored) source_.drop(view.data);
    out.weight = std::as_bytes(copy);
  }

  void fill_fp8(HostLinear& out, const std::string& stem, const TensorView& view, const MatrixPart& part) {
    out.encoding = WeightEncoding::kFp8Block128;
    out.activation = ActivationRounding::kFp8Block128;
    const auto expected = linear_tensors(stem, out.out_features, out.in_features, out.encoding, scheme_);
    const bool fitting = fits(view, expected[0].shape, {TensorDtype::kF8E4M3});

    const TensorView* released = source_.find_tensor(stem + std::string(kReleasedScaleSuffix));
    const TensorView* scale_inv = source_.find_tensor(stem + std::string(kHuggingFaceScaleSuffix));
    if (released != nullptr && scale_inv != nullptr) {
      report(StatusCode::kBadInput, released->name, "also " + printable(scale_inv->name), "one of the two");
      return;
    }
    const TensorView* scale = released != nullptr ? released : scale_inv;
    if (scale == nullptr) {
      require(expected[1].name, describe(expected[1].dtype, expected[1].shape));
      return;
    }
    if (!matches(*scale, expected[1].shape, {TensorDtype::kF8E8M0, TensorDtype::kF32})) return;
    const auto codes = scale->dtype == TensorDtype::kF32 ? scale_codes(*scale) : scale->data;
    check_scale_range(*scale, codes);
    if (fitting) take_part(out, view, nullptr, codes, part);
  }

  // E8M0 codes of F32 scales; empty after a report that one of them is no power of two.
  std::span<const std::byte> scale_codes(const TensorView& scale) {
    const auto codes = own<std::byte>(scale.data.size() / sizeof(float));
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto bits = read_value<std::uint32_t>(scale.data, i);
      const std::uint32_t exponent = bits >> 23;  // sign and exponent: a negative value counts as too large
      if ((bits & 0x7fffffu) != 0 || exponent == 0 || exponent >= 255) {
        report(StatusCode::kUnsupported, scale.name,
               "F32 value " + std::to_string(std::bit_cast<float>(bits)) + " at index " + std::to_string(i),
               "powers of two (F8_E8M0, or F32 that converts to it)");
        return {};
      }
      codes[i] = static_cast<std::byte>(exponent);
    }
    return codes;
  }

  void check_scale_range(const TensorView& scale, std::span<const std::byte> codes) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const int code = std::to_integer<int>(codes[i]);
      if (code >= kMinScaleCode && code <= kMaxScaleCode) continue;
      const std::string value = code == kE8m0NanCode ? "NaN" : "2^" + std::to_string(code - kE8m0Bias);
      report(StatusCode::kBadInput, scale.name, "scale " + value + " at index " + std::to_string(i),
             "scales in 2^-64..2^64");
      return;
    }
  }

  void fill_nvfp4(HostLinear& out, const std::string& stem, const TensorView& view, const MatrixPart& part) {
    out.encoding = WeightEncoding::kNvfp4;
    if (out.in_features % 16 != 0) {
      report(
          StatusCode::kUnsupported, view.name, describe(view.dtype, view.shape),
          "BF16 or F8_E4M3: NVFP4 needs a multiple of 16 inputs, this linear has " + std::to_string(out.in_features));
      return;
    }
    const auto expected = linear_tensors(stem, out.out_features, out.in_features, out.encoding, scheme_);
    const bool fitting = fits(view, expected[0].shape, {TensorDtype::kU8});
    const TensorView* scale = require(expected[1].name, describe(expected[1].dtype, expected[1].shape));
    if (scale != nullptr && fits(*scale, expected[1].shape, {TensorDtype::kF8E4M3}) && fitting) {
      take_part(out, view, scale, {}, part);
    }
    if (const TensorView* global = require(expected[2].name, "F32 []")) read_global_scale(*global, out.global_scale);
    const TensorView* input = source_.find_tensor(stem + std::string(kNvfp4InputScaleSuffix));
    if (input != nullptr) read_global_scale(*input, out.input_scale);
  }

  void read_global_scale(const TensorView& view, float& out) {
    if (view.dtype != TensorDtype::kF32 || !is_scalar(view)) {
      report(StatusCode::kBadInput, view.name, describe(view.dtype, view.shape), "F32 [] or [1]");
      return;
    }
    if (!read(view)) return;
    out = read_value<float>(view.data, 0);
    if (!std::isfinite(out) || out <= 0.0F) {
      report(StatusCode::kBadInput, view.name, std::to_string(out), "a finite value above 0");
    }
  }

  const TensorSource& source_;
  const NamingScheme scheme_;
  const LayerSpec& spec_;
  const NonFinite vectors_;
  const Depth depth_;
  const TensorShard shard_;
  const std::vector<AttentionTensorSpec> tensors_;
  std::vector<Problem>& problems_;
  HostAttentionWeights weights_;
};

Status all_problems(const TensorSource& source, std::span<const Problem> problems) {
  StatusCode code = problems.front().code;
  std::string message = shown(source.source_name()) + ": " + std::to_string(problems.size()) +
                        (problems.size() == 1 ? " problem" : " problems") + " with attention tensors:";
  for (const Problem& problem : problems) {
    if (problem.code != code) code = StatusCode::kBadInput;
    message += "\n  " + problem.text;
  }
  return {code, message};
}

Result<std::vector<HostAttentionWeights>> load(const TensorSource& source, const ModelConfig& config,
                                               std::span<const LayerSpec> layers, NonFinite vectors, Depth depth,
                                               const TensorShard& shard) {
  if (const auto part = shard_config(config, shard); !part.ok()) return part.status();
  for (const LayerSpec& spec : layers) {
    if (Status status = check_attention_dimensions(config, spec); !status.ok()) return status;
  }
  const auto scheme = detect_naming(source);
  if (!scheme) return scheme.status();
  std::vector<Problem> problems;
  std::vector<HostAttentionWeights> out;
  out.reserve(layers.size());
  for (const LayerSpec& spec : layers) {
    out.push_back(LayerLoader(source, *scheme, config, spec, vectors, depth, shard, problems).load());
  }
  if (!problems.empty()) return all_problems(source, problems);
  return out;
}

}  // namespace

Result<std::vector<HostAttentionWeights>> load_attention_weights(const TensorSource& source, const ModelConfig& config,
                                                                 std::span<const LayerSpec> layers, NonFinite vectors,
                                                                 const TensorShard& shard) {
  try {
    return load(source, config, layers, vectors, Depth::kData, shard);
  } catch (const std::bad_alloc&) {
    return out_of_memory(source.source_name(), "loading attention weights");
  }
}

Status check_attention_tensors(const TensorSource& source, const ModelConfig& config,
                               std::span<const LayerSpec> layers) {
  try {
    return load(source, config, layers, NonFinite::kRefused, Depth::kDeclarations, TensorShard{}).status();
  } catch (const std::bad_alloc&) {
    return out_of_memory(source.source_name(), "checking attention tensors");
  }
}

void drop_matrices(const TensorSource& source, const HostAttentionWeights& layer) noexcept {
  const auto drop = [&](const HostLinear& linear) {
    source.drop(linear.weight);
    source.drop(linear.scale);
    if (!linear.stored) return;
    source.drop(linear.stored->weight);
    source.drop(linear.stored->scale);
  };
  for (const HostLinear* linear : {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_a, &layer.wo_b}) drop(*linear);
  const auto drop_compressor = [&](const HostCompressor& compressor) {
    drop(compressor.wkv);
    drop(compressor.wgate);
  };
  if (layer.compressor) drop_compressor(*layer.compressor);
  if (!layer.indexer) return;
  drop(layer.indexer->wq_b);
  drop(layer.indexer->weights_proj);
  drop_compressor(layer.indexer->compressor);
}

Result<HostAttentionWeights> load_attention_weights(const TensorSource& source, const ModelConfig& config,
                                                    const LayerSpec& layer) {
  auto layers = load_attention_weights(source, config, std::span(&layer, 1));
  if (!layers) return layers.status();
  return std::move(layers->front());
}

}  // namespace dsv4rt
