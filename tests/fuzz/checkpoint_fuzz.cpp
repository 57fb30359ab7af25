// A checkpoint directory with any config.json and any header over data of zeros: refused with a text, or weights whose
// shapes the config accepts. The input is the config, a 0 byte, the JSON of the header.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include "checkpoint/attention_loader.h"
#include "checkpoint/checkpoint.h"
#include "expect.h"
#include "fuzz_input.h"
#include "support/temp_directory.h"

namespace {

using namespace dsv4rt;

constexpr std::uint32_t kDataPages = 4096;  // pages of 4 KiB that a file's data has at most

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void load(const std::filesystem::path& directory) {
  const auto config = ModelConfig::from_file(directory / "config.json");
  fuzz::expect_typed(config.status());
  const auto checkpoint = Checkpoint::open(directory);
  fuzz::expect_typed(checkpoint.status());
  if (!config || !checkpoint) return;
  const auto schedule = LayerSchedule::create(*config);
  fuzz::expect_typed(schedule.status());
  if (!schedule) return;
  const auto weights = load_attention_weights(*checkpoint, *config, schedule->layers());
  fuzz::expect_typed(weights.status());
  if (weights) fuzz::expect(weights->size() == schedule->layers().size(), "layers are missing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TempDirectory directory;
  fuzz::FuzzInput input(data, size);
  const std::uint64_t data_bytes = std::uint64_t{input.below(kDataPages)} * 4096 + input.take<std::uint16_t>();
  write_file(directory / "config.json", input.take_until('\0'));
  const std::uint64_t length = input.rest().size();
  const std::filesystem::path weights = directory / "model.safetensors";
  write_file(weights, std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + std::string(input.rest()));
  // A hole: zeros that take no disk.
  fuzz::expect(::truncate(weights.c_str(), static_cast<off_t>(sizeof(length) + length + data_bytes)) == 0, "truncate");
  load(directory.path());
  return 0;
}
