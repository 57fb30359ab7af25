// A snapshot, or one with an increment on it, with some bytes changed and its checksums made right again, restored
// beside another sequence: refused with a text, or saving it gives the very bytes again; from a source the same
// happens; and the other sequence never notices.
//
// The input is a list of edits of a valid snapshot, so that what is tried lies behind magic and checksums.
#include <algorithm>
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

void feed(Engine& engine, SequenceId sequence, std::uint64_t stream, std::int64_t first, std::int32_t tokens) {
  const StepEntry entry{.sequence = sequence, .tokens = tokens};
  const std::vector<Bf16Bits> rows = fuzz::model_rows(stream, first, tokens);
  run_step(engine, {&entry, 1}, {&rows, 1});
}

Bytes make_snapshot(Engine& engine, std::uint64_t stream) {
  const SequenceId sequence = engine.create_sequence().value();
  feed(engine, sequence, stream, 0, kTokens);
  Bytes snapshot = engine.save_sequence(sequence).value();
  fuzz::expect(engine.release(sequence).ok(), "release");
  return snapshot;
}

// The same tokens in two pieces.
Bytes make_chain(Engine& engine, std::uint64_t stream) {
  constexpr std::int32_t kFirst = 126;
  const SequenceId sequence = engine.create_sequence().value();
  feed(engine, sequence, stream, 0, kFirst);
  Bytes chain = engine.save_sequence(sequence).value();
  feed(engine, sequence, stream, kFirst, kTokens - kFirst);
  const Bytes increment = engine.save_sequence(sequence, SnapshotOptions{.base_tokens = kFirst}).value();
  chain.insert(chain.end(), increment.begin(), increment.end());
  fuzz::expect(engine.release(sequence).ok(), "release");
  return chain;
}

// As Engine::restore_sequence, a part at a time.
Result<SequenceId> restore_in_parts(Engine& engine, std::span<const std::byte> rest) {
  return engine.restore_sequence_from([&](std::span<std::byte> buffer) -> Result<std::size_t> {
    const std::size_t bytes = std::min({buffer.size(), rest.size(), std::size_t{3000}});
    std::memcpy(buffer.data(), rest.data(), bytes);
    rest = rest.subspan(bytes);
    return bytes;
  });
}

void sign(std::span<std::byte> part) {
  Sha256 digest;
  digest.update(part.first(part.size() - kDigestBytes));
  const Sha256::Digest bytes = digest.bytes();
  std::memcpy(part.last(kDigestBytes).data(), bytes.data(), bytes.size());
}

// Makes every checksum right, as far as headers say where theirs are, and what increments say of the piece before.
void repair(Bytes& snapshot) {
  std::span<std::byte> left(snapshot);
  Sha256::Digest before{};
  while (left.size() >= sizeof(SnapshotHeader) + sizeof(SnapshotBase) + kDigestBytes) {
    SnapshotHeader header;
    std::memcpy(&header, left.data(), sizeof(header));
    std::size_t bytes = sizeof(header) + kDigestBytes;
    if (header.version == kIncrementVersion) {
      std::memcpy(left.data() + sizeof(header) + offsetof(SnapshotBase, digest), before.data(), before.size());
      bytes += sizeof(SnapshotBase);
    }
    Sha256 checksums;
    const auto sign_part = [&](std::size_t part) {
      sign(left.first(part));
      checksums.update(left.subspan(part - kDigestBytes, kDigestBytes));
      left = left.subspan(part);
    };
    sign_part(bytes);
    for (std::uint32_t i = 0; i < header.sections; ++i) {
      if (left.size() < sizeof(SnapshotSectionHeader) + kDigestBytes) return;
      SnapshotSectionHeader section;
      std::memcpy(&section, left.data(), sizeof(section));
      const std::size_t most = left.size() - sizeof(section) - kDigestBytes;
      if (section.bytes < 0 || static_cast<std::size_t>(section.bytes) > most) return;
      sign_part(sizeof(section) + static_cast<std::size_t>(section.bytes) + kDigestBytes);
    }
    before = checksums.bytes();
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
  Bytes chain = make_chain(*engine, kStream);
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
  // One bit of the first byte says which; the inputs of before there were chains keep their meaning.
  const bool chained = size > 0 && (data[0] & 0x80U) != 0;
  Bytes snapshot = chained ? scene.chain : scene.snapshot;
  edit(snapshot, input);
  repair(snapshot);

  const auto restored = engine.restore_sequence(snapshot);
  const auto in_parts = restore_in_parts(engine, snapshot);
  fuzz::expect(restored.status().code() == in_parts.status().code(), "a source gives another answer");
  if (!restored) {
    fuzz::expect_typed(restored.status());
    fuzz::expect(restored.status().code() != StatusCode::kResourceExhausted, "room for two sequences is there");
    return 0;
  }
  const Bytes saved = engine.save_sequence(*restored).value();
  fuzz::expect(chained || saved == snapshot, "what was restored saves as something else");
  fuzz::expect(engine.save_sequence(*in_parts).value() == saved, "a source gives another sequence");
  fuzz::expect(engine.release(*in_parts).ok(), "release");
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
