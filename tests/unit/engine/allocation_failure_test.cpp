// Lesson 18: whichever allocation of a session fails, the call says so and has changed nothing, or the engine says
// that it is broken; repeated it succeeds, and every output and cache byte is that of a session without failures.
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "capi/c_api_handle.h"
#include "engine/engine_impl.h"
#include "support/fail_allocations.h"
#include "support/golden_case.h"
#include "support/synthetic_model.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {
namespace {

// The test's own work in between: it may allocate.
class Pause {
 public:
  Pause() : before_(std::exchange(allocation_faults.paused, true)) {}
  ~Pause() { allocation_faults.paused = before_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool before_;
};
class Faulty {
 public:
  Faulty() { allocation_faults.paused = false; }
  ~Faulty() { allocation_faults.paused = true; }
  Faulty(const Faulty&) = delete;
  Faulty& operator=(const Faulty&) = delete;
};

template <class Call>
auto faulty(const Call& call) {
  const Faulty scope;
  return call();
}

// The calls of a session, through one of the two interfaces. Only they run with failing allocations.
class Interface {
 public:
  virtual ~Interface() = default;
  virtual Result<SequenceId> create(std::int64_t reserve) = 0;
  virtual Result<SequenceId> fork(SequenceId parent) = 0;
  virtual Status truncate(SequenceId sequence, std::int64_t length) = 0;
  virtual Status release(SequenceId sequence) = 0;
  virtual Status can_admit(std::int64_t tokens) = 0;
  virtual Result<Step> prepare(std::span<const StepEntry> entries) = 0;
  virtual Status forward(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) = 0;
  virtual Status run(const Step& step, const Bf16Bits* x) = 0;
  virtual Status commit(const Step& step, std::span<const std::int32_t> accepted) = 0;
  virtual Result<std::vector<SequenceId>> cancel(const Step& step) = 0;
  virtual Result<OutputCheck> output_check(const Step& step) = 0;
  virtual Result<std::int64_t> snapshot_bytes(SequenceId sequence) = 0;
  virtual Result<std::vector<std::byte>> save(SequenceId sequence) = 0;
  virtual Result<SequenceId> restore(std::span<const std::byte> snapshot) = 0;
};

// Snapshots of these sessions are authenticated.
const std::vector<std::byte> kKey(16, std::byte{7});

class CppInterface final : public Interface {
 public:
  explicit CppInterface(Engine& engine) : engine_(engine) {}
  Result<SequenceId> create(std::int64_t reserve) override {
    return faulty([&] { return engine_.create_sequence(reserve); });
  }
  Result<SequenceId> fork(SequenceId parent) override {
    return faulty([&] { return engine_.fork(parent); });
  }
  Status truncate(SequenceId s, std::int64_t length) override {
    return faulty([&] { return engine_.truncate(s, length); });
  }
  Status release(SequenceId s) override {
    return faulty([&] { return engine_.release(s); });
  }
  Status can_admit(std::int64_t tokens) override {
    return faulty([&] { return engine_.can_admit(tokens); });
  }
  Result<Step> prepare(std::span<const StepEntry> entries) override {
    return faulty([&] { return engine_.prepare(entries); });
  }
  Status forward(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) override {
    return faulty([&] { return engine_.forward_layer(step, layer, x, out); });
  }
  Status run(const Step& step, const Bf16Bits* x) override {
    const LayerHook hook = [](const LayerOutput&) { return Status{}; };
    return faulty([&] { return engine_.step(step, x, hook); });
  }
  Status commit(const Step& step, std::span<const std::int32_t> accepted) override {
    return faulty([&] { return engine_.commit(step, accepted); });
  }
  Result<std::vector<SequenceId>> cancel(const Step& step) override {
    return faulty([&] { return engine_.cancel(step); });
  }
  Result<OutputCheck> output_check(const Step& step) override {
    return faulty([&] { return engine_.output_check(step); });
  }
  Result<std::int64_t> snapshot_bytes(SequenceId s) override {
    return faulty([&] { return engine_.snapshot_bytes(s, {.key = kKey}); });
  }
  Result<std::vector<std::byte>> save(SequenceId s) override {
    return faulty([&] { return engine_.save_sequence(s, {.key = kKey}); });
  }
  Result<SequenceId> restore(std::span<const std::byte> snapshot) override {
    return faulty([&] { return engine_.restore_sequence(snapshot, 0, {.key = kKey}); });
  }

