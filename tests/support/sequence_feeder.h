// Drives an engine with sequences whose inputs are given for every layer.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4rt/engine.h"
#include "support/expect_ok.h"
#include "support/layer_rows.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {

// A sequence of the engine and everything it was fed and gave.
struct FedSequence {
  SequenceId id;
  LayerRows inputs;   // rows from position 0; the feeder takes those after `length`
  LayerRows outputs;  // rows of accepted tokens
  std::int64_t length = 0;
  std::vector<std::int32_t> token_ids = {};  // ids of the inputs; none: the sequence is not cached
};

// One sequence's part of a step.
struct FeedPart {
  FedSequence* sequence = nullptr;
  std::int64_t tokens = 0;
  std::int64_t rejected = 0;  // the last ones are fed wrong inputs and not accepted
};

class SequenceFeeder {
 public:
  explicit SequenceFeeder(Engine& engine) : engine_(engine), hidden_(engine.config().hidden_size) {}

  FedSequence create(LayerRows inputs) {
    auto id = engine_.create_sequence();
    EXPECT_OK(id);
    return {.id = id.value(), .inputs = std::move(inputs), .outputs = LayerRows(engine_.layers().size()), .length = 0};
  }

  // A sequence that begins with what is cached of its ids; it counts as fed that far, without outputs.
  FedSequence create(LayerRows inputs, std::vector<std::int32_t> token_ids, const SequenceOptions& options = {}) {
    auto start = engine_.create_sequence(token_ids, options);
    EXPECT_OK(start);
    return {.id = start.value().sequence,
            .inputs = std::move(inputs),
            .outputs = LayerRows(engine_.layers().size()),
            .length = start.value().hit_tokens,
            .token_ids = std::move(token_ids)};
  }

  // One step. `padding` rows of garbage follow the real ones.
  void step(std::span<const FeedPart> parts, std::int64_t padding = 0, std::optional<std::int32_t> hand_over_to = {}) {
    std::vector<StepEntry> entries;
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<std::int32_t> accepted;
    std::int64_t tokens = 0;
    for (const FeedPart& part : parts) {
      ids.push_back(step_ids(part));
      entries.push_back({.sequence = part.sequence->id,
                         .tokens = static_cast<std::int32_t>(part.tokens),
                         .token_ids = ids.back().empty() ? nullptr : ids.back().data()});
      accepted.push_back(static_cast<std::int32_t>(part.tokens - part.rejected));
      tokens += part.tokens;
    }
    const StepOptions options{.pad_to_tokens = static_cast<std::int32_t>(padding == 0 ? 0 : tokens + padding),
                              .capture = false,
                              .hand_over_to = hand_over_to};
    const auto prepared = engine_.prepare(entries, options);
    ASSERT_OK(prepared);
    for (std::size_t layer = 0; layer < engine_.layers().size(); ++layer) run_layer(*prepared, layer, parts);
    ASSERT_OK(engine_.commit(*prepared, accepted));
    for (const FeedPart& part : parts) part.sequence->length += part.tokens - part.rejected;
  }

  void feed(FedSequence& sequence, std::int64_t tokens) {
    const FeedPart part{.sequence = &sequence, .tokens = tokens};
    step({&part, 1});
  }
  // Up to `length` tokens, `chunk` at a time (0: at once).
  void feed_to(FedSequence& sequence, std::int64_t length, std::int64_t chunk = 0) {
    while (sequence.length < length && !testing::Test::HasFatalFailure()) {
      const std::int64_t left = length - sequence.length;
      feed(sequence, chunk == 0 ? left : std::min(chunk, left));
    }
  }

  FedSequence fork(const FedSequence& parent) {
    FedSequence child = parent;
    auto id = engine_.fork(parent.id);
    EXPECT_OK(id);
    child.id = id.value();
    return child;
  }
  void truncate(FedSequence& sequence, std::int64_t length) {
    ASSERT_OK(engine_.truncate(sequence.id, length));
    sequence.length = length;
    for (auto& rows : sequence.outputs) rows.resize(static_cast<std::size_t>(length * hidden_));
  }
  void release(const FedSequence& sequence) { EXPECT_OK(engine_.release(sequence.id)); }

  // SHA-256 of the cache contents of every layer.
  std::vector<std::string> digests(const FedSequence& sequence) {
    std::vector<std::string> digests;
    for (const LayerId layer : engine_.layers()) {
      Sha256 digest;
      EXPECT_OK(EngineInspector(engine_).digest_cache(layer, sequence.id, digest));
      digests.push_back(digest.hex());
    }
    return digests;
  }

 private:
  // Ids of the part's tokens, those of rejected ones made up; none if the sequence has none.
  static std::vector<std::int32_t> step_ids(const FeedPart& part) {
    const auto& known = part.sequence->token_ids;
    if (known.empty()) return {};
    EXPECT_LE(part.sequence->length + part.tokens - part.rejected, static_cast<std::int64_t>(known.size()))
        << "the test has no more ids";
    const auto first = known.begin() + part.sequence->length;
    std::vector<std::int32_t> ids(first, first + (part.tokens - part.rejected));
    ids.resize(static_cast<std::size_t>(part.tokens), 77);
    return ids;
  }

  // Inputs nobody asked for: what a rejected draft or a padding row holds.
  void append_garbage(std::int64_t rows) {
    for (std::int64_t i = 0; i < rows * hidden_; ++i) x_.push_back(to_bf16(garbage_.normal(garbage_index_++)).bits);
  }

  void run_layer(const Step& step, std::size_t layer, std::span<const FeedPart> parts) {
    x_.clear();
    for (const FeedPart& part : parts) {
      const auto& rows = part.sequence->inputs[layer];
      const std::int64_t first = part.sequence->length;
      const std::int64_t kept = part.tokens - part.rejected;
      ASSERT_LE((first + kept) * hidden_, static_cast<std::int64_t>(rows.size())) << "the test has no more inputs";
      x_.insert(x_.end(), rows.begin() + first * hidden_, rows.begin() + (first + kept) * hidden_);
      append_garbage(part.rejected);
    }
    append_garbage(step.tokens - step.valid_tokens);
    out_.assign(x_.size(), Bf16Bits{0x7fc0});
    ASSERT_OK(engine_.forward_layer_from_host(step, engine_.layers()[layer], x_.data(), out_.data()));
    auto row = out_.begin();
    for (const FeedPart& part : parts) {
      auto& outputs = part.sequence->outputs[layer];
      outputs.insert(outputs.end(), row, row + (part.tokens - part.rejected) * hidden_);
      row += part.tokens * hidden_;
    }
  }

  Engine& engine_;
  std::int64_t hidden_;
  std::vector<Bf16Bits> x_;
  std::vector<Bf16Bits> out_;
  SyntheticStream garbage_{0x6a5b, "garbage"};
  std::uint64_t garbage_index_ = 0;
};

}  // namespace dsv4rt::test
