// The same prompt twice through the prefix cache, in C++: cpp_prefix <checkpoint directory>
//
// The second sequence begins with what the first one left behind and runs only the rest. The program prints how much
// that was and a checksum of the last token's outputs, which are the same both times; c_prefix.c prints the same line.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "dsv4rt/engine.h"

namespace {

constexpr std::int32_t kPromptTokens = 200;
constexpr char kTenant[] = "tenant 7";

// BF16 values of magnitude 0.5 to 2 for one token in one layer: the embedding and the experts of a model come here.
void fill_row(std::int32_t token_id, std::int32_t layer, std::span<dsv4rt::Bf16Bits> row) {
  std::uint32_t random = static_cast<std::uint32_t>(token_id) * 2654435761U + static_cast<std::uint32_t>(layer);
  for (dsv4rt::Bf16Bits& value : row) {
    random = random * 1664525U + 1013904223U;
    value = static_cast<dsv4rt::Bf16Bits>(((random >> 16) & 0x8000U) | (0x3f00U + ((random >> 8) & 0xffU)));
  }
}

struct Answer {
  std::int64_t hit_tokens = 0;
  std::uint64_t checksum = 14695981039346656037U;  // FNV-1a over the last token's outputs, layer by layer
};

dsv4rt::Status answer(dsv4rt::Engine& engine, std::span<const std::int32_t> prompt, Answer& answer) {
  const dsv4rt::SequenceOptions how{
      .salt = std::as_bytes(std::span(kTenant, sizeof(kTenant) - 1)), .reserve_tokens = kPromptTokens, .policy = {}};
  const auto start = engine.create_sequence(prompt, how);
  if (!start.ok()) return start.status();
  answer.hit_tokens = start->hit_tokens;
  // Never empty: a hit ends before the last token.
  const auto rest = prompt.subspan(static_cast<std::size_t>(start->hit_tokens));
  const dsv4rt::StepEntry entry{
      .sequence = start->sequence, .tokens = static_cast<std::int32_t>(rest.size()), .token_ids = rest.data()};
  const auto step = engine.prepare({&entry, 1});
  if (!step.ok()) return step.status();
  const auto hidden = static_cast<std::size_t>(engine.config().hidden_size);
  std::vector<dsv4rt::Bf16Bits> x(rest.size() * hidden);
  std::vector<dsv4rt::Bf16Bits> out(x.size());
  for (const dsv4rt::LayerId layer : engine.layers()) {
    for (std::size_t i = 0; i < rest.size(); ++i)
      fill_row(rest[i], layer.value, std::span(x).subspan(i * hidden, hidden));
    if (auto status = engine.forward_layer(*step, layer, x.data(), out.data()); !status.ok()) return status;
    for (const dsv4rt::Bf16Bits bits : std::span(out).last(hidden)) {
      answer.checksum = (answer.checksum ^ bits) * 1099511628211U;
    }
  }
  if (auto status = engine.commit(*step); !status.ok()) return status;
  return engine.release(start->sequence);  // what it computed stays in the cache
}

dsv4rt::Status run(dsv4rt::Engine& engine) {
  std::vector<std::int32_t> prompt(kPromptTokens);
  std::iota(prompt.begin(), prompt.end(), 1000);
  Answer cold;
  Answer warm;
  if (auto status = answer(engine, prompt, cold); !status.ok()) return status;
  if (auto status = answer(engine, prompt, warm); !status.ok()) return status;
  if (warm.checksum != cold.checksum) return {dsv4rt::StatusCode::kMismatch, "a hit gave other outputs"};
  std::printf("hit %" PRId64 " of %zu tokens, checksum %016" PRIx64 "\n", warm.hit_tokens, prompt.size(),
              warm.checksum);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s <checkpoint directory>\n", argv[0]);
    return 2;
  }
  dsv4rt::EngineOptions options;
  options.checkpoint = argv[1];
  options.limits.max_context_tokens = 256;
  options.limits.max_step_tokens = kPromptTokens;
  options.limits.boundary_states = 4;
  options.prefix_cache.on_event = [](const dsv4rt::PrefixEvent& event) {
    if (event.kind != dsv4rt::PrefixEvent::Kind::kStateStored) return;
    std::fprintf(stderr, "a sequence can begin with %" PRId64 " tokens\n", event.end_tokens);
  };
  const auto engine = dsv4rt::Engine::create(options);
  const dsv4rt::Status status = engine.ok() ? run(**engine) : engine.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
