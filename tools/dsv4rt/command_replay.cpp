// dsv4rt replay: what the cache, the scheduler and the kernels do with a recorded log of requests.

#include <memory>

#include "command.h"
#include "log_report.h"
#include "replay_model.h"
#include "replay_none.h"
#include "replay_real.h"

namespace dsv4rt::cli {
namespace {

struct ReplayFlags {
  LogFlags log;
  std::string execute = "none";
  ReplayNoneFlags none{.pool_tokens = {}, .sweep_pool = {"1M", "4M", "16M", "inf"}};
  ReplayModelFlags model;
  ReplayRealFlags real;
  std::string json;
};

Status run_replay(const ReplayFlags& flags) {
  if (flags.execute == "none") {
    if (flags.model.pool.empty()) return replay_none(flags.log, flags.none, flags.json);
    return {StatusCode::kInvalidArgument, "--pool: --execute none counts tokens; accepted with it: --pool-tokens"};
  }
  ReplayModelFlags serving = flags.model;
  if (!flags.none.pool_tokens.empty()) serving.pool_tokens = flags.none.pool_tokens;
  if (flags.execute == "real") return replay_real(flags.log, serving, flags.real, flags.json);
  if (!flags.real.engine.checkpoint.empty()) {
    return {StatusCode::kInvalidArgument,
            "--execute model computes nothing: --checkpoint is for --execute real; accepted: --config"};
  }
  return replay_model(flags.log, serving, flags.json);
}

}  // namespace

void add_replay_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand("replay", "Replay a recorded log of requests and report what became of them");
  flags->log.add_to(*command);
  command
      ->add_option("--execute", flags->execute,
                   "none: only the prefix cache, requests one after another; model: a scheduler on step times; real: "
                   "the same on an engine, which takes the flags of model (\"model:\") but --config and --step-table")
      ->check(CLI::IsMember({"none", "model", "real"}))
      ->capture_default_str();
  auto* pool = command->add_option("--pool-tokens", flags->none.pool_tokens,
                                   "Capacity of the cache in tokens, e.g. 4096, 1M, 1Mi, inf");
  command->add_option("--sweep-pool", flags->none.sweep_pool, "Several capacities at once, e.g. 1M,4M,inf")
      ->delimiter(',')
      ->excludes(pool)
      ->capture_default_str();
  command
      ->add_option("--policy", flags->none.policy, "Which block leaves a full cache: lru, or belady (knows the future)")
      ->capture_default_str();
  flags->model.add_to(*command);
  command->get_option("--pool")->excludes(pool);
  flags->real.add_to(*command);
  command->add_option("--json", flags->json,
                      "Write the report as JSON to a file, or - for stdout instead of the table");
  command->callback([flags, &chosen] { chosen = [flags] { return run_replay(*flags); }; });
}

}  // namespace dsv4rt::cli
