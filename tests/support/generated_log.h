// Request logs of any length with the statistics of Mooncake's conversation trace.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace dsv4rt::test {

// Lengths follow the quantiles of the trace's first 1,000 requests; `input_scale` stretches prompts. Of five requests
// two go on with one of the latest conversations, as far as its prompt was written down in whole blocks; the others
// share their first block with everybody. Arrivals are 3 s apart, ten at a time.
struct GeneratedLog {
  std::int64_t requests = 0;
  double input_scale = 1;
  std::uint64_t seed = 0;
};

struct GeneratedTotals {
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
};

// Writes the log in Mooncake's format.
inline GeneratedTotals write_generated_log(const std::string& path, const GeneratedLog& log) {
  constexpr std::array<double, 21> kInputQuantiles{891,   908,   1056,  1428,  1904,  2885,  4134,
                                                   5149,  6156,  7066,  8431,  9535,  10880, 12930,
                                                   15262, 17450, 19976, 24132, 28845, 45721, 121924};
  constexpr std::array<double, 21> kOutputQuantiles{1,   11,  25,  44,  107, 165, 227, 270, 312, 345, 365,
                                                    389, 414, 439, 459, 490, 521, 555, 599, 666, 2000};
  constexpr std::int64_t kBlockTokens = 512;
  constexpr std::size_t kConversations = 2000;
  std::mt19937_64 random(log.seed);
  const auto uniform = [&random] { return static_cast<double>(random() >> 11U) * 0x1p-53; };
  const auto sample = [&uniform](const std::array<double, 21>& quantiles) {
    const double place = uniform() * 20;
    const auto i = static_cast<std::size_t>(place);
    return quantiles[i] + (quantiles[i + 1] - quantiles[i]) * (place - static_cast<double>(i));
  };
  std::ofstream file(path, std::ios::binary);
  std::vector<std::vector<std::uint64_t>> conversations;
  std::uint64_t next_id = 1;
  GeneratedTotals totals;
  for (std::int64_t i = 0; i < log.requests; ++i) {
    const auto input = std::max<std::int64_t>(1, static_cast<std::int64_t>(sample(kInputQuantiles) * log.input_scale));
    const auto output = static_cast<std::int64_t>(sample(kOutputQuantiles));
    const auto blocks = static_cast<std::size_t>((input + kBlockTokens - 1) / kBlockTokens);
    std::vector<std::uint64_t> ids{0};
    if (!conversations.empty() && random() % 5 < 2) {
      ids = conversations[random() % conversations.size()];
      if (ids.size() > 1) ids.pop_back();  // the partial block has been filled since
    }
    ids.resize(std::min(ids.size(), blocks));
    while (ids.size() < blocks) ids.push_back(next_id++);
    file << "{\"timestamp\": " << i / 10 * 3000 << ", \"input_length\": " << input << ", \"output_length\": " << output
         << ", \"hash_ids\": [";
    for (std::size_t b = 0; b < ids.size(); ++b) file << (b == 0 ? "" : ", ") << ids[b];
    file << "]}\n";
    totals.input_tokens += input;
    totals.output_tokens += output;
    if (conversations.size() < kConversations) {
      conversations.push_back(std::move(ids));
    } else {
      conversations[static_cast<std::size_t>(i) % kConversations] = std::move(ids);
    }
  }
  return totals;
}

}  // namespace dsv4rt::test
