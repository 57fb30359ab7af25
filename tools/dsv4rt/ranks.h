// The ranks of a command that mpirun has started several times: --tp or --cp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "dsv4rt/communicator.h"
#include "dsv4rt/engine.h"

namespace dsv4rt::cli {

class Ranks {
 public:
  Ranks();
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void add_to(CLI::App& command);

  // Meets the other ranks where --tp or --cp asks for some: from now on log lines name the rank, and all but rank 0
  // print no results. kInvalidArgument when mpirun has started another number of processes; kUnsupported without MPI,
  // or NCCL with backend cuda; kBackendLost when not every rank comes.
  Status join(const std::string& backend);
  // Gives the communicator to an engine, and with backend cuda the device: one for each rank of a machine.
  void apply(EngineOptions& options) const;
  // kMismatch naming the rank that has another text than rank 0, on every rank. Every rank calls it, or there is one.
  [[nodiscard]] Status check_same(std::string_view what, std::string_view text) const;
  [[nodiscard]] bool several() const noexcept { return communicator_ != nullptr; }
  // Of tensor parallelism; null without.
  [[nodiscard]] Communicator* tensor() const noexcept { return tensor_ranks_ > 1 ? communicator_.get() : nullptr; }
  // Whether this process prints and writes results: rank 0, or the only one.
  [[nodiscard]] bool speaks() const noexcept { return rank_ == 0; }

 private:
  struct Session;  // MPI of the process
  Status meet(const char* flag, std::int32_t wanted, const std::string& backend);

  std::int32_t tensor_ranks_ = 1;
  std::int32_t context_ranks_ = 1;
  double deadline_seconds_ = 10;
  std::int32_t rank_ = 0;
  std::int32_t device_ = 0;
  std::unique_ptr<Session> session_;  // outlives the communicator
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace dsv4rt::cli
