#include "checkpoint/synthetic_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/arithmetic.h"
#include "base/bfloat16.h"
#include "base/message_text.h"
#include "base/system_failure.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/synthetic_values.h"
#include "checkpoint/weight_index.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigFileName = "config.json";
constexpr std::int64_t kStripeRows = 128;
constexpr float kApeDeviation = 0.1F;
constexpr float kNormDeviation = 0.1F;

// A stored tensor and how its bytes come about.
struct Source {
  enum class Kind : std::uint8_t { kSink, kApe, kNorm, kMatrix, kBlockScale, kGlobalScale };
  TensorDeclaration tensor;
  Kind kind = Kind::kMatrix;
  WeightEncoding encoding = WeightEncoding::kBf16;  // kMatrix
  std::int64_t rows = 0;                            // logical, kMatrix and kGlobalScale
  std::int64_t cols = 0;
  std::string weight_name;  // the matrix a scale belongs to

  [[nodiscard]] std::uint64_t bytes() const { return *tensor_bytes(tensor.dtype, tensor.shape); }
};

void add_linear(std::vector<Source>& out, const std::string& stem, const AttentionTensorSpec& row,
                WeightEncoding encoding) {
  const std::int64_t rows = row.shape[0];
  const std::int64_t cols = row.shape[1];
  auto parts = linear_tensors(stem, rows, cols, encoding, {});
  const std::string weight_name = parts[0].name;
  constexpr Source::Kind kKinds[] = {Source::Kind::kMatrix, Source::Kind::kBlockScale, Source::Kind::kGlobalScale};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    out.push_back({std::move(parts[i]), kKinds[i], encoding, rows, cols, weight_name});
  }
}

std::vector<Source> layer_sources(const ModelConfig& config, const LayerSpec& spec, WeightEncoding encoding) {
  std::vector<Source> out;
  for (const AttentionTensorSpec& row : attention_tensor_specs(config, spec)) {
    const std::string stem = attention_stem({}, spec.id, row.tensor);
    switch (row.kind) {
      case AttentionTensorKind::kFloatVector: {
        const bool sink = row.tensor == AttentionTensor::kAttnSink;
        out.push_back({{stem, TensorDtype::kF32, row.shape},
                       sink ? Source::Kind::kSink : Source::Kind::kApe,
                       WeightEncoding::kBf16,
                       0,
                       0,
                       {}});
        break;
      }
      case AttentionTensorKind::kNorm:
        out.push_back({{stem + std::string(kWeightSuffix), TensorDtype::kBf16, row.shape},
                       Source::Kind::kNorm,
                       WeightEncoding::kBf16,
                       0,
                       0,
                       {}});
        break;
      case AttentionTensorKind::kPlainLinear:
        add_linear(out, stem, row, WeightEncoding::kBf16);
        break;
      case AttentionTensorKind::kQuantizedLinear:
        add_linear(out, stem, row, encoding);
        break;
    }
  }
  return out;
}

