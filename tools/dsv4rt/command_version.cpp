// dsv4rt version: what this program is and what it was built with.

#include <iostream>
#include <memory>

#include "base/try.h"
#include "command.h"
#include "dsv4rt/version.h"
#include "outputs.h"

namespace dsv4rt::cli {
namespace {

struct VersionFlags {
  std::string json;
  Outputs outputs;
};

Status version(const VersionFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  const std::string& json = flags.json;
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
  return write_json_report(report, {}, json, flags.outputs.existing());
}

}  // namespace

void add_version_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<VersionFlags>();
  CLI::App* command = app.add_subcommand("version", "Print version, compiler and instruction set in use");
  command->add_option("--json", flags->json, "Write as JSON to a file, or - for stdout");
  flags->outputs.add_to(*command, {"--json"});
  command->callback([flags, &chosen] { chosen = [flags] { return version(*flags); }; });
}

}  // namespace dsv4rt::cli
