// A snapshot with some bytes changed and its checksums made right again, restored beside another sequence: refused with
// a text, or saving it gives the very bytes again; and the other sequence never notices.
//
// The input is a list of edits of a valid snapshot, so that what is tried lies behind magic and checksums.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "engine/sequence_snapshot.h"
#include "expect.h"
#include "fuzz_input.h"
#include "fuzz_model.h"

namespace {

using namespace dsv4rt;

using Bytes = std::vector<std::byte>;

constexpr std::int64_t kTokens = 131;  // past a boundary of every compressor
constexpr std::uint64_t kStream = 1;   // inputs of the snapshot's sequence, kStream + 1 of the neighbour
constexpr std::size_t kDigestBytes = sizeof(Sha256::Digest);

// One step of the sequences; the outputs of all layers, by entry.
std::vector<std::vector<Bf16Bits>> run_step(Engine& engine, std::span<const StepEntry> entries,
                                            std::span<const std::vector<Bf16Bits>> inputs) {
  const auto step = engine.prepare(entries);
  fuzz::expect(step.ok(), step.status().to_string());
  std::vector<Bf16Bits> x;
  for (const auto& rows : inputs) x.insert(x.end(), rows.begin(), rows.end());
  std::vector<std::vector<Bf16Bits>> outputs(entries.size());
  for (const LayerId layer : engine.layers()) {
    std::vector<Bf16Bits> out(x.size());
    const Status ran = engine.forward_layer_from_host(*step, layer, x.data(), out.data());
    fuzz::expect(ran.ok(), ran.to_string());
    auto row = out.begin();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const auto values = static_cast<std::ptrdiff_t>(inputs[i].size());
      outputs[i].insert(outputs[i].end(), row, row + values);
      row += values;
    }
  }
  const Status committed = engine.commit(*step);
  fuzz::expect(committed.ok(), committed.to_string());
  return outputs;
}

Bytes make_snapshot(Engine& engine, std::uint64_t stream) {
  const SequenceId sequence = engine.create_sequence().value();
  const StepEntry entry{.sequence = sequence, .tokens = kTokens};
  const std::vector<Bf16Bits> rows = fuzz::model_rows(stream, 0, kTokens);
  run_step(engine, {&entry, 1}, {&rows, 1});
  Bytes snapshot = engine.save_sequence(sequence).value();
  fuzz::expect(engine.release(sequence).ok(), "release");
  return snapshot;
}

void sign(std::span<std::byte> part) {
  Sha256 digest;
  digest.update(part.first(part.size() - kDigestBytes));
  const Sha256::Digest bytes = digest.bytes();
  std::memcpy(part.last(kDigestBytes).data(), bytes.data(), bytes.size());
}

// Makes every checksum right, as far as the sections say where theirs are.
void repair(Bytes& snapshot) {
  std::span<std::byte> left(snapshot);
  const std::size_t header = sizeof(SnapshotHeader) + kDigestBytes;
  if (left.size() < header) return;
  sign(left.first(header));
  left = left.subspan(header);
  while (left.size() >= sizeof(SnapshotSectionHeader) + kDigestBytes) {
    SnapshotSectionHeader section;
    std::memcpy(&section, left.data(), sizeof(section));
    const std::size_t most = left.size() - sizeof(section) - kDigestBytes;
    if (section.bytes < 0 || static_cast<std::size_t>(section.bytes) > most) return;
    const std::size_t bytes = sizeof(section) + static_cast<std::size_t>(section.bytes) + kDigestBytes;
    sign(left.first(bytes));
    left = left.subspan(bytes);
  }
}

// Half of the edits hit headers, where there is the most to get wrong.
void edit(Bytes& snapshot, fuzz::FuzzInput& input) {
  while (!input.empty() && !snapshot.empty()) {
    const auto kind = input.take<std::uint8_t>();
    const std::size_t range = kind % 2 == 0 ? std::min<std::size_t>(snapshot.size(), 512) : snapshot.size();
    const std::size_t at = input.take<std::uint32_t>() % range;
    switch (kind / 2 % 8) {
      case 0:
        snapshot.resize(at);
        break;
      case 1:
        snapshot.resize(snapshot.size() + at % 64);
        break;
      case 2:
      case 3: {
        const auto value = input.take<std::uint64_t>();
        std::memcpy(snapshot.data() + at, &value, std::min(sizeof(value), snapshot.size() - at));
        break;
      }
      default:
        snapshot[at] = static_cast<std::byte>(input.take<std::uint8_t>());
        break;
    }
  }
}

struct Scene {
  std::unique_ptr<Engine> engine = fuzz::make_engine();
  Bytes snapshot = make_snapshot(*engine, kStream);
  Bytes neighbour = make_snapshot(*engine, kStream + 1);
  std::vector<Bf16Bits> next_row = fuzz::model_rows(kStream + 1, kTokens, 1);
  std::vector<Bf16Bits> neighbour_output;  // what one more token gives when it is run alone
  Bytes neighbour_after;                   // snapshot after it

  Scene() {
    const StepEntry entry{.sequence = engine->restore_sequence(neighbour).value(), .tokens = 1};
    neighbour_output = run_step(*engine, {&entry, 1}, {&next_row, 1}).front();
    neighbour_after = engine->save_sequence(entry.sequence).value();
    fuzz::expect(engine->release(entry.sequence).ok(), "release");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Scene scene;
  Engine& engine = *scene.engine;
  fuzz::FuzzInput input(data, size);
  Bytes snapshot = scene.snapshot;
  edit(snapshot, input);
  repair(snapshot);

  const auto restored = engine.restore_sequence(snapshot);
  if (!restored) {
    fuzz::expect_typed(restored.status());
    fuzz::expect(restored.status().code() != StatusCode::kResourceExhausted, "room for two sequences is there");
    return 0;
  }
  fuzz::expect(engine.save_sequence(*restored).value() == snapshot, "what was restored saves as something else");
  const SequenceId neighbour = engine.restore_sequence(scene.neighbour).value();
  const std::array entries{StepEntry{.sequence = *restored, .tokens = 1},
                           StepEntry{.sequence = neighbour, .tokens = 1}};
  const std::array inputs{fuzz::model_rows(kStream, kTokens, 1), scene.next_row};
  const auto outputs = run_step(engine, entries, inputs);
  fuzz::expect(outputs[1] == scene.neighbour_output, "the neighbour's outputs changed");
  fuzz::expect(engine.save_sequence(neighbour).value() == scene.neighbour_after, "the neighbour's cache changed");
  fuzz::expect(engine.release(*restored).ok() && engine.release(neighbour).ok(), "release");
  return 0;
}