 private:
  Engine& engine_;
};

class CInterface final : public Interface {
 public:
  explicit CInterface(dsv4rt_engine& engine) : engine_(engine) {}
  Result<SequenceId> create(std::int64_t reserve) override {
    return sequence([&](dsv4rt_sequence* made) { return dsv4rt_sequence_create(&engine_, reserve, made); });
  }
  Result<SequenceId> fork(SequenceId parent) override {
    return sequence([&](dsv4rt_sequence* made) { return dsv4rt_sequence_fork(&engine_, id(parent), 0, made); });
  }
  Status truncate(SequenceId s, std::int64_t length) override {
    return status([&] { return dsv4rt_sequence_truncate(&engine_, id(s), length); });
  }
  Status release(SequenceId s) override {
    return status([&] { return dsv4rt_sequence_release(&engine_, id(s)); });
  }
  Status can_admit(std::int64_t tokens) override {
    return status([&] { return dsv4rt_engine_can_admit(&engine_, tokens); });
  }
  Result<Step> prepare(std::span<const StepEntry> entries) override {
    std::vector<dsv4rt_step_entry> given;
    for (const StepEntry& entry : entries) given.push_back({id(entry.sequence), entry.tokens});
    dsv4rt_step step{};
    const Status prepared =
        status([&] { return dsv4rt_step_prepare(&engine_, given.data(), given.size(), nullptr, &step); });
    if (!prepared.ok()) return prepared;
    return Step{.serial = step.serial, .tokens = step.tokens, .valid_tokens = step.valid_tokens};
  }
  Status forward(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) override {
    return status([&] {
      const dsv4rt_step given = c_step(step);
      return dsv4rt_step_forward_layer(&engine_, &given, layer.value, x, out);
    });
  }
  Status run(const Step& step, const Bf16Bits* x) override {
    const auto hook = [](void*, std::int32_t, const dsv4rt_bf16*, dsv4rt_bf16*) -> dsv4rt_status { return DSV4RT_OK; };
    return status([&] {
      const dsv4rt_step given = c_step(step);
      return dsv4rt_step_run(&engine_, &given, x, hook, nullptr);
    });
  }
  Status commit(const Step& step, std::span<const std::int32_t> accepted) override {
    return status([&] {
      const dsv4rt_step given = c_step(step);
      return dsv4rt_step_commit(&engine_, &given, accepted.data(), accepted.size());
    });
  }
  Result<std::vector<SequenceId>> cancel(const Step& step) override {
    dsv4rt_sequence emptied[8];
    std::size_t count = 0;
    const Status cancelled = status([&] {
      const dsv4rt_step given = c_step(step);
      return dsv4rt_step_cancel(&engine_, &given, emptied, std::size(emptied), &count);
    });
    if (!cancelled.ok()) return cancelled;
    std::vector<SequenceId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back({emptied[i].index, emptied[i].generation});
    return ids;
  }
  Result<OutputCheck> output_check(const Step& step) override {
    std::int32_t known = 0;
    std::int32_t found[8];
    std::size_t count = 0;
    const Status checked = status([&] {
      const dsv4rt_step given = c_step(step);
      return dsv4rt_step_output_check(&engine_, &given, &known, found, std::size(found), &count);
    });
    if (!checked.ok()) return checked;
    return OutputCheck{.known = known == 1, .entries = {found, found + count}};
  }
  Result<std::int64_t> snapshot_bytes(SequenceId s) override {
    std::int64_t bytes = 0;
    const Status told = status([&] { return dsv4rt_sequence_snapshot_bytes(&engine_, id(s), &kOptions, &bytes); });
    if (!told.ok()) return told;
    return bytes;
  }
  Result<std::vector<std::byte>> save(SequenceId s) override {
    std::vector<std::byte> snapshot;
    const auto sink = [](void* to, const void* bytes, std::size_t count) -> dsv4rt_status {
      const Pause pause;
      auto& all = *static_cast<std::vector<std::byte>*>(to);
      all.insert(all.end(), static_cast<const std::byte*>(bytes), static_cast<const std::byte*>(bytes) + count);
      return DSV4RT_OK;
    };
    const Status saved = status([&] { return dsv4rt_sequence_save(&engine_, id(s), &kOptions, sink, &snapshot); });
    if (!saved.ok()) return saved;
    return snapshot;
  }
  Result<SequenceId> restore(std::span<const std::byte> snapshot) override {
    return sequence([&](dsv4rt_sequence* made) {
      return dsv4rt_sequence_restore(&engine_, snapshot.data(), snapshot.size(), 0, &kOptions, made);
    });
  }

