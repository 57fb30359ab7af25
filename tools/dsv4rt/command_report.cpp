// dsv4rt report: the page of a replay whose report was saved as JSON.

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/try.h"
#include "checkpoint/output_file.h"
#include "command.h"
#include "outputs.h"
#include "report/replay_page.h"
#include "report/saved_report.h"

namespace dsv4rt::cli {
namespace {

struct PageFlags {
  std::string report;
  std::string out;
  Outputs outputs;
};

Status run_report_command(const PageFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  DSV4RT_ASSIGN_OR_RETURN(const report::Document document, report::read_saved_report(flags.report));
  DSV4RT_ASSIGN_OR_RETURN(const std::string page, report::replay_page(document, flags.report));
  if (!flags.out.empty()) return write_text_file(flags.out, page, flags.outputs.existing());
  std::cout << page;
  return {};
}

}  // namespace

void add_report_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<PageFlags>();
  CLI::App* command = app.add_subcommand("report", "Make the page of a saved replay report");
  command->add_option("report", flags->report, "What `dsv4rt replay --json` wrote")->required();
  command->add_option("--out", flags->out, "HTML file; without it the page goes to stdout");
  flags->outputs.add_to(*command, {"--out"});
  command->callback([flags, &chosen] { chosen = [flags] { return run_report_command(*flags); }; });
}

}  // namespace dsv4rt::cli
