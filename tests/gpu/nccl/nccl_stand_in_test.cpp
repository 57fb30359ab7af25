// The communicator over NCCL with several ranks, on the host: NCCL and the CUDA runtime are stand-ins (stand_in/),
// ranks are threads. Which calls it makes, what reaches whom, and what becomes of ranks that differ or whose calls
// fail.
#include <chrono>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/nccl/nccl_communicator.h"
#include "backend/cuda/nccl/share_calls.h"
#include "backend/cuda/nccl/share_guard.h"
#include "gpu/nccl/stand_in/host_runtime.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

using Clock = std::chrono::steady_clock;

// body(rank, communicator, stream) in a thread for every rank.
void run_ranks(std::int32_t size, double deadline_seconds,
               const std::function<void(std::int32_t, Communicator&, cudaStream_t)>& body) {
  use_host_runtime();
  const auto id = cuda::make_nccl_unique_id();
  ASSERT_OK(id);
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto made = cuda::make_nccl_communicator(
          {.rank = rank, .size = size, .id = *id, .device = 0, .deadline_seconds = deadline_seconds});
      ASSERT_OK(made);
      cudaStream_t stream = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
      body(rank, **made, stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Parts of all ranks in turn, and what is in them before and behind a share.
struct Parts {
  std::vector<std::vector<unsigned char>> memory;
  std::vector<SharedPart> parts;

  Parts(std::int32_t rank, std::int32_t size, std::int32_t readers, std::int32_t first_reader = 0) {
    for (std::size_t p = 0; p < 9; ++p) {
      const auto root = static_cast<std::int32_t>(p) % size;
      memory.emplace_back(p == 4 ? 0 : 100 + 31 * p, root == rank ? value(p) : 0);
      parts.push_back({.data = memory.back().data(),
                       .bytes = static_cast<std::int64_t>(memory.back().size()),
                       .root = root,
                       .first_reader = first_reader,
                       .readers = p == 8 ? SharedPart::kEveryRank : readers});
    }
  }
  static unsigned char value(std::size_t part) { return static_cast<unsigned char>(17 * part + 3); }
  void expect_read(std::int32_t rank, std::int32_t size) const {
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const bool here = parts[p].root == rank || parts[p].read_by(rank, size);
      EXPECT_EQ(memory[p], std::vector<unsigned char>(memory[p].size(), here ? value(p) : 0))
          << "part " << p << ", rank " << rank << " of " << size;
    }
  }
};

Status share(Communicator& ranks, std::span<const SharedPart> parts, const SharePlace& place, cudaStream_t stream) {
  if (Status begun = ranks.begin_share(parts, place, stream); !begun.ok()) return begun;
  if (Status ended = ranks.end_share(stream); !ended.ok()) return ended;
  return ranks.watch(stream);
}

TEST(NcclStandIn, PartsReachTheirReaders) {
  for (const std::int32_t size : {2, 3, 4}) {
    for (std::int32_t readers = -1; readers <= size; ++readers) {
      StandInNccl& nccl = stand_in_nccl();
      nccl.broadcasts = nccl.messages = nccl.gathers = 0;
      nccl.bytes = 0;
      run_ranks(size, 20, [&](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
        for (const std::int32_t first : {0, size - 1}) {
          Parts parts(rank, size, readers, first);
          EXPECT_OK(share(ranks, parts.parts, {.step = 1, .content = 2, .layer = first}, stream));
          parts.expect_read(rank, size);
        }
        EXPECT_OK(ranks.state());
      });
      EXPECT_EQ(nccl.gathers, 2 * size) << "a header each";
      EXPECT_EQ(nccl.broadcasts == 0, readers >= 0) << "messages, or broadcasts";
      EXPECT_EQ(nccl.messages == 0, readers < 0);
      EXPECT_EQ(nccl.open_groups, 0);
      std::int64_t bytes = 2 * size * (size - 1) * 32;
      for (const std::int32_t first : {0, size - 1}) {
        for (const SharedPart& part : Parts(0, size, readers, first).parts) {
          for (std::int32_t rank = 0; rank < size; ++rank) {
            bytes += rank != part.root && part.read_by(rank, size) ? part.bytes : 0;
          }
        }
      }
      EXPECT_EQ(nccl.bytes, bytes) << "nobody gets what he does not read";
    }
  }
}

// With memory for it, all short parts of a root are one broadcast, and long ones and those that do not fit are one
// each.
TEST(NcclStandIn, ShortPartsOfARootGoTogether) {
  for (const std::int32_t size : {2, 3}) {
    for (const bool reserved : {false, true}) {
      StandInNccl& nccl = stand_in_nccl();
      nccl.broadcasts = 0;
      constexpr std::size_t kParts = 300;
      const auto bytes_of = [](std::size_t part) -> std::size_t {
        return part % 50 == 7 ? 65537 : part % 4 == 0 ? 0 : 1 + 131 * (part % 100);
      };
      run_ranks(size, 20, [&](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
        if (reserved) {
          ASSERT_OK(ranks.reserve(0));
          EXPECT_EQ(ranks.scratch_bytes(0), size * (std::int64_t{1} << 20));
        }
        for (int again = 0; again < 2; ++again) {
          std::vector<std::vector<unsigned char>> memory;
          std::vector<SharedPart> parts;
          for (std::size_t p = 0; p < kParts; ++p) {
            const auto root = static_cast<std::int32_t>(p) % size;
            const unsigned char value = Parts::value(p + static_cast<std::size_t>(again));
            memory.emplace_back(bytes_of(p) + 2, root == rank ? value : 0);
            parts.push_back(
                {.data = memory.back().data() + 1, .bytes = static_cast<std::int64_t>(bytes_of(p)), .root = root});
          }
          ASSERT_OK(share(ranks, parts, {.step = 1, .content = 2, .layer = again}, stream));
          for (std::size_t p = 0; p < kParts; ++p) {
            const unsigned char value = Parts::value(p + static_cast<std::size_t>(again));
            std::vector<unsigned char> expected(bytes_of(p) + 2, value);
            if (parts[p].root != rank) expected.front() = expected.back() = 0;
            ASSERT_EQ(memory[p], expected) << "part " << p << ", rank " << rank;
          }
        }
      });
      std::int64_t longs = 0;
      std::int64_t all = 0;
      for (std::size_t p = 0; p < kParts; ++p) {
        longs += bytes_of(p) > 65536 ? 1 : 0;
        all += bytes_of(p) > 0 ? 1 : 0;
      }
      EXPECT_EQ(nccl.broadcasts, 2 * size * (reserved ? longs + size : all));
    }
  }
}

TEST(NcclStandIn, PartsThatDoNotFitGoFromWhereTheyLie) {
  std::vector<std::byte> buffer(2 << 20);
  std::vector<std::byte> memory(60000);
  std::vector<SharedPart> parts(40, {.data = memory.data(), .bytes = 60000, .root = 1});
  parts.push_back({.data = memory.data(), .bytes = 500, .root = 1});  // behind 17 long ones there is room for it
  for (const std::int32_t rank : {0, 1}) {
    const cuda::ShareCalls calls = cuda::share_calls(parts, rank, 2, buffer.data());
    ASSERT_EQ(calls.parts.size(), 23 + 1);
    EXPECT_EQ(calls.parts.front().data, memory.data());
    EXPECT_EQ(calls.parts.back().data, buffer.data() + (1 << 20));
    EXPECT_EQ(calls.parts.back().bytes, 17 * 60000 + 512);
    EXPECT_EQ(calls.packed.size(), rank == 1 ? 18 : 0);
    EXPECT_EQ(calls.unpacked.size(), rank == 0 ? 18 : 0);
  }
}

// Hundreds of short prompts in a step: no group has more calls than NCCL takes, and ranks end theirs at the same parts.
TEST(NcclStandIn, ManyPartsGoInSeveralGroups) {
  for (const std::int32_t readers : {SharedPart::kEveryRank, 2}) {
    stand_in_nccl().most_calls = 0;
    run_ranks(3, 20, [&](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
      std::vector<unsigned char> memory(5000);
      std::vector<SharedPart> parts;
      for (std::size_t p = 0; p < memory.size(); ++p) {
        const auto root = static_cast<std::int32_t>(p % 7) % 3;
        memory[p] = root == rank ? Parts::value(p) : 0;
        parts.push_back({.data = memory.data() + p, .bytes = 1, .root = root, .first_reader = 1, .readers = readers});
      }
      ASSERT_OK(share(ranks, parts, {.step = 1, .content = 1, .layer = 1}, stream));
      for (std::size_t p = 0; p < memory.size(); ++p) {
        const bool here = parts[p].root == rank || parts[p].read_by(rank, 3);
        ASSERT_EQ(memory[p], here ? Parts::value(p) : 0) << p;
      }
    });
    EXPECT_LE(stand_in_nccl().most_calls, 1024);
    EXPECT_GT(stand_in_nccl().most_calls, 200);
  }
}

// A rank that packs and one that does not would not go together.
TEST(NcclStandIn, RanksThatPackAndRanksThatDoNotAreLost) {
  run_ranks(2, 60, [](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
    if (rank == 1) {
      ASSERT_OK(ranks.reserve(0));
    }
    Parts parts(rank, 2, SharedPart::kEveryRank);
    static_cast<void>(share(ranks, parts.parts, {}, stream));
    EXPECT_EQ(ranks.state().code(), StatusCode::kBackendLost);
    EXPECT_NE(ranks.state().message().find("was called with other parts"), std::string::npos);
  });
}

// A device that is far behind: headers that have not come keep their places, and nothing is written over.
TEST(NcclStandIn, HeadersKeepTheirPlacesUntilTheyHaveCome) {
  use_host_runtime();
  const auto guard = cuda::ShareGuard::create(0, 2);
  ASSERT_OK(guard);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
  stand_in_nccl().stick(stream, true);
  std::int64_t places = 0;
  for (; (*guard)->has_place() && places < 5000; ++places) {
    ASSERT_OK((*guard)->exchange(
        {.step = 1}, [](const void*, void*) { return Status{}; }, stream));
  }
  EXPECT_EQ(places, 1024);
  EXPECT_EQ((*guard)->difference(), "");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would report it";
  stand_in_nccl().stick(stream, false);
  EXPECT_TRUE((*guard)->has_place());
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// More shares than there are places for headers.
TEST(NcclStandIn, ManyShares) {
  run_ranks(2, 20, [](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
    for (std::uint64_t i = 0; i < 2500; ++i) {
      Parts parts(rank, 2, SharedPart::kEveryRank);
      ASSERT_OK(ranks.begin_share(parts.parts, {.step = i, .content = 0, .layer = 0}, stream));
      ASSERT_OK(ranks.end_share(stream));
    }
    EXPECT_OK(ranks.state());
  });
}

// The last rank's parts are longer, fewer, from another rank or for others; or it is elsewhere. All are told in what
// they differ, long before the deadline, though broadcasts that do not go together never end.
TEST(NcclStandIn, RanksWhoseSharesDifferAreLost) {
  struct Case {
    const char* text;
    std::function<void(std::vector<SharedPart>&, SharePlace&)> change;
  };
  const char* const parts_text = "was called with other parts: the ranks' steps differ";
  const std::vector<Case> cases{
      {parts_text, [](auto& parts, auto&) { parts[2].bytes -= 1; }},
      {parts_text, [](auto& parts, auto&) { parts.pop_back(); }},
      {parts_text, [](auto& parts, auto&) { parts[0].root = 1; }},
      {parts_text, [](auto& parts, auto&) { parts[5].readers = 1; }},
      {"the ranks are out of step", [](auto&, SharePlace& place) { place.step = 6; }},
      {"the ranks are out of step", [](auto&, SharePlace& place) { place.layer = 4; }},
      {"runs other tokens in layer 3 of shared step 5", [](auto&, SharePlace& place) { place.content = 1; }},
  };
  for (const std::int32_t size : {2, 3}) {
    for (const Case& one : cases) {
      const int aborted = stand_in_nccl().aborted;
      run_ranks(size, 60, [&](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
        Parts parts(rank, size, SharedPart::kEveryRank);
        SharePlace place{.step = 5, .content = 9, .layer = 3};
        if (rank == size - 1) one.change(parts.parts, place);
        const auto begin = Clock::now();
        Status status = share(ranks, parts.parts, place, stream);
        // Whoever has enqueued it all is told when the headers have come.
        while (status.ok() && Clock::now() - begin < std::chrono::seconds(5)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          status = ranks.state();
        }
        EXPECT_EQ(status.code(), StatusCode::kBackendLost) << one.text;
        EXPECT_NE(status.message().find("(nccl): begin_share: rank " + std::to_string(rank == size - 1 ? 0 : size - 1)),
                  std::string::npos)
            << status.message();
        EXPECT_NE(status.message().find(one.text), std::string::npos) << status.message();
        EXPECT_EQ(ranks.begin_share(parts.parts, place, stream).message(), status.message());
        EXPECT_EQ(ranks.end_share(stream).message(), status.message());
        EXPECT_EQ(ranks.watch(stream).message(), status.message());
        EXPECT_EQ(ranks.broadcast(parts.memory[0].data(), 1, 0, stream).message(), status.message());
        // The communicator's kernels are ended: nobody waits for the stream for ever.
        while (is_stuck(stream) && Clock::now() - begin < std::chrono::seconds(5)) std::this_thread::yield();
        EXPECT_LE(Clock::now() - begin, std::chrono::seconds(5)) << one.text;
      });
      EXPECT_EQ(stand_in_nccl().aborted, aborted + size);
    }
  }
}

// Ranks that are lost, and what is left of NCCL when they have destroyed their communicators: nothing, or, where its
// abort takes longer than the deadline, what it goes on to give back.
TEST(NcclStandIn, WhatNcclHoldsOfALostCommunicatorIsGivenBack) {
  StandInNccl& nccl = stand_in_nccl();
  struct Case {
    std::chrono::milliseconds abort_takes;
    double deadline_seconds;
    int left;
  };
  for (const Case& one : {Case{std::chrono::milliseconds(300), 60, 0}, Case{std::chrono::milliseconds(6000), 0.5, 2}}) {
    ASSERT_EQ(nccl.communicators, 0);
    nccl.abort_takes = one.abort_takes;
    const auto begin = Clock::now();
    run_ranks(2, one.deadline_seconds, [](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
      Parts parts(rank, 2, SharedPart::kEveryRank);
      Status status =
          share(ranks, parts.parts, {.step = static_cast<std::uint64_t>(rank), .content = 0, .layer = 0}, stream);
      const auto shared = Clock::now();
      while (status.ok() && Clock::now() - shared < std::chrono::seconds(5)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        status = ranks.state();
      }
      EXPECT_EQ(status.code(), StatusCode::kBackendLost) << status.message();
    });
    EXPECT_EQ(nccl.communicators, one.left);
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(5000)) << "it is not waited for longer than the deadline";
    while (nccl.communicators > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  nccl.abort_takes = std::chrono::milliseconds(0);
}

// The n-th call of a group fails, on one of the ranks, for every function and n: no group stays open, the rank's
// communicator is lost with what NCCL said, and the other rank learns of it by its deadline at the latest.
TEST(NcclStandIn, ACallThatFailsLeavesNoGroupOpen) {
  struct Case {
    const char* function;
    int calls;  // calls of both ranks in a share
    std::int32_t readers;
  };
  for (const Case& one : {Case{"ncclAllGather", 2, SharedPart::kEveryRank}, Case{"ncclGroupStart", 2, 2},
                          Case{"ncclBroadcast", 16, SharedPart::kEveryRank}, Case{"ncclSend", 8, 2},
                          Case{"ncclRecv", 8, 2}, Case{"ncclGroupEnd", 2, 2}}) {
    for (int nth = 1; nth <= one.calls + 1; ++nth) {
      StandInNccl& nccl = stand_in_nccl();
      std::atomic<int> failed = 0;
      std::atomic<int> fine = 0;
      nccl.failing = one.function;
      nccl.until_failure = nth;
      run_ranks(2, 0.2, [&](std::int32_t rank, Communicator& ranks, cudaStream_t stream) {
        Parts parts(rank, 2, one.readers);
        Status status = share(ranks, parts.parts, {.step = 1, .content = 1, .layer = 1}, stream);
        if (status.message().find("begin_share: told to fail: by the test") != std::string::npos) ++failed;
        const auto begin = Clock::now();
        while (status.ok() && nth <= one.calls && Clock::now() - begin < std::chrono::seconds(5)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          status = ranks.state();
        }
        if (status.ok()) {
          ++fine;
          return;
        }
        EXPECT_EQ(status.code(), StatusCode::kBackendLost) << status.message();
        EXPECT_EQ(ranks.begin_share(parts.parts, {}, stream).message(), status.message());
        EXPECT_EQ(ranks.end_share(stream).message(), status.message());
        EXPECT_EQ(ranks.state().message(), status.message());
      });
      nccl.failing.clear();
      EXPECT_EQ(nccl.open_groups, 0) << one.function << ", call " << nth;
      EXPECT_EQ(failed, nth <= one.calls ? 1 : 0) << one.function << ", call " << nth;
      EXPECT_EQ(fine, nth <= one.calls ? 0 : 2) << one.function << ", call " << nth;
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
