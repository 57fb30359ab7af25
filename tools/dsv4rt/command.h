// A subcommand: adds its flags to the parser and runs when the parser chose it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "dsv4rt/status.h"

namespace dsv4rt::cli {

// Runs the chosen command; its Status becomes the exit code and, when not ok, a line on stderr.
using Action = std::function<Status()>;

// Keeps the program's arguments for reports; the first becomes "dsv4rt". Called once, by main.
void keep_arguments(int argc, char** argv);
const std::vector<std::string>& command_arguments();
// The same as a shell would take them.
std::string command_line_text();

// Each declares `dsv4rt <name>` on `app` and stores its action in `chosen` when it is parsed.
void add_run_command(CLI::App& app, Action& chosen);
void add_inspect_command(CLI::App& app, Action& chosen);
void add_plan_command(CLI::App& app, Action& chosen);
void add_generate_commands(CLI::App& app, Action& chosen);
void add_bench_command(CLI::App& app, Action& chosen);
void add_replay_command(CLI::App& app, Action& chosen);
void add_report_command(CLI::App& app, Action& chosen);
void add_compare_command(CLI::App& app, Action& chosen);
void add_convert_log_command(CLI::App& app, Action& chosen);
void add_pages_command(CLI::App& app, Action& chosen);
void add_doctor_command(CLI::App& app, Action& chosen);
void add_version_command(CLI::App& app, Action& chosen);

}  // namespace dsv4rt::cli
