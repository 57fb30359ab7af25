// Lesson 18: whichever allocation of a session fails, the call says so and has changed nothing, or the engine says
// that it is broken; repeated it succeeds, and every output and cache byte is that of a session without failures.
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "engine/engine_impl.h"
#include "support/faulty_interface.h"
#include "support/golden_case.h"
#include "support/synthetic_model.h"
#include "tools/lib/engine_inspector.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt::test {
namespace {

// Sees the manager behind an engine.
class Bookkeeping : public EngineInspector {
 public:
  using EngineInspector::EngineInspector;
  [[nodiscard]] const KVCacheManager& manager() const { return *impl_.manager; }
  [[nodiscard]] bool step_outstanding() const { return impl_.step.plan.serial != 0; }
  [[nodiscard]] int pools() const { return static_cast<int>(impl_.layout.pools().size()); }
};

// Everything of a session that must not depend on failures.
struct Outcome {
  std::vector<std::vector<Bf16Bits>> outputs;
  std::vector<std::vector<std::byte>> snapshots;
  bool operator==(const Outcome&) const = default;
};

class Session {
 public:
  // Every operation is repeated while it takes so many allocations: its n-th fails, its n + kSessions-th, and so on.
  // n = 0: none does.
  static constexpr std::int64_t kSessions = 4;
  struct Injection {
    std::int64_t n = 0;
    Failing mode = Failing::kNth;
  };
  // `engine` is behind `calls`. `allocations`: of every operation, noted by a session without failures, read by others.
  Session(Engine& engine, Interface& calls, Injection injection, std::vector<std::int64_t>& allocations)
      : engine_(engine), calls_(calls), injection_(injection), allocations_(allocations) {
    if (injection_.n == 0) allocations_.clear();
  }

  Outcome outcome;
  std::int64_t operations = 0;
  std::int64_t points = 0;  // failures that were made
  std::vector<std::string> divergences;

  void run() {
    const SequenceId a = create(300);
    const SequenceId b = create(0);
    step({{a, 130}, {b, 3}}, 1, {});
    step({{a, 1}, {b, 1}}, 2, {});
    whole_step({{b, 2}, {a, 1}}, 3);
    const SequenceId c = value<SequenceId>("fork", [&] { return calls_.fork(a); });
    const StepEntry copying_step[] = {{c, 200}, {b, 180}};  // would copy a block that the fork shares
    refused("copying step without blocks", StatusCode::kResourceExhausted,
            [&] { return calls_.prepare(copying_step).status(); });
    step({{c, 4}, {b, 2}}, 4, {1, 2});
    must("truncate", [&] { return calls_.truncate(c, 132); });
    refused("truncate too far", StatusCode::kFailedPrecondition, [&] { return calls_.truncate(c, 7); });
    refused("truncate beyond", StatusCode::kInvalidArgument, [&] { return calls_.truncate(b, 1000); });
    must("look", [&] { return calls_.look(b, engine_.layers()[0]); });
    if (value<std::string>("describe", [&] { return calls_.describe(); }) != engine_.describe().value()) {
      diverged("description", {});
    }
    if (value<std::string>("metrics", [&] { return calls_.metrics(); }) !=
        engine_.metrics(std::array{MetricLabel{"engine", "0"}}).value()) {
      diverged("metrics", {});
    }
    refused("admission", StatusCode::kResourceExhausted, [&] { return calls_.can_admit(393); });
    const StepEntry long_step[] = {{c, 200}, {b, 180}};
    const StepEntry short_step[] = {{c, 1}, {b, 1}};
    if (value<bool>("can step", [&] { return calls_.can_step(long_step); }) ||
        !value<bool>("can step", [&] { return calls_.can_step(short_step); })) {
      diverged("whether a step fits", {});
    }
    refused("step without blocks", StatusCode::kResourceExhausted, [&] { return calls_.prepare(long_step).status(); });
    cancelled_step({{a, 2}, {c, 1}}, 5, 0, {});
    cancelled_step({{a, 2}, {c, 1}}, 6, 2, {});
    const auto saved = value<std::vector<std::byte>>("save", [&] { return calls_.save(a, 0); });
    const auto bytes = value<std::int64_t>("bytes", [&] { return calls_.snapshot_bytes(a); });
    if (bytes != static_cast<std::int64_t>(saved.size())) diverged("size of a snapshot", {});
    const auto d = value<SequenceId>("restore", [&] { return calls_.restore(saved); });
    live_.push_back(d);
    step({{d, 2}, {a, 1}}, 7, {});
    // In one, since whoever looks at the state in between saves the sequence too.
    const std::int64_t tokens = engine_.length(a).value();
    const auto chain = value<std::vector<std::byte>>("save an increment", [&]() -> Result<std::vector<std::byte>> {
      Result<std::vector<std::byte>> whole = calls_.save(a, 0);
      if (!whole.ok()) return whole;
      const Result<std::vector<std::byte>> increment = calls_.save(a, tokens);
      if (!increment.ok()) return increment;
      const Pause pause;
      whole->insert(whole->end(), increment->begin(), increment->end());
      return whole;
    });
    must("release", [&] { return calls_.release(d); });
    std::erase(live_, d);
    const auto e = value<SequenceId>("restore from a source", [&] { return calls_.restore_from(chain); });
    if (engine_.length(e).value() != tokens) diverged("length of a chain", {});
    live_.push_back(e);
    refused("forged snapshot", StatusCode::kBadInput, [&] {
      const Pause pause;
      std::vector<std::byte> forged = saved;
      forged[200] ^= std::byte{1};
      return calls_.restore(forged).status();
    });
    note();
    cancelled_step({{c, 60}}, 8, 1, {c});
    step({{c, 5}}, 9, {});
    note();
    for (const SequenceId sequence : std::vector<SequenceId>(live_)) {
      must("release", [&] { return calls_.release(sequence); });
      std::erase(live_, sequence);
    }
  }

