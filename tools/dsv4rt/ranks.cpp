#include "ranks.h"

#include <cstddef>
#include <iostream>
#include <span>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "base/try.h"
#include "log_lines.h"
#if defined(DSV4RT_HAVE_MPI)
#include "dist/mpi/mpi_session.h"
#endif

namespace dsv4rt::cli {

#if defined(DSV4RT_HAVE_MPI)
struct Ranks::Session {
  MpiSession mpi;
};
#else
struct Ranks::Session {};
#endif

Ranks::Ranks() = default;

// Finalising MPI waits for every rank: not for lost ones.
Ranks::~Ranks() {
#if defined(DSV4RT_HAVE_MPI)
  if (session_ != nullptr && communicator_ != nullptr && !communicator_->state().ok()) session_->mpi.lose();
#endif
}

void Ranks::add_to(CLI::App& command) {
  command
      .add_option("--tp", tensor_ranks_,
                  "Tensor parallelism over so many processes, which mpirun starts: mpirun -n N dsv4rt ... --tp N")
      ->capture_default_str();
  command
      .add_option("--cp", context_ranks_,
                  "Context parallelism over so many processes: they share the rows of steps of 256 tokens and more")
      ->capture_default_str();
  command.add_option("--rank-deadline", deadline_seconds_, "Seconds after which a rank that does not come is lost")
      ->capture_default_str();
}

Status Ranks::join(const std::string& backend) {
  for (const auto& [flag, ranks] : {std::pair("--tp", tensor_ranks_), std::pair("--cp", context_ranks_)}) {
    if (ranks >= 1) continue;
    return {StatusCode::kInvalidArgument,
            std::string(flag) + ": " + std::to_string(ranks) + "; accepted: 1 or more processes"};
  }
  if (tensor_ranks_ > 1 && context_ranks_ > 1) {
    return {StatusCode::kInvalidArgument, "--tp and --cp: accepted: one of them above 1"};
  }
  if (tensor_ranks_ > 1) return meet("--tp", tensor_ranks_, backend);
  return context_ranks_ > 1 ? meet("--cp", context_ranks_, backend) : Status{};
}

void Ranks::apply(EngineOptions& options) const {
  (context_ranks_ > 1 ? options.parallel.context : options.parallel.tensor) = communicator_;
  if (communicator_ != nullptr && options.backend == "cuda") options.device = device_;
}

Status Ranks::check_same(std::string_view what, std::string_view text) const {
  if (communicator_ == nullptr) return {};
  Sha256 sha256;
  sha256.update(std::as_bytes(std::span(text)));
  const Sha256::Digest own = sha256.finish();
  std::vector<Sha256::Digest> all(static_cast<std::size_t>(communicator_->size()));
  DSV4RT_RETURN_IF_ERROR(communicator_->all_gather_host(own.data(), all.data(), sizeof(own), deadline_seconds_));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return {StatusCode::kMismatch, "rank " + std::to_string(rank) + " has other " + std::string(what) + " than rank 0"};
  }
  return {};
}

#if defined(DSV4RT_HAVE_MPI)
namespace {

// The id that rank 0 makes, or why it cannot.
Result<NcclUniqueId> share_nccl_id(Communicator& mpi) {
  struct Shared {
    std::int32_t code = 0;
    NcclUniqueId id{};
  };
  Shared shared;
  Status own;
  if (mpi.rank() == 0) {
    auto made = create_nccl_unique_id();
    own = made.status();
    shared.code = static_cast<std::int32_t>(own.code());
    if (made.ok()) shared.id = *made;
  }
  DSV4RT_RETURN_IF_ERROR(mpi.broadcast(&shared, sizeof(shared), 0, nullptr));
  DSV4RT_RETURN_IF_ERROR(own);
  if (shared.code != 0) return Status{static_cast<StatusCode>(shared.code), "rank 0 could not begin with NCCL"};
  return shared.id;
}

}  // namespace

Status Ranks::meet(const char* flag, std::int32_t wanted, const std::string& backend) {
  DSV4RT_ASSIGN_OR_RETURN(MpiSession mpi, MpiSession::start());
  const std::int32_t started = mpi.size();
  rank_ = mpi.rank();
  device_ = mpi.local_rank();
  session_ = std::make_unique<Session>(Session{std::move(mpi)});
  if (started > 1) set_log_label("rank " + std::to_string(rank_));
  if (rank_ != 0) std::cout.rdbuf(nullptr);
  if (started != wanted) {
    return {StatusCode::kInvalidArgument,
            std::string(flag) + ": " + std::to_string(wanted) + ", but mpirun has started " + std::to_string(started) +
                (started == 1 ? " process" : " processes") + "; accepted: mpirun -n " + std::to_string(wanted)};
  }
  DSV4RT_ASSIGN_OR_RETURN(communicator_,
                          create_mpi_communicator({.communicator = nullptr, .deadline_seconds = deadline_seconds_}));
  if (backend != "cuda") return {};
  DSV4RT_ASSIGN_OR_RETURN(const NcclUniqueId id, share_nccl_id(*communicator_));
  DSV4RT_ASSIGN_OR_RETURN(
      communicator_,
      create_nccl_communicator(
          {.rank = rank_, .size = started, .id = id, .device = device_, .deadline_seconds = deadline_seconds_}));
  return {};
}
#else
Status Ranks::meet(const char* flag, std::int32_t, const std::string&) {
  return {StatusCode::kUnsupported, std::string(flag) +
                                        ": this build has no MPI to start ranks with; accepted: 1, or a build with "
                                        "DSV4RT_MPI=ON (Debian: libopenmpi-dev)"};
}
#endif

}  // namespace dsv4rt::cli
