// Any sequence of calls of the C interface, beside a model of what an engine with three sequences holds: every result
// is the one that the model expects, lengths agree, and at the end everything can be given back.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsv4rt/c_api.h"
#include "expect.h"
#include "fuzz_input.h"
#include "fuzz_model.h"

namespace {

using namespace dsv4rt;

constexpr std::int32_t kMaxSequences = 3;
constexpr std::int64_t kMaxContext = 512;
constexpr std::int32_t kMaxStepTokens = 160;
constexpr std::int32_t kDraftBudget = 4;
constexpr int kMostCalls = 120;

struct Sequence {
  dsv4rt_sequence id{};
  std::int64_t length = 0;
};

struct Outstanding {
  dsv4rt_step step{};
  std::vector<std::size_t> members;  // indices into Machine::live_
  std::vector<std::int32_t> tokens;
  int layers_run = 0;
};

class Machine {
 public:
  explicit Machine(dsv4rt_engine* engine) : engine_(engine) {}

  void apply(fuzz::FuzzInput& input) {
    switch (input.below(12)) {
      case 0:
        return create(input);
      case 1:
        return fork(input);
      case 2:
        return truncate(input);
      case 3:
        return release(input);
      case 4:
      case 5:
      case 6:
        return prepare(input);
      case 7:
      case 8:
        return forward(input);
      case 9:
        return commit(input);
      case 10:
        return cancel();
      default:
        return ask(input);
    }
  }

  void finish() {
    if (step_) cancel();
    while (!live_.empty()) {
      check(dsv4rt_sequence_release(engine_, live_.back().id), DSV4RT_OK, "release");
      live_.pop_back();
    }
    check(dsv4rt_engine_can_admit(engine_, kMaxContext), DSV4RT_OK, "can_admit after everything was released");
  }

 private:
  void check(dsv4rt_status status, dsv4rt_status expected, const char* call) const {
    fuzz::expect(status == expected, std::string(call) + " gives " + dsv4rt_status_name(status) + " (" +
                                         dsv4rt_engine_last_error(engine_) + "), expected " +
                                         dsv4rt_status_name(expected));
  }
  // Refused, and nothing latched.
  void check_refused(dsv4rt_status status, const char* call) const {
    fuzz::expect(status != DSV4RT_OK && status != DSV4RT_INTERNAL && status != DSV4RT_FAULTED,
                 std::string(call) + " gives " + dsv4rt_status_name(status));
    fuzz::expect(*dsv4rt_engine_last_error(engine_) != '\0', std::string(call) + ": no text");
  }
  // What a call that changes sequences gives while a step is outstanding, or for an id that nobody has.
  [[nodiscard]] std::optional<std::size_t> pick(fuzz::FuzzInput& input) const {
    const std::size_t index = input.below(4);
    return index < live_.size() ? std::optional(index) : std::nullopt;
  }
  [[nodiscard]] dsv4rt_sequence id_of(std::optional<std::size_t> index, fuzz::FuzzInput& input) const {
    return index ? live_[*index].id : dsv4rt_sequence{input.take<std::uint8_t>(), static_cast<std::uint32_t>(1) << 31};
  }

  void create(fuzz::FuzzInput& input) {
    const std::int64_t reserve = input.below(700) - std::int64_t{10};
    dsv4rt_sequence id{};
    const dsv4rt_status status = dsv4rt_sequence_create(engine_, reserve, &id);
    if (step_ || reserve < 0 || reserve > kMaxContext || live_.size() == kMaxSequences) {
      return check_refused(status, "create");
    }
    if (status == DSV4RT_OK)
      live_.push_back({id, 0});
    else
      check(status, DSV4RT_RESOURCE_EXHAUSTED, "create");
  }

  void fork(fuzz::FuzzInput& input) {
    const auto parent = pick(input);
    dsv4rt_sequence child{};
    const dsv4rt_status status = dsv4rt_sequence_fork(engine_, id_of(parent, input), 0, &child);
    if (step_ || !parent || live_.size() == kMaxSequences) return check_refused(status, "fork");
    check(status, DSV4RT_OK, "fork");
    live_.push_back({child, live_[*parent].length});
  }

  void truncate(fuzz::FuzzInput& input) {
    const auto index = pick(input);
    const std::int64_t length = input.below(600) - std::int64_t{5};
    const dsv4rt_status status = dsv4rt_sequence_truncate(engine_, id_of(index, input), length);
    if (step_ || !index || length < 0 || length > live_[*index].length) return check_refused(status, "truncate");
    if (status == DSV4RT_OK)
      live_[*index].length = length;
    else
      check(status, DSV4RT_FAILED_PRECONDITION, "truncate");
    if (length == 0 || length == live_[*index].length) check(status, DSV4RT_OK, "truncate");
  }

  void release(fuzz::FuzzInput& input) {
    const auto index = pick(input);
    const dsv4rt_status status = dsv4rt_sequence_release(engine_, id_of(index, input));
    if (step_ || !index) return check_refused(status, "release");
    check(status, DSV4RT_OK, "release");
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(*index));
  }

