// dsv4rt replay: what the cache, the scheduler and the kernels do with a recorded log of requests.

#include <memory>

#include "base/try.h"
#include "command.h"
#include "log_report.h"
#include "outputs.h"
#include "replay_model.h"
#include "replay_none.h"

namespace dsv4rt::cli {
namespace {

struct ReplayFlags {
  LogFlags log;
  std::string execute = "none";
  ReplayNoneFlags none{.pool_tokens = {}, .sweep_pool = {"1M", "4M", "16M", "inf"}};
  ReplayModelFlags model;
  std::string json;
  Outputs outputs;
};

Status run_replay(const ReplayFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  if (flags.execute == "none") return replay_none(flags.log, flags.none, flags.json);
  if (flags.execute == "model") {
    ReplayModelFlags model = flags.model;
    if (!flags.none.pool_tokens.empty()) model.pool_tokens = flags.none.pool_tokens;
    return replay_model(flags.log, model, flags.json);
  }
  return {StatusCode::kUnsupported, "--execute " + flags.execute + "; accepted in this build: none, model"};
}

}  // namespace

void add_replay_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand("replay", "Replay a recorded log of requests and report what became of them");
  flags->log.add_to(*command);
  command
      ->add_option("--execute", flags->execute,
                   "none: only the prefix cache, requests one after another; model: a scheduler on step times")
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
  command->add_option("--json", flags->json,
                      "Write the report as JSON to a file, or - for stdout instead of the table");
  flags->outputs.add_to(*command, {"--json", "--requests", "--timeline", "--metrics"});
  command->callback([flags, &chosen] { chosen = [flags] { return run_replay(*flags); }; });
}

}  // namespace dsv4rt::cli
