// What requests were answered, as digests: outputs at positions from the last prompt token on, in the order of
// positions.
//
// A position that is computed again, after a preemption, must give the bytes that it gave before.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/sha256.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

class OutputDigests {
 public:
  // `row`: digest of the outputs of all layers at `position` of a request. kInternal when it is another than before, or
  // when positions before it are missing.
  Status add(std::int64_t request, std::int64_t position, const Sha256::Digest& row);
  // SHA-256 of the digests of the request's rows, which are forgotten; empty without any.
  std::string take(std::int64_t request);
  // Requests that are remembered.
  [[nodiscard]] std::size_t size() const noexcept { return answers_.size(); }
  // Rows that were computed again, and were the same.
  [[nodiscard]] std::int64_t repeated_rows() const noexcept { return repeated_rows_; }

 private:
  struct Answer {
    std::int64_t first_position = 0;
    std::vector<Sha256::Digest> rows;
  };
  std::unordered_map<std::int64_t, Answer> answers_;
  std::int64_t repeated_rows_ = 0;
};

}  // namespace dsv4rt