  static constexpr int kMostTries = 2;  // one failure, one cancelled step

 private:
  using Entries = std::vector<StepEntry>;
  struct State {
    std::vector<std::int64_t> numbers;
    std::vector<std::vector<std::byte>> snapshots;
    bool operator==(const State&) const = default;
  };

  State state() {
    const Bookkeeping books(engine_);
    State state;
    state.numbers.push_back(books.manager().live_sequences());
    for (int pool = 0; pool < books.pools(); ++pool) {
      const PoolUsage usage = books.manager().usage(pool);
      state.numbers.insert(state.numbers.end(), {usage.free, usage.live, usage.reserved});
    }
    for (const SequenceId sequence : live_) {
      state.numbers.push_back(engine_.length(sequence).value());
      if (!books.step_outstanding()) state.snapshots.push_back(engine_.save_sequence(sequence).value());
    }
    if (const Status sound = books.manager().check_invariants(); !sound.ok()) diverged("invariants", sound);
    return state;
  }
  void diverged(const std::string& what, const Status& status) {
    divergences.push_back("operation " + std::to_string(operations) + ", " + what + ": " + status.to_string());
  }

  // Runs `call` once more if memory was short in it; nothing may have changed by then. A call that is refused may
  // have been so for its own reason, without memory for a text that says why.
  template <class Call>
  auto attempt(const std::string& name, const Call& call, StatusCode own_reason = StatusCode::kResourceExhausted) {
    const auto operation = static_cast<std::size_t>(operations++);
    if (injection_.n == 0) {
      allocation_faults.until_failure = 0;  // goes downwards from there and never fails
      allocation_faults.mode = Failing::kNth;
      auto result = call();
      allocation_faults.mode = Failing::kNone;
      allocations_.push_back(-allocation_faults.until_failure);
      return result;
    }
    if (ended_ || operation >= allocations_.size() || injection_.n > allocations_[operation]) return call();
    const State before = state();
    for (std::int64_t n = injection_.n; n <= allocations_[operation]; n += kSessions) {
      ++points;
      allocation_faults.failures = 0;
      allocation_faults.until_failure = n;
      allocation_faults.mode = injection_.mode;
      auto result = call();
      allocation_faults.mode = Failing::kNone;
      const std::string what = name + ", allocation " + std::to_string(n);
      if (allocation_faults.failures == 0) diverged(what + " was not taken", {});
      if (status_of(result).ok()) return result;
      const StatusCode code = status_of(result).code();
      if (code != StatusCode::kResourceExhausted && code != own_reason) {
        diverged(what + " is not typed", status_of(result));
      }
      if (state() != before) diverged(what + " changed something", status_of(result));
    }
    return call();
  }
  template <class Call>
  void must(const std::string& name, const Call& call) {
    if (const Status status = attempt(name, call); !status.ok()) diverged(name, status);
  }
  template <class T, class Call>
  T value(const std::string& name, const Call& call) {
    auto result = attempt(name, call);
    if (result.ok()) {
      if constexpr (std::is_same_v<T, SequenceId>) {
        if (name == "fork") live_.push_back(*result);
      }
      return *result;
    }
    diverged(name, result.status());
    return T{};
  }
  template <class Call>
  void refused(const std::string& name, StatusCode code, const Call& call) {
    if (const Status status = attempt(name, call, code); status.code() != code) diverged(name, status);
  }

