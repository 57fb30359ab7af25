// Ranks that are threads of one process and reach each other's memory: engines that share a prompt on one CPU, or on
// one GPU.
//
// What ranks give is what lies there where a share begins, and is there for the others where it ends. In between nobody
// touches it: parts that others give hold garbage till the end, and own ones must not have changed by then.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "dist/share_header.h"
#include "dsv4rt/communicator.h"
#include "support/expect_ok.h"
#include "support/test_backend.h"

namespace dsv4rt::test {

class ThreadRanks {
 public:
  // What a rank has been part of.
  struct Traffic {
    std::int64_t shares = 0;
    std::int64_t bytes = 0;     // bytes of all parts, whoever had them
    std::int64_t received = 0;  // bytes of parts that others had and this rank reads
    bool under_way = false;     // a share was begun and not ended
  };

  // body(rank, communicator) in a thread for every rank. A rank that returns early is lost to those that go on.
  static std::vector<Traffic> run(std::int32_t size,
                                  const std::function<void(int, const std::shared_ptr<Communicator>&)>& body) {
    Meeting meeting(size);
    std::vector<std::shared_ptr<Rank>> ranks;
    for (std::int32_t r = 0; r < size; ++r) ranks.push_back(std::make_shared<Rank>(meeting, r));
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        body(r, ranks[static_cast<std::size_t>(r)]);
        meeting.leave();
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Traffic> traffic;
    for (const auto& rank : ranks) traffic.push_back(rank->traffic);
    return traffic;
  }

  // That of a communicator that a body was given.
  static const Traffic& traffic(const Communicator& rank) { return dynamic_cast<const Rank&>(rank).traffic; }
  // Where that of a body began its last share.
  static SharePlace place(const Communicator& rank) { return dynamic_cast<const Rank&>(rank).place; }
  static std::int64_t times_asked(const Communicator& rank) { return dynamic_cast<const Rank&>(rank).asked; }
  // Whether ranks have to agree on what they share, which they do unless this says otherwise.
  static void expect_agreement(Communicator& rank, bool expected) { dynamic_cast<Rank&>(rank).agrees = expected; }

 private:
  struct Meeting {
    explicit Meeting(std::int32_t size)
        : barrier(size, Completion{this}),
          parts(static_cast<std::size_t>(size)),
          headers(static_cast<std::size_t>(size)),
          given(static_cast<std::size_t>(size)),
          gathered(static_cast<std::size_t>(size)) {}
    // Whether all ranks have come. Decided once for all of them: one may leave before another has looked.
    bool meet() {
      barrier.arrive_and_wait();
      return all_came;
    }
    void leave() {
      ++gone;
      barrier.arrive_and_drop();
    }
    struct Completion {
      Meeting* meeting;
      void operator()() const noexcept { meeting->all_came = meeting->gone == 0; }
    };
    std::barrier<Completion> barrier;
    std::atomic<int> gone = 0;
    bool all_came = true;
    std::vector<std::span<const SharedPart>> parts;
    std::vector<ShareHeader> headers;
    std::vector<std::vector<std::vector<std::byte>>> given;  // bytes by rank and part, of own ones alone
    std::vector<const void*> gathered;
  };

  class Rank final : public Communicator {
   public:
    Rank(Meeting& meeting, std::int32_t rank)
        : meeting_(meeting), rank_(rank), backend_(create_test_backend().value()) {}
    Traffic traffic;
    SharePlace place;
    bool agrees = true;
    mutable std::int64_t asked = 0;  // calls of state()

