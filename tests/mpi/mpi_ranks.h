// The ranks of a test program that mpirun has started several times.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dist/mpi/mpi_session.h"
#include "dsv4rt/communicator.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

// That of the program, started by mpi_main.cpp.
MpiSession& mpi_session();

// Of all ranks; made anew for every caller.
inline std::shared_ptr<Communicator> all_ranks(double deadline_seconds = 60) {
  auto made = create_mpi_communicator({.communicator = nullptr, .deadline_seconds = deadline_seconds});
  EXPECT_OK(made);
  return std::move(made).value();
}

// The same text of every rank, by rank. Every rank calls it.
inline std::vector<std::string> gather_texts(Communicator& ranks, const std::string& text) {
  constexpr std::size_t kBytes = 128;
  std::vector<char> mine(kBytes);
  std::memcpy(mine.data(), text.data(), std::min(kBytes - 1, text.size()));
  std::vector<char> all(kBytes * static_cast<std::size_t>(ranks.size()));
  EXPECT_OK(ranks.all_gather(mine.data(), all.data(), kBytes, nullptr));
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += kBytes) texts.emplace_back(all.data() + at);
  return texts;
}

inline void expect_same_on_every_rank(Communicator& ranks, const std::string& text) {
  const std::vector<std::string> texts = gather_texts(ranks, text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) EXPECT_EQ(texts[rank], texts[0]) << "rank " << rank;
}

}  // namespace dsv4rt::test
