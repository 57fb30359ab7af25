#include "replay/arrivals.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "base/try.h"
#include "replay/clock.h"
#include "replay/seeded_hash.h"

namespace dsv4rt::replay {
namespace {

constexpr double kMostMs = 1e12;  // 31 years; nanoseconds of it fit 64 bits

Status check_positive(const char* option, double value) {
  if (std::isfinite(value) && value >= 1e-6 && value <= 1e9) return {};
  return {StatusCode::kInvalidArgument,
          std::string(option) + " = " + std::to_string(value) + "; accepted: 0.000001 to 1e9"};
}

Status check_options(const ArrivalOptions& options) {
  if (options.mode == ArrivalMode::kTimeStamps) DSV4RT_RETURN_IF_ERROR(check_positive("speed", options.speed));
  if (options.mode == ArrivalMode::kRate) DSV4RT_RETURN_IF_ERROR(check_positive("rate_per_s", options.rate_per_s));
  if (options.mode == ArrivalMode::kClosedLoop) {
    DSV4RT_RETURN_IF_ERROR(check_positive("concurrency", options.concurrency));
  }
  if (!std::isfinite(options.jitter_ms) || options.jitter_ms < 0 || options.jitter_ms > kMostMs) {
    return {StatusCode::kInvalidArgument, "jitter_ms = " + std::to_string(options.jitter_ms) + "; accepted: 0 to 1e12"};
  }
  if (options.limit < 0) {
    return {StatusCode::kInvalidArgument, "limit = " + std::to_string(options.limit) + "; accepted: 0 (all) or more"};
  }
  return {};
}

std::string name_of(const Request& request) {
  return "request " + quote(request.id) + " (line " + std::to_string(request.line) + ")";
}

Result<std::int64_t> ns_of(const Request& request, const char* field, double ms) {
  if (std::isfinite(ms) && ms >= 0 && ms <= kMostMs) return std::llround(ms * kNsPerMs);
  return Status{StatusCode::kBadInput,
                name_of(request) + ": " + field + " = " + std::to_string(ms) + "; accepted: 0 to 1e12 milliseconds"};
}

}  // namespace

RequestSupply supply_of(std::vector<Request> requests) {
  auto all = std::make_shared<std::vector<Request>>(std::move(requests));
  return [all, next = std::size_t{0}]() mutable -> Result<std::optional<Request>> {
    if (next == all->size()) return std::optional<Request>();
    return std::optional<Request>((*all)[next++]);
  };
}

Result<Arrivals> Arrivals::create(RequestSupply supply, const ArrivalOptions& options) {
  DSV4RT_RETURN_IF_ERROR(check_options(options));
  return Arrivals(std::move(supply), options);
}

Arrivals::Arrivals(RequestSupply supply, const ArrivalOptions& options)
    : supply_(std::move(supply)),
      options_(options),
      free_clients_(options.mode == ArrivalMode::kClosedLoop ? options.concurrency : 0) {}

Result<std::optional<std::int64_t>> Arrivals::next_time_ns() {
  DSV4RT_RETURN_IF_ERROR(read_ahead());
  if (scheduled_.empty()) return std::optional<std::int64_t>();
  return std::optional<std::int64_t>(scheduled_.front().time_ns);
}

Arrival Arrivals::take() {
  DSV4RT_CHECK(!scheduled_.empty());
  std::pop_heap(scheduled_.begin(), scheduled_.end(), std::greater<>());
  Scheduled& first = scheduled_.back();
  Arrival arrival{.request = std::move(first.request), .time_ns = first.time_ns, .lost = first.lost};
  scheduled_.pop_back();
  return arrival;
}

void Arrivals::push(Scheduled scheduled) {
  scheduled_.push_back(std::move(scheduled));
  std::push_heap(scheduled_.begin(), scheduled_.end(), std::greater<>());
}

// Open loop: until nothing that is unread can arrive before what is scheduled. Closed loop: while a client is free.
Status Arrivals::read_ahead() {
  const auto wants_more = [this] {
    if (exhausted_) return false;
    if (options_.mode == ArrivalMode::kClosedLoop) return free_clients_ > 0;
    return scheduled_.empty() || latest_own_ns_ < scheduled_.front().time_ns;
  };
  while (wants_more()) DSV4RT_RETURN_IF_ERROR(read_one());
  return {};
}

Status Arrivals::read_one() {
  if (options_.limit > 0 && read_ == options_.limit) {
    exhausted_ = true;
    return {};
  }
  if (scheduled_.size() + turns_waiting_ >= options_.max_pending) {
    return {StatusCode::kResourceExhausted,
            std::to_string(options_.max_pending) + " requests were read that cannot arrive before others end"};
  }
  DSV4RT_ASSIGN_OR_RETURN(std::optional<Request> request, supply_());
  if (!request) {
    exhausted_ = true;
    return {};
  }
  ++read_;
  DSV4RT_RETURN_IF_ERROR(ns_of(*request, "delay_ms", request->delay_ms).status());
  const auto session = request->session < 0 ? sessions_.end() : sessions_.find(request->session);
  const bool later_turn = session != sessions_.end();
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t own_ns, own_time_ns(*request, later_turn));
  if (!later_turn) {
    if (request->session >= 0) sessions_.emplace(request->session, Session{.busy = true});
    if (options_.mode == ArrivalMode::kClosedLoop) --free_clients_;
    ++first_turns_;
    schedule_first(std::move(*request), own_ns);
    return {};
  }
  if (session->second.busy) {
    ++turns_waiting_;
    later_turns_[request->session].push_back(std::move(*request));
    return {};
  }
  session->second.busy = true;
  if (options_.mode == ArrivalMode::kClosedLoop) --free_clients_;
  schedule_turn(std::move(*request), session->second);
  return {};
}