  SequenceId create(std::int64_t reserve) {
    const auto id = value<SequenceId>("create", [&] { return calls_.create(reserve); });
    live_.push_back(id);
    return id;
  }
  LayerRows inputs(const Entries& entries, std::uint64_t seed) {
    std::int64_t tokens = 0;
    for (const StepEntry& entry : entries) tokens += entry.tokens;
    return random_rows(seed, static_cast<std::int64_t>(engine_.layers().size()), tokens, engine_.config().hidden_size);
  }
  Step prepare(const Entries& entries) {
    return value<Step>("prepare", [&] { return calls_.prepare(entries); });
  }
  std::vector<SequenceId> cancel(const Step& step) {
    return value<std::vector<SequenceId>>("cancel", [&] { return calls_.cancel(step); });
  }

  // Whether the first `layers` layers ran. A layer that failed in the middle leaves only cancel.
  bool layers(const Step& step, const LayerRows& x, std::size_t layers, std::vector<std::vector<Bf16Bits>>& outputs) {
    for (std::size_t i = 0; i < layers; ++i) {
      outputs.emplace_back(x[i].size());
      const Status status = attempt(
          "layer", [&] { return calls_.forward(step, engine_.layers()[i], x[i].data(), outputs.back().data()); });
      if (status.code() == StatusCode::kFailedPrecondition) return false;
      if (!status.ok()) diverged("layer", status);
    }
    return true;
  }
  void step(const Entries& entries, std::uint64_t seed, const std::vector<std::int32_t>& accepted) {
    const LayerRows x = inputs(entries, seed);
    Step step = prepare(entries);
    std::vector<std::vector<Bf16Bits>> outputs;
    for (int tries = 0; !layers(step, x, x.size(), outputs) && tries < kMostTries; ++tries) {
      ended_ = true;
      if (!cancel(step).empty()) diverged("cancel of a short step", {});
      outputs.clear();
      step = prepare(entries);
    }
    // The counts in the engine's memory, which is the host's: those of a long step are all of its tokens.
    std::vector<std::int32_t> counts = accepted;
    for (std::size_t i = counts.size(); i < entries.size(); ++i) counts.push_back(entries[i].tokens);
    if (seed % 2 == 0) {
      must("commit from device", [&] { return calls_.commit_from_device(step, counts); });
    } else {
      must("commit", [&] { return calls_.commit(step, accepted); });
    }
    if (!value<OutputCheck>("output check", [&] { return calls_.output_check(step); }).entries.empty()) {
      diverged("outputs are finite", {});
    }
    outcome.outputs.insert(outcome.outputs.end(), outputs.begin(), outputs.end());
  }
  // All layers at once. What failed in the middle is cancelled and begun again.
  void whole_step(const Entries& entries, std::uint64_t seed) {
    const LayerRows x = inputs(entries, seed);
    std::fill_n(engine_.input(), 8 * engine_.config().hidden_size, Bf16Bits{0});
    Step step = prepare(entries);
    const auto run = [&] { return attempt("run", [&] { return calls_.run(step, x[0].data()); }).code(); };
    for (int tries = 0; run() == StatusCode::kFailedPrecondition && tries < kMostTries; ++tries) {
      ended_ = true;
      if (!cancel(step).empty()) diverged("cancel of a short step", {});
      step = prepare(entries);
    }
    must("commit", [&] { return calls_.commit(step, {}); });
  }
  void cancelled_step(const Entries& entries, std::uint64_t seed, std::size_t count,
                      const std::vector<SequenceId>& emptied) {
    const LayerRows x = inputs(entries, seed);
    const Step step = prepare(entries);
    std::vector<std::vector<Bf16Bits>> outputs;
    static_cast<void>(layers(step, x, count, outputs));
    if (cancel(step) != emptied) diverged("list of the emptied", {});
  }
  void note() {
    for (const SequenceId sequence : live_) outcome.snapshots.push_back(engine_.save_sequence(sequence).value());
  }

