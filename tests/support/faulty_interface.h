// The calls of a session through C++ or C, with allocations that fail in them and nowhere else. To be included by one
// source of a program (fail_allocations.h).
#pragma once

#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capi/c_api_handle.h"
#include "dsv4rt/engine.h"
#include "support/fail_allocations.h"

namespace dsv4rt::test {

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
  virtual Result<bool> can_step(std::span<const StepEntry> entries) = 0;
  // The engine's state, a sequence's and a layer's cache view, one after the other.
  virtual Status look(SequenceId sequence, LayerId layer) = 0;
  virtual Result<std::string> describe() = 0;
  virtual Result<std::string> metrics() = 0;
  virtual Result<Step> prepare(std::span<const StepEntry> entries) = 0;
  virtual Status forward(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out) = 0;
  virtual Status run(const Step& step, const Bf16Bits* x) = 0;
  virtual Status commit(const Step& step, std::span<const std::int32_t> accepted) = 0;
  virtual Status commit_from_device(const Step& step, std::span<const std::int32_t> accepted) = 0;
  virtual Result<std::vector<SequenceId>> cancel(const Step& step) = 0;
  virtual Result<OutputCheck> output_check(const Step& step) = 0;
  virtual Result<std::int64_t> snapshot_bytes(SequenceId sequence) = 0;
  virtual Result<std::vector<std::byte>> save(SequenceId sequence, std::int64_t base_tokens) = 0;
  virtual Result<SequenceId> restore(std::span<const std::byte> snapshot) = 0;
  // From a source that gives 4 KiB at a time.
  virtual Result<SequenceId> restore_from(std::span<const std::byte> snapshot) = 0;
};

// Snapshots of these sessions are authenticated.
inline const std::vector<std::byte> kKey(16, std::byte{7});