    [[nodiscard]] std::string_view transport() const noexcept override { return "threads"; }
    [[nodiscard]] std::int32_t rank() const noexcept override { return rank_; }
    [[nodiscard]] std::int32_t size() const noexcept override {
      return static_cast<std::int32_t>(meeting_.parts.size());
    }
    [[nodiscard]] bool uses_host_memory() const noexcept override { return backend_->uses_host_memory(); }
    [[nodiscard]] std::int64_t scratch_bytes(std::int64_t) const override { return 0; }
    Status reserve(std::int64_t) override { return {}; }
    Status all_reduce_sum(const void*, ElementType, void*, ElementType, std::int64_t, void*) override {
      return {StatusCode::kUnsupported, "threads: no sums"};
    }
    Status all_gather(const void*, void*, std::int64_t, void*) override {
      return {StatusCode::kUnsupported, "threads: no gather"};
    }
    Status broadcast(void* data, std::int64_t bytes, std::int32_t root, void* stream) override {
      const SharedPart part{.data = data, .bytes = bytes, .root = root};
      if (Status status = begin_share({&part, 1}, {}, stream); !status.ok()) return status;
      return end_share(stream);
    }

    Status begin_share(std::span<const SharedPart> parts, const SharePlace& at, void* stream) override {
      place = at;
      EXPECT_FALSE(traffic.under_way) << "a share within a share";
      settle_test_stream(stream);
      meeting_.parts[own()] = parts;
      auto& given = meeting_.given[own()];
      given.clear();
      meeting_.headers[own()] = share_header(parts, at);
      ++traffic.shares;
      for (const SharedPart& part : parts) {
        traffic.bytes += part.bytes;
        if (part.root != rank_ && part.read_by(rank_, size())) traffic.received += part.bytes;
        given.emplace_back();
        if (part.root == rank_) {
          given.back() = read(part);
        } else {
          write(part, std::vector<std::byte>(static_cast<std::size_t>(part.bytes), std::byte{0x7f}));
        }
      }
      traffic.under_way = true;
      return {};
    }
    Status end_share(void* stream) override {
      EXPECT_TRUE(traffic.under_way) << "no share to end";
      traffic.under_way = false;
      settle_test_stream(stream);
      if (!meet()) return state();
      EXPECT_EQ(share_difference(meeting_.headers, rank_) == "", agrees) << share_difference(meeting_.headers, rank_);
      const std::span<const SharedPart> mine = meeting_.parts[own()];
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const auto root = static_cast<std::size_t>(mine[i].root);
        if (root == own()) {
          EXPECT_TRUE(read(mine[i]) == meeting_.given[root][i]) << "part " << i << " was touched on its way";
        } else if (mine[i].read_by(rank_, size())) {
          write(mine[i], meeting_.given[root][i]);
        }
      }
      static_cast<void>(meet());
      return state();
    }

    Status all_gather_host(const void* part, void* all, std::int64_t bytes, double) override {
      meeting_.gathered[static_cast<std::size_t>(rank_)] = part;
      if (!meet()) return state();
      for (std::size_t r = 0; r < meeting_.gathered.size(); ++r) {
        std::memcpy(static_cast<std::byte*>(all) + static_cast<std::int64_t>(r) * bytes, meeting_.gathered[r],
                    static_cast<std::size_t>(bytes));
      }
      static_cast<void>(meet());
      return state();
    }

    [[nodiscard]] Status state() const override {
      ++asked;
      return lost_ ? Status{StatusCode::kBackendLost, "threads: a rank has left"} : Status{};
    }

   private:
    [[nodiscard]] std::size_t own() const { return static_cast<std::size_t>(rank_); }
    [[nodiscard]] std::vector<std::byte> read(const SharedPart& part) const {
      std::vector<std::byte> bytes(static_cast<std::size_t>(part.bytes));
      EXPECT_OK(backend_->download(bytes.data(), part.data, bytes.size()));
      return bytes;
    }
    void write(const SharedPart& part, const std::vector<std::byte>& bytes) const {
      EXPECT_OK(backend_->upload(part.data, bytes.data(), bytes.size()));
      EXPECT_OK(backend_->synchronize());
    }
    // Whether all ranks have come, now and always.
    bool meet() {
      lost_ = !meeting_.meet() || lost_;
      return !lost_;
    }

    Meeting& meeting_;
    std::int32_t rank_;
    std::unique_ptr<Backend> backend_;  // copies
    bool lost_ = false;
  };
};

}  // namespace dsv4rt::test