  Engine& engine_;
  Interface& calls_;
  Injection injection_;
  std::vector<std::int64_t>& allocations_;
  bool ended_ = false;  // operations are no longer those that were counted
  std::vector<SequenceId> live_;
};

struct Sweep {
  std::int64_t points = 0;
  std::int64_t operations = 0;
  std::int64_t leaks = 0;
  std::vector<std::string> divergences;
};

class AllocationFailureTest : public testing::TestWithParam<std::tuple<const char*, bool, bool, Failing>> {
 protected:
  // One session of a new engine; `n` = 0: nothing fails.
  void run(std::int64_t n, Sweep& sweep, Outcome& outcome) {
    const auto& [golden, poison, through_c, mode] = GetParam();
    const std::int64_t outstanding = allocation_faults.outstanding;
    {
      EngineOptions options = GoldenCase::open(golden).options();
      options.draft_budget_tokens = 3;
      options.csa_rows_per_block = 16;
      options.hca_rows_per_block = 2;
      options.poison_freed_blocks = poison;
      options.check_outputs = true;
      options.limits = {.max_sequences = 4, .max_context_tokens = 393, .max_step_tokens = 393, .pool_tokens = 393};
      dsv4rt_engine handle;
      EXPECT_OK(c_api::open(handle, options));
      CppInterface of_cpp(*handle.engine);
      CInterface of_c(handle);
      Interface& calls = through_c ? static_cast<Interface&>(of_c) : of_cpp;
      Session session(*handle.engine, calls, {.n = n, .mode = mode}, allocations_);
      session.run();
      sweep.operations += session.operations;
      sweep.points += session.points;
      for (const std::string& what : session.divergences) {
        sweep.divergences.push_back("n = " + std::to_string(n) + ": " + what);
      }
      if (n > 0 && session.outcome != outcome)
        sweep.divergences.push_back("n = " + std::to_string(n) + ": bytes differ");
      if (n == 0) outcome = std::move(session.outcome);
    }
    if (n > 0 && allocation_faults.outstanding != outstanding) {
      sweep.leaks += allocation_faults.outstanding - outstanding;
    }
  }

