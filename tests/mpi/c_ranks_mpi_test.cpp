// Ranks through the C interface: engines of several processes give what one engine gives, and wrong calls are refused.
#include <cmath>
#include <functional>
#include <memory>
#include <mpi.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bfloat16.h"
#include "base/sha256.h"
#include "dsv4rt/c_api.h"
#include "mpi/mpi_ranks.h"
#include "support/layer_rows.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kTokens = 300;

const std::string& checkpoint() {
  static const SyntheticModel model{
      .config = "tiny", .layer_count = 3, .encoding = WeightEncoding::kBf16, .o_groups = 4, .o_lora_rank = 32};
  static const std::string path = model.directory().string();
  return path;
}

dsv4rt_parallel_options parallel(std::int32_t kind) {
  dsv4rt_parallel_options options;
  EXPECT_EQ(dsv4rt_parallel_options_init(&options, sizeof options), DSV4RT_OK);
  options.kind = kind;
  options.deadline_seconds = 60;
  return options;
}

struct Closer {
  void operator()(dsv4rt_engine* engine) const { EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK); }
};
struct Opened {
  dsv4rt_status status = DSV4RT_OK;
  std::string message;
  std::unique_ptr<dsv4rt_engine, Closer> engine;
};

// Null: one rank.
Opened open(const dsv4rt_parallel_options* ranks) {
  dsv4rt_engine_options options;
  EXPECT_EQ(dsv4rt_engine_options_init(&options, sizeof options), DSV4RT_OK);
  options.checkpoint = checkpoint().c_str();
  options.layer_count = 3;
  options.threads = 1;
  options.max_context_tokens = kTokens;
  options.max_step_tokens = kTokens;
  options.parallel = ranks;
  Opened opened;
  char message[512] = "";
  dsv4rt_engine* engine = nullptr;
  opened.status = dsv4rt_engine_create(&options, &engine, message, sizeof message);
  opened.message = message;
  opened.engine.reset(engine);
  EXPECT_EQ(engine == nullptr, opened.status != DSV4RT_OK);
  return opened;
}

// Outputs of every layer for a prompt and two tokens after it.
LayerRows outputs(dsv4rt_engine* engine) {
  std::int64_t hidden = 0;
  EXPECT_EQ(dsv4rt_engine_hidden_size(engine, &hidden), DSV4RT_OK);
  const LayerRows inputs = random_rows(5, 3, kTokens, hidden);
  LayerRows outputs(3);
  dsv4rt_sequence sequence{};
  EXPECT_EQ(dsv4rt_sequence_create(engine, 0, &sequence), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
  std::int64_t length = 0;
  for (const std::int32_t tokens : {kTokens - 2, 1, 1}) {
    const dsv4rt_step_entry entry{sequence, tokens};
    dsv4rt_step step{};
    EXPECT_EQ(dsv4rt_step_prepare(engine, &entry, 1, nullptr, &step), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      std::vector<Bf16Bits> out(static_cast<std::size_t>(tokens * hidden));
      EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, layer,
                                          inputs[static_cast<std::size_t>(layer)].data() + length * hidden, out.data()),
                DSV4RT_OK)
          << dsv4rt_engine_last_error(engine);
      auto& all = outputs[static_cast<std::size_t>(layer)];
      all.insert(all.end(), out.begin(), out.end());
    }
    EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    length += tokens;
  }
  return outputs;
}

std::string digest_of(const LayerRows& rows) {
  Sha256 digest;
  for (const auto& layer : rows) digest.update(std::as_bytes(std::span(layer)));
  return digest.hex();
}

double distance(const LayerRows& values, const LayerRows& reference) {
  double error = 0;
  double norm = 0;
  for (std::size_t layer = 0; layer < reference.size(); ++layer) {
    for (std::size_t i = 0; i < reference[layer].size(); ++i) {
      const double expected = to_float(bf16{reference[layer][i]});
      const double difference = to_float(bf16{values[layer][i]}) - expected;
      error += difference * difference;
      norm += expected * expected;
    }
  }
  return std::sqrt(error / norm);
}

