// dsv4rt replay: what the cache, the scheduler and the kernels do with a recorded log of requests.

#include <memory>

#include "command.h"
#include "log_report.h"
#include "replay_files.h"
#include "replay_model.h"
#include "replay_none.h"

namespace dsv4rt::cli {
namespace {

struct ReplayFlags {
  LogFlags log;
  std::string execute = "none";
  ReplayNoneFlags none{.pool_tokens = {}, .sweep_pool = {"1M", "4M", "16M", "inf"}};
  std::string policy;
  bool sweep_given = false;  // --sweep-pool was
  ReplayModelFlags model;
  ReplayFiles files;
};

Status run_replay(const ReplayFlags& flags) {
  if (flags.execute == "none") {
    ReplayNoneFlags none = flags.none;
    if (!flags.policy.empty()) none.policy = flags.policy;
    return replay_none(flags.log, none, flags.files);
  }
  if (flags.execute == "model") {
    ReplayModelFlags model = flags.model;
    if (!flags.none.pool_tokens.empty()) model.pool_tokens = flags.none.pool_tokens;
    if (flags.sweep_given) model.sweep_pool = flags.none.sweep_pool;
    if (!flags.policy.empty()) model.policy = flags.policy;
    return replay_model(flags.log, model, flags.files);
  }
  return {StatusCode::kUnsupported, "--execute " + flags.execute + "; accepted in this build: none, model"};
}

}  // namespace

void add_replay_command(CLI::App& app, Action& chosen, const std::string& command_line) {
  auto flags = std::make_shared<ReplayFlags>();
  flags->files.command_line = command_line;
  CLI::App* command = app.add_subcommand("replay", "Replay a recorded log of requests and report what became of them");
  flags->log.add_to(*command);
  command
      ->add_option("--execute", flags->execute,
                   "none: only the prefix cache, requests one after another; model: a scheduler on step times")
      ->check(CLI::IsMember({"none", "model", "real"}))
      ->capture_default_str();
  auto* pool = command->add_option("--pool-tokens", flags->none.pool_tokens,
                                   "Capacity of the cache in tokens, e.g. 4096, 1M, 1Mi, inf");
  auto* sweep = command
                    ->add_option("--sweep-pool", flags->none.sweep_pool,
                                 "Several capacities, e.g. 1M,4M; inf with --execute none, which has a default")
                    ->delimiter(',')
                    ->excludes(pool)
                    ->capture_default_str();
  command->add_option("--policy", flags->policy,
                      "What leaves a full cache: lru, the default of none; belady (knows the future), none only; "
                      "useful, the engine's own and the default of model");
  flags->model.add_to(*command);
  flags->files.add_to(*command);
  command->callback([flags, sweep, &chosen] {
    flags->sweep_given = sweep->count() > 0;
    chosen = [flags] { return run_replay(*flags); };
  });
}

}  // namespace dsv4rt::cli
