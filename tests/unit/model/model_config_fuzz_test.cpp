// Mutations of valid configs: whatever comes out, reading it must end in a config or a Status.

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "dsv4rt/model.h"
#include "model/rope.h"
#include "unit/model/sample_configs.h"

namespace dsv4rt {
namespace {

constexpr std::uint32_t kSeed = 0x5eed0015;
constexpr int kMutationsPerSample = 8000;

// Fragments that sit at the edges of what parsers and checks handle.
constexpr std::string_view kFragments[] = {
    "null", "true", "-1", "0", "1e999", "1e-999", "9223372036854775808", "18446744073709551616", "-9223372036854775809",
    "0.5", "\"\"", "\"yarn\"", "[]", "{}", "[[[[", "{\"a\":", ",", ":", "}", "]", "\"", "\\u0000", "\xff", "NaN"};

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const std::size_t edits = 1 + below(3);
    for (std::size_t edit = 0; edit < edits && !text.empty(); ++edit) apply(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  void apply(std::string& text) {
    const std::size_t at = below(text.size());
    const std::size_t length = 1 + below(std::min<std::size_t>(24, text.size() - at));
    switch (below(6)) {
      case 0: text[at] = static_cast<char>(random_() & 0xffu); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(below(text.size()), length)); break;
      case 3: text.resize(at); break;
      case 4: text.insert(at, kFragments[below(std::size(kFragments))]); break;
      default: replace_value(text); break;
    }
  }

  // Keeps the document well-formed more often than blind edits do, so that the typed checks are reached.
  void replace_value(std::string& text) {
    const std::size_t colon = text.find(':', below(text.size()));
    if (colon == std::string::npos) return;
    const std::size_t end = text.find_first_of(",}", colon);
    if (end == std::string::npos) return;
    text.replace(colon + 1, end - colon - 1, kFragments[below(std::size(kFragments))]);
  }

  std::mt19937 random_;
};

TEST(ModelConfigFuzz, MutatedTextGivesAConfigOrAStatus) {
  const std::vector<std::string> samples = {test::hugging_face_config().dump(), test::inference_config().dump(),
                                            test::layer_types_config().dump()};
  Mutator mutator(kSeed);
  int accepted = 0;
  int refused = 0;
  for (const std::string& sample : samples) {
    for (int i = 0; i < kMutationsPerSample; ++i) {
      const std::string text = mutator.mutate(sample);
      const auto config = ModelConfig::from_json(text, "fuzz.json");
      if (!config.ok()) {
        ++refused;
        ASSERT_NE(config.status().code(), StatusCode::kInternal) << config.status().message() << "\n" << text;
        ASSERT_EQ(config.status().message().rfind("fuzz.json: ", 0), 0u) << config.status().message();
        ASSERT_LT(config.status().message().size(), 2000u);
        continue;
      }
      ++accepted;
      ASSERT_TRUE(config->validate("fuzz.json").ok()) << text;
      ASSERT_TRUE(LayerSchedule::create(*config).ok()) << text;
      (void)rope_frequencies(*config, RopeChoice::kCompressed);
    }
  }
  // Both outcomes must really occur, or the mutations test nothing.
  EXPECT_GT(accepted, 200);
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace dsv4rt