// Greedy in table order, so a matrix never comes after its scales; within a shard wide elements first,
// which keeps every tensor aligned.
std::vector<std::vector<Source>> split_shards(std::vector<Source> sources, std::uint64_t max_shard_bytes) {
  std::vector<std::vector<Source>> shards(1);
  std::uint64_t filled = 0;
  for (Source& source : sources) {
    const std::uint64_t bytes = source.bytes();
    if (max_shard_bytes > 0 && filled > 0 && bytes > max_shard_bytes - std::min(filled, max_shard_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(source));
  }
  for (auto& shard : shards) {
    std::map<int, std::vector<Source>, std::greater<>> by_width;
    for (Source& source : shard) by_width[tensor_dtype_bits(source.tensor.dtype)].push_back(std::move(source));
    shard.clear();
    for (auto& [width, sources] : by_width) std::move(sources.begin(), sources.end(), std::back_inserter(shard));
  }
  return shards;
}

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : seed_(seed) {}

  Status write(SafetensorsWriter& writer, const Source& source) {
    switch (source.kind) {
      case Source::Kind::kSink:
        return write_vector<float>(writer, source, 0.0F, 1.0F);
      case Source::Kind::kApe:
        return write_vector<float>(writer, source, 0.0F, kApeDeviation);
      case Source::Kind::kNorm:
        return write_vector<bf16>(writer, source, 1.0F, kNormDeviation);
      case Source::Kind::kMatrix:
        return write_matrix(writer, source);
      case Source::Kind::kBlockScale: {
        // Made while the matrix was written, which precedes it.
        const auto scales = scales_.extract(source.weight_name);
        return writer.write(source.tensor.name, scales.mapped());
      }
      case Source::Kind::kGlobalScale:
        break;
    }
    const float scale = global_scale(source);
    return writer.write(source.tensor.name, std::as_bytes(std::span(&scale, 1)));
  }

 private:
  // Brings the largest possible group scale to the top of E4M3.
  [[nodiscard]] float global_scale(const Source& source) const {
    return SyntheticMatrix(seed_, source.weight_name, source.cols).bound() / (kE2m1Max * kE4m3Max);
  }

  template <class T>
  Status write_vector(SafetensorsWriter& writer, const Source& source, float mean, float deviation) const {
    const SyntheticStream stream(seed_, source.tensor.name);
    std::vector<T> values(source.bytes() / sizeof(T));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float value = mean + deviation * stream.normal(i);
      if constexpr (std::is_same_v<T, bf16>) {
        values[i] = to_bf16(value);
      } else {
        values[i] = value;
      }
    }
    return writer.write(source.tensor.name, std::as_bytes(std::span<const T>(values)));
  }

  Status write_matrix(SafetensorsWriter& writer, const Source& source) {
    const SyntheticMatrix matrix(seed_, source.weight_name, source.cols);
    const auto cols = static_cast<std::size_t>(source.cols);
    std::vector<float> stripe;
    std::vector<std::byte> codes;
    std::vector<std::byte>* const scales =
        source.encoding == WeightEncoding::kBf16 ? nullptr : &scales_[source.weight_name];
    for (std::int64_t first = 0; first < source.rows; first += kStripeRows) {
      const auto rows = static_cast<std::size_t>(std::min(kStripeRows, source.rows - first));
      stripe.resize(rows * cols);
      for (std::size_t r = 0; r < rows; ++r) {
        matrix.fill_row(first + static_cast<std::int64_t>(r), std::span(stripe).subspan(r * cols, cols));
      }
      switch (source.encoding) {
        case WeightEncoding::kBf16:
          encode_bf16(stripe, codes);
          break;
        case WeightEncoding::kFp8Block128:
          encode_fp8(stripe, rows, cols, codes, *scales);
          break;
        case WeightEncoding::kNvfp4:
          encode_nvfp4(stripe, global_scale(source), codes, *scales);
          break;
      }
      if (Status status = writer.write(source.tensor.name, codes); !status.ok()) return status;
    }
    return {};
  }

  static void encode_bf16(std::span<const float> stripe, std::vector<std::byte>& codes) {
    codes.resize(stripe.size() * sizeof(bf16));
    for (std::size_t i = 0; i < stripe.size(); ++i) {
      const bf16 value = to_bf16(stripe[i]);
      std::memcpy(codes.data() + i * sizeof(bf16), &value, sizeof(bf16));
    }
  }

  // One row of scales: the stripe is as high as a block.
  static void encode_fp8(std::span<const float> stripe, std::size_t rows, std::size_t cols,
                         std::vector<std::byte>& codes, std::vector<std::byte>& scales) {
    codes.resize(stripe.size());
    for (std::size_t begin = 0; begin < cols; begin += kFp8ScaleBlock) {
      const std::size_t end = std::min(cols, begin + kFp8ScaleBlock);
      float amax = 0.0F;
      for (std::size_t r = 0; r < rows; ++r) {
        amax = std::max(amax, finite_amax(&stripe[r * cols + begin], end - begin));
      }
      const std::uint8_t scale = e8m0_scale_for_e4m3(amax);
      scales.push_back(std::byte{scale});
      const float inverse = 1.0F / decode_e8m0(scale);  // exact: a power of two
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = begin; c < end; ++c) {
          codes[r * cols + c] = std::byte{encode_e4m3(stripe[r * cols + c] * inverse)};
        }
      }
    }
  }

  static void encode_nvfp4(std::span<const float> stripe, float global_scale, std::vector<std::byte>& codes,
                           std::vector<std::byte>& scales) {
    codes.resize(stripe.size() / 2);
    for (std::size_t group = 0; group < stripe.size() / kNvfp4GroupValues; ++group) {
      scales.push_back(std::byte{
          encode_nvfp4_group(&stripe[group * kNvfp4GroupValues], &codes[group * kNvfp4GroupBytes], global_scale)});
    }
  }

  std::uint64_t seed_;
  std::map<std::string, std::vector<std::byte>> scales_;  // key: name of the matrix, until its scales are written
};

