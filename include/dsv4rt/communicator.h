// Communicator: how engines of several processes (ranks) exchange what each has computed.
//
// An engine takes one by EngineOptions::parallel. Two are offered: over MPI for host memory (backend "cpu") and over
// NCCL for device memory (backend "cuda"); a host may bring its own. docs/distributed.md.
//
// Every rank makes the same calls in the same order. A call that fails with kBackendLost has lost the communicator: a
// rank failed, or did not take part within the deadline. Every later call answers the same with the first cause, and
// neither a call nor the destructor waits for the lost rank again. A new communicator of the ranks that are left can be
// made in the same process.
//
// Threads: one thread at a time; state() from any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "dsv4rt/export.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

enum class ElementType : std::uint8_t { kBf16, kF32 };

// Bytes that rank `root` has and all get, each at an address of its own; or only the ranks first_reader,
// first_reader + 1, ... (behind the last comes 0), `readers` of them. What is at the address of a rank that is neither
// root nor reader may be overwritten.
struct SharedPart {
  void* data = nullptr;
  std::int64_t bytes = 0;
  std::int32_t root = 0;
  std::int32_t first_reader = 0;
  std::int32_t readers = kEveryRank;

  static constexpr std::int32_t kEveryRank = -1;
  // Whether the rank, one of `size`, is among the readers; the root need not be.
  [[nodiscard]] constexpr bool read_by(std::int32_t rank, std::int32_t size) const noexcept {
    return readers == kEveryRank || (rank - first_reader + size) % size < readers;
  }
};

// Where in its work a rank is when it begins a share: the same on every rank, unless they are out of step.
struct SharePlace {
  std::uint64_t step = 0;     // how many steps were dealt out over the ranks, this one included
  std::uint64_t content = 0;  // a digest of which tokens of which positions the step has
  std::int32_t layer = -1;    // number in the model
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual std::string_view transport() const noexcept = 0;  // "mpi", "nccl", ...
  [[nodiscard]] virtual std::int32_t rank() const noexcept = 0;           // 0 to size - 1
  [[nodiscard]] virtual std::int32_t size() const noexcept = 0;
  // Whether the pointers given to the collectives are host memory; device memory of the engine's device otherwise.
  [[nodiscard]] virtual bool uses_host_memory() const noexcept = 0;

  // Memory that sums of up to `elements` elements take, and taking it, once, before the first; with 0 elements, what
  // shares can use (nothing, or less, makes them slower). Sums and shares take none of their own: sums may be captured.
  [[nodiscard]] virtual std::int64_t scratch_bytes(std::int64_t elements) const = 0;
  virtual Status reserve(std::int64_t elements) = 0;

  // sum[i] = terms[i] of rank 0 + of rank 1 + ..., added in FP32 in the order of the ranks and rounded once: the same
  // bytes on every rank, run after run, however many elements there are. sum may be terms if their types are the same.
  // `stream`: cudaStream_t that the call is enqueued on, which may be capturing; null with host memory, where the sum
  // is there on return.
  virtual Status all_reduce_sum(const void* terms, ElementType terms_type, void* sum, ElementType sum_type,
                                std::int64_t elements, void* stream) = 0;
  // all = part of rank 0, of rank 1, ...: [size, bytes]. The two do not overlap.
  virtual Status all_gather(const void* part, void* all, std::int64_t bytes, void* stream) = 0;
  virtual Status broadcast(void* data, std::int64_t bytes, std::int32_t root, void* stream) = 0;

  // all_gather of few bytes of host memory, which waits for every rank, by a deadline of its own: for agreeing on
  // something before work begins.
  virtual Status all_gather_host(const void* part, void* all, std::int64_t bytes, double deadline_seconds) = 0;

  // Tells that collectives were enqueued on the stream, directly or by launching a graph: from now on somebody else
  // sees to the deadline. Nothing to do where calls wait.
  virtual Status watch(void* stream) {
    static_cast<void>(stream);
    return {};
  }
  // Ok, or kBackendLost with the first cause.
  [[nodiscard]] virtual Status state() const = 0;

  // Brings parts from their roots to their readers while other work goes on: begin_share starts, and behind end_share
  // they are there (for host memory on return, otherwise for what is enqueued on the stream from then on). In between
  // nobody touches the parts or calls another collective, and `parts` stays where it is. Everything but addresses is
  // the same on every rank, `place` included: ranks of a communicator that compares them are lost where they differ,
  // with a text that says in what. end_share is called for every begin_share that was ok, whatever happens in between.
  // One that does nothing in the background does it all in begin_share, which is what these two do: they compare
  // nothing and give all parts to all ranks. Not to be captured.
  virtual Status begin_share(std::span<const SharedPart> parts, const SharePlace& place, void* stream) {
    static_cast<void>(place);
    for (const SharedPart& part : parts) {
      if (Status status = broadcast(part.data, part.bytes, part.root, stream); !status.ok()) return status;
    }
    return {};
  }
  virtual Status end_share(void* stream) {
    static_cast<void>(stream);
    return state();
  }
};

struct MpiOptions {
  // MPI_Comm* of a communicator of the host, which is duplicated; null: MPI_COMM_WORLD. The host
  // initialises MPI (MPI_THREAD_SERIALIZED; MPI_THREAD_FUNNELED if the main thread alone uses the engine), and
  // finalises it after the communicator, unless that is lost.
  const void* communicator = nullptr;
  // How long a collective waits for the other ranks. Longer than ranks may be apart in their work.
  double deadline_seconds = 10;
};

// Collective over the ranks of the given communicator. kUnsupported in builds without MPI; kFailedPrecondition before
// MPI_Init_thread and after MPI_Finalize; kInvalidArgument for a deadline that is not finite and above 0; kBackendLost
// when not every rank takes part.
DSV4RT_EXPORT Result<std::shared_ptr<Communicator>> create_mpi_communicator(const MpiOptions& options = {});

// Bytes by which the ranks of an NCCL communicator find each other: made by one, given to all by the host.
using NcclUniqueId = std::array<std::byte, 128>;

struct NcclOptions {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  NcclUniqueId id{};
  std::int32_t device = 0;  // CUDA ordinal of this rank: that of its engine
  // How long a step may stay on the device beyond the one before it, the wait for other ranks included. Longer than the
  // longest step.
  double deadline_seconds = 10;
};

// NCCL (libnccl.so.2, 2.14 or later) is loaded when it is asked for, never linked. kUnsupported in builds without it,
// and where it is not installed, saying what to install; kInvalidArgument for ranks, devices and deadlines that do not
// exist; kBackendLost when not every rank takes part. A communicator is destroyed after its engine. That waits until
// NCCL has given back what it holds, of lost ranks too, but no longer than the deadline: a thread sees to what is left.
DSV4RT_EXPORT Result<NcclUniqueId> create_nccl_unique_id();
DSV4RT_EXPORT Result<std::shared_ptr<Communicator>> create_nccl_communicator(const NcclOptions& options);

}  // namespace dsv4rt
