#include "replay_files.h"

#include "base/try.h"
#include "checkpoint/output_file.h"
#include "command.h"
#include "outputs.h"
#include "report/replay_page.h"

namespace dsv4rt::cli {

void ReplayFiles::add_to(CLI::App& command) {
  command.add_option("--json", json, "Write the report as JSON to a file, or - for stdout instead of the table");
  command.add_option("--report", page, "Write the report as a page to a file, HTML without network and scripts");
}

nlohmann::ordered_json replay_report_head(const std::string& execute, const Provenance& provenance) {
  return {{"command", "replay"},
          {"execute", execute},
          {"command_line", command_line_text()},
          {"provenance", provenance.json()}};
}

Status write_replay_files(const nlohmann::ordered_json& report, const ReplayFiles& files) {
  // Names of files need not be UTF-8, JSON has to. The page is made of the text that a file has, so that the page of a
  // saved report has the same bytes.
  const std::string text = report.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  DSV4RT_ASSIGN_OR_RETURN(const report::Document document, report::parse_document(text, "report"));
  if (!files.json.empty()) DSV4RT_RETURN_IF_ERROR(write_json_report(document, {}, files.json));
  if (files.page.empty()) return {};
  DSV4RT_ASSIGN_OR_RETURN(const std::string page, report::replay_page(document, "report"));
  return write_text_file(files.page, page);
}

}  // namespace dsv4rt::cli
