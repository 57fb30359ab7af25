// Reports of small replays, as the command line writes them.
#pragma once

#include <string>

#include "report/document.h"
#include "unit/replay/replay_fixture.h"

namespace dsv4rt::report::test {

inline Document report_of(const replay::test::Load& load, const replay::ModelReplayOptions& options) {
  const auto run = replay::run_model(replay::test::generate(load), options);
  EXPECT_OK(run);
  return {{"command", "replay"},
          {"execute", "model"},
          {"command_line", "dsv4rt replay log.jsonl"},
          {"provenance",
           {{"version", "0.1.0"},
            {"commit", "abc"},
            {"build", {{"type", "Release"}, {"compiler", "gcc"}, {"flags", "-O3"}}},
            {"cpu", {{"name", "a processor"}, {"isa", "avx2"}}},
            {"gpu", nullptr}}},
          {"log",
           {{"path", "log.jsonl"},
            {"sha256", std::string(64, 'a')},
            {"format", "native"},
            {"prefix_identity", "global"},
            {"block_tokens", 256},
            {"lengths_estimated", false},
            {"requests", load.requests},
            {"input_tokens", 1000},
            {"output_tokens", 100},
            {"skipped", {{"syntax", 2}}}}},
          {"run", Document::parse(replay::summary_json(*run))}};
}

// 60 requests that share prompts, more than the queue takes.
inline Document busy_report() {
  replay::ModelReplayOptions options = replay::test::small_options();
  options.replay.scheduler.max_waiting = 8;
  options.replay.service_levels.ttft_ms = 100;
  return report_of({.requests = 60, .every_ms = 5, .shared_prompts = 3}, options);
}

}  // namespace dsv4rt::report::test
