// Engines with a prefix cache, and sequences of tokens whose inputs depend on their position only.
#pragma once

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "unit/capi/c_api_test.h"

namespace dsv4rt {

using Ids = std::vector<std::int32_t>;

inline constexpr std::int64_t kUnit = 128;
inline constexpr std::int32_t kStates = 8;

inline Ids ids_of(std::size_t count, std::int32_t first = 7) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Layer outputs by position of the token.
using OutputsByPosition = std::map<std::int64_t, std::vector<Bf16Bits>>;

class CApiPrefixTest : public CApiTest {
 protected:
  static dsv4rt_prefix_options prefix_options() {
    dsv4rt_prefix_options options;
    EXPECT_EQ(dsv4rt_prefix_options_init(&options, sizeof(options)), DSV4RT_OK);
    options.boundary_states = kStates;
    return options;
  }
  static dsv4rt_prefix_policy prefix_policy() {
    dsv4rt_prefix_policy policy;
    EXPECT_EQ(dsv4rt_prefix_policy_init(&policy, sizeof(policy)), DSV4RT_OK);
    return policy;
  }

  static EngineHandle open_with(const dsv4rt_prefix_options& prefixes) {
    const std::string path = checkpoint();
    dsv4rt_engine_options given = options(path.c_str());
    given.prefix_cache = &prefixes;
    dsv4rt_engine* engine = nullptr;
    char message[512] = "";
    EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_OK) << message;
    return EngineHandle(engine);
  }
  static std::string refused(const dsv4rt_prefix_options& prefixes, dsv4rt_status expected) {
    const std::string path = checkpoint();
    dsv4rt_engine_options given = options(path.c_str());
    given.prefix_cache = &prefixes;
    dsv4rt_engine* engine = nullptr;
    char message[512] = "";
    EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), expected) << message;
    EXPECT_EQ(engine, nullptr);
    return message;
  }

  struct Start {
    dsv4rt_sequence sequence{};
    std::int64_t hit_tokens = -1;
  };
  static Start create(dsv4rt_engine* engine, const Ids& ids, const std::string& salt = "",
                      const dsv4rt_prefix_policy* policy = nullptr) {
    const dsv4rt_sequence_options options{.struct_size = sizeof(options),
                                          .salt = salt.data(),
                                          .salt_bytes = salt.size(),
                                          .reserve_tokens = 0,
                                          .policy = policy};
    Start start;
    EXPECT_EQ(
        dsv4rt_sequence_create_with_ids(engine, ids.data(), ids.size(), &options, &start.sequence, &start.hit_tokens),
        DSV4RT_OK)
        << dsv4rt_engine_last_error(engine);
    return start;
  }

  // Runs tokens [length, ids.size()) in chunks; inputs depend on the position only. All layers' outputs, by position.
  static OutputsByPosition feed(dsv4rt_engine* engine, dsv4rt_sequence sequence, const Ids& ids,
                                std::int32_t chunk = 100) {
    OutputsByPosition outputs;
    const auto total = static_cast<std::int64_t>(ids.size());
    for (std::int64_t done = length(engine, sequence); done < total;) {
      const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(chunk, total - done));
      const dsv4rt_step_entry entry{sequence, tokens};
      const std::int32_t* step_ids = ids.data() + done;
      const dsv4rt_step_options with_ids{.struct_size = sizeof(with_ids),
                                         .pad_to_tokens = 0,
                                         .capture = 0,
                                         .hook_key = 0,
                                         .token_ids = &step_ids,
                                         .hand_over = 0,
                                         .hand_over_to = 0};
      dsv4rt_step step{};
      EXPECT_EQ(dsv4rt_step_prepare(engine, &entry, 1, &with_ids, &step), DSV4RT_OK)
          << dsv4rt_engine_last_error(engine);
      run_layers(engine, step, done, outputs);
      EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
      done += tokens;
    }
    return outputs;
  }

  static void run_layers(dsv4rt_engine* engine, const dsv4rt_step& step, std::int64_t start,
                         OutputsByPosition& outputs) {
    for (std::int32_t layer = 0; layer < 4; ++layer) {
      std::vector<Bf16Bits> x;
      for (std::int64_t position = start; position < start + step.tokens; ++position) {
        const auto row = input_rows(static_cast<int>(position), layer, 1, hidden_);
        x.insert(x.end(), row.begin(), row.end());
      }
      std::vector<Bf16Bits> out(x.size());
      EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, layer, x.data(), out.data()), DSV4RT_OK)
          << dsv4rt_engine_last_error(engine);
      for (std::int64_t i = 0; i < step.tokens; ++i) {
        std::vector<Bf16Bits>& row = outputs[start + i];
        row.insert(row.end(), out.begin() + i * hidden_, out.begin() + (i + 1) * hidden_);
      }
    }
  }

  struct Lookup {
    std::int64_t hit_tokens = -1;
    std::int64_t matched_tokens = -1;
    friend bool operator==(const Lookup&, const Lookup&) = default;
  };
  static Lookup lookup(dsv4rt_engine* engine, const Ids& ids, const std::string& salt = "") {
    Lookup found;
    EXPECT_EQ(dsv4rt_prefix_lookup(engine, ids.data(), ids.size(), salt.data(), salt.size(), &found.hit_tokens,
                                   &found.matched_tokens),
              DSV4RT_OK)
        << dsv4rt_engine_last_error(engine);
    return found;
  }

  static dsv4rt_prefix_stats stats(dsv4rt_engine* engine) {
    dsv4rt_prefix_stats stats{};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(dsv4rt_engine_prefix_stats(engine, &stats), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    return stats;
  }

  // Leaves the prefix of `ids` behind.
  static OutputsByPosition leave(dsv4rt_engine* engine, const Ids& ids, const std::string& salt = "") {
    const Start start = create(engine, ids, salt);
    OutputsByPosition outputs = feed(engine, start.sequence, ids);
    EXPECT_EQ(dsv4rt_sequence_release(engine, start.sequence), DSV4RT_OK);
    return outputs;
  }
};

}  // namespace dsv4rt
