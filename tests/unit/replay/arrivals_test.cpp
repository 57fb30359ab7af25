#include "replay/arrivals.h"

#include <set>

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

// Takes everything; each request ends `served_ms` after its arrival.
std::vector<std::pair<std::int64_t, double>> arrivals_of(std::vector<Request> requests, const ArrivalOptions& options,
                                                         double served_ms = 10, std::int64_t fails = -1) {
  auto arrivals = Arrivals::create(supply_of(std::move(requests)), options);
  EXPECT_OK(arrivals);
  std::vector<std::pair<std::int64_t, double>> taken;
  std::vector<std::pair<std::int64_t, Request>> running;
  for (;;) {
    const auto next_ns = arrivals->next_time_ns();
    EXPECT_OK(next_ns);
    const auto first_end = std::min_element(running.begin(), running.end(),
                                            [](const auto& a, const auto& b) { return a.first < b.first; });
    if (first_end != running.end() && (!*next_ns || first_end->first <= **next_ns)) {
      arrivals->ended(first_end->second, first_end->first, first_end->second.index != fails);
      running.erase(first_end);
    } else if (*next_ns) {
      const Arrival arrival = arrivals->take();
      EXPECT_EQ(arrival.time_ns, **next_ns);
      taken.emplace_back(arrival.request.index, arrival.lost ? -1 : to_ms(arrival.time_ns));
      running.emplace_back(arrival.time_ns + static_cast<std::int64_t>(served_ms * kNsPerMs), arrival.request);
    } else {
      return taken;
    }
  }
}

using Taken = std::vector<std::pair<std::int64_t, double>>;

TEST(Arrivals, TimeStampsAreDividedByTheSpeed) {
  EXPECT_EQ(arrivals_of({request(0, 0, 1, 1), request(1, 30, 1, 1), request(2, 30, 1, 1)}, {.speed = 2}),
            (Taken{{0, 0}, {1, 15}, {2, 15}}));
}

TEST(Arrivals, ARateSpacesThemEvenly) {
  EXPECT_EQ(arrivals_of({request(0, 0, 1, 1), request(1, 3000, 1, 1), request(2, 3000, 1, 1)},
                        {.mode = ArrivalMode::kRate, .rate_per_s = 4}),
            (Taken{{0, 0}, {1, 250}, {2, 500}}));
}

TEST(Arrivals, JitterIsSeededBoundedAndKeepsTheOrderOfTime) {
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < 200; ++i) requests.push_back(request(i, static_cast<double>(i / 20) * 3000, 1, 1));
  const ArrivalOptions options{.jitter_ms = 4000, .seed = 3};
  const Taken a = arrivals_of(requests, options);
  EXPECT_EQ(a, arrivals_of(requests, options));
  ASSERT_EQ(a.size(), 200U);
  std::set<double> times;
  bool moved = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double own = *requests[static_cast<std::size_t>(a[i].first)].arrival_ms;
    EXPECT_GE(a[i].second, own);
    EXPECT_LT(a[i].second, own + 4000);
    if (i > 0) {
      EXPECT_GE(a[i].second, a[i - 1].second);
    }
    moved |= a[i].first != static_cast<std::int64_t>(i);
    times.insert(a[i].second);
  }
  EXPECT_TRUE(moved);
  EXPECT_GT(times.size(), 190U);  // no longer ten bursts
  EXPECT_NE(a, arrivals_of(requests, {.jitter_ms = 4000, .seed = 4}));
}

TEST(Arrivals, AClosedLoopHasAsManyUnderWayAsClients) {
  std::vector<Request> requests;
  for (std::int64_t i = 0; i < 6; ++i) requests.push_back(request(i, 1e6, 1, 1));
  EXPECT_EQ(arrivals_of(requests, {.mode = ArrivalMode::kClosedLoop, .concurrency = 2}),
            (Taken{{0, 0}, {1, 0}, {2, 10}, {3, 10}, {4, 20}, {5, 20}}));
}

std::vector<Request> session_of(std::int64_t turns) {
  std::vector<Request> requests;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    requests.push_back(request(turn, 5, 1, 1));
    requests.back().session = 9;
    requests.back().delay_ms = 7;
    if (turn > 0) requests.back().arrival_ms.reset();
  }
  return requests;
}

TEST(Arrivals, TurnsWaitForTheOneBeforeAndTheirDelay) {
  std::vector<Request> requests = session_of(3);
  requests.push_back(request(3, 6, 1, 1));
  requests[2].arrival_ms = 100;  // and for their own time
  EXPECT_EQ(arrivals_of(requests, {}), (Taken{{0, 5}, {3, 6}, {1, 22}, {2, 100}}));
  // A client of a closed loop stays with its session.
  EXPECT_EQ(arrivals_of(requests, {.mode = ArrivalMode::kClosedLoop, .concurrency = 1}),
            (Taken{{0, 0}, {1, 17}, {2, 34}, {3, 44}}));
}

TEST(Arrivals, ATurnReadLateArrivesAtOnceAndALostSessionSaysSo) {
  std::vector<Request> requests = session_of(2);
  requests.insert(requests.begin() + 1, request(5, 500, 1, 1));
  // Turn 1 stands behind a request at 500 ms: nothing before 500 needed it to be read.
  const Taken late = arrivals_of(requests, {});
  ASSERT_EQ(late.size(), 3U);
  EXPECT_EQ(late[0].first, 0);
  EXPECT_EQ(arrivals_of(session_of(3), {}, 10, 0), (Taken{{0, 5}, {1, -1}, {2, -1}}));
}

TEST(Arrivals, TheLimitCountsRequestsRead) {
  EXPECT_EQ(arrivals_of(session_of(5), {.limit = 2}).size(), 2U);
}

TEST(Arrivals, WhatCannotBeScheduledIsNamed) {
  const auto failure = [](Request bad, ArrivalOptions options = {}) {
    auto arrivals = Arrivals::create(supply_of({std::move(bad)}), options);
    return arrivals.ok() ? arrivals->next_time_ns().status() : arrivals.status();
  };
  Request bad = request(0, 0, 1, 1);
  bad.arrival_ms.reset();
  EXPECT_TRUE(fails_with(failure(bad), StatusCode::kBadInput, {"r0", "line 1", "no arrival time"}));
  EXPECT_OK(failure(bad, {.mode = ArrivalMode::kRate}));
  bad.arrival_ms = 1e13;
  EXPECT_TRUE(fails_with(failure(bad), StatusCode::kBadInput, {"arrival_ms", "1e12"}));
  bad.arrival_ms = 0;
  bad.delay_ms = -1;
  EXPECT_TRUE(fails_with(failure(bad), StatusCode::kBadInput, {"delay_ms", "-1"}));
  EXPECT_TRUE(fails_with(failure(request(0, 0, 1, 1), {.jitter_ms = -1}), StatusCode::kInvalidArgument, {"jitter_ms"}));
  EXPECT_TRUE(fails_with(failure(request(0, 0, 1, 1), {.mode = ArrivalMode::kClosedLoop, .concurrency = 0}),
                         StatusCode::kInvalidArgument, {"concurrency", "0"}));
}

TEST(Arrivals, TurnsThatPileUpAreBounded) {
  auto arrivals = Arrivals::create(supply_of(session_of(50)), {.max_pending = 10});
  ASSERT_OK(arrivals);
  ASSERT_OK(arrivals->next_time_ns());
  arrivals->take();
  EXPECT_TRUE(fails_with(arrivals->next_time_ns(), StatusCode::kResourceExhausted, {"10 requests"}));
}

}  // namespace
}  // namespace dsv4rt::replay::test
