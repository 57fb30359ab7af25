// dsv4rt replay: what the cache, the scheduler and the kernels do with a recorded log of requests.

#include <memory>

#include "base/try.h"
#include "command.h"
#include "log_report.h"
#include "outputs.h"
#include "replay_files.h"
#include "replay_model.h"
#include "replay_none.h"
#include "replay_real.h"

namespace dsv4rt::cli {
namespace {

struct ReplayFlags {
  LogFlags log;
  std::string execute = "none";
  ReplayNoneFlags none{.pool_tokens = {}, .sweep_pool = {"1M", "4M", "16M", "inf"}};
  std::string policy;
  bool sweep_given = false;  // --sweep-pool was
  ReplayModelFlags model;
  ReplayRealFlags real;
  ReplayFiles files;
  Outputs outputs;
};

Status run_replay(const ReplayFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  if (flags.execute != "real" && !flags.real.devices.empty()) {
    return {StatusCode::kInvalidArgument,
            "--devices: engines run on devices with --execute real; accepted with --execute model: --machines"};
  }
  if (flags.execute == "none") {
    if (!flags.model.pool.empty()) {
      return {StatusCode::kInvalidArgument, "--pool: --execute none counts tokens; accepted with it: --pool-tokens"};
    }
    ReplayNoneFlags none = flags.none;
    if (!flags.policy.empty()) none.policy = flags.policy;
    return replay_none(flags.log, none, flags.files);
  }
  ReplayModelFlags serving = flags.model;
  if (!flags.none.pool_tokens.empty()) serving.pool_tokens = flags.none.pool_tokens;
  if (flags.sweep_given) serving.sweep_pool = flags.none.sweep_pool;
  if (!flags.policy.empty()) serving.policy = flags.policy;
  if (flags.execute == "real" && serving.machines != 1) {
    return {StatusCode::kUnsupported, "--machines: --execute real has engines on devices; accepted with it: --devices"};
  }
  if (flags.execute == "real") return replay_real(flags.log, serving, flags.real, flags.files);
  if (!flags.real.engine.checkpoint.empty()) {
    return {StatusCode::kInvalidArgument,
            "--execute model computes nothing: --checkpoint is for --execute real; accepted: --config"};
  }
  return replay_model(flags.log, serving, flags.files);
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
  command->get_option("--pool")->excludes(pool);
  command->get_option("--pool")->excludes(sweep);
  flags->real.add_to(*command);
  flags->files.add_to(*command);
  flags->outputs.add_to(*command, {"--json", "--report", "--requests", "--timeline", "--metrics"});
  command->callback([flags, sweep, &chosen] {
    flags->sweep_given = sweep->count() > 0;
    chosen = [flags] { return run_replay(*flags); };
  });
}

}  // namespace dsv4rt::cli
