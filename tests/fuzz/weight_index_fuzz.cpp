// Any text as model.safetensors.index.json: refused with a text, or every shard is a plain file name.
#include <cstddef>
#include <cstdint>

#include "checkpoint/weight_index.h"
#include "expect.h"
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsv4rt;
  const auto index = parse_weight_index(fuzz::FuzzInput(data, size).rest(), "fuzzed");
  if (!index) {
    fuzz::expect_typed(index.status());
    return 0;
  }
  for (const std::string& shard : index->shards) {
    fuzz::expect(!shard.starts_with('.') && shard.find_first_of("/\\") == std::string::npos &&
                     shard.ends_with(".safetensors") && shard.find('\0') == std::string::npos,
                 "a shard that is no plain file name");
  }
  for (const WeightIndex::Entry& entry : index->entries) {
    fuzz::expect(entry.shard < index->shards.size(), "an entry without a shard");
    fuzz::expect(index->shard_of(entry.name) == &index->shards[entry.shard], "an entry that is not found by its name");
  }
  return 0;
}
