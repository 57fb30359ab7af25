// dsv4rt: runs, checks, plans and measures DeepSeek-V4 attention from the command line.

#include <exception>
#include <new>

#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "command.h"
#include "exit_codes.h"

namespace {

using namespace dsv4rt;
using namespace dsv4rt::cli;

void add_log_level(CLI::App& app, std::string& level) {
  app.add_option("--log-level", level, "Lowest level logged to stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
}

int run(int argc, char** argv) {
  CLI::App app{"DeepSeek-V4 attention and KV cache: run traces, plan memory, make test checkpoints"};
  app.require_subcommand(1);
  app.fallthrough();  // --log-level may follow the command
  app.footer("Exit codes: 0 ok, 1 failed, 2 usage, 3 bad input, 4 mismatch, 5 resources.");
  std::string log_level = "info";
  add_log_level(app, log_level);

  Action chosen;
  add_run_command(app, chosen);
  add_inspect_command(app, chosen);
  add_plan_command(app, chosen);
  add_generate_commands(app, chosen);
  add_bench_command(app, chosen);
  add_replay_command(app, chosen, command_line_text(argc, argv));
  add_report_command(app, chosen);
  add_compare_command(app, chosen);
  add_convert_log_command(app, chosen);
  add_doctor_command(app, chosen);
  add_version_command(app, chosen);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);  // prints help to stdout, errors to stderr
    return code == 0 ? kExitOk : kExitUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_color_st("dsv4rt"));
  spdlog::set_pattern("%^%l%$: %v");
  spdlog::set_level(spdlog::level::from_str(log_level));

  const Status status = chosen();
  if (!status.ok()) spdlog::error("{}", status.to_string());
  return exit_code_for(status.code());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("error: resource exhausted: out of host memory\n", stderr);
    return kExitResources;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: internal: %s\n", error.what());
    return kExitFailed;
  }
}
