// One trial of a lost rank, started by mpirun with several ranks: a rank takes a step after the other and is killed, at
// a moment that the trial's number decides; the others have to find out within the deadline and a second, and go on.
//
//   lost_rank_trial REPORT_FOLDER TRIAL [BACKEND]
//
// Every other trial runs whole steps, captured where the backend can; the rest layer by layer. Backend "cuda": a GPU
// for each rank, which meet over NCCL.
//
// Nothing of the lost engine may stay in the ranks that are left: threads, descriptors, addresses and memory in use,
// of the device too, are counted before it is made and when it is gone; over NCCL until its abort has ended, too.
//
// mpirun's exit status says nothing when a process was killed: every rank that is left writes what it has seen to
// REPORT_FOLDER/<rank>, "ok", "ok after SECONDS s" where something stayed so long, or what was wrong.
// lost_rank_trials.py reads that.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <malloc.h>
#include <mpi.h>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/try.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "dist/exchange_memory.h"
#include "dist/mpi/mpi_session.h"
#include "dsv4rt/engine.h"
#if defined(DSV4RT_HAVE_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;
using Ranks = std::shared_ptr<Communicator>;
constexpr int kMostSteps = 10000;  // the kill comes long before
constexpr std::int32_t kStepTokens = 8;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What a process has at present.
struct Resources {
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t address_bytes = 0;
  std::int64_t heap_bytes = 0;    // allocated and not freed
  std::int64_t device_bytes = 0;  // in use on the current device, which only ranks that compute there ask about

  static std::int64_t entries(const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
  static Resources now([[maybe_unused]] bool on_device) {
    Resources now;
    now.descriptors = entries("/proc/self/fd");
    now.threads = entries("/proc/self/task");
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    now.address_bytes = pages * ::getpagesize();
    const struct mallinfo2 heap = ::mallinfo2();
    now.heap_bytes = static_cast<std::int64_t>(heap.uordblks + heap.hblkhd);
#if defined(DSV4RT_HAVE_CUDA)
    std::size_t free = 0;
    std::size_t total = 0;
    if (on_device && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      now.device_bytes = static_cast<std::int64_t>(total - free);
    }
#endif
    return now;
  }
};

class Trial {
 public:
  Trial(std::filesystem::path folder, unsigned number, std::string backend, const MpiSession& session)
      : folder_(std::move(folder)),
        number_(number),
        backend_(std::move(backend)),
        rank_(session.rank()),
        size_(session.size()),
        device_(session.local_rank()),
        checkpoint_(folder_ / ("checkpoint" + std::to_string(rank_))) {}

