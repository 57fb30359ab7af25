// One trial of a lost rank, started by mpirun with several ranks: a rank takes a step after the other and is killed, at
// a moment that the trial's number decides; the others have to find out within the deadline and a second, and go on.
//
//   lost_rank_trial REPORT_FOLDER TRIAL
//
// mpirun's exit status says nothing when a process was killed: every rank that is left writes what it has seen to
// REPORT_FOLDER/<rank>, "ok" or what was wrong. lost_rank_trials.py reads that.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mpi.h>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/try.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "dist/mpi/mpi_session.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kDeadlineSeconds = 0.5;
constexpr int kMostSteps = 10000;  // the kill comes long before

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Eight heads and a group a rank; all layers of the tiny model.
Status write_checkpoint(const std::filesystem::path& directory, std::int32_t ranks) {
  DSV4RT_ASSIGN_OR_RETURN(ModelConfig config,
                          ModelConfig::from_file(std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / "tiny.json"));
  config.num_attention_heads = 8 * std::int64_t{ranks};
  config.o_groups = ranks;
  config.o_lora_rank = 128;
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(config));
  return write_synthetic_checkpoint(directory, config, schedule.layers(),
                                    {.encoding = WeightEncoding::kFp8Block128, .seed = 7, .max_shard_bytes = 0});
}

EngineOptions options_of(const std::filesystem::path& checkpoint, std::shared_ptr<Communicator> ranks) {
  EngineOptions options;
  options.checkpoint = checkpoint;
  options.threads = 1;
  options.limits = {.max_sequences = 1, .max_context_tokens = 65536, .max_step_tokens = 8, .pool_tokens = 65536};
  options.parallel.tensor = std::move(ranks);
  options.parallel.create_deadline_seconds = 30;
  return options;
}

// One step of `tokens` tokens through every layer.
Status take_step(Engine& engine, SequenceId sequence, std::int32_t tokens, std::uint64_t seed) {
  const StepEntry entry{.sequence = sequence, .tokens = tokens};
  DSV4RT_ASSIGN_OR_RETURN(const Step step, engine.prepare({&entry, 1}));
  std::vector<Bf16Bits> x(static_cast<std::size_t>(tokens * engine.config().hidden_size));
  std::minstd_rand random(static_cast<unsigned>(seed + 1));
  for (Bf16Bits& value : x) value = static_cast<Bf16Bits>(0x3f00 + random() % 256);
  std::vector<Bf16Bits> out(x.size());
  for (const LayerId layer : engine.layers()) {
    DSV4RT_RETURN_IF_ERROR(engine.forward_layer(step, layer, x.data(), out.data()));
  }
  return engine.commit(step);
}

// "ok", or what is wrong.
std::string wrong(const std::string& what, const Status& status) {
  return what + ": " + status.to_string();
}

// What a rank that is left sees from the first step on.
std::string survive(Engine& engine, SequenceId sequence, const std::filesystem::path& checkpoint,
                    const std::vector<int>& left) {
  Clock::time_point begin;
  Status status;
  for (int i = 0; i < kMostSteps && status.ok(); ++i) {
    begin = Clock::now();
    status = take_step(engine, sequence, 1 + i % 8, static_cast<std::uint64_t>(i));
  }
  const double waited = seconds_since(begin);
  if (status.code() != StatusCode::kBackendLost) return wrong("a step after the kill", status);
  if (waited > kDeadlineSeconds + 1) return "the step took " + std::to_string(waited) + " s";
  const Status later = engine.create_sequence().status();
  if (later.code() != StatusCode::kBackendLost) return wrong("a later call", later);

  // The ranks that are left make a communicator of their own and go on together.
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, static_cast<int>(left.size()), left.data(), &group);
  if (const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, 1, &comm); code != MPI_SUCCESS) {
    return "MPI_Comm_create_group: " + std::to_string(code);
  }
  auto again = create_mpi_communicator({.communicator = &comm, .deadline_seconds = 30});
  if (!again) return wrong("a communicator of the ranks that are left", again.status());
  // Their number need not divide the heads: each works alone, and all compare what they have.
  auto alone = Engine::create(options_of(checkpoint, nullptr));
  if (!alone) return wrong("a new engine", alone.status());
  const auto fresh = (*alone)->create_sequence();
  if (!fresh) return wrong("a new sequence", fresh.status());
  if (const Status step = take_step(**alone, *fresh, 8, 1); !step.ok()) return wrong("a step of a new engine", step);
  float sum = 1;
  if (const Status added = (*again)->all_reduce_sum(&sum, ElementType::kF32, &sum, ElementType::kF32, 1, nullptr);
      !added.ok()) {
    return wrong("a sum of the ranks that are left", added);
  }
  if (sum != static_cast<float>(left.size())) return "the ranks that are left add up to " + std::to_string(sum);
  return "ok";
}

int trial(const std::filesystem::path& folder, unsigned number) {
  auto session = MpiSession::start();
  if (!session) return 1;
  const int rank = session->rank();
  const std::filesystem::path report = folder / std::to_string(rank);
  const auto tell = [&](const std::string& text) {
    std::ofstream(report) << text << "\n";
    return 1;
  };
  const std::filesystem::path checkpoint = folder / ("checkpoint" + std::to_string(rank));
  if (const Status written = write_checkpoint(checkpoint, session->size()); !written.ok()) {
    return tell(wrong("checkpoint", written));
  }
  auto ranks = create_mpi_communicator({.communicator = nullptr, .deadline_seconds = kDeadlineSeconds});
  if (!ranks) return tell(wrong("communicator", ranks.status()));
  auto engine = Engine::create(options_of(checkpoint, *ranks));
  if (!engine) return tell(wrong("engine", engine.status()));
  const auto sequence = (*engine)->create_sequence();
  if (!sequence) return tell(wrong("sequence", sequence.status()));

  std::mt19937 random(number);
  const int victim = static_cast<int>(random() % static_cast<unsigned>(session->size()));
  const auto moment = std::chrono::microseconds(random() % 200000);
  std::vector<int> left;
  for (int other = 0; other < session->size(); ++other) {
    if (other != victim) left.push_back(other);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == victim) {
    // From another thread: wherever the step is by then.
    std::thread([moment] {
      std::this_thread::sleep_for(moment);
      ::kill(::getpid(), SIGKILL);
    }).detach();
    for (int i = 0; i < kMostSteps; ++i) {
      if (!take_step(**engine, *sequence, 1 + i % 8, static_cast<std::uint64_t>(i)).ok()) break;
    }
    return tell("outlived the kill");
  }
  const std::string seen = survive(**engine, *sequence, checkpoint, left);
  tell(seen);
  std::fflush(nullptr);
  // Without MPI_Finalize, which would wait for the rank that was killed.
  std::_Exit(seen == "ok" ? 0 : 1);
}

}  // namespace
}  // namespace dsv4rt

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: lost_rank_trial REPORT_FOLDER TRIAL\n");
    return 2;
  }
  return dsv4rt::trial(argv[1], static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)));
}