// None of the files to be written, nor another checkpoint, is there.
Status check_directory(const fs::path& directory, std::span<const std::string> names) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return {StatusCode::kBadInput, shown(directory) + ": cannot create the directory: " + error.message()};
  }
  for (const std::string& name : names) {
    const fs::file_type type = fs::symlink_status(directory / name, error).type();
    if (type == fs::file_type::none) return system_failure((directory / name).native(), "look for it", error.value());
    if (type != fs::file_type::not_found) {
      return {StatusCode::kFailedPrecondition,
              shown(directory / name) + ": already exists; give a directory without a model"};
    }
  }
  return {};
}

// Files of a checkpoint that is being written; removed again when it does not come to its end.
class WrittenFiles {
 public:
  explicit WrittenFiles(const fs::path& directory) : directory_(directory) {}
  WrittenFiles(const WrittenFiles&) = delete;
  WrittenFiles& operator=(const WrittenFiles&) = delete;
  ~WrittenFiles() {
    std::error_code ignored;
    for (const std::string& name : names_) fs::remove(directory_ / name, ignored);
  }
  void add(std::string name) { names_.push_back(std::move(name)); }
  void keep() { names_.clear(); }

 private:
  const fs::path& directory_;
  std::vector<std::string> names_;
};

std::string shard_name(std::size_t index, std::size_t count) {
  const auto digits = [](std::size_t value) {
    std::string text = std::to_string(value);
    return text.insert(0, text.size() < 5 ? 5 - text.size() : 0, '0');
  };
  return "model-" + digits(index + 1) + "-of-" + digits(count) + ".safetensors";
}

Status write_shard(const fs::path& path, std::span<const Source> sources, Generator& generator) {
  std::vector<TensorDeclaration> declarations;
  for (const Source& source : sources) declarations.push_back(source.tensor);
  auto writer = SafetensorsWriter::create(path, std::move(declarations), {{"format", "pt"}}, Existing::kRefuse);
  if (!writer) return writer.status();
  for (const Source& source : sources) {
    if (Status status = generator.write(*writer, source); !status.ok()) return status;
  }
  return writer->finish();
}

Status write_checkpoint(const fs::path& directory, const ModelConfig& config, std::span<const LayerSpec> layers,
                        const SyntheticCheckpointOptions& options) {
  std::vector<Source> sources;
  for (const LayerSpec& spec : layers) {
    if (Status status = check_attention_dimensions(config, spec); !status.ok()) return status;
    for (Source& source : layer_sources(config, spec, options.encoding)) {
      if (source.encoding == WeightEncoding::kNvfp4 && source.cols % kNvfp4GroupValues != 0) {
        return {StatusCode::kUnsupported, source.weight_name +
                                              ": NVFP4 needs a multiple of 16 inputs, this linear has " +
                                              std::to_string(source.cols)};
      }
      sources.push_back(std::move(source));
    }
  }
  Generator generator(options.seed);
  std::uint64_t total_bytes = 0;
  for (const Source& source : sources) total_bytes += source.bytes();
  const auto shards = split_shards(std::move(sources), options.max_shard_bytes);
  const bool single = options.max_shard_bytes == 0;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    names.push_back(single ? std::string(kSingleWeightFileName) : shard_name(i, shards.size()));
  }
  std::vector<std::string> taken = names;
  taken.insert(taken.end(),
               {std::string(kConfigFileName), std::string(kWeightIndexFileName), std::string(kSingleWeightFileName)});
  if (Status status = check_directory(directory, taken); !status.ok()) return status;

  // The config, without which nothing loads, and the index come last, and no file takes another's place: of two that
  // write into one directory the first stays, whole.
  WrittenFiles written(directory);
  std::map<std::string, std::string> shard_of;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const Source& source : shards[i]) shard_of.emplace(source.tensor.name, names[i]);
    if (Status status = write_shard(directory / names[i], shards[i], generator); !status.ok()) return status;
    written.add(names[i]);
  }
  if (!single) {
    Status status = write_weight_index(directory / kWeightIndexFileName, shard_of, total_bytes, Existing::kRefuse);
    if (!status.ok()) return status;
    written.add(std::string(kWeightIndexFileName));
  }
  Status status =
      write_text_file(directory / kConfigFileName, config_json(config, options.encoding), Existing::kRefuse);
  if (status.ok()) written.keep();
  return status;
}

}  // namespace

Status write_synthetic_checkpoint(const fs::path& directory, const ModelConfig& config,
                                  std::span<const LayerSpec> layers, const SyntheticCheckpointOptions& options) {
  try {
    return write_checkpoint(directory, config, layers, options);
  } catch (const std::bad_alloc&) {
    return out_of_memory(directory.native(), "writing the checkpoint");
  }
}

}  // namespace dsv4rt
