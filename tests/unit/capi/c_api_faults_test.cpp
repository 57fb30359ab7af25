// Snapshots, handles of other engines and outputs that are not finite, through C.
#include <cstring>

#include "unit/capi/c_api_test.h"

namespace dsv4rt {
namespace {

class CApiFaultsTest : public CApiTest {
 protected:
  static EngineHandle open_with(std::int32_t check_outputs) {
    const std::string path = checkpoint();
    dsv4rt_engine_options given = options(path.c_str());
    given.check_outputs = check_outputs;
    dsv4rt_engine* engine = nullptr;
    EXPECT_EQ(dsv4rt_engine_create(&given, &engine, nullptr, 0), DSV4RT_OK);
    return EngineHandle(engine);
  }
  static dsv4rt_status append_to(void* bytes, const void* part, std::size_t count) {
    const auto* begin = static_cast<const std::byte*>(part);
    static_cast<std::vector<std::byte>*>(bytes)->insert(static_cast<std::vector<std::byte>*>(bytes)->end(), begin,
                                                        begin + count);
    return DSV4RT_OK;
  }
  static std::vector<std::byte> save(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                     const dsv4rt_snapshot_options* options = nullptr) {
    std::int64_t bytes = 0;
    EXPECT_EQ(dsv4rt_sequence_snapshot_bytes(engine, sequence, options, &bytes), DSV4RT_OK);
    std::vector<std::byte> snapshot;
    EXPECT_EQ(dsv4rt_sequence_save(engine, sequence, options, append_to, &snapshot), DSV4RT_OK)
        << dsv4rt_engine_last_error(engine);
    EXPECT_EQ(bytes, static_cast<std::int64_t>(snapshot.size()));
    return snapshot;
  }
};

TEST_F(CApiFaultsTest, SnapshotsAreSavedAndRestored) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  append(engine, sequence, 9);
  const std::vector<std::byte> snapshot = save(engine, sequence);
  dsv4rt_sequence restored{};
  ASSERT_EQ(dsv4rt_sequence_restore(engine, snapshot.data(), snapshot.size(), 20, nullptr, &restored), DSV4RT_OK);
  EXPECT_EQ(length(engine, restored), 9);
  EXPECT_EQ(save(engine, restored), snapshot);
  restored = {7, 7};
  EXPECT_EQ(dsv4rt_sequence_restore(engine, snapshot.data(), snapshot.size() - 1, 0, nullptr, &restored),
            DSV4RT_BAD_INPUT);
  EXPECT_EQ(restored.index, 7U);
}

TEST_F(CApiFaultsTest, EnginesShareWeights) {
  EngineHandle owner = open();
  const dsv4rt_sequence sequence = new_sequence(owner.get());
  append(owner.get(), sequence, 9);
  const std::vector<std::byte> snapshot = save(owner.get(), sequence);
  dsv4rt_engine_options given = options(nullptr);
  given.max_sequences = 2;
  char message[200] = {};
  dsv4rt_engine* engine = nullptr;
  ASSERT_EQ(dsv4rt_engine_create_sharing(owner.get(), &given, &engine, message, sizeof(message)), DSV4RT_OK) << message;
  const EngineHandle sharing(engine);
  dsv4rt_memory memory{};
  memory.struct_size = sizeof(memory);
  ASSERT_EQ(dsv4rt_engine_memory(engine, &memory), DSV4RT_OK);
  EXPECT_EQ(memory.weight_bytes, 0);
  given.layer_count = 1;
  dsv4rt_engine* none = engine;
  EXPECT_EQ(dsv4rt_engine_create_sharing(owner.get(), &given, &none, message, sizeof(message)),
            DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(none, nullptr);
  EXPECT_NE(std::string(message).find("create_sharing: layer_count: 1"), std::string::npos) << message;
  EXPECT_EQ(dsv4rt_engine_create_sharing(owner.get(), nullptr, &none, message, sizeof(message)),
            DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_create_sharing(owner.get(), &given, nullptr, message, sizeof(message)),
            DSV4RT_INVALID_ARGUMENT);
  owner.reset();
  dsv4rt_sequence restored{};
  ASSERT_EQ(dsv4rt_sequence_restore(engine, snapshot.data(), snapshot.size(), 0, nullptr, &restored), DSV4RT_OK);
  append(engine, restored, 4);
  EXPECT_EQ(length(engine, restored), 13);
}

// What a source gives from, `part` bytes at most at a time, and how it fails when `left` calls have gone well.
struct Given {
  const std::vector<std::byte>& bytes;
  std::size_t part = 1000;
  std::size_t at = 0;
  int left = 1 << 30;
  int failure = 0;
  dsv4rt_engine* engine = nullptr;
};
dsv4rt_status give_part(void* user_data, void* target, std::size_t count, std::size_t* given) {
  Given& from = *static_cast<Given*>(user_data);
  if (from.left-- <= 0) {
    if (from.failure == 0) return DSV4RT_NOT_FOUND;
    if (from.failure == 1) return 99;
    if (from.failure == 2) throw 7;
    if (from.failure == 3) *given = count + 1;
    if (from.failure == 4) return dsv4rt_prefix_clear(from.engine);
    return DSV4RT_OK;
  }
  *given = std::min({count, from.part, from.bytes.size() - from.at});
  std::memcpy(target, from.bytes.data() + from.at, *given);
  from.at += *given;
  return DSV4RT_OK;
}

TEST_F(CApiFaultsTest, IncrementsAndSources) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  append(engine, sequence, 5);
  dsv4rt_sequence_state state{};
  state.struct_size = sizeof(state);
  std::vector<std::byte> chain = save(engine, sequence);
  ASSERT_EQ(dsv4rt_sequence_get_state(engine, sequence, &state), DSV4RT_OK);
  EXPECT_EQ(state.saved_tokens, 5);
  append(engine, sequence, 4);
  dsv4rt_snapshot_options options{.struct_size = sizeof(options), .key = nullptr, .key_bytes = 0, .base_tokens = 4};
  std::int64_t bytes = 0;
  EXPECT_EQ(dsv4rt_sequence_snapshot_bytes(engine, sequence, &options, &bytes), DSV4RT_FAILED_PRECONDITION);
  expect_error_names(engine, "base_tokens = 4; accepted: 5");
  options.base_tokens = 5;
  const std::vector<std::byte> increment = save(engine, sequence, &options);
  chain.insert(chain.end(), increment.begin(), increment.end());
  // Callers of version 6 know no increments: theirs are whole.
  options.base_tokens = 12345;
  options.struct_size = 24;
  const std::vector<std::byte> whole = save(engine, sequence, &options);

  dsv4rt_sequence restored{};
  ASSERT_EQ(dsv4rt_sequence_restore(engine, chain.data(), chain.size(), 0, nullptr, &restored), DSV4RT_OK);
  EXPECT_EQ(save(engine, restored), whole);
  ASSERT_EQ(dsv4rt_sequence_release(engine, restored), DSV4RT_OK);
  Given all{.bytes = chain};
  ASSERT_EQ(dsv4rt_sequence_restore_from(engine, give_part, &all, 20, nullptr, &restored), DSV4RT_OK)
      << dsv4rt_engine_last_error(engine);
  EXPECT_EQ(save(engine, restored), whole);
  ASSERT_EQ(dsv4rt_sequence_release(engine, restored), DSV4RT_OK);

  // The source's own failures end the restore, and it cannot change the engine.
  const dsv4rt_status expected[] = {DSV4RT_NOT_FOUND,        DSV4RT_INVALID_ARGUMENT,    DSV4RT_INVALID_ARGUMENT,
                                    DSV4RT_INVALID_ARGUMENT, DSV4RT_FAILED_PRECONDITION, DSV4RT_BAD_INPUT};
  for (int failure = 0; failure < 6; ++failure) {
    for (const int left : {0, 7}) {
      Given failing{.bytes = chain, .left = left, .failure = failure, .engine = engine};
      EXPECT_EQ(dsv4rt_sequence_restore_from(engine, give_part, &failing, 0, nullptr, &restored), expected[failure])
          << failure;
      expect_error_names(engine, failure < 5 ? "the source" : "snapshot: ");
    }
  }
  dsv4rt_engine_state left{};
  left.struct_size = sizeof(left);
  ASSERT_EQ(dsv4rt_engine_get_state(engine, &left), DSV4RT_OK);
  EXPECT_EQ(left.live_sequences, 1);
}

TEST_F(CApiFaultsTest, SnapshotsAreBoundToTheirKey) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  append(engine, sequence, 5);
  const std::string key = "sixteen bytes or more";
  dsv4rt_snapshot_options options{
      .struct_size = sizeof(options), .key = key.data(), .key_bytes = key.size(), .base_tokens = 0};
  const std::vector<std::byte> plain = save(engine, sequence);
  const std::vector<std::byte> authenticated = save(engine, sequence, &options);
  EXPECT_EQ(authenticated.size(), plain.size() + 32);
  dsv4rt_sequence restored{};
  const auto restore = [&](const std::vector<std::byte>& snapshot, const dsv4rt_snapshot_options* with) {
    const dsv4rt_status status = dsv4rt_sequence_restore(engine, snapshot.data(), snapshot.size(), 0, with, &restored);
    if (status == DSV4RT_OK) {
      EXPECT_EQ(dsv4rt_sequence_release(engine, restored), DSV4RT_OK);
    }
    return status;
  };
  EXPECT_EQ(restore(authenticated, &options), DSV4RT_OK);
  EXPECT_EQ(restore(plain, &options), DSV4RT_BAD_INPUT);
  expect_error_names(engine, "nothing authenticates it");
  EXPECT_EQ(restore(authenticated, nullptr), DSV4RT_INVALID_ARGUMENT);
  options.key_bytes -= 1;
  EXPECT_EQ(restore(authenticated, &options), DSV4RT_BAD_INPUT);
  expect_error_names(engine, "authentication code");
  options.key_bytes = 15;
  EXPECT_EQ(restore(authenticated, &options), DSV4RT_INVALID_ARGUMENT);
  options = {.struct_size = sizeof(options), .key = nullptr, .key_bytes = 16, .base_tokens = 0};
  EXPECT_EQ(restore(authenticated, &options), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine, "key");
  options = {.struct_size = 8, .key = nullptr, .key_bytes = 0, .base_tokens = 0};
  EXPECT_EQ(restore(plain, &options), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine, "dsv4rt_snapshot_options.struct_size");
}