  void prepare(fuzz::FuzzInput& input) {
    std::vector<dsv4rt_step_entry> entries(input.below(4));
    Outstanding next;
    bool valid = !entries.empty() && !step_;
    std::int64_t total = 0;
    std::array<bool, kMaxSequences> used{};
    for (dsv4rt_step_entry& entry : entries) {
      const auto index = pick(input);
      entry.sequence = id_of(index, input);
      entry.tokens = static_cast<std::int32_t>(input.below(8) == 0 ? input.below(300) : input.below(20)) - 1;
      total += entry.tokens;
      valid = valid && index && !used[*index] && entry.tokens > 0 && live_[*index].length + entry.tokens <= kMaxContext;
      if (!index) continue;
      used[*index] = true;
      next.members.push_back(*index);
      next.tokens.push_back(entry.tokens);
    }
    valid = valid && total <= kMaxStepTokens;
    const dsv4rt_status status = dsv4rt_step_prepare(engine_, entries.data(), entries.size(), nullptr, &next.step);
    if (!valid) return check_refused(status, "prepare");
    if (status != DSV4RT_OK) return check(status, DSV4RT_RESOURCE_EXHAUSTED, "prepare");
    fuzz::expect(next.step.tokens == total && next.step.valid_tokens == total, "a step of other tokens");
    step_ = std::move(next);
  }

  // The next layer, now and then a wrong one or another step.
  void forward(fuzz::FuzzInput& input) {
    const bool wrong = input.below(8) == 0;
    dsv4rt_step step = step_ ? step_->step : dsv4rt_step{1, 1, 1};
    if (wrong) step.serial += 1 + input.below(3);
    const std::int32_t layer =
        step_ && step_->layers_run < 3 ? step_->layers_run : static_cast<int>(input.below(5)) - 1;
    const auto x = fuzz::model_rows(1, input.below(64), step.tokens);
    std::vector<Bf16Bits> out(x.size());
    const dsv4rt_status status = dsv4rt_step_forward_layer(engine_, &step, layer, x.data(), out.data());
    if (!step_ || wrong || step_->layers_run == 3) return check_refused(status, "forward_layer");
    check(status, DSV4RT_OK, "forward_layer");
    ++step_->layers_run;
  }

  void commit(fuzz::FuzzInput& input) {
    const dsv4rt_step step = step_ ? step_->step : dsv4rt_step{1, 1, 1};
    std::vector<std::int32_t> accepted = step_ ? step_->tokens : std::vector<std::int32_t>{1};
    bool valid = step_ && step_->layers_run == 3;
    bool beyond_budget = false;  // accepted while the rings hold what is gone back to
    for (std::int32_t& count : accepted) {
      const auto rejected = static_cast<std::int32_t>(input.below(7)) - 1;
      if (rejected < 0 || rejected > count) valid = false;
      beyond_budget = beyond_budget || rejected > kDraftBudget;
      count -= rejected;
    }
    const dsv4rt_status status = dsv4rt_step_commit(engine_, &step, accepted.data(), accepted.size());
    if (!valid) return check_refused(status, "commit");
    if (beyond_budget && status == DSV4RT_INVALID_ARGUMENT) return;
    check(status, DSV4RT_OK, "commit");
    for (std::size_t i = 0; i < accepted.size(); ++i) live_[step_->members[i]].length += accepted[i];
    step_.reset();
  }

  void cancel() {
    const dsv4rt_step step = step_ ? step_->step : dsv4rt_step{1, 1, 1};
    std::array<dsv4rt_sequence, kMaxSequences> emptied{};
    std::size_t count = 0;
    const dsv4rt_status status = dsv4rt_step_cancel(engine_, &step, emptied.data(), emptied.size(), &count);
    if (!step_) return check_refused(status, "cancel");
    check(status, DSV4RT_OK, "cancel");
    for (std::size_t i = 0; i < count; ++i) {
      for (Sequence& sequence : live_) {
        if (sequence.id.index == emptied[i].index && sequence.id.generation == emptied[i].generation) {
          sequence.length = 0;
        }
      }
    }
    step_.reset();
  }

  void ask(fuzz::FuzzInput& input) {
    const auto index = pick(input);
    std::int64_t length = -1;
    const dsv4rt_status status = dsv4rt_sequence_length(engine_, id_of(index, input), &length);
    if (!index) return check_refused(status, "length");
    check(status, DSV4RT_OK, "length");
    std::int64_t expected = live_[*index].length;
    if (step_) {
      for (std::size_t i = 0; i < step_->members.size(); ++i) {
        if (step_->members[i] == *index) expected += step_->tokens[i];
      }
    }
    fuzz::expect(length == expected, "length " + std::to_string(length) + ", expected " + std::to_string(expected));
  }

  dsv4rt_engine* engine_;
  std::vector<Sequence> live_;
  std::optional<Outstanding> step_;
};

dsv4rt_engine* make_engine() {
  dsv4rt_engine_options options;
  fuzz::expect(dsv4rt_engine_options_init(&options, sizeof(options)) == DSV4RT_OK, "options");
  const std::string path = fuzz::model_directory().string();
  options.checkpoint = path.c_str();
  options.threads = 1;
  options.max_sequences = kMaxSequences;
  options.max_context_tokens = kMaxContext;
  options.max_step_tokens = kMaxStepTokens;
  options.pool_tokens = 1024;
  options.draft_budget_tokens = kDraftBudget;
  dsv4rt_engine* engine = nullptr;
  char message[512] = "";
  fuzz::expect(dsv4rt_engine_create(&options, &engine, message, sizeof(message)) == DSV4RT_OK, message);
  return engine;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static dsv4rt_engine* const engine = make_engine();  // lives as long as the process
  fuzz::FuzzInput input(data, size);
  Machine machine(engine);
  for (int call = 0; call < kMostCalls && !input.empty(); ++call) machine.apply(input);
  machine.finish();
  return 0;
}