  // "ok", with or without a time, or what is wrong; the rank that is killed does not return.
  std::string run() {
    if (const Status written = write_checkpoint(); !written.ok()) return wrong("checkpoint", written);
    std::mt19937 random(number_);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size_));
    const auto moment = std::chrono::microseconds(random() % 200000);
    for (int other = 0; other < size_; ++other) {
      if (other != victim) left_.push_back(other);
    }
    // What happens once in a process happens before it is counted: the same, without a loss.
    if (std::string seen = rehearse(); seen != "ok") return seen;
    const bool on_device = backend_ == "cuda";
    const Resources before = Resources::now(on_device);
    if (std::string seen = lose(rank_ == victim, moment); seen != "ok") return seen;
    // Whatever was left: the others wait in what follows.
    std::string left;
    double waited = 0;
    const Clock::time_point gone = Clock::now();
    do {
      waited = seconds_since(gone);
      left = compare(before, Resources::now(on_device));
    } while (left != "ok" && waited < given_back_seconds());
    const std::string seen = go_on();
    if (left != "ok") return left;
    return seen == "ok" && waited > kThreadSeconds ? "ok after " + std::to_string(waited) + " s" : seen;
  }

 private:
  static std::string wrong(const std::string& what, const Status& status) { return what + ": " + status.to_string(); }

  // An engine's first step on a device loads code: deadlines are longer there.
  [[nodiscard]] double deadline_seconds() const { return backend_ == "cuda" ? 3 : 0.5; }

  // How long something of the lost engine may stay when it is gone: a thread that has done its work still ends, and
  // over NCCL nothing bounds what its abort takes, which goes on behind the destructor's deadline.
  static constexpr double kThreadSeconds = 1;
  [[nodiscard]] double given_back_seconds() const { return backend_ == "cuda" ? 20 : kThreadSeconds; }

  // Eight heads and a group a rank; all layers of the tiny model.
  [[nodiscard]] Status write_checkpoint() const {
    const auto configs = std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs";
    DSV4RT_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::from_file(configs / "tiny.json"));
    config.num_attention_heads = 8 * std::int64_t{size_};
    config.o_groups = size_;
    config.o_lora_rank = 128;
    DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(config));
    return write_synthetic_checkpoint(checkpoint_, config, schedule.layers(),
                                      {.encoding = WeightEncoding::kFp8Block128, .seed = 7, .max_shard_bytes = 0});
  }

  // Of all ranks of an MPI communicator.
  [[nodiscard]] Result<Ranks> meet(const MPI_Comm& comm, double deadline) const {
    DSV4RT_ASSIGN_OR_RETURN(Ranks mpi, create_mpi_communicator({.communicator = &comm, .deadline_seconds = 30}));
    if (backend_ != "cuda") return create_mpi_communicator({.communicator = &comm, .deadline_seconds = deadline});
    NcclUniqueId id{};
    if (mpi->rank() == 0) {
      DSV4RT_ASSIGN_OR_RETURN(id, create_nccl_unique_id());
    }
    DSV4RT_RETURN_IF_ERROR(mpi->broadcast(id.data(), static_cast<std::int64_t>(id.size()), 0, nullptr));
    return create_nccl_communicator(
        {.rank = mpi->rank(), .size = mpi->size(), .id = id, .device = device_, .deadline_seconds = deadline});
  }

  [[nodiscard]] Result<std::unique_ptr<Engine>> make_engine(Ranks ranks) const {
    EngineOptions options;
    options.checkpoint = checkpoint_;
    options.backend = backend_;
    options.device = device_;
    options.threads = 1;
    options.limits = {
        .max_sequences = 1, .max_context_tokens = 65536, .max_step_tokens = kStepTokens, .pool_tokens = 65536};
    options.parallel.tensor = std::move(ranks);
    options.parallel.create_deadline_seconds = 30;
    return Engine::create(options);
  }

  // One step of `tokens` tokens through every layer.
  [[nodiscard]] Status take_step(Engine& engine, SequenceId sequence, std::int32_t tokens, std::uint64_t seed) const {
    const bool whole = number_ / 2 % 2 == 0;
    const StepEntry entry{.sequence = sequence, .tokens = tokens};
    DSV4RT_ASSIGN_OR_RETURN(const Step step, engine.prepare({&entry, 1}, {.capture = whole}));
    if (whole) {  // x is whatever the engine's input memory holds
      DSV4RT_RETURN_IF_ERROR(engine.step(step, engine.input(), [](const LayerOutput&) { return Status{}; }));
      DSV4RT_RETURN_IF_ERROR(engine.synchronize());
      return engine.commit(step);
    }
    std::vector<Bf16Bits> x(static_cast<std::size_t>(tokens * engine.config().hidden_size));
    std::minstd_rand random(static_cast<unsigned>(seed + 1));
    for (Bf16Bits& value : x) value = static_cast<Bf16Bits>(0x3f00 + random() % 256);
    std::vector<Bf16Bits> out(x.size());
    for (const LayerId layer : engine.layers()) {
      DSV4RT_RETURN_IF_ERROR(engine.forward_layer_from_host(step, layer, x.data(), out.data()));
    }
    return engine.commit(step);
  }
  [[nodiscard]] Status take_steps(Engine& engine, SequenceId sequence, int steps) const {
    for (int i = 0; i < steps; ++i) {
      DSV4RT_RETURN_IF_ERROR(take_step(engine, sequence, 1 + i % kStepTokens, static_cast<std::uint64_t>(i)));
    }
    return {};
  }

  std::string rehearse() {
    auto ranks = meet(MPI_COMM_WORLD, 30);
    if (!ranks) return wrong("a first communicator", ranks.status());
    auto engine = make_engine(*ranks);
    if (!engine) return wrong("a first engine", engine.status());
    const auto sequence = (*engine)->create_sequence();
    if (!sequence) return wrong("a first sequence", sequence.status());
    const Status steps = take_steps(**engine, *sequence, 2 * kStepTokens);
    return steps.ok() ? "ok" : wrong("a first step", steps);
  }

  // Steps until the rank is gone; the engine and its communicator are destroyed then.
  std::string lose(bool is_victim, std::chrono::microseconds moment) {
    auto ranks = meet(MPI_COMM_WORLD, deadline_seconds());
    if (!ranks) return wrong("communicator", ranks.status());
    auto engine = make_engine(*ranks);
    if (!engine) return wrong("engine", engine.status());
    const auto sequence = (*engine)->create_sequence();
    if (!sequence) return wrong("sequence", sequence.status());
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_victim) {
      // From another thread: wherever the step is by then.
      std::thread([moment] {
        std::this_thread::sleep_for(moment);
        ::kill(::getpid(), SIGKILL);
      }).detach();
      static_cast<void>(take_steps(**engine, *sequence, kMostSteps));
      return "outlived the kill";
    }
    Clock::time_point begin;
    Status status;
    for (int i = 0; i < kMostSteps && status.ok(); ++i) {
      begin = Clock::now();
      status = take_step(**engine, *sequence, 1 + i % kStepTokens, static_cast<std::uint64_t>(i));
    }
    const double waited = seconds_since(begin);
    if (status.code() != StatusCode::kBackendLost) return wrong("a step after the kill", status);
    if (waited > deadline_seconds() + 1) return "the step took " + std::to_string(waited) + " s";
    const Status later = (*engine)->create_sequence().status();
    if (later.code() != StatusCode::kBackendLost) return wrong("a later call", later);
    begin = Clock::now();
    engine->reset();
    ranks->reset();
    const double destroyed = seconds_since(begin);
    return destroyed <= deadline_seconds() + 1 ? "ok" : "the end took " + std::to_string(destroyed) + " s";
  }

  // MPI keeps the memory of a collective that never ends, which it may still write to, and some bookkeeping. The C
  // library keeps the stack of the thread that ended the communicator for the next one.
  [[nodiscard]] std::string compare(const Resources& before, const Resources& after) const {
    constexpr std::int64_t kBookkeeping = std::int64_t{1} << 20;
    constexpr std::int64_t kStack = (std::int64_t{8} << 20) + (std::int64_t{64} << 10);  // with its guard
    const std::int64_t most = kMpiPartBytes * size_ + kBookkeeping;
    const auto more = [&](const char* what, std::int64_t Resources::*count, std::int64_t allowed) {
      const std::int64_t grown = after.*count - before.*count;
      if (grown <= allowed) return std::string();
      return std::string("the lost engine has left ") + std::to_string(grown) + " " + what + "; accepted: up to " +
             std::to_string(allowed) + "; ";
    };
    const std::string left = more("descriptors", &Resources::descriptors, 0) + more("threads", &Resources::threads, 0) +
                             more("bytes of addresses", &Resources::address_bytes, most + kStack) +
                             more("bytes of host memory", &Resources::heap_bytes, most) +
                             more("bytes of device memory", &Resources::device_bytes, most);
    return left.empty() ? "ok" : left;
  }

  // The ranks that are left make a communicator of their own and go on together.
  std::string go_on() {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group group = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, static_cast<int>(left_.size()), left_.data(), &group);
    if (const int code = MPI_Comm_create_group(MPI_COMM_WORLD, group, 1, &comm); code != MPI_SUCCESS) {
      return "MPI_Comm_create_group: " + std::to_string(code);
    }
    auto again = create_mpi_communicator({.communicator = &comm, .deadline_seconds = 30});
    if (!again) return wrong("a communicator of the ranks that are left", again.status());
    // Where their number divides the groups they share an engine; otherwise each works alone.
    Ranks shared;
    if (size_ % static_cast<int>(left_.size()) == 0) {
      auto met = meet(comm, 30);
      if (!met) return wrong("ranks of a new engine", met.status());
      shared = *met;
    }
    auto fresh = make_engine(shared);
    if (!fresh) return wrong("a new engine", fresh.status());
    const auto sequence = (*fresh)->create_sequence();
    if (!sequence) return wrong("a new sequence", sequence.status());
    if (const Status steps = take_steps(**fresh, *sequence, kStepTokens); !steps.ok()) {
      return wrong("a step of a new engine", steps);
    }
    float sum = 1;
    if (const Status added = (*again)->all_reduce_sum(&sum, ElementType::kF32, &sum, ElementType::kF32, 1, nullptr);
        !added.ok()) {
      return wrong("a sum of the ranks that are left", added);
    }
    if (sum != static_cast<float>(left_.size())) return "the ranks that are left add up to " + std::to_string(sum);
    return "ok";
  }

  std::filesystem::path folder_;
  unsigned number_;
  std::string backend_;
  int rank_;
  int size_;
  int device_;
  std::filesystem::path checkpoint_;
  std::vector<int> left_;
};

int run_trial(const std::filesystem::path& folder, unsigned number, const std::string& backend) {
  // Large pieces by themselves: what small ones lie behind them cannot keep their addresses.
  if (::mallopt(M_MMAP_THRESHOLD, 1 << 17) != 1) return 1;
  auto session = MpiSession::start();
  if (!session) return 1;
#if defined(DSV4RT_HAVE_CUDA)
  if (backend == "cuda" && cudaSetDevice(session->local_rank()) != cudaSuccess) return 1;
#endif
  const std::string seen = Trial(folder, number, backend, *session).run();
  std::ofstream(folder / std::to_string(session->rank())) << seen << "\n";
  std::fflush(nullptr);
  // Without MPI_Finalize, which would wait for the rank that was killed.
  std::_Exit(seen.starts_with("ok") ? 0 : 1);
}

}  // namespace
}  // namespace dsv4rt

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: lost_rank_trial REPORT_FOLDER TRIAL [BACKEND]\n");
    return 2;
  }
  // One arena: threads that meet at the allocator by chance would reserve 64 MiB of addresses for each other.
  ::mallopt(M_ARENA_MAX, 1);
  return dsv4rt::run_trial(argv[1], static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)),
                           argc == 4 ? argv[3] : "cpu");
}
