// Prefill and decode one sequence through the C++ interface: cpp_decode <checkpoint directory>
//
// The layers run one by one, as in a stack that interleaves experts. Same inputs and same checksum as
// c_decode.c, which lets the engine walk the layers.
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "dsv4rt/engine.h"

namespace {

constexpr std::int32_t kPrefillTokens = 16;
constexpr int kDecodeSteps = 8;

class Decoder {
 public:
  explicit Decoder(dsv4rt::Engine& engine) : engine_(engine) {}

  dsv4rt::Status run() {
    const auto sequence = engine_.create_sequence(kPrefillTokens + kDecodeSteps);
    if (!sequence.ok()) return sequence.status();
    if (auto status = advance(*sequence, kPrefillTokens); !status.ok()) return status;
    for (int i = 0; i < kDecodeSteps; ++i) {
      if (auto status = advance(*sequence, 1); !status.ok()) return status;
    }
    const auto length = engine_.length(*sequence);
    if (!length.ok()) return length.status();
    std::printf("%" PRId64 " tokens, checksum %016" PRIx64 "\n", *length, checksum_);
    return engine_.release(*sequence);
  }

 private:
  dsv4rt::Status advance(dsv4rt::SequenceId sequence, std::int32_t tokens) {
    const dsv4rt::StepEntry entry{sequence, tokens};
    const auto step = engine_.prepare({&entry, 1});
    if (!step.ok()) return step.status();
    std::vector<dsv4rt::Bf16Bits> x(static_cast<std::size_t>(step->tokens * engine_.config().hidden_size));
    std::vector<dsv4rt::Bf16Bits> out(x.size());
    for (const dsv4rt::LayerId layer : engine_.layers()) {
      fill(x);
      if (auto status = engine_.forward_layer(*step, layer, x.data(), out.data()); !status.ok()) return status;
      for (const dsv4rt::Bf16Bits bits : out) checksum_ = (checksum_ ^ bits) * 1099511628211U;  // FNV-1a
    }
    return engine_.commit(*step);
  }

  // BF16 values of magnitude 0.5 to 2, the same in every run: the embedding and the experts of a model come here.
  void fill(std::vector<dsv4rt::Bf16Bits>& rows) {
    for (dsv4rt::Bf16Bits& value : rows) {
      random_ = random_ * 1664525U + 1013904223U;
      value = static_cast<dsv4rt::Bf16Bits>(((random_ >> 16) & 0x8000U) | (0x3f00U + ((random_ >> 8) & 0xffU)));
    }
  }

  dsv4rt::Engine& engine_;
  std::uint32_t random_ = 1;
  std::uint64_t checksum_ = 14695981039346656037U;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s <checkpoint directory>\n", argv[0]);
    return 2;
  }
  dsv4rt::EngineOptions options;
  options.checkpoint = argv[1];
  options.limits.max_context_tokens = 256;
  options.limits.max_step_tokens = kPrefillTokens;
  const auto engine = dsv4rt::Engine::create(options);
  const dsv4rt::Status status = engine.ok() ? Decoder(**engine).run() : engine.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