// The sink's own failures end the save, and it cannot change the engine.
TEST_F(CApiFaultsTest, SinksAreKeptApart) {
  const EngineHandle handle = open();
  struct Sink {
    dsv4rt_engine* engine;
    dsv4rt_sequence sequence;
    int kind;
  } sink{handle.get(), new_sequence(handle.get()), 0};
  const auto take = [](void* user_data, const void*, std::size_t) -> dsv4rt_status {
    const Sink& given = *static_cast<Sink*>(user_data);
    if (given.kind == 0) return dsv4rt_sequence_release(given.engine, given.sequence);
    if (given.kind == 1) return DSV4RT_RESOURCE_EXHAUSTED;
    if (given.kind == 2) return 99;
    throw 7;
  };
  for (const dsv4rt_status expected :
       {DSV4RT_FAILED_PRECONDITION, DSV4RT_RESOURCE_EXHAUSTED, DSV4RT_INVALID_ARGUMENT, DSV4RT_INVALID_ARGUMENT}) {
    EXPECT_EQ(dsv4rt_sequence_save(handle.get(), sink.sequence, nullptr, take, &sink), expected) << sink.kind;
    expect_error_names(handle.get(), "sink");
    ++sink.kind;
  }
  EXPECT_EQ(dsv4rt_sequence_save(handle.get(), sink.sequence, nullptr, nullptr, &sink), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(length(handle.get(), sink.sequence), 0);
}

TEST_F(CApiFaultsTest, HandlesOfAnotherEngineAreRefused) {
  const EngineHandle one = open();
  const EngineHandle two = open();
  const dsv4rt_sequence mine = new_sequence(one.get());
  const dsv4rt_sequence foreign = new_sequence(two.get());
  ASSERT_EQ(mine.index, foreign.index);
  std::int64_t tokens = 0;
  dsv4rt_sequence child{};
  std::vector<std::byte> bytes;
  const dsv4rt_step_entry entry{foreign, 1};
  dsv4rt_step step{};
  for (const dsv4rt_status refused :
       {dsv4rt_sequence_length(one.get(), foreign, &tokens), dsv4rt_sequence_fork(one.get(), foreign, 0, &child),
        dsv4rt_sequence_truncate(one.get(), foreign, 0), dsv4rt_sequence_release(one.get(), foreign),
        dsv4rt_sequence_save(one.get(), foreign, nullptr, append_to, &bytes),
        dsv4rt_sequence_snapshot_bytes(one.get(), foreign, nullptr, &tokens),
        dsv4rt_step_prepare(one.get(), &entry, 1, nullptr, &step)}) {
    EXPECT_EQ(refused, DSV4RT_STALE_HANDLE);
    expect_error_names(one.get(), "another engine");
  }
  const dsv4rt_step my_step = prepare(one.get(), mine, 1);
  const dsv4rt_step foreign_step = prepare(two.get(), foreign, 1);
  EXPECT_EQ(run(one.get(), my_step), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_commit(one.get(), &foreign_step, nullptr, 0), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_commit(one.get(), &my_step, nullptr, 0), DSV4RT_OK);
}

TEST_F(CApiFaultsTest, OutputsThatAreNotFiniteAreFound) {
  const EngineHandle handle = open_with(1);
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_step_entry entries[] = {{new_sequence(engine), 1}, {new_sequence(engine), 2}};
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(engine, entries, 2, nullptr, &step), DSV4RT_OK);
  std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(3 * hidden_), 0x3c00);
  x.back() = 0x7f80;
  ASSERT_EQ(dsv4rt_step_run(engine, &step, x.data(), zero_hook, &step.tokens), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK);
  std::int32_t known = -1;
  std::int32_t found[2] = {-1, -1};
  std::size_t count = 9;
  EXPECT_EQ(dsv4rt_step_output_check(engine, &step, &known, nullptr, 0, &count), DSV4RT_OK);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(dsv4rt_step_output_check(engine, &step, &known, found, 0, &count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_output_check(engine, &step, &known, found, 2, &count), DSV4RT_OK);
  EXPECT_EQ(known, 1);
  EXPECT_EQ(found[0], 1);
  EXPECT_EQ(found[1], -1);
  std::int64_t all = 0;
  EXPECT_EQ(dsv4rt_engine_non_finite_entries(engine, &all), DSV4RT_OK);
  EXPECT_EQ(all, 1);
  const EngineHandle blind = open_with(0);
  EXPECT_EQ(dsv4rt_step_output_check(blind.get(), &step, &known, found, 2, &count), DSV4RT_FAILED_PRECONDITION);
  expect_error_names(blind.get(), "check_outputs");
}

