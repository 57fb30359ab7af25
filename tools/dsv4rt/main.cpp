// dsv4rt: runs, checks, plans and measures DeepSeek-V4 attention from the command line.

#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/message_text.h"
#include "command.h"
#include "dsv4rt/version.h"
#include "exit_codes.h"
#include "log_lines.h"
#include "memory_reserve.h"
#include "outputs.h"

namespace {

using namespace dsv4rt;
using namespace dsv4rt::cli;

void add_log_level(CLI::App& app, std::string& level) {
  app.add_option("--log-level", level, "Lowest level logged to stderr")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
}

void set_up_log(const std::string& level) {
  const char* const no_color = std::getenv("NO_COLOR");
  const bool plain = no_color != nullptr && *no_color != '\0';
  spdlog::set_default_logger(
      spdlog::stderr_color_st("dsv4rt", plain ? spdlog::color_mode::never : spdlog::color_mode::automatic));
  set_log_label("");
  spdlog::set_level(spdlog::level::from_str(level));
}

// Help and the version, asked for, go to stdout; what is wrong with the arguments to stderr.
int report_parse_end(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> rest = app.remaining();
  if (app.get_subcommands().empty() && !rest.empty() && !rest.front().starts_with('-')) {
    std::string known;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      if (command->get_group().empty()) continue;  // hidden
      known += (known.empty() ? "" : ", ") + command->get_name();
    }
    std::cerr << "unknown command " << quote(rest.front()) << "; accepted: " << known << "\n";
    return kExitUsage;
  }
  std::ostringstream out;
  std::ostringstream err;
  const int code = app.exit(error, out, err);
  if (code == 0) {
    std::cout << printable_lines(out.str());
    return kExitOk;
  }
  // The message quotes arguments: a line end in it is one of theirs.
  std::string message = printable_lines(error.what());
  for (std::size_t at = 0; (at = message.find('\n', at)) != std::string::npos;) message.replace(at, 1, "\\x0a");
  std::cerr << message << "\nRun with --help for more information.\n";
  return kExitUsage;
}

int run(int argc, char** argv) {
  keep_arguments(argc, argv);
  CLI::App app{"DeepSeek-V4 attention and KV cache: run traces, plan memory, make test checkpoints"};
  app.require_subcommand(1);
  app.fallthrough();  // --log-level may follow the command
  app.set_version_flag("--version", "dsv4rt " + build_info().version, "Print the version and exit");
  app.footer("Exit codes: 0 ok, 1 failed, 2 usage, 3 bad input, 4 mismatch, 5 resources.");
  std::string log_level = "info";
  add_log_level(app, log_level);

  Action chosen;
  add_run_command(app, chosen);
  add_inspect_command(app, chosen);
  add_plan_command(app, chosen);
  add_generate_commands(app, chosen);
  add_bench_command(app, chosen);
  add_replay_command(app, chosen);
  add_report_command(app, chosen);
  add_compare_command(app, chosen);
  add_convert_log_command(app, chosen);
  add_doctor_command(app, chosen);
  add_version_command(app, chosen);
  add_pages_command(app, chosen);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_parse_end(app, error);
  }
  set_up_log(log_level);

  const Status status = chosen();
  if (!status.ok()) spdlog::error("{}", status.to_string());
  return exit_code_for(status.code());
}

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  try {
    keep_memory_in_reserve();
    StandardOutput output;
    const int code = run(argc, argv);
    const Status written = output.finish();
    if (written.ok()) return code;
    const std::string message = printable_lines(written.to_string());
    std::fprintf(stderr, "error: %s\n", message.c_str());
    // An earlier failure says more about the work than that its text could not be written.
    return code == kExitOk ? exit_code_for(written.code()) : code;
  } catch (const std::bad_alloc&) {
    std::fputs("error: resource exhausted: out of host memory\n", stderr);
    return kExitResources;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: internal: %s\n", printable_lines(error.what()).c_str());
    return kExitFailed;
  }
}
