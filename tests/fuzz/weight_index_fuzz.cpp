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
  for (const auto& [tensor, shard] : index->shard_of) {
    fuzz::expect(!shard.starts_with('.') && shard.find_first_of("/\\") == std::string::npos &&
                     shard.ends_with(".safetensors") && shard.find('\0') == std::string::npos,
                 "a shard that is no plain file name");
  }
  return 0;
}