TEST_F(CApiFaultsTest, SwitchesAreZeroOrOne) {
  const std::string path = checkpoint();
  char message[512] = "";
  dsv4rt_engine* engine = nullptr;
  dsv4rt_engine_options given = options(path.c_str());
  given.check_outputs = 2;
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(message, "check_outputs: 2"), nullptr) << message;
  given.check_outputs = 0;
  given.allow_non_finite_weights = -1;
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(message, "allow_non_finite_weights: -1"), nullptr) << message;
}

// The option reaches the loader: a norm that is NaN.
TEST_F(CApiFaultsTest, WeightsThatAreNotFiniteAreRefusedOrAllowed) {
  const auto good = Checkpoint::open(checkpoint());
  ASSERT_TRUE(good.ok());
  std::vector<TestTensor> tensors = read_tensors(*good);
  for (TestTensor& tensor : tensors) {
    if (tensor.declaration.name == "layers.0.attn.q_norm.weight") tensor.bytes.replace(2, 2, "\xc0\x7f");
  }
  const TempDirectory directory;
  std::filesystem::copy_file(std::filesystem::path(checkpoint()) / "config.json", directory / "config.json");
  write_tensors(directory / "model.safetensors", tensors);
  const std::string path = directory.path().string();
  dsv4rt_engine_options given = options(path.c_str());
  dsv4rt_engine* engine = nullptr;
  char message[512] = "";
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_BAD_INPUT);
  EXPECT_NE(std::strstr(message, "layers.0.attn.q_norm.weight: found NaN at index 1"), nullptr) << message;
  given.allow_non_finite_weights = 1;
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_OK) << message;
  EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK);
}

}  // namespace
}  // namespace dsv4rt
