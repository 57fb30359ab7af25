// Engines and threads: independent engines side by side, one engine in turns, and what fork() leaves of one. The
// program that ThreadSanitizer runs whole.
#include <mutex>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "dsv4rt/c_api.h"
#include "support/layer_rows.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kSteps = 12;
constexpr std::int32_t kMaxTokens = 9;

const std::filesystem::path& checkpoint() {
  static const SyntheticModel model{
      .config = "tiny", .first_layer = 0, .layer_count = 3, .encoding = WeightEncoding::kFp8Block128};
  return model.directory();
}

struct Closer {
  void operator()(dsv4rt_engine* engine) const { EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK); }
};
using Handle = std::unique_ptr<dsv4rt_engine, Closer>;

Handle open(std::int32_t threads) {
  dsv4rt_engine_options options;
  EXPECT_EQ(dsv4rt_engine_options_init(&options, sizeof options), DSV4RT_OK);
  const std::string path = checkpoint().string();
  options.checkpoint = path.c_str();
  options.layer_count = 3;
  options.threads = threads;
  options.max_sequences = 4;
  options.max_context_tokens = 200;
  options.max_step_tokens = kMaxTokens;
  options.draft_budget_tokens = 2;
  options.check_outputs = 1;
  dsv4rt_engine* engine = nullptr;
  char message[256] = "";
  EXPECT_EQ(dsv4rt_engine_create(&options, &engine, message, sizeof message), DSV4RT_OK) << message;
  return Handle(engine);
}

// One sequence's life: steps of changing length, forks that come and go, outputs of every layer. `turns`, if there is
// one, is held during calls.
class Life {
 public:
  Life(dsv4rt_engine* engine, std::uint64_t seed, std::mutex* turns) : engine_(engine), seed_(seed), turns_(turns) {
    const auto turn = take_turn();
    EXPECT_EQ(dsv4rt_engine_hidden_size(engine, &hidden_), DSV4RT_OK);
    EXPECT_EQ(dsv4rt_sequence_create(engine, 0, &sequence_), DSV4RT_OK);
  }
  ~Life() {
    const auto turn = take_turn();
    EXPECT_EQ(dsv4rt_sequence_release(engine_, sequence_), DSV4RT_OK);
  }
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  std::vector<dsv4rt_bf16> outputs;

  void live(std::int32_t from, std::int32_t to) {
    for (std::int32_t number = from; number < to; ++number) step(number);
  }

 private:
  std::unique_lock<std::mutex> take_turn() const {
    return turns_ == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*turns_);
  }
  void step(std::int32_t number) {
    const std::int32_t tokens = number % 5 == 0 ? kMaxTokens : 1 + number % 3;
    const std::vector<Bf16Bits> x =
        random_rows(seed_ * 1000 + static_cast<std::uint64_t>(number), 1, tokens, hidden_)[0];
    std::vector<dsv4rt_bf16> out(x.size());
    const auto turn = take_turn();
    const dsv4rt_step_entry entry{sequence_, tokens};
    dsv4rt_step step{};
    ASSERT_EQ(dsv4rt_step_prepare(engine_, &entry, 1, nullptr, &step), DSV4RT_OK) << dsv4rt_engine_last_error(engine_);
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      ASSERT_EQ(dsv4rt_step_forward_layer(engine_, &step, layer, x.data(), out.data()), DSV4RT_OK);
      outputs.insert(outputs.end(), out.begin(), out.end());
    }
    ASSERT_EQ(dsv4rt_step_commit(engine_, &step, nullptr, 0), DSV4RT_OK);
    if (number % 4 != 3) return;
    dsv4rt_sequence fork{};
    ASSERT_EQ(dsv4rt_sequence_fork(engine_, sequence_, 0, &fork), DSV4RT_OK);
    ASSERT_EQ(dsv4rt_sequence_release(engine_, fork), DSV4RT_OK);
  }

  dsv4rt_engine* engine_;
  std::uint64_t seed_;
  std::mutex* turns_;
  std::int64_t hidden_ = 0;
  dsv4rt_sequence sequence_{};
};

std::vector<dsv4rt_bf16> outputs_of(dsv4rt_engine* engine, std::uint64_t seed, std::mutex* turns = nullptr) {
  Life life(engine, seed, turns);
  life.live(0, kSteps);
  return life.outputs;
}

// What one thread alone computes.
const std::vector<dsv4rt_bf16>& expected(std::uint64_t seed) {
  static const std::vector<dsv4rt_bf16> of_seeds[] = {outputs_of(open(1).get(), 0), outputs_of(open(1).get(), 1)};
  return of_seeds[seed];
}

template <class Work>
void in_two_threads(const Work& work) {
  expected(0);
  std::thread other([&] { work(std::uint64_t{1}); });
  work(std::uint64_t{0});
  other.join();
}

TEST(EngineThreads, TwoEnginesComputeSideBySide) {
  in_two_threads([](std::uint64_t seed) { EXPECT_TRUE(outputs_of(open(2).get(), seed) == expected(seed)); });
}

TEST(EngineThreads, OneEngineServesThreadsInTurn) {
  Handle engine = open(2);
  std::mutex turns;
  in_two_threads([&](std::uint64_t seed) { EXPECT_TRUE(outputs_of(engine.get(), seed, &turns) == expected(seed)); });
  std::thread([&] { engine.reset(); }).join();
}

TEST(EngineThreads, EnginesComeAndGoWhileAnotherComputes) {
  in_two_threads([](std::uint64_t seed) {
    if (seed == 0) {
      EXPECT_TRUE(outputs_of(open(2).get(), seed) == expected(seed));
      return;
    }
    for (int i = 0; i < 4; ++i) {
      const Handle engine = open(2);
      Life life(engine.get(), 7, nullptr);
      life.live(0, i);  // also one that never computed
    }
  });
}

#if !defined(__SANITIZE_THREAD__)  // it ends a forked child that starts threads
// The child has the engine but none of its threads; the parent goes on as if nothing had happened.
TEST(EngineThreads, AForkedChildComputesWithTheEngine) {
  expected(0);
  const Handle engine = open(3);
  Life life(engine.get(), 0, nullptr);
  life.live(0, kSteps / 2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a child that waits for threads it does not have ends by this signal
    life.live(kSteps / 2, kSteps);
    const bool same = life.outputs == expected(0) && !testing::Test::HasFailure();
    _exit(same ? 0 : 1);
  }
  life.live(kSteps / 2, kSteps);
  EXPECT_TRUE(life.outputs == expected(0));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace dsv4rt::test
