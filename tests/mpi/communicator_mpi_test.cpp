// The verbs over MPI: what they give, in which order they add, and what they refuse.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bfloat16.h"
#include "dist/sum_in_rank_order.h"
#include "mpi/mpi_ranks.h"

namespace dsv4rt::test {
namespace {

// What rank r gives as element i: terms of different sizes, so that another order of adding gives another sum.
float term(std::int32_t rank, std::int64_t i) {
  const auto x = static_cast<float>(std::sin(static_cast<double>(i * 37 + rank * 101)));
  return x * std::ldexp(1.0F, static_cast<int>((i + rank * 7) % 40) - 20);
}

std::vector<float> terms_of(std::int32_t rank, std::int64_t count) {
  std::vector<float> terms;
  for (std::int64_t i = 0; i < count; ++i) terms.push_back(term(rank, i));
  return terms;
}

TEST(MpiCommunicator, SaysWhoItIs) {
  const auto ranks = all_ranks();
  EXPECT_EQ(ranks->transport(), "mpi");
  EXPECT_EQ(ranks->rank(), mpi_session().rank());
  EXPECT_EQ(ranks->size(), mpi_session().size());
  EXPECT_GE(ranks->size(), 2) << "to be started by mpirun";
  EXPECT_TRUE(ranks->uses_host_memory());
  EXPECT_OK(ranks->state());
}

// Lengths around and beyond the parts in which long sums go (2^18 FP32 elements).
TEST(MpiCommunicator, AddsInTheOrderOfTheRanks) {
  const auto ranks = all_ranks();
  bool order_shows = false;
  for (const std::int64_t count : {1, 7, 262143, 262144, 262145, 600001}) {
    const auto mine = terms_of(ranks->rank(), count);
    std::vector<float> sum(mine.size());
    std::vector<bf16> rounded(mine.size());
    ASSERT_OK(ranks->all_reduce_sum(mine.data(), ElementType::kF32, sum.data(), ElementType::kF32, count, nullptr));
    ASSERT_OK(
        ranks->all_reduce_sum(mine.data(), ElementType::kF32, rounded.data(), ElementType::kBf16, count, nullptr));
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      float forwards = term(0, i);
      for (std::int32_t rank = 1; rank < ranks->size(); ++rank) forwards += term(rank, i);
      float backwards = term(ranks->size() - 1, i);
      for (std::int32_t rank = ranks->size() - 2; rank >= 0; --rank) backwards += term(rank, i);
      order_shows |= forwards != backwards;
      const auto at = static_cast<std::size_t>(i);
      wrong += sum[at] == forwards && rounded[at].bits == to_bf16(forwards).bits ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << count << " elements";
  }
  EXPECT_EQ(order_shows, ranks->size() > 2) << "two terms have one order";
}

TEST(MpiCommunicator, AddsBf16InPlace) {
  const auto ranks = all_ranks();
  std::vector<bf16> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = to_bf16(term(ranks->rank(), static_cast<std::int64_t>(i)));
  }
  ASSERT_OK(ranks->all_reduce_sum(values.data(), ElementType::kBf16, values.data(), ElementType::kBf16, 1000, nullptr));
  for (std::size_t i = 0; i < values.size(); ++i) {
    float sum = 0;
    for (std::int32_t rank = 0; rank < ranks->size(); ++rank) {
      const float own = to_float(to_bf16(term(rank, static_cast<std::int64_t>(i))));
      sum = rank == 0 ? own : sum + own;
    }
    ASSERT_EQ(values[i].bits, to_bf16(sum).bits) << i;
  }
}

TEST(MpiCommunicator, GathersAndBroadcastsBytesOfAnyLength) {
  const auto ranks = all_ranks();
  for (const std::int64_t bytes : {1, 1000, 1048576, 1048577, 2500000}) {
    const auto byte = [](std::int32_t rank, std::int64_t i) { return static_cast<char>((i * 31 + rank * 17) % 251); };
    std::vector<char> mine;
    for (std::int64_t i = 0; i < bytes; ++i) mine.push_back(byte(ranks->rank(), i));
    std::vector<char> all(static_cast<std::size_t>(bytes * ranks->size()));
    ASSERT_OK(ranks->all_gather(mine.data(), all.data(), bytes, nullptr));
    std::int64_t wrong = 0;
    for (std::int32_t rank = 0; rank < ranks->size(); ++rank) {
      for (std::int64_t i = 0; i < bytes; ++i) {
        wrong += all[static_cast<std::size_t>(rank * bytes + i)] == byte(rank, i) ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong, 0) << bytes << " bytes";

    const std::int32_t root = ranks->size() - 1;
    ASSERT_OK(ranks->broadcast(mine.data(), bytes, root, nullptr));
    for (std::int64_t i = 0; i < bytes; ++i) wrong += mine[static_cast<std::size_t>(i)] == byte(root, i) ? 0 : 1;
    EXPECT_EQ(wrong, 0) << bytes << " bytes";
  }
}

// Parts of all ranks in any order and of any length, up to several of the parts in which long ones go: everybody has
// them at the end, and where no part is nothing changes. What a rank has to give may be overwritten once it has ended.
TEST(MpiCommunicator, SharesPartsOfAllRanksAtOnce) {
  const auto ranks = all_ranks();
  const auto byte = [](std::size_t part, std::int64_t i) {
    return static_cast<char>((i * 31 + static_cast<std::int64_t>(part) * 17 + 1) % 251);
  };
  const std::vector<std::vector<std::int64_t>> cases{
      {},          {0, 0}, {1}, {5, 0, 1000, 3, 7}, {1048576, 1, 1048575, 1, 2}, {700000, 700000, 700000, 700000, 9},
      {3100000, 4}};
  for (const auto& lengths : cases) {
    std::vector<std::vector<char>> memory;
    std::vector<SharedPart> parts;
    for (std::size_t p = 0; p < lengths.size(); ++p) {
      const auto root = static_cast<std::int32_t>(p * p + p / 2) % ranks->size();
      auto& bytes = memory.emplace_back(static_cast<std::size_t>(lengths[p] + 2), 'x');
      for (std::int64_t i = 0; root == ranks->rank() && i < lengths[p]; ++i) {
        bytes[static_cast<std::size_t>(i + 1)] = byte(p, i);
      }
      parts.push_back({.data = nullptr, .bytes = lengths[p], .root = root});
    }
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p].data = memory[p].data() + 1;
    ASSERT_OK(ranks->begin_share(parts, {}, nullptr));
    if (std::any_of(lengths.begin(), lengths.end(), [](std::int64_t length) { return length > 0; })) {
      char other = 0;
      EXPECT_EQ(ranks->broadcast(&other, 1, 0, nullptr).code(), StatusCode::kFailedPrecondition);
    }
    ASSERT_OK(ranks->end_share(nullptr));
    std::int64_t wrong = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      wrong += memory[p].front() == 'x' && memory[p].back() == 'x' ? 0 : 1;
      for (std::int64_t i = 0; i < lengths[p]; ++i) {
        wrong += memory[p][static_cast<std::size_t>(i + 1)] == byte(p, i) ? 0 : 1;
      }
      std::fill(memory[p].begin(), memory[p].end(), 'y');
    }
    EXPECT_EQ(wrong, 0) << lengths.size() << " parts";
  }
  EXPECT_OK(ranks->end_share(nullptr)) << "nothing is under way";
}

