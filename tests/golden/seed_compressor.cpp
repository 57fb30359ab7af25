#include "seed_compressor.h"

#include <cmath>
#include <filesystem>

#include "model/rope.h"
#include "support/reference_math.h"
#include "support/test_backend.h"

namespace dsv4rt::test {
namespace {

constexpr const char* kPath = DSV4RT_SOURCE_DIR "/tests/golden/seed-compressor.safetensors";

ModelConfig seed_config() {
  ModelConfig config;
  config.hidden_size = SeedCompressor::kHidden;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 1;
  config.sliding_window = 128;
  config.index_n_heads = 1;
  config.index_topk = 16;
  config.rope_theta = 1e4;
  config.compress_rope_theta = 1e4;
  config.max_position_embeddings = 4096;
  config.compress_ratios = {4, 128};
  return config;
}

// Small blocks, so that tables have several entries.
CacheFormats seed_formats(RowFormat rows, IndexKeyFormat keys) {
  return {
      .rows = rows, .index_keys = keys, .csa_rows_per_block = 16, .hca_rows_per_block = 2, .draft_budget_tokens = 0};
}

}  // namespace

SeedCompressor::SeedCompressor(RowFormat rows, IndexKeyFormat keys)
    : file_(SafetensorsReader::open(kPath).value()),
      rig_(create_test_backend().value(), seed_config(), seed_formats(rows, keys),
           {.max_sequences = 2, .max_context_tokens = 512, .max_step_tokens = 512, .pool_tokens = 0}),
      frequencies_(rig_.backend(), std::span<const float>(rope_frequencies(seed_config(), RopeChoice::kPlain))),
      hidden_(tensor("hidden")) {
  std::vector<bf16> bits;
  for (const double value : hidden_.values) bits.push_back(to_bf16(static_cast<float>(value)));
  hidden_bits_ = BackendArray<bf16>(rig_.backend(), bits);
  streams_.resize(3);
  csa().role = CacheRole::kCsaKv;
  csa().layer = kCsaLayer;
  csa().previous = {tensor("csa.W_b_KV"), tensor("csa.W_b_Z"), tensor("csa.B_b")};
  csa().current = {tensor("csa.W_a_KV"), tensor("csa.W_a_Z"), tensor("csa.B_a")};
  csa().expected = tensor("expected.csa.compressed_kv");
  index().role = CacheRole::kIndexK;
  index().layer = kCsaLayer;
  index().rotated = false;
  index().previous = {tensor("csa.W_I_b_KV"), tensor("csa.W_I_b_Z"), tensor("csa.B_I_b")};
  index().current = {tensor("csa.W_I_a_KV"), tensor("csa.W_I_a_Z"), tensor("csa.B_I_a")};
  index().expected = tensor("expected.csa.indexer_keys");
  hca().role = CacheRole::kHcaKv;
  hca().layer = kHcaLayer;
  hca().current = {tensor("hca.W_KV"), tensor("hca.W_Z"), tensor("hca.B")};
  hca().expected = tensor("expected.hca.compressed_kv");
  for (SeedStream& stream : streams_) finish_stream(stream);
  sequence_ = rig_.create_sequence();
}

GoldenTensor SeedCompressor::tensor(const std::string& name) const {
  const TensorView* view = file_.find(name);
  if (view == nullptr) throw std::runtime_error(name + " is not in " + kPath);
  if (const Status read = file_.read(view->data); !read.ok()) throw std::runtime_error(read.message());
  GoldenTensor tensor{.rows = view->shape[0], .columns = view->shape[1], .values = {}};
  const auto count = static_cast<std::size_t>(tensor.rows * tensor.columns);
  for (std::size_t i = 0; i < count; ++i) {
    if (view->dtype == TensorDtype::kBf16) {
      bf16 value;
      std::memcpy(&value, view->data.data() + i * sizeof(value), sizeof(value));
      tensor.values.push_back(to_float(value));
    } else {
      float value = 0;
      std::memcpy(&value, view->data.data() + i * sizeof(value), sizeof(value));
      tensor.values.push_back(value);
    }
  }
  return tensor;
}

std::unique_ptr<PackedLinear> SeedCompressor::pack(const std::vector<const GoldenTensor*>& parts) {
  std::vector<bf16> weight;
  for (const GoldenTensor* part : parts) {
    for (std::int64_t column = 0; column < part->columns; ++column) {
      for (std::int64_t row = 0; row < part->rows; ++row) {
        weight.push_back(to_bf16(static_cast<float>(part->at(row, column))));
      }
    }
  }
  HostLinear host;
  host.name = "seed weight";
  host.out_features = static_cast<std::int64_t>(weight.size()) / kHidden;
  host.in_features = kHidden;
  host.weight = std::as_bytes(std::span(weight));
  return rig_.backend().pack_linear(host).value();
}

void SeedCompressor::finish_stream(SeedStream& stream) {
  std::vector<const SeedStream::Projection*> parts;
  if (stream.overlap()) parts.push_back(&stream.previous);
  parts.push_back(&stream.current);
  std::vector<const GoldenTensor*> kv;
  std::vector<const GoldenTensor*> gate;
  for (const auto* part : parts) {
    kv.push_back(&part->kv);
    gate.push_back(&part->gate);
  }
  stream.wkv = pack(kv);
  stream.wgate = pack(gate);
  std::vector<float> ape;
  for (std::int64_t row = 0; row < stream.ratio(); ++row) {
    for (const auto* part : parts) {
      for (std::int64_t i = 0; i < stream.dim(); ++i) ape.push_back(static_cast<float>(part->bias.at(row, i)));
    }
  }
  stream.ape = BackendArray<float>(rig_.backend(), ape);
}

BackendArray<float> SeedCompressor::project(const PackedLinear& weight, std::int64_t first, std::int64_t tokens) {
  BackendArray<float> y(rig_.backend(), static_cast<std::size_t>(tokens * weight.out_features()));
  const LinearCall call{.x = hidden_bits_.data() + first * kHidden,
                        .x_stride = kHidden,
                        .weight = &weight,
                        .y = y.data(),
                        .y_stride = weight.out_features(),
                        .output = OutputType::kF32};
  EXPECT_OK(rig_.ops().linear(static_cast<std::int32_t>(tokens), {&call, 1}));
  return y;
}

void SeedCompressor::compress(SeedStream& stream, const StepView& step, std::int64_t tokens) {
  stream.kv = project(*stream.wkv, length_, tokens);
  stream.score = project(*stream.wgate, length_, tokens);
  const LayerCache cache = rig_.layer_cache(stream.layer);
  const Profile profile = Profile::seed();
  const bool key = stream.role == CacheRole::kIndexK;
  const CompressParams params{
      .step = step,
      .input = {.kv = stream.kv.data(),
                .score = stream.score.data(),
                .stride = stream.wkv->out_features(),
                .ape = stream.ape.data(),
                .ratio = static_cast<std::int32_t>(stream.ratio()),
                .ratio_class = rig_.schedule().ratio_class(static_cast<std::int32_t>(stream.ratio())),
                .dim = static_cast<std::int32_t>(stream.dim()),
                .overlap = stream.overlap()},
      .state = key ? cache.index_state : cache.state,
      .norm_weight = nullptr,
      .eps = 0,
      .rope = key && !profile.index_rope ? RopeParams{} : RopeParams{frequencies_.data(), false},
      .anchor = profile.rope_anchor,
      .hadamard = key && profile.index_hadamard,
      .is_index_key = key,
      .row_format = rig_.layout().formats().rows,
      .key_format = rig_.layout().formats().index_keys,
      .rows = key ? cache.index_keys : cache.rows};
  EXPECT_OK(rig_.ops().compress(params));
  EXPECT_OK(rig_.ops().state_store({.step = step, .input = params.input, .state = params.state}));
}

void SeedCompressor::append(std::int64_t tokens, bool masked) {
  const StepEntry entry{sequence_, static_cast<std::int32_t>(tokens)};
  const StepView step = rig_.begin({&entry, 1}, {}, masked);
  for (SeedStream& stream : streams_) compress(stream, step, tokens);
  rig_.commit();
  length_ += tokens;
}

void SeedCompressor::append_all(std::int64_t chunk) {
  while (length_ < kTokens) append(std::min(chunk, kTokens - length_));
}

int SeedCompressor::pool(const SeedStream& stream) const {
  return rig_.layout().pool_index(LayerId(stream.layer), stream.role);
}

int SeedCompressor::state_slot(const SeedStream& stream) const {
  const CacheRole role = stream.role == CacheRole::kIndexK ? CacheRole::kIndexState
                         : stream.overlap()                ? CacheRole::kCsaState
                                                           : CacheRole::kHcaState;
  return rig_.layout().slot_index(LayerId(stream.layer), role);
}

std::vector<float> SeedCompressor::rows(const SeedStream& stream) const {
  std::vector<float> all;
  for (std::int64_t row = 0; row < length_ / stream.ratio(); ++row) {
    const auto values = rig_.row_values(pool(stream), sequence_, row);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

namespace {

double dot(const GoldenTensor& hidden, std::int64_t token, const GoldenTensor& weight, std::int64_t column) {
  double sum = 0;
  for (std::int64_t i = 0; i < hidden.columns; ++i) sum += hidden.at(token, i) * weight.at(i, column);
  return sum;
}

}  // namespace

std::vector<double> seed_entry(const SeedStream& stream, const GoldenTensor& hidden, std::int64_t block,
                               SeedEquation equation) {
  const std::int64_t ratio = stream.ratio();
  const bool swapped = equation == SeedEquation::kSwapped;
  const SeedStream::Projection& current = swapped ? stream.previous : stream.current;
  const SeedStream::Projection& previous = equation == SeedEquation::kPaper ? stream.previous : stream.current;
  std::vector<double> entry;
  for (std::int64_t column = 0; column < stream.dim(); ++column) {
    ReferencePool pooled;
    const auto add = [&](const SeedStream::Projection& projection, std::int64_t first) {
      for (std::int64_t i = 0; i < ratio; ++i) {
        const double gate = dot(hidden, first + i, projection.gate, column) + projection.bias.at(i, column);
        pooled.add(gate, dot(hidden, first + i, projection.kv, column));
      }
    };
    if (stream.overlap() && block > 0) add(previous, (block - 1) * ratio);
    add(current, block * ratio);
    entry.push_back(pooled.value());
  }
  return entry;
}

void seed_rotate(std::vector<double>& entry, std::int64_t position) {
  reference_rotate(std::span(entry).last(kRopeDim), [&](std::size_t pair) {
    return static_cast<double>(position) * std::pow(1e4, -2.0 * static_cast<double>(pair) / kRopeDim);
  });
}

}  // namespace dsv4rt::test