// Moves the next bytes of a snapshot, at most 4 KiB, into a source's buffer.
inline std::size_t take_part(std::span<const std::byte>& rest, std::byte* target, std::size_t count) {
  const std::size_t bytes = std::min({count, rest.size(), std::size_t{4096}});
  std::copy_n(rest.begin(), bytes, target);
  rest = rest.subspan(bytes);
  return bytes;
}

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
  Result<bool> can_step(std::span<const StepEntry> entries) override {
    return faulty([&]() -> Result<bool> {
      const auto shortage = engine_.can_step(entries);
      if (!shortage.ok()) return shortage.status();
      return !shortage->has_value();
    });
  }
  Status look(SequenceId s, LayerId layer) override {
    return faulty([&]() -> Status {
      if (const auto state = engine_.state(); !state.ok()) return state.status();
      if (const auto state = engine_.sequence_state(s); !state.ok()) return state.status();
      return engine_.cache_view(layer, CacheRole::kSwaKv).status();
    });
  }
  Result<std::string> describe() override {
    return faulty([&] { return engine_.describe(); });
  }
  Result<std::string> metrics() override {
    return faulty([&] { return engine_.metrics(std::array{MetricLabel{"engine", "0"}}); });
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
  Status commit_from_device(const Step& step, std::span<const std::int32_t> accepted) override {
    return faulty([&] { return engine_.commit_from_device(step, accepted); });
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
  Result<std::vector<std::byte>> save(SequenceId s, std::int64_t base_tokens) override {
    return faulty([&] { return engine_.save_sequence(s, SnapshotOptions{.key = kKey, .base_tokens = base_tokens}); });
  }
  Result<SequenceId> restore_from(std::span<const std::byte> snapshot) override {
    return faulty([&] {
      return engine_.restore_sequence_from(
          [&](std::span<std::byte> buffer) -> Result<std::size_t> {
            return take_part(snapshot, buffer.data(), buffer.size());
          },
          0, {.key = kKey});
    });
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
  Result<bool> can_step(std::span<const StepEntry> entries) override {
    const std::vector<dsv4rt_step_entry> given = c_entries(entries);
    auto shortage = sized<dsv4rt_block_shortage>();
    const Status asked =
        status([&] { return dsv4rt_step_can_prepare(&engine_, given.data(), given.size(), nullptr, &shortage); });
    // What is short is told by the struct too; without it the call itself has failed.
    if (!asked.ok() && shortage.missing_blocks == 0) return asked;
    return shortage.missing_blocks == 0;
  }
  Status look(SequenceId s, LayerId layer) override {
    auto engine = sized<dsv4rt_engine_state>();
    auto role = sized<dsv4rt_role_state>();
    auto sequence = sized<dsv4rt_sequence_state>();
    auto view = sized<dsv4rt_cache_view>();
    Status told = status([&] { return dsv4rt_engine_get_state(&engine_, &engine); });
    if (told.ok()) told = status([&] { return dsv4rt_engine_role_state(&engine_, DSV4RT_ROLE_CSA_KV, &role); });
    if (told.ok()) told = status([&] { return dsv4rt_sequence_get_state(&engine_, id(s), &sequence); });
    if (told.ok()) {
      told = status([&] { return dsv4rt_engine_cache_view(&engine_, layer.value, DSV4RT_ROLE_SWA_KV, &view); });
    }
    return told;
  }
  Result<std::string> describe() override {
    char text[16384];
    std::size_t bytes = 0;
    const Status told = status([&] { return dsv4rt_engine_describe(&engine_, text, sizeof text, &bytes); });
    if (!told.ok()) return told;
    return std::string(text);
  }
  Result<std::string> metrics() override {
    char text[16384];
    std::size_t bytes = 0;
    const dsv4rt_metric_label label{"engine", "0"};
    const Status told = status([&] { return dsv4rt_engine_metrics(&engine_, &label, 1, text, sizeof text, &bytes); });
    if (!told.ok()) return told;
    return std::string(text);
  }
  Result<Step> prepare(std::span<const StepEntry> entries) override {
    const std::vector<dsv4rt_step_entry> given = c_entries(entries);
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
  Status commit_from_device(const Step& step, std::span<const std::int32_t> accepted) override {
    return status([&] {
      const dsv4rt_step given = c_step(step);
      return dsv4rt_step_commit_from_device(&engine_, &given, accepted.data(), accepted.size());
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
  Result<std::vector<std::byte>> save(SequenceId s, std::int64_t base_tokens) override {
    std::vector<std::byte> snapshot;
    dsv4rt_snapshot_options options = kOptions;
    options.base_tokens = base_tokens;
    const auto sink = [](void* to, const void* bytes, std::size_t count) -> dsv4rt_status {
      const Pause pause;
      auto& all = *static_cast<std::vector<std::byte>*>(to);
      all.insert(all.end(), static_cast<const std::byte*>(bytes), static_cast<const std::byte*>(bytes) + count);
      return DSV4RT_OK;
    };
    const Status saved = status([&] { return dsv4rt_sequence_save(&engine_, id(s), &options, sink, &snapshot); });
    if (!saved.ok()) return saved;
    return snapshot;
  }
  Result<SequenceId> restore(std::span<const std::byte> snapshot) override {
    return sequence([&](dsv4rt_sequence* made) {
      return dsv4rt_sequence_restore(&engine_, snapshot.data(), snapshot.size(), 0, &kOptions, made);
    });
  }
  Result<SequenceId> restore_from(std::span<const std::byte> snapshot) override {
    const auto source = [](void* from, void* bytes, std::size_t count, std::size_t* given) -> dsv4rt_status {
      *given = take_part(*static_cast<std::span<const std::byte>*>(from), static_cast<std::byte*>(bytes), count);
      return DSV4RT_OK;
    };
    return sequence([&](dsv4rt_sequence* made) {
      return dsv4rt_sequence_restore_from(&engine_, source, &snapshot, 0, &kOptions, made);
    });
  }

 private:
  static inline const dsv4rt_snapshot_options kOptions{
      .struct_size = sizeof(dsv4rt_snapshot_options), .key = kKey.data(), .key_bytes = kKey.size(), .base_tokens = 0};
  static dsv4rt_sequence id(SequenceId sequence) { return {sequence.index, sequence.generation}; }
  static std::vector<dsv4rt_step_entry> c_entries(std::span<const StepEntry> entries) {
    std::vector<dsv4rt_step_entry> given;
    for (const StepEntry& entry : entries) given.push_back({id(entry.sequence), entry.tokens});
    return given;
  }
  template <class Struct>
  static Struct sized() {
    Struct made{};
    made.struct_size = sizeof made;
    return made;
  }
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

}  // namespace dsv4rt::test