TEST(CRanks, TensorAndContextRanksGiveWhatOneEngineGives) {
  const auto peers = all_ranks();
  const Opened alone = open(nullptr);
  ASSERT_EQ(alone.status, DSV4RT_OK) << alone.message;
  const LayerRows expected = outputs(alone.engine.get());
  for (const std::int32_t kind : {DSV4RT_PARALLEL_TENSOR, DSV4RT_PARALLEL_CONTEXT}) {
    const dsv4rt_parallel_options ranks = parallel(kind);
    const Opened opened = open(&ranks);
    ASSERT_EQ(opened.status, DSV4RT_OK) << opened.message;
    const LayerRows given = outputs(opened.engine.get());
    expect_same_on_every_rank(*peers, digest_of(given));
    if (kind == DSV4RT_PARALLEL_CONTEXT) {
      EXPECT_EQ(digest_of(given), digest_of(expected));
      continue;
    }
    EXPECT_LE(distance(given, expected), 4e-3);
    dsv4rt_memory part{};
    dsv4rt_memory whole{};
    part.struct_size = whole.struct_size = sizeof part;
    ASSERT_EQ(dsv4rt_engine_memory(opened.engine.get(), &part), DSV4RT_OK);
    ASSERT_EQ(dsv4rt_engine_memory(alone.engine.get(), &whole), DSV4RT_OK);
    EXPECT_LT(part.weight_bytes, whole.weight_bytes);
    EXPECT_EQ(part.cache_bytes, whole.cache_bytes);
  }
}

TEST(CRanks, ARankIsToldItsRows) {
  const auto peers = all_ranks();
  dsv4rt_parallel_options ranks = parallel(DSV4RT_PARALLEL_CONTEXT);
  ranks.context_own_outputs = 1;
  const Opened opened = open(&ranks);
  ASSERT_EQ(opened.status, DSV4RT_OK) << opened.message;
  dsv4rt_engine* const engine = opened.engine.get();
  const dsv4rt_step step{.serial = 1, .tokens = 256, .valid_tokens = 256};
  std::int32_t first[2] = {-1, -1};
  std::int32_t count[2] = {-1, -1};
  ASSERT_EQ(dsv4rt_step_context_rows(engine, &step, first, count), DSV4RT_OK);
  // The first and last quarter, or the two in the middle.
  const std::int32_t begin = peers->rank() == 0 ? 0 : 64;
  EXPECT_EQ(first[0], begin);
  EXPECT_EQ(count[0], 64);
  EXPECT_EQ(first[1], peers->rank() == 0 ? 192 : 128);
  EXPECT_EQ(count[1], 64);
  EXPECT_EQ(dsv4rt_step_context_rows(engine, nullptr, first, count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_context_rows(engine, &step, nullptr, count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_context_rows(engine, &step, first, nullptr), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_context_rows(nullptr, &step, first, count), DSV4RT_INVALID_ARGUMENT);
}

TEST(CRanks, AStepHandsItsSequencesOver) {
  const auto peers = all_ranks();
  const dsv4rt_parallel_options ranks = parallel(DSV4RT_PARALLEL_CONTEXT);
  const Opened opened = open(&ranks);
  ASSERT_EQ(opened.status, DSV4RT_OK) << opened.message;
  dsv4rt_engine* const engine = opened.engine.get();
  std::int64_t hidden = 0;
  ASSERT_EQ(dsv4rt_engine_hidden_size(engine, &hidden), DSV4RT_OK);
  dsv4rt_sequence sequence{};
  ASSERT_EQ(dsv4rt_sequence_create(engine, kTokens, &sequence), DSV4RT_OK);
  const std::int32_t tokens = kTokens - 20;
  const std::int32_t holder = peers->size() - 1;
  const dsv4rt_step_entry entry{sequence, tokens};
  const dsv4rt_step_options options{.struct_size = sizeof options,
                                    .pad_to_tokens = 0,
                                    .capture = 0,
                                    .hook_key = 0,
                                    .token_ids = nullptr,
                                    .hand_over = 1,
                                    .hand_over_to = holder};
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(engine, &entry, 1, &options, &step), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
  std::int32_t first[2] = {-1, -1};
  std::int32_t count[2] = {-1, -1};
  ASSERT_EQ(dsv4rt_step_context_rows(engine, &step, first, count), DSV4RT_OK);
  EXPECT_EQ(peers->rank() == holder, first[1] + count[1] == tokens) << "it has the last rows";
  const std::vector<Bf16Bits> x(static_cast<std::size_t>(tokens * hidden));
  std::vector<Bf16Bits> out(x.size());
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    ASSERT_EQ(dsv4rt_step_forward_layer(engine, &step, layer, x.data(), out.data()), DSV4RT_OK);
  }
  ASSERT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK);
  dsv4rt_sequence_state state{};
  state.struct_size = sizeof state;
  ASSERT_EQ(dsv4rt_sequence_get_state(engine, sequence, &state), DSV4RT_OK);
  EXPECT_EQ(state.held_by, holder);
  EXPECT_EQ(state.length, peers->rank() == holder ? tokens : 0);
  const dsv4rt_step_entry next{sequence, 1};
  const bool here = peers->rank() == holder;
  EXPECT_EQ(dsv4rt_step_prepare(engine, &next, 1, nullptr, &step), here ? DSV4RT_OK : DSV4RT_FAILED_PRECONDITION);
  if (here) return;
  EXPECT_NE(std::string(dsv4rt_engine_last_error(engine)).find("handed the sequence over to rank"), std::string::npos);
  EXPECT_EQ(dsv4rt_sequence_claim(engine, sequence), DSV4RT_FAILED_PRECONDITION);
  dsv4rt_sequence own{};
  ASSERT_EQ(dsv4rt_sequence_create(engine, 0, &own), DSV4RT_RESOURCE_EXHAUSTED) << "one slot";
  ASSERT_EQ(dsv4rt_sequence_release(engine, sequence), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_sequence_create(engine, 0, &own), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_sequence_claim(engine, own), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_sequence_get_state(engine, own, &state), DSV4RT_OK);
  EXPECT_EQ(state.held_by, peers->rank());
  EXPECT_EQ(dsv4rt_sequence_claim(engine, sequence), DSV4RT_STALE_HANDLE);
}

