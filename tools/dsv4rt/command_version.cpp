// dsv4rt version: what this program is and what it was built with.

#include <iostream>
#include <memory>

#include "command.h"
#include "console.h"
#include "dsv4rt/version.h"

namespace dsv4rt::cli {
namespace {

Status version(const std::string& json) {
  const BuildInfo build = build_info();
  if (json != "-") {
    std::cout << "dsv4rt " << build.version << "\n"
              << "compiler: " << build.compiler << "\n"
              << "cpu: " << build.cpu_isa << "\n"
              << "backends:";
    for (const std::string& backend : build.backends) std::cout << " " << backend;
    std::cout << "\n";
  }
  if (json.empty()) return {};
  const nlohmann::ordered_json report{{"version", build.version},
                                      {"compiler", build.compiler},
                                      {"backends", build.backends},
                                      {"cpu_isa", build.cpu_isa}};
  return write_json_report(report, json);
}

}  // namespace

void add_version_command(CLI::App& app, Action& chosen) {
  auto json = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("version", "Print version, compiler and instruction set in use");
  command->add_option("--json", *json, "Write as JSON to a file, or - for stdout");
  command->callback([json, &chosen] { chosen = [json] { return version(*json); }; });
}

}  // namespace dsv4rt::cli