// When a request would arrive if it were no later turn.
Result<std::int64_t> Arrivals::own_time_ns(const Request& request, bool later_turn) const {
  if (options_.mode == ArrivalMode::kClosedLoop || later_turn) return now_ns_;
  double ms = static_cast<double>(first_turns_) / options_.rate_per_s * 1e3;
  if (options_.mode == ArrivalMode::kTimeStamps) {
    if (!request.arrival_ms) {
      return Status{StatusCode::kBadInput,
                    name_of(request) + ": no arrival time; accepted: one for every first turn of a session"};
    }
    ms = *request.arrival_ms / options_.speed;
  }
  return ns_of(request, "arrival_ms", ms);
}

void Arrivals::schedule_first(Request request, std::int64_t time_ns) {
  if (options_.mode != ArrivalMode::kClosedLoop) {
    // A log that runs backwards a little is put in order: nothing arrives before what was read before it.
    latest_own_ns_ = std::max(latest_own_ns_, time_ns);
    const std::uint64_t hash =
        seeded_hash(stream_key(options_.seed, HashStream::kJitter, 0), static_cast<std::uint64_t>(request.index));
    time_ns = latest_own_ns_ + static_cast<std::int64_t>(unit_value(hash) * options_.jitter_ms * kNsPerMs);
  }
  push({.time_ns = time_ns, .serial = next_serial_++, .request = std::move(request)});
}

void Arrivals::schedule_turn(Request request, const Session& session) {
  std::int64_t time_ns = session.last_end_ns;
  if (!session.failed) {
    time_ns += std::llround(request.delay_ms * kNsPerMs);
    if (options_.mode == ArrivalMode::kTimeStamps && request.arrival_ms) {
      const double own_ns = *request.arrival_ms / options_.speed * kNsPerMs;
      if (own_ns <= kMostMs * kNsPerMs) time_ns = std::max<std::int64_t>(time_ns, std::llround(own_ns));
    }
  }
  push({.time_ns = std::max(time_ns, now_ns_),
        .serial = next_serial_++,
        .lost = session.failed,
        .request = std::move(request)});
}

void Arrivals::ended(const Request& request, std::int64_t now_ns, bool answered) {
  now_ns_ = std::max(now_ns_, now_ns);
  if (request.session >= 0) {
    Session& session = sessions_.at(request.session);
    session.last_end_ns = now_ns_;
    session.failed |= !answered;
    const auto turns = later_turns_.find(request.session);
    if (turns != later_turns_.end()) {
      Request next = std::move(turns->second.front());
      turns->second.pop_front();
      --turns_waiting_;
      if (turns->second.empty()) later_turns_.erase(turns);
      schedule_turn(std::move(next), session);
      return;
    }
    session.busy = false;
  }
  if (options_.mode == ArrivalMode::kClosedLoop) ++free_clients_;
}

}  // namespace dsv4rt::replay
