// Every collective works on memory of the communicator: a request that never completes cannot be cancelled, and MPI may
// touch its buffers later. Such memory is left behind when the communicator is lost.
//
// The order of a sum: MPI_SUM promises none and knows no BF16. The ranks' terms are gathered as they are and added
// here, in the order of the ranks, so that the bytes are the same everywhere and always. Terms of layers are FP32: BF16
// ones would be rounded before they are added, once for every rank.
#include "dist/mpi/mpi_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mpi.h>
#include <sched.h>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/try.h"
#include "dist/check_collective.h"
#include "dist/exchange_memory.h"
#include "dist/lost_state.h"
#include "dist/share_header.h"
#include "dist/sum_in_rank_order.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;

// A rank that waits gives its processor to the others first, and sleeps when it has waited for long.
constexpr int kEagerPolls = 2000;
constexpr auto kPause = std::chrono::microseconds(50);

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return {text, static_cast<std::size_t>(length)};
}

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Whether it completed before `end`. `code` is what MPI_Test gave last.
bool wait_until(MPI_Request& request, Clock::time_point end, int& code) {
  for (int polls = 0;; ++polls) {
    int done = 0;
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done != 0) return code == MPI_SUCCESS;
    if (Clock::now() >= end) return false;
    if (polls < kEagerPolls) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

// Keeps memory that MPI may still read and write, for as long as the process lives.
template <class T>
void leave_behind(std::vector<T> memory) {
  static auto* const left = new std::vector<std::vector<T>>();
  left->push_back(std::move(memory));
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, std::int32_t rank, std::int32_t size, double deadline_seconds)
      : comm_(comm),
        rank_(rank),
        size_(size),
        deadline_seconds_(deadline_seconds),
        staging_(static_cast<std::size_t>(kMpiPartBytes) * static_cast<std::size_t>(size)),
        from_(static_cast<std::size_t>(size)),
        to_(static_cast<std::size_t>(size)),
        counts_(static_cast<std::size_t>(size)),
        places_(static_cast<std::size_t>(size)),
        sent_counts_(static_cast<std::size_t>(size)),
        sent_places_(static_cast<std::size_t>(size)) {
    // Own bytes lie last: a send buffer that begins where the receive buffer does would mean MPI_IN_PLACE to some.
    int next = 0;
    for (std::int32_t r = 0; r < size; ++r) {
      places_[static_cast<std::size_t>(r)] = static_cast<int>((r == rank ? size - 1 : next++) * kMpiPartBytes);
    }
  }
  ~MpiCommunicator() override {
    if (sharing_) leave_memory();
    if (sharing_ || lost_.lost()) return;  // freeing would wait for the ranks that are gone
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised == 0) MPI_Comm_free(&comm_);
  }

  [[nodiscard]] std::string_view transport() const noexcept override { return "mpi"; }
  [[nodiscard]] std::int32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::int32_t size() const noexcept override { return size_; }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return true; }

  // The staging memory is there from the beginning and serves sums of any length.
  [[nodiscard]] std::int64_t scratch_bytes(std::int64_t) const override { return mpi_exchange_bytes(size_); }
  Status reserve(std::int64_t) override { return lost_.status(); }

  Status all_reduce_sum(const void* terms, ElementType terms_type, void* sum, ElementType sum_type,
                        std::int64_t elements, void*) override {
    DSV4RT_RETURN_IF_ERROR(ready());
    DSV4RT_RETURN_IF_ERROR(check_sum(terms, terms_type, sum, sum_type, elements));
    const std::int64_t term_bytes = element_bytes(terms_type);
    const std::int64_t most = kMpiPartBytes / term_bytes;
    for (std::int64_t first = 0; first < elements; first += most) {
      const std::int64_t count = std::min(most, elements - first);
      const auto* part = static_cast<const std::byte*>(terms) + first * term_bytes;
      DSV4RT_RETURN_IF_ERROR(gather_part("all_reduce_sum", part, count * term_bytes, deadline_seconds_));
      sum_in_rank_order(staging_.data(), static_cast<std::size_t>(count * term_bytes), size_, terms_type,
                        static_cast<std::byte*>(sum) + first * element_bytes(sum_type), sum_type, count);
    }
    return {};
  }

  Status all_gather(const void* part, void* all, std::int64_t bytes, void*) override {
    return gather("all_gather", part, all, bytes, deadline_seconds_);
  }
  Status all_gather_host(const void* part, void* all, std::int64_t bytes, double deadline_seconds) override {
    DSV4RT_RETURN_IF_ERROR(check_deadline("all_gather_host: deadline_seconds", deadline_seconds));
    return gather("all_gather_host", part, all, bytes, deadline_seconds);
  }

  Status broadcast(void* data, std::int64_t bytes, std::int32_t root, void*) override {
    DSV4RT_RETURN_IF_ERROR(ready());
    DSV4RT_RETURN_IF_ERROR(check_broadcast(data, bytes, root, size_));
    for (std::int64_t first = 0; first < bytes; first += kMpiPartBytes) {
      const std::int64_t count = std::min(kMpiPartBytes, bytes - first);
      auto* at = static_cast<std::byte*>(data) + first;
      if (rank_ == root) std::memcpy(staging_.data(), at, static_cast<std::size_t>(count));
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = MPI_Ibcast(staging_.data(), static_cast<int>(count), MPI_BYTE, root, comm_, &request);
      DSV4RT_RETURN_IF_ERROR(complete("broadcast", code, request, deadline_seconds_));
      if (rank_ != root) std::memcpy(at, staging_.data(), static_cast<std::size_t>(count));
    }
    return {};
  }

  // What every root has to give is one run of bytes, its parts by how many ranks read them, so that every rank gets the
  // run's beginning, of which kMpiPartBytes go at a time. The first are under way between begin and end; longer runs
  // follow in end. Ranks first compare what they were called with: MPI checks no lengths and would write other ranks'
  // bytes anywhere.
  Status begin_share(std::span<const SharedPart> parts, const SharePlace& place, void*) override {
    DSV4RT_RETURN_IF_ERROR(ready());
    DSV4RT_RETURN_IF_ERROR(check_share(parts, size_));
    order_shared(parts);
    DSV4RT_RETURN_IF_ERROR(compare(share_header(parts, place)));
    return post_share();
  }
  Status end_share(void*) override {
    while (sharing_) {
      sharing_ = false;
      DSV4RT_RETURN_IF_ERROR(complete("end_share", share_code_, share_request_, deadline_seconds_));
      for (std::int32_t root = 0; root < size_; ++root) {
        if (root != rank_) move_shared(root, counts_[static_cast<std::size_t>(root)]);
      }
      shared_offset_ += kMpiPartBytes;
      DSV4RT_RETURN_IF_ERROR(post_share());
    }
    return lost_.status();
  }

  [[nodiscard]] Status state() const override { return lost_.status(); }

 private:
  // Whether a collective may begin.
  [[nodiscard]] Status ready() const {
    if (!sharing_) return lost_.status();
    return {StatusCode::kFailedPrecondition, "mpi: begin_share was called; accepted now: end_share"};
  }

  // Lost, on every rank, unless all are at the same place and were called with the same parts.
  Status compare(const ShareHeader& own) {
    DSV4RT_RETURN_IF_ERROR(gather_part("begin_share", &own, sizeof(own), deadline_seconds_));
    headers_.resize(static_cast<std::size_t>(size_));
    std::memcpy(headers_.data(), staging_.data(), headers_.size() * sizeof(ShareHeader));
    const std::string difference = share_difference(headers_, rank_);
    if (difference.empty()) return {};
    return lost_.lose("rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " (mpi): " + difference);
  }

  // Parts whose readers do not all begin with the same rank go to every rank.
  void order_shared(std::span<const SharedPart> parts) {
    shared_.clear();
    std::int32_t first_reader = SharedPart::kEveryRank;  // until a part has some
    bool nested = true;
    for (const SharedPart& part : parts) {
      shared_.push_back(part);
      if (part.readers == SharedPart::kEveryRank) continue;
      nested &= first_reader == SharedPart::kEveryRank || first_reader == part.first_reader;
      first_reader = part.first_reader;
    }
    shared_offset_ = 0;
    std::fill(from_.begin(), from_.end(), 0);
    std::fill(to_.begin(), to_.end(), 0);
    for (SharedPart& part : shared_) {
      if (!nested || part.readers == SharedPart::kEveryRank) part.readers = size_;
    }
    std::stable_sort(shared_.begin(), shared_.end(),
                     [](const SharedPart& a, const SharedPart& b) { return a.readers > b.readers; });
    for (const SharedPart& part : shared_) {
      for (std::int32_t rank = 0; rank < size_; ++rank) {
        if (rank == part.root || !part.read_by(rank, size_)) continue;
        if (rank == rank_) from_[static_cast<std::size_t>(part.root)] += part.bytes;
        if (part.root == rank_) to_[static_cast<std::size_t>(rank)] += part.bytes;
      }
    }
    runs_.assign(static_cast<std::size_t>(size_), 0);
    for (const SharedPart& part : shared_) runs_[static_cast<std::size_t>(part.root)] += part.bytes;
    longest_ = *std::max_element(runs_.begin(), runs_.end());
  }

  // Starts to bring [shared_offset_, shared_offset_ + kMpiPartBytes) of every root's bytes to who reads them; nothing
  // is left to do when there are none.
  Status post_share() {
    if (shared_offset_ >= longest_) return {};
    const auto under_way = [this](std::int64_t bytes) {
      return static_cast<int>(std::clamp<std::int64_t>(bytes - shared_offset_, 0, kMpiPartBytes));
    };
    std::transform(from_.begin(), from_.end(), counts_.begin(), under_way);
    std::transform(to_.begin(), to_.end(), sent_counts_.begin(), under_way);
    move_shared(rank_, *std::max_element(sent_counts_.begin(), sent_counts_.end()));
    share_request_ = MPI_REQUEST_NULL;
    const std::byte* const own = staging_.data() + places_[static_cast<std::size_t>(rank_)];
    share_code_ = MPI_Ialltoallv(own, sent_counts_.data(), sent_places_.data(), MPI_BYTE, staging_.data(),
                                 counts_.data(), places_.data(), MPI_BYTE, comm_, &share_request_);
    sharing_ = true;
    return {};
  }

  // `count` of the bytes that are under way from `root`: own ones go from the parts to staging_, others' the other way.
  void move_shared(std::int32_t root, int count) {
    const std::int64_t first = shared_offset_;
    const std::int64_t end = first + count;
    std::byte* const staged = staging_.data() + places_[static_cast<std::size_t>(root)];
    std::int64_t at = 0;  // where the part begins among the bytes of its root
    for (const SharedPart& part : shared_) {
      if (part.root != root) continue;
      const std::int64_t from = std::max(first, at);
      const std::int64_t to = std::min(end, at + part.bytes);
      if (from < to) {
        std::byte* const in_part = static_cast<std::byte*>(part.data) + (from - at);
        std::byte* const in_staging = staged + (from - first);
        const bool own = root == rank_;
        std::memcpy(own ? in_staging : in_part, own ? in_part : in_staging, static_cast<std::size_t>(to - from));
      }
      at += part.bytes;
    }
  }

  Status gather(const char* call, const void* part, void* all, std::int64_t bytes, double deadline_seconds) {
    DSV4RT_RETURN_IF_ERROR(ready());
    DSV4RT_RETURN_IF_ERROR(check_gather(part, all, bytes));
    for (std::int64_t first = 0; first < bytes; first += kMpiPartBytes) {
      const std::int64_t count = std::min(kMpiPartBytes, bytes - first);
      DSV4RT_RETURN_IF_ERROR(gather_part(call, static_cast<const std::byte*>(part) + first, count, deadline_seconds));
      for (std::int32_t rank = 0; rank < size_; ++rank) {
        std::memcpy(static_cast<std::byte*>(all) + rank * bytes + first, staging_.data() + rank * count,
                    static_cast<std::size_t>(count));
      }
    }
    return {};
  }

  // staging_ = [size, bytes].
  Status gather_part(const char* call, const void* part, std::int64_t bytes, double deadline_seconds) {
    std::memcpy(staging_.data() + rank_ * bytes, part, static_cast<std::size_t>(bytes));
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, staging_.data(), static_cast<int>(bytes),
                                    MPI_BYTE, comm_, &request);
    return complete(call, code, request, deadline_seconds);
  }

  Status complete(const char* call, int code, MPI_Request& request, double deadline_seconds) {
    if (code == MPI_SUCCESS && wait_until(request, after(deadline_seconds), code)) return {};
    const std::string who = "rank " + std::to_string(rank_) + " of " + std::to_string(size_) + " (mpi): " + call + ": ";
    leave_memory();
    if (code != MPI_SUCCESS) return lost_.lose(who + error_text(code));
    return lost_.lose(who + "not every rank took part within " + seconds_text(deadline_seconds));
  }

  // MPI may touch it later.
  void leave_memory() {
    leave_behind(std::move(staging_));
    leave_behind(std::move(counts_));
    leave_behind(std::move(places_));
    leave_behind(std::move(sent_counts_));
    leave_behind(std::move(sent_places_));
  }

  MPI_Comm comm_;
  std::int32_t rank_;
  std::int32_t size_;
  double deadline_seconds_;
  std::vector<std::byte> staging_;  // kMpiPartBytes of every rank
  LostState lost_;

  // Between begin_share and end_share.
  bool sharing_ = false;
  std::vector<SharedPart> shared_;  // those with the most readers first
  std::vector<std::int64_t> from_;  // bytes that this rank gets of every root,
  std::vector<std::int64_t> to_;    // and that it gives to every rank: the beginnings of the roots' runs
  std::vector<std::int64_t> runs_;  // bytes of every root
  std::int64_t longest_ = 0;
  std::int64_t shared_offset_ = 0;  // where those begin that are under way
  MPI_Request share_request_ = MPI_REQUEST_NULL;
  int share_code_ = MPI_SUCCESS;
  std::vector<int> counts_;  // bytes of every root that are under way to this rank, and where they lie in staging_
  std::vector<int> places_;
  std::vector<int> sent_counts_;  // and those to every rank, which all begin where own bytes lie
  std::vector<int> sent_places_;
  std::vector<ShareHeader> headers_;
};

}  // namespace