  std::vector<std::int64_t> allocations_;
};

TEST_P(AllocationFailureTest, Lesson18NthAllocationOfASession) {
  const Pause pause;
  Sweep sweep;
  Outcome outcome;
  const auto count_once = [&] {  // what the program keeps for good is there before it counts
    Outcome expected;
    Sweep ignored;
    run(0, ignored, expected);
    run(0, ignored, expected);
    EXPECT_TRUE(ignored.divergences.empty()) << ignored.divergences.front();
    return expected;
  };
  outcome = count_once();
  for (std::int64_t n = 1; n <= Session::kSessions; ++n) run(n, sweep, outcome);
  std::printf("%lld failing allocations, %lld operations, %zu divergences, %lld leaked\n",
              static_cast<long long>(sweep.points), static_cast<long long>(sweep.operations), sweep.divergences.size(),
              static_cast<long long>(sweep.leaks));
  EXPECT_EQ(sweep.points, std::accumulate(allocations_.begin(), allocations_.end(), std::int64_t{0}));
  EXPECT_GT(sweep.points, 150);
  EXPECT_EQ(sweep.leaks, 0);
  for (std::size_t i = 0; i < sweep.divergences.size() && i < 20; ++i) ADD_FAILURE() << sweep.divergences[i];
}

// Once a step of a length was seen, steps take no host memory: neither layer by layer nor with a hook.
TEST(EngineSteadyPath, StepsAllocateNothing) {
  const Pause pause;
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.draft_budget_tokens = 3;
  options.csa_rows_per_block = 16;
  options.hca_rows_per_block = 2;
  options.limits = {.max_sequences = 2, .max_context_tokens = 393, .max_step_tokens = 393, .pool_tokens = 0};
  const auto engine = make_engine(options);
  CppInterface calls(*engine);
  const SequenceId sequence = engine->create_sequence().value();
  const LayerRows x = random_rows(1, 3, 300, engine->config().hidden_size);
  std::vector<Bf16Bits> out(x[0].size());
  const auto append = [&](std::int32_t tokens, bool whole, std::int32_t kept) {
    const StepEntry entry{sequence, tokens};
    const auto step = calls.prepare({&entry, 1});
    ASSERT_OK(step);
    if (whole) {
      ASSERT_OK(calls.run(*step, x[0].data()));
    } else {
      for (std::size_t i = 0; i < 3; ++i) ASSERT_OK(calls.forward(*step, engine->layers()[i], x[i].data(), out.data()));
    }
    ASSERT_OK(calls.commit(*step, {&kept, 1}));
  };
  append(300, false, 300);  // the longest context and the longest step: what grows has grown
  append(1, true, 1);
  ASSERT_OK(engine->truncate(sequence, 0));
  allocation_faults.until_failure = 0;
  allocation_faults.mode = Failing::kNth;  // counts downwards from 0 and never fails
  for (int round = 0; round < 60; ++round)
    append(1 + round % 4, round % 2 == 0, 1 + round % 4 - (round % 3 == 0 ? round % 4 : 0));
  const std::int64_t allocations = -allocation_faults.until_failure;
  allocation_faults.mode = Failing::kNone;
  EXPECT_GT(engine->length(sequence).value(), 64) << "new blocks were taken";
  EXPECT_EQ(allocations, 0);
}

std::string session_name(const testing::TestParamInfo<AllocationFailureTest::ParamType>& info) {
  const auto& [golden, poison, through_c, mode] = info.param;
  return std::string(golden).substr(5) + (poison ? "Poisoned" : "") + (through_c ? "ThroughC" : "") +
         (mode == Failing::kNth ? "One" : "All");
}

INSTANTIATE_TEST_SUITE_P(Sessions, AllocationFailureTest,
                         testing::Values(std::tuple("tiny-bf16", false, false, Failing::kNth),
                                         std::tuple("tiny-fp8", true, false, Failing::kFromNthOn),
                                         std::tuple("tiny-bf16", true, true, Failing::kNth),
                                         std::tuple("tiny-fp8", false, true, Failing::kFromNthOn)),
                         session_name);

// ---- Creation -----------------------------------------------------------------------------------

struct CreateCase {
  bool through_c = false;
  bool poison = false;
  Failing mode = Failing::kNth;
  bool from_memory = false;  // tensors instead of a directory
};

// A directory's checkpoint in memory, for both interfaces.
class HeldCheckpoint {
 public:
  explicit HeldCheckpoint(const std::filesystem::path& directory)
      : config_(read_bytes(directory / "config.json")), tensors_(read_tensors(Checkpoint::open(directory).value())) {
    for (const TestTensor& tensor : tensors_) dtypes_.emplace_back(tensor_dtype_name(tensor.declaration.dtype));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const TestTensor& tensor = tensors_[i];
      const auto& [name, dtype, shape] = std::tie(tensor.declaration.name, dtypes_[i], tensor.declaration.shape);
      given_.push_back({.name = name, .dtype = dtype, .shape = shape, .data = as_bytes(tensor.bytes)});
      c_given_.push_back({.struct_size = sizeof(dsv4rt_tensor),
                          .name = name.c_str(),
                          .dtype = dtype.c_str(),
                          .shape = shape.data(),
                          .dimensions = shape.size(),
                          .data = tensor.bytes.data(),
                          .bytes = tensor.bytes.size(),
                          .memory = DSV4RT_TENSOR_ON_HOST});
    }
  }
  [[nodiscard]] MemoryCheckpoint cpp() const { return {.config_json = config_, .tensors = given_}; }
  [[nodiscard]] const std::string& config() const { return config_; }
  [[nodiscard]] const std::vector<dsv4rt_tensor>& c() const { return c_given_; }

 private:
  std::string config_;
  std::vector<TestTensor> tensors_;
  std::vector<std::string> dtypes_;
  std::vector<MemoryTensor> given_;
  std::vector<dsv4rt_tensor> c_given_;
};