 private:
  static inline const dsv4rt_snapshot_options kOptions{
      .struct_size = sizeof(dsv4rt_snapshot_options), .key = kKey.data(), .key_bytes = kKey.size()};
  static dsv4rt_sequence id(SequenceId sequence) { return {sequence.index, sequence.generation}; }
  static dsv4rt_step c_step(const Step& step) { return {step.serial, step.tokens, step.valid_tokens}; }
  template <class Call>
  Status status(const Call& call) {
    const auto code = static_cast<StatusCode>(faulty(call));
    return code == StatusCode::kOk ? Status{} : Status(code, dsv4rt_engine_last_error(&engine_));
  }
  template <class Call>
  Result<SequenceId> sequence(const Call& call) {
    dsv4rt_sequence made{};
    const Status created = status([&] { return call(&made); });
    if (!created.ok()) return created;
    return SequenceId{made.index, made.generation};
  }

  dsv4rt_engine& engine_;
};

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
    refused("admission", StatusCode::kResourceExhausted, [&] { return calls_.can_admit(393); });
    const StepEntry long_step[] = {{c, 200}, {b, 180}};
    refused("step without blocks", StatusCode::kResourceExhausted, [&] { return calls_.prepare(long_step).status(); });
    cancelled_step({{a, 2}, {c, 1}}, 5, 0, {});
    cancelled_step({{a, 2}, {c, 1}}, 6, 2, {});
    const auto saved = value<std::vector<std::byte>>("save", [&] { return calls_.save(a); });
    const auto bytes = value<std::int64_t>("bytes", [&] { return calls_.snapshot_bytes(a); });
    if (bytes != static_cast<std::int64_t>(saved.size())) diverged("size of a snapshot", {});
    const auto d = value<SequenceId>("restore", [&] { return calls_.restore(saved); });
    live_.push_back(d);
    step({{d, 2}, {a, 1}}, 7, {});
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
    must("commit", [&] { return calls_.commit(step, accepted); });
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
    if (!GetParam().through_c) return faulty([&] { return Engine::create(options).status(); });
    char message[64];
    const std::string checkpoint = options.checkpoint.string();
    dsv4rt_prefix_options prefixes{};
    EXPECT_EQ(dsv4rt_prefix_options_init(&prefixes, sizeof prefixes), DSV4RT_OK);
    prefixes.boundary_states = options.limits.boundary_states;
    dsv4rt_engine_options given{};
    EXPECT_EQ(dsv4rt_engine_options_init(&given, sizeof given), DSV4RT_OK);
    given.checkpoint = checkpoint.c_str();
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
      const auto code = static_cast<StatusCode>(dsv4rt_engine_create(&given, &engine, message, sizeof message));
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
  return std::string(info.param.through_c ? "C" : "Cpp") + (info.param.poison ? "PoisonedWithPrefixes" : "") +
         (info.param.mode == Failing::kNth ? "One" : "All");
}

INSTANTIATE_TEST_SUITE_P(Creations, CreateFailureTest,
                         testing::Values(CreateCase{.through_c = false, .poison = false, .mode = Failing::kNth},
                                         CreateCase{.through_c = false, .poison = true, .mode = Failing::kFromNthOn},
                                         CreateCase{.through_c = true, .poison = true, .mode = Failing::kNth}),
                         creation_name);

}  // namespace
}  // namespace dsv4rt::test