TEST(CRanks, ACommunicatorOfTheHostIsTaken) {
  const auto peers = all_ranks();
  // In the order of ranks from the last to the first.
  MPI_Comm reversed = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Comm_split(MPI_COMM_WORLD, 0, -peers->rank(), &reversed), MPI_SUCCESS);
  dsv4rt_parallel_options ranks = parallel(DSV4RT_PARALLEL_TENSOR);
  ranks.mpi_communicator = &reversed;
  ranks.rank = peers->size() - 1 - peers->rank();
  ranks.size = peers->size();
  {
    const Opened opened = open(&ranks);
    ASSERT_EQ(opened.status, DSV4RT_OK) << opened.message;
    expect_same_on_every_rank(*peers, digest_of(outputs(opened.engine.get())));
  }
  ranks.size += 1;
  const Opened other = open(&ranks);
  EXPECT_EQ(other.status, DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(other.message.find("rank, size"), std::string::npos) << other.message;
  MPI_Comm_free(&reversed);
}

TEST(CRanks, AnEngineOfRanksSharesNoWeights) {
  const dsv4rt_parallel_options ranks = parallel(DSV4RT_PARALLEL_TENSOR);
  const Opened opened = open(&ranks);
  ASSERT_EQ(opened.status, DSV4RT_OK) << opened.message;
  dsv4rt_engine_options options;
  ASSERT_EQ(dsv4rt_engine_options_init(&options, sizeof options), DSV4RT_OK);
  options.max_context_tokens = options.max_step_tokens = 8;
  dsv4rt_engine* other = nullptr;
  char message[256] = "";
  EXPECT_EQ(dsv4rt_engine_create_sharing(opened.engine.get(), &options, &other, message, sizeof message),
            DSV4RT_UNSUPPORTED);
  EXPECT_NE(std::string(message).find("parallel"), std::string::npos) << message;
}

// Refused on every rank before any waits for another.
TEST(CRanks, WrongOptionsAreRefusedWithTheirField) {
  const auto refused = [](const std::function<void(dsv4rt_parallel_options&)>& change, dsv4rt_status status) {
    dsv4rt_parallel_options ranks = parallel(DSV4RT_PARALLEL_CONTEXT);
    change(ranks);
    const Opened opened = open(&ranks);
    EXPECT_EQ(opened.status, status) << opened.message;
    return opened.message;
  };
  using Options = dsv4rt_parallel_options;
  const auto names = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' does not name '" << part << "'";
  };
  names(refused([](Options& o) { o.context_min_tokens = 0; }, DSV4RT_INVALID_ARGUMENT), "context_min_tokens: 0");
  names(refused([](Options& o) { o.deadline_seconds = 0; }, DSV4RT_INVALID_ARGUMENT), "deadline_seconds");
  names(refused([](Options& o) { o.create_deadline_seconds = -1; }, DSV4RT_INVALID_ARGUMENT),
        "create_deadline_seconds");
}

}  // namespace
}  // namespace dsv4rt::test