// Parts that some ranks read: who does has them, what others have is theirs no more. Readers that begin with one rank
// and readers that do not, parts of several of the pieces in which long ones go, roots that read nothing of their own.
TEST(MpiCommunicator, PartsReachTheirReaders) {
  const auto ranks = all_ranks();
  const std::int32_t size = ranks->size();
  const auto byte = [](std::size_t part, std::int64_t i) {
    return static_cast<char>((i * 29 + static_cast<std::int64_t>(part) * 13 + 5) % 251);
  };
  for (const bool nested : {true, false}) {
    for (std::int32_t first = 0; first < size; ++first) {
      std::vector<std::vector<char>> memory;
      std::vector<SharedPart> parts;
      for (std::size_t p = 0; p < 12; ++p) {
        const auto number = static_cast<std::int32_t>(p);
        const std::int64_t length = p % 3 == 0 ? 700001 : 1000 + number;
        auto& bytes = memory.emplace_back(static_cast<std::size_t>(length), 'x');
        const std::int32_t root = (number * 5 + 1) % size;
        for (std::int64_t i = 0; root == ranks->rank() && i < length; ++i) {
          bytes[static_cast<std::size_t>(i)] = byte(p, i);
        }
        parts.push_back({.data = bytes.data(),
                         .bytes = length,
                         .root = root,
                         .first_reader = nested ? first : (first + number) % size,
                         .readers = p == 7 ? SharedPart::kEveryRank : number % (size + 1)});
      }
      ASSERT_OK(ranks->begin_share(parts, {.step = 3, .content = 9, .layer = 1}, nullptr));
      ASSERT_OK(ranks->end_share(nullptr));
      for (std::size_t p = 0; p < parts.size(); ++p) {
        if (parts[p].root != ranks->rank() && !parts[p].read_by(ranks->rank(), size)) continue;
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < parts[p].bytes; ++i) {
          wrong += memory[p][static_cast<std::size_t>(i)] == byte(p, i) ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0) << "part " << p << ", readers from " << first << (nested ? ", nested" : "");
      }
    }
  }
}

