#include "dist/mpi/mpi_session.h"

#include <mpi.h>
#include <string>
#include <utility>

namespace dsv4rt {

Result<MpiSession> MpiSession::start() {
  MpiSession session;
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0) return Status{StatusCode::kFailedPrecondition, "mpi: MPI_Finalize was called before"};
  int provided = MPI_THREAD_SINGLE;
  if (initialised == 0) {
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided); code != MPI_SUCCESS) {
      return Status{StatusCode::kUnsupported, "mpi: MPI_Init_thread gives " + std::to_string(code)};
    }
    session.owned_ = true;
  } else {
    MPI_Query_thread(&provided);
  }
  if (provided < MPI_THREAD_FUNNELED) {
    return Status{StatusCode::kUnsupported,
                  "mpi: initialised for MPI_THREAD_SINGLE; accepted: MPI_THREAD_SERIALIZED, "
                  "or MPI_THREAD_FUNNELED if the main thread alone uses the engine"};
  }
  // Failures are for the caller to handle.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &session.rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &session.size_);
  MPI_Comm local = MPI_COMM_NULL;
  if (session.owned_ &&
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, session.rank_, MPI_INFO_NULL, &local) == MPI_SUCCESS) {
    MPI_Comm_rank(local, &session.local_rank_);
    MPI_Comm_free(&local);
  }
  return session;
}

MpiSession::MpiSession(MpiSession&& other) noexcept
    : owned_(std::exchange(other.owned_, false)),
      rank_(other.rank_),
      size_(other.size_),
      local_rank_(other.local_rank_) {}

MpiSession& MpiSession::operator=(MpiSession&& other) noexcept {
  std::swap(owned_, other.owned_);
  rank_ = other.rank_;
  size_ = other.size_;
  local_rank_ = other.local_rank_;
  return *this;
}

MpiSession::~MpiSession() {
  int finalised = 0;
  if (owned_) MPI_Finalized(&finalised);
  if (owned_ && finalised == 0) MPI_Finalize();
}

}  // namespace dsv4rt
