// Any bytes as a safetensors file: refused with a text, or every tensor lies within the file and all of them cover it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.h"
#include "expect.h"
#include "fuzz_input.h"

namespace {

using namespace dsv4rt;

void check(std::span<const std::byte> file) {
  const auto header = parse_safetensors(file, "fuzzed");
  if (!header) return fuzz::expect_typed(header.status());
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  std::size_t covered = 0;
  for (const TensorView& tensor : header->tensors) {
    covered += tensor.data.size();
    if (tensor.data.empty()) continue;
    fuzz::expect(tensor.data.data() >= file.data() + sizeof(header_bytes) + header_bytes &&
                     tensor.data.data() + tensor.data.size() <= file.data() + file.size(),
                 "a tensor outside of the file");
  }
  fuzz::expect(covered + header_bytes + sizeof(header_bytes) == file.size(), "tensors do not cover the file");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::FuzzInput input(data, size);
  const auto form = input.take<std::uint8_t>();
  if (form % 2 == 0) {  // a whole file
    check(std::as_bytes(std::span(input.rest())));
    return 0;
  }
  // The JSON alone: length and data fit it, so that the checks behind them are reached.
  const auto data_bytes = input.take<std::uint16_t>();
  const std::uint64_t length = input.rest().size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += input.rest();
  file.append(data_bytes, '\0');
  check(std::as_bytes(std::span(file)));
  return 0;
}