// Ranks that are at different places of their work, with equal parts: nobody takes the rows of another step or layer
// for its own. The last rank is elsewhere.
TEST(MpiCommunicator, RanksThatAreOutOfStepAreLost) {
  struct Case {
    SharePlace others;
    const char* seen_by_others;
    const char* seen_by_last;
  };
  for (const Case& c :
       {Case{{.step = 8, .content = 5, .layer = 2},
             " is at layer 2 of shared step 8 and this rank at layer 2 of shared step 7: the ranks are out of step",
             " is at layer 2 of shared step 7 and this rank at layer 2 of shared step 8: the ranks are out of step"},
        Case{{.step = 7, .content = 5, .layer = 3},
             " is at layer 3 of shared step 7 and this rank at layer 2 of shared step 7",
             " is at layer 2 of shared step 7 and this rank at layer 3 of shared step 7"},
        Case{{.step = 7, .content = 6, .layer = 2},
             " runs other tokens in layer 2 of shared step 7: the ranks' steps differ",
             " runs other tokens in layer 2 of shared step 7: the ranks' steps differ"}}) {
    const auto ranks = all_ranks(5);
    const bool last = ranks->rank() == ranks->size() - 1;
    char byte = 'x';
    const SharedPart part{.data = &byte, .bytes = 1, .root = 0};
    const Status status =
        ranks->begin_share({&part, 1}, last ? c.others : SharePlace{.step = 7, .content = 5, .layer = 2}, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kBackendLost);
    const std::string text = "begin_share: rank " + std::to_string(last ? 0 : ranks->size() - 1) +
                             (last ? c.seen_by_last : c.seen_by_others);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_EQ(byte, 'x');
    EXPECT_EQ(ranks->end_share(nullptr).message(), status.message());
  }
  const auto ranks = all_ranks();
  expect_same_on_every_rank(*ranks, "afterwards");
}

// One rank was called with other parts, of the same length or of another one: nobody takes them for its own.
TEST(MpiCommunicator, SharesOfOtherPartsLoseTheRanks) {
  for (const std::int64_t others : {600, 300}) {
    const auto ranks = all_ranks(5);
    std::vector<char> bytes(1000);
    std::vector<SharedPart> parts{{.data = bytes.data(), .bytes = 600, .root = 0},
                                  {.data = bytes.data() + 600, .bytes = 400, .root = 0}};
    if (ranks->rank() == ranks->size() - 1) parts[0].bytes = others == 600 ? 400 : 300;
    if (ranks->rank() == ranks->size() - 1) parts[1].bytes = others == 600 ? 600 : 400;
    const Status status = ranks->begin_share(parts, {}, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kBackendLost);
    EXPECT_NE(status.message().find("was called with other parts"), std::string::npos) << status.message();
    EXPECT_EQ(ranks->state().message(), status.message());
    EXPECT_EQ(ranks->end_share(nullptr).message(), status.message());
  }
  const auto ranks = all_ranks();
  expect_same_on_every_rank(*ranks, "afterwards");
}

// An end that never comes leaves nothing that the process trips over.
TEST(MpiCommunicator, ACommunicatorMayGoWithinAShare) {
  std::vector<char> bytes(1000);
  auto abandoned = all_ranks();
  const SharedPart part{.data = bytes.data(), .bytes = 1000, .root = 0};
  ASSERT_OK(abandoned->begin_share({&part, 1}, {}, nullptr));
  abandoned.reset();
  const auto ranks = all_ranks();
  expect_same_on_every_rank(*ranks, "afterwards");
}

