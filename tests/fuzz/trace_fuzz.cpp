// Any bytes as an attention trace of a small model: refused with a text, or it runs and is compared.
#include <cstddef>
#include <cstdint>
#include <fstream>

#include "expect.h"
#include "fuzz_input.h"
#include "fuzz_model.h"
#include "tools/lib/trace_check.h"
#include "tools/lib/trace_run.h"

namespace {

using namespace dsv4rt;

constexpr std::int64_t kMostTokens = 64;  // longer traces are read, not run

void run(Engine& engine, const std::filesystem::path& path, const TraceRunOptions& options) {
  const auto trace = AttentionTrace::open(path, engine.config(), engine.layers().front(), engine.layers().back());
  fuzz::expect_typed(trace.status());
  if (!trace || trace->tokens() > kMostTokens) return;
  const auto run = run_trace(engine, *trace, options, nullptr);
  fuzz::expect_typed(run.status());
  if (!run) return;
  fuzz::expect_typed(check_trace(engine, *trace, *run, default_tolerance(engine)).status());
  fuzz::expect(engine.release(run->sequence).ok(), "the run's sequence is not live");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TempDirectory directory;
  static const std::unique_ptr<Engine> engine = fuzz::make_engine();
  fuzz::FuzzInput input(data, size);
  TraceRunOptions options;
  options.chunk_tokens = input.take<std::int8_t>();
  options.decode_from = input.take<std::int8_t>();
  const std::filesystem::path path = directory / "trace.safetensors";
  const std::string_view bytes = input.rest();
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  run(*engine, path, options);
  const Status room = engine->can_admit(512);
  fuzz::expect(room.ok(), "a run left something behind: " + room.to_string());
  return 0;
}