Result<std::shared_ptr<Communicator>> make_mpi_communicator(const MpiOptions& options) {
  DSV4RT_RETURN_IF_ERROR(check_deadline("mpi: deadline_seconds", options.deadline_seconds));
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised == 0 || finalised != 0) {
    return Status{StatusCode::kFailedPrecondition,
                  finalised != 0 ? "mpi: MPI_Finalize was called before" : "mpi: MPI_Init_thread was not called"};
  }
  const MPI_Comm given =
      options.communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(options.communicator);
  // The copy takes over how errors are handled, and gives the host its own back.
  MPI_Errhandler hosts = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(given, &hosts);
  MPI_Comm_set_errhandler(given, MPI_ERRORS_RETURN);
  // Left behind when not every rank comes: MPI writes to it later.
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_Comm_idup(given, copy.get(), &request);
  const bool made = code == MPI_SUCCESS && wait_until(request, after(options.deadline_seconds), code);
  MPI_Comm_set_errhandler(given, hosts);
  if (hosts != MPI_ERRHANDLER_NULL) MPI_Errhandler_free(&hosts);
  if (!made) {
    static_cast<void>(copy.release());
    return Status{StatusCode::kBackendLost, code != MPI_SUCCESS
                                                ? "mpi: MPI_Comm_idup: " + error_text(code)
                                                : "mpi: not every rank took part in making a communicator within " +
                                                      seconds_text(options.deadline_seconds)};
  }
  MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(*copy, &rank);
  MPI_Comm_size(*copy, &size);
  return std::shared_ptr<Communicator>(std::make_shared<MpiCommunicator>(*copy, rank, size, options.deadline_seconds));
}

}  // namespace dsv4rt
