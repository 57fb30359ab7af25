// The compressors of profile `seed` over the backend's operations, with the golden inputs and weights
// of seed-compressor.safetensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors_reader.h"
#include "support/backend_array.h"
#include "support/cache_rig.h"

namespace dsv4rt::test {

// Values of one golden tensor, [rows, columns].
struct GoldenTensor {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;

  [[nodiscard]] double at(std::int64_t row, std::int64_t column) const {
    return values.at(static_cast<std::size_t>(row * columns + column));
  }
};

// One compressor. `previous` and `current` are the two projections of an overlapping one (the seed's b and
// a); a plain one has only `current`.
struct SeedStream {
  struct Projection {
    GoldenTensor kv;    // [d, dim]
    GoldenTensor gate;  // [d, dim]
    GoldenTensor bias;  // [ratio, dim]
  };
  CacheRole role = CacheRole::kCsaKv;
  int layer = 0;
  bool rotated = true;
  Projection previous;
  Projection current;
  GoldenTensor expected;
  // Packed [previous | current].
  std::unique_ptr<PackedLinear> wkv;
  std::unique_ptr<PackedLinear> wgate;
  BackendArray<float> ape;
  BackendArray<float> kv;  // fresh projections of the step
  BackendArray<float> score;

  [[nodiscard]] bool overlap() const { return previous.kv.rows > 0; }
  [[nodiscard]] std::int64_t dim() const { return current.kv.columns; }
  [[nodiscard]] std::int64_t ratio() const { return current.bias.rows; }
};

class SeedCompressor {
 public:
  static constexpr std::int64_t kTokens = 300;
  static constexpr std::int64_t kHidden = 64;
  static constexpr int kCsaLayer = 0;
  static constexpr int kHcaLayer = 1;

  SeedCompressor(RowFormat rows, IndexKeyFormat keys);

  // Feeds the next golden tokens: projections, compress, state update, for every compressor. The calls
  // are the same whether or not a block completes. `masked` tells the device that none does.
  void append(std::int64_t tokens, bool masked = false);
  void append_all(std::int64_t chunk);

  [[nodiscard]] CacheRig& rig() { return rig_; }
  [[nodiscard]] SequenceId sequence() const { return sequence_; }
  [[nodiscard]] std::int64_t length() const { return length_; }
  [[nodiscard]] SeedStream& csa() { return streams_[0]; }
  [[nodiscard]] SeedStream& index() { return streams_[1]; }
  [[nodiscard]] SeedStream& hca() { return streams_[2]; }
  [[nodiscard]] std::vector<SeedStream>& streams() { return streams_; }
  [[nodiscard]] const GoldenTensor& hidden() const { return hidden_; }
  [[nodiscard]] int pool(const SeedStream& stream) const;
  [[nodiscard]] int state_slot(const SeedStream& stream) const;

  // Rows of the sequence, de-quantized, one after the other.
  [[nodiscard]] std::vector<float> rows(const SeedStream& stream) const;

  // weight * hidden[t] of golden tokens [first, first + tokens).
  BackendArray<float> project(const PackedLinear& weight, std::int64_t first, std::int64_t tokens);
  // BF16 matrix with the columns of `parts` side by side as its output rows.
  std::unique_ptr<PackedLinear> pack(const std::vector<const GoldenTensor*>& parts);

 private:
  [[nodiscard]] GoldenTensor tensor(const std::string& name) const;
  void finish_stream(SeedStream& stream);
  void compress(SeedStream& stream, const StepView& step, std::int64_t tokens);

  SafetensorsReader file_;
  CacheRig rig_;
  BackendArray<float> frequencies_;
  BackendArray<bf16> hidden_bits_;
  GoldenTensor hidden_;
  std::vector<SeedStream> streams_;
  SequenceId sequence_;
  std::int64_t length_ = 0;
};

// How a block's entry is formed; all but kPaper are mistakes that tests must notice.
enum class SeedEquation {
  kPaper,             // current rows through a, previous rows through b
  kPreviousThroughA,  // previous rows enter through the current projection
  kSwapped,           // current rows through b, previous rows through a
};
// Entry `block` in double precision straight from the golden tensors, not rotated.
std::vector<double> seed_entry(const SeedStream& stream, const GoldenTensor& hidden, std::int64_t block,
                               SeedEquation equation = SeedEquation::kPaper);
// Rotates the last 64 values at `position`.
void seed_rotate(std::vector<double>& entry, std::int64_t position);

// ||a - b|| / ||b||.
template <class A, class B>
double relative_distance(const A& a, const B& b) {
  double error = 0;
  double norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    error += difference * difference;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(error / norm);
}

}  // namespace dsv4rt::test