TEST(MpiCommunicator, RefusesWhatIsNoCall) {
  const auto ranks = all_ranks();
  float value = 0;
  const auto sum = [&](const void* terms, void* to, ElementType type, std::int64_t count) {
    return ranks->all_reduce_sum(terms, ElementType::kF32, to, type, count, nullptr);
  };
  EXPECT_EQ(sum(nullptr, &value, ElementType::kF32, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sum(&value, nullptr, ElementType::kF32, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sum(&value, &value, ElementType::kBf16, 1).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(sum(&value, &value, ElementType::kF32, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_OK(sum(nullptr, nullptr, ElementType::kF32, 0));
  EXPECT_EQ(ranks->broadcast(&value, 4, ranks->size(), nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ranks->all_gather(&value, nullptr, 4, nullptr).code(), StatusCode::kInvalidArgument);
  const auto share = [&](void* data, std::int64_t bytes, std::int32_t root) {
    const SharedPart parts[] = {{.data = &value, .bytes = 4, .root = 0}, {.data = data, .bytes = bytes, .root = root}};
    const Status status = ranks->begin_share(parts, {}, nullptr);
    EXPECT_NE(status.message().find("begin_share: "), std::string::npos) << status.message();
    return status.code();
  };
  EXPECT_EQ(share(nullptr, 1, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(share(&value, -1, 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(share(&value, 4, -1), StatusCode::kInvalidArgument);
  EXPECT_EQ(share(&value, 4, ranks->size()), StatusCode::kInvalidArgument);
  EXPECT_EQ(share(&value, std::numeric_limits<std::int64_t>::max(), 0), StatusCode::kInvalidArgument);
  EXPECT_EQ(share(&value, (std::int64_t{1} << 50) - 3, 0), StatusCode::kInvalidArgument) << "with 4 bytes before it";
  for (const auto& [first, readers] :
       {std::pair(-1, 1), std::pair(ranks->size(), 1), std::pair(0, ranks->size() + 1), std::pair(0, -2)}) {
    const SharedPart part{.data = &value, .bytes = 4, .root = 0, .first_reader = first, .readers = readers};
    const Status status = ranks->begin_share({&part, 1}, {}, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("readers = " + std::to_string(readers) + " from rank " + std::to_string(first)),
              std::string::npos)
        << status.message();
  }
  for (const double seconds : {0.0, -1.0, 1e6, std::numeric_limits<double>::quiet_NaN()}) {
    const auto made = create_mpi_communicator({.communicator = nullptr, .deadline_seconds = seconds});
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << seconds;
    EXPECT_NE(made.status().message().find("deadline_seconds"), std::string::npos);
  }
  EXPECT_OK(ranks->state());  // a refusal loses nothing
}

// The call waits for the deadline and says so within a second more.
void expect_lost(Communicator& ranks, double deadline, const std::string& name, const std::function<Status()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  const Status lost = call();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(lost.code(), StatusCode::kBackendLost);
  EXPECT_NE(lost.message().find(name + ": not every rank took part within 0.3 s"), std::string::npos) << lost.message();
  EXPECT_GE(waited.count(), deadline);
  EXPECT_LE(waited.count(), deadline + 1);
  EXPECT_EQ(ranks.state().message(), lost.message());
}

// The last rank stays away: all others have their answer within the deadline and a second, and go on with it.
TEST(MpiCommunicator, ARankThatDoesNotComeIsLostWithinTheDeadline) {
  constexpr double kDeadline = 0.3;
  const auto ranks = all_ranks(kDeadline);
  const auto all = all_ranks();
  const bool absent = ranks->rank() == ranks->size() - 1;
  std::vector<float> values(1000, 1.0F);
  if (!absent) {
    expect_lost(*ranks, kDeadline, "all_reduce_sum", [&] {
      return ranks->all_reduce_sum(values.data(), ElementType::kF32, values.data(), ElementType::kF32, 1000, nullptr);
    });
    const Status lost = ranks->state();
    // No call waits again.
    const SharedPart part{.data = values.data(), .bytes = 4, .root = 0};
    EXPECT_EQ(ranks->begin_share({&part, 1}, {}, nullptr).message(), lost.message());
    const auto again = std::chrono::steady_clock::now();
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(ranks->broadcast(values.data(), 4, 0, nullptr).message(), lost.message());
    }
    EXPECT_LE(std::chrono::duration<double>(std::chrono::steady_clock::now() - again).count(), kDeadline);
  }
  // Another communicator of the same processes works on.
  expect_same_on_every_rank(*all, "after the loss");
  // This rank has noticed nothing, and freeing takes all ranks.
  if (absent) static_cast<void>(new std::shared_ptr<Communicator>(ranks));
}

// The same with a share.
TEST(MpiCommunicator, ARankThatDoesNotComeToAShareIsLostWithinTheDeadline) {
  constexpr double kDeadline = 0.3;
  const auto ranks = all_ranks(kDeadline);
  const auto all = all_ranks();
  const bool absent = ranks->rank() == ranks->size() - 1;
  if (!absent) {
    std::vector<char> bytes(1000);
    const SharedPart part{.data = bytes.data(), .bytes = 1000, .root = ranks->size() - 1};
    expect_lost(*ranks, kDeadline, "begin_share", [&] { return ranks->begin_share({&part, 1}, {}, nullptr); });
    const Status lost = ranks->state();
    EXPECT_EQ(ranks->begin_share({&part, 1}, {}, nullptr).message(), lost.message());
    EXPECT_EQ(ranks->end_share(nullptr).message(), lost.message());
  }
  expect_same_on_every_rank(*all, "after the loss");
  if (absent) static_cast<void>(new std::shared_ptr<Communicator>(ranks));
}

}  // namespace
}  // namespace dsv4rt::test