class CreateFailureTest : public testing::TestWithParam<CreateCase> {
 protected:
  static EngineOptions options() {
    // One layer of every kind of tensor: few allocations of each sort.
    static const SyntheticModel model{
        .config = "tiny", .first_layer = 1, .layer_count = 1, .encoding = WeightEncoding::kFp8Block128};
    EngineOptions options = model.options();
    options.threads = 2;
    options.check_outputs = true;
    options.poison_freed_blocks = GetParam().poison;
    options.limits = {.max_sequences = 2,
                      .max_context_tokens = 64,
                      .max_step_tokens = 8,
                      .pool_tokens = 0,
                      .boundary_states = GetParam().poison ? 2 : 0};
    return options;
  }
  // Creates an engine and destroys it.
  static Status create(const EngineOptions& options) {
    static const HeldCheckpoint held(options.checkpoint);
    if (!GetParam().through_c) {
      EngineOptions given = options;
      if (GetParam().from_memory) given.checkpoint.clear();
      return faulty([&] {
        return (GetParam().from_memory ? Engine::create(given, held.cpp()) : Engine::create(given)).status();
      });
    }
    char message[64];
    const std::string checkpoint = options.checkpoint.string();
    dsv4rt_prefix_options prefixes{};
    EXPECT_EQ(dsv4rt_prefix_options_init(&prefixes, sizeof prefixes), DSV4RT_OK);
    prefixes.boundary_states = options.limits.boundary_states;
    dsv4rt_engine_options given{};
    EXPECT_EQ(dsv4rt_engine_options_init(&given, sizeof given), DSV4RT_OK);
    given.checkpoint = GetParam().from_memory ? nullptr : checkpoint.c_str();
    given.first_layer = options.first_layer;
    given.layer_count = options.layer_count;
    given.threads = options.threads;
    given.check_outputs = 1;
    given.max_sequences = options.limits.max_sequences;
    given.max_context_tokens = options.limits.max_context_tokens;
    given.max_step_tokens = options.limits.max_step_tokens;
    given.prefix_cache = prefixes.boundary_states > 0 ? &prefixes : nullptr;
    dsv4rt_engine* engine = nullptr;
    return faulty([&]() -> Status {
      const auto code = static_cast<StatusCode>(
          GetParam().from_memory ? dsv4rt_engine_create_from_tensors(&given, held.config().c_str(), held.c().data(),
                                                                     held.c().size(), &engine, message, sizeof message)
                                 : dsv4rt_engine_create(&given, &engine, message, sizeof message));
      EXPECT_EQ(engine == nullptr, code != StatusCode::kOk);
      EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK);
      const Pause pause;
      return code == StatusCode::kOk ? Status{} : Status(code, message);
    });
  }
  static std::int64_t descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  }
};

TEST_P(CreateFailureTest, NthAllocationOfACreation) {
  const Pause pause;
  const EngineOptions given = options();
  ASSERT_OK(create(given));
  ASSERT_OK(create(given));  // what the program keeps for good is there
  const std::int64_t open_before = descriptors();
  std::int64_t n = 0;
  std::int64_t refused = 0;
  do {
    ++n;
    const std::int64_t outstanding = allocation_faults.outstanding;
    const std::int64_t mapped = allocation_faults.mapped;
    allocation_faults.failures = 0;
    allocation_faults.until_failure = n;
    allocation_faults.mode = GetParam().mode;
    {
      const Status status = create(given);
      allocation_faults.mode = Failing::kNone;
      refused += status.ok() ? 0 : 1;
      if (!status.ok()) {
        ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << n << ": " << status.to_string();
      }
    }
    ASSERT_EQ(allocation_faults.outstanding, outstanding) << n << ": leaked";
    ASSERT_EQ(allocation_faults.mapped, mapped) << n << ": maps leaked";
    if (n % 64 == 0) {
      ASSERT_OK(create(given));
    }
  } while (allocation_faults.failures > 0);
  std::printf("%lld failing allocations, %lld refused\n", static_cast<long long>(n - 1),
              static_cast<long long>(refused));
  EXPECT_GT(refused, 300);
  EXPECT_EQ(descriptors(), open_before);
  EXPECT_OK(create(given));
}

std::string creation_name(const testing::TestParamInfo<CreateCase>& info) {
  return std::string(info.param.through_c ? "C" : "Cpp") + (info.param.from_memory ? "FromMemory" : "") +
         (info.param.poison ? "PoisonedWithPrefixes" : "") + (info.param.mode == Failing::kNth ? "One" : "All");
}

INSTANTIATE_TEST_SUITE_P(Creations, CreateFailureTest,
                         testing::Values(CreateCase{.through_c = false, .poison = false, .mode = Failing::kNth},
                                         CreateCase{.through_c = false, .poison = true, .mode = Failing::kFromNthOn},
                                         CreateCase{.through_c = true, .poison = true, .mode = Failing::kNth},
                                         CreateCase{.poison = true, .mode = Failing::kFromNthOn, .from_memory = true},
                                         CreateCase{.through_c = true, .mode = Failing::kNth, .from_memory = true}),
                         creation_name);

}  // namespace
}  // namespace dsv4rt::test
