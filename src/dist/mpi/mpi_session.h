// MPI for a program: initialised here, finalised at the end unless a rank was lost.
#pragma once

#include <cstdint>

#include "dsv4rt/status.h"

namespace dsv4rt {

class MpiSession {
 public:
  // Initialises MPI if nobody has. kUnsupported where it cannot be, or was for MPI_THREAD_SINGLE;
  // kFailedPrecondition after MPI_Finalize.
  static Result<MpiSession> start();

  MpiSession() = default;
  MpiSession(MpiSession&& other) noexcept;
  MpiSession& operator=(MpiSession&& other) noexcept;
  // Finalises, which waits for the other ranks, if start() has initialised. Not after lose(): a rank that is gone never
  // comes.
  ~MpiSession();

  // Ranks of MPI_COMM_WORLD.
  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }
  // Place among the ranks of this machine.
  [[nodiscard]] std::int32_t local_rank() const noexcept { return local_rank_; }

  void lose() noexcept { owned_ = false; }

 private:
  bool owned_ = false;
  std::int32_t rank_ = 0;
  std::int32_t size_ = 1;
  std::int32_t local_rank_ = 0;
};

}  // namespace dsv4rt
