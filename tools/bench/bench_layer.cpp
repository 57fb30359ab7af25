// One CSA and one HCA layer at DeepSeek-V4-Flash shapes: prefill, decode and peak memory.
//
// Prints one JSON object a line in the form that vs_transformers/compare.py reads. Every layer runs
// in a process of its own, so that peak memory is its own; results are checked in the same run (see
// tools/lib/layer_bench.h). The floor of decode is the time to read the layer's weights once at
// the memory bandwidth measured in the same process; bench_linear has the floor of prefill.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/try.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/layer_bench.h"

namespace dsv4rt {
namespace {

struct BenchFlags {
  std::string config = DSV4RT_SOURCE_DIR "/configs/deepseek-v4-flash.json";
  std::string encoding = "fp8";
  std::int32_t threads = 0;
  LayerBenchOptions layer;
  bool json = false;
};

std::int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

// A folder that disappears with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dsv4rt-bench-XXXXXX").string();
    const char* made = mkdtemp(pattern.data());
    if (made != nullptr) path_ = made;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Bytes per second of reading a buffer far larger than the caches' private levels, all threads.
double read_bandwidth(int threads) {
  constexpr std::size_t kWords = std::size_t{1} << 24;  // 128 MiB a thread
  std::vector<std::vector<std::uint64_t>> buffers(static_cast<std::size_t>(threads));
  std::vector<std::uint64_t> sums(buffers.size());
  const auto sweep = [&](std::size_t t) {
    if (buffers[t].empty()) buffers[t].assign(kWords, t + 1);
    std::uint64_t sum = 0;
    for (const std::uint64_t word : buffers[t]) sum += word;
    sums[t] = sum;
  };
  double seconds = 0;
  for (int pass = 0; pass < 2; ++pass) {  // the first pass touches the pages
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (std::size_t t = 0; t < buffers.size(); ++t) team.emplace_back(sweep, t);
    for (std::thread& thread : team) thread.join();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  volatile std::uint64_t keep = sums[0];
  static_cast<void>(keep);
  return static_cast<double>(buffers.size() * kWords * sizeof(std::uint64_t)) / seconds;
}

Status measure(const BenchFlags& flags, const LayerSpec& spec, const ModelConfig& config) {
  const std::int64_t baseline = peak_rss_bytes();
  const TemporaryFolder folder;
  SyntheticCheckpointOptions synthetic;
  DSV4RT_ASSIGN_OR_RETURN(synthetic.encoding, weight_encoding_from_name(flags.encoding));
  DSV4RT_RETURN_IF_ERROR(write_synthetic_checkpoint(folder.path(), config, {&spec, 1}, synthetic));

  EngineOptions options;
  options.checkpoint = folder.path();
  options.threads = flags.threads;
  options.first_layer = spec.id.value;
  options.layer_count = 1;
  options.limits = bench_limits(flags.layer);
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<LayerBenchResult> results, bench_layers(*engine, flags.layer));
  const std::int64_t peak = peak_rss_bytes();

  const int threads = flags.threads > 0 ? flags.threads : static_cast<int>(std::thread::hardware_concurrency());
  const auto weight_bytes = static_cast<double>(EngineInspector(*engine).layer_weight_bytes(spec.id));
  const double decode_floor_ms = weight_bytes / read_bandwidth(threads) * 1e3;
  const LayerBenchResult& result = results.front();
  const nlohmann::ordered_json line{{"engine", "dsv4rt"},
                                    {"layer", attention_kind_name(spec.kind)},
                                    {"dtype", flags.encoding},
                                    {"threads", threads},
                                    {"prefill_tokens", flags.layer.prefill_tokens},
                                    {"prefill_ms", result.prefill_ms},
                                    {"decode_context", flags.layer.context_tokens},
                                    {"decode_ms", result.decode_ms},
                                    {"decode_floor_ms", decode_floor_ms},
                                    {"decode_over_floor", result.decode_ms / decode_floor_ms},
                                    {"weight_bytes", static_cast<std::int64_t>(weight_bytes)},
                                    {"peak_rss_bytes", peak},
                                    {"baseline_rss_bytes", baseline},
                                    {"checked", "decoded token == prefilled token, byte for byte"}};
  if (flags.json) {
    std::cout << line.dump() << std::endl;
  } else {
    std::printf(
        "%-4s %-5s prefill %lld tokens %9.1f ms   decode at %lld %8.3f ms   floor %6.3f ms   ratio %.2f   peak %lld "
        "MiB\n",
        std::string(attention_kind_name(spec.kind)).c_str(), flags.encoding.c_str(),
        static_cast<long long>(flags.layer.prefill_tokens), result.prefill_ms,
        static_cast<long long>(flags.layer.context_tokens), result.decode_ms, decode_floor_ms,
        result.decode_ms / decode_floor_ms, static_cast<long long>(peak >> 20));
  }
  return {};
}

// Runs measure() in a child process and waits for it.
Status measure_in_child(const BenchFlags& flags, const LayerSpec& spec, const ModelConfig& config) {
  std::cout.flush();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) return {StatusCode::kResourceExhausted, std::string("fork: ") + std::strerror(errno)};
  if (child == 0) {
    const Status status = measure(flags, spec, config);
    if (!status.ok()) std::cerr << status.to_string() << "\n";
    std::cout.flush();
    std::fflush(stdout);
    _exit(status.ok() ? 0 : 1);
  }
  int state = 0;
  if (waitpid(child, &state, 0) != child || !WIFEXITED(state) || WEXITSTATUS(state) != 0) {
    return {StatusCode::kInternal, std::string(attention_kind_name(spec.kind)) + ": the measuring process failed"};
  }
  return {};
}

Status run(const BenchFlags& flags) {
  DSV4RT_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(flags.config));
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(config));
  for (const AttentionKind kind : {AttentionKind::kCompressedSparse, AttentionKind::kHeavilyCompressed}) {
    for (const LayerSpec& spec : schedule.layers()) {
      if (spec.kind != kind) continue;
      DSV4RT_RETURN_IF_ERROR(measure_in_child(flags, spec, config));
      break;
    }
  }
  return {};
}

}  // namespace
}  // namespace dsv4rt

int main(int argc, char** argv) {
  dsv4rt::BenchFlags flags;
  CLI::App app{"Prefill, decode and peak memory of one CSA and one HCA layer"};
  app.add_option("--config", flags.config, "config.json of the model")->capture_default_str();
  app.add_option("--encoding", flags.encoding, "Linears: fp8, bf16 or nvfp4")->capture_default_str();
  app.add_option("--threads", flags.threads, "CPU threads; 0: all")->capture_default_str();
  app.add_option("--prefill", flags.layer.prefill_tokens, "Tokens of one prefill step")->capture_default_str();
  app.add_option("--repeats", flags.layer.prefill_repeats, "Prefill repetitions")->capture_default_str();
  app.add_option("--context", flags.layer.context_tokens, "Cached tokens when decoding starts")->capture_default_str();
  app.add_option("--decode-steps", flags.layer.decode_steps, "Decode steps")->capture_default_str();
  app.add_flag("--json", flags.json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv);
  const dsv4rt::Status status = dsv4rt::run(flags);
  if (!status.ok()) std::cerr << status.to_string() << "\n";
  return status.ok() ? 0 : 1;
}
