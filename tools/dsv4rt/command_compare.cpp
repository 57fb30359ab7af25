// dsv4rt compare: two replays of one log side by side.

#include <cmath>
#include <iostream>
#include <memory>

#include "base/message_text.h"
#include "base/try.h"
#include "command.h"
#include "outputs.h"
#include "report/comparison.h"
#include "report/saved_report.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using report::ComparedNumber;
using report::Comparison;
using Json = nlohmann::ordered_json;

struct CompareFlags {
  std::string a;
  std::string b;
  double within_percent = 0;
  std::string json;
  Outputs outputs;
};

// A difference that rounds to nothing has no sign.
std::string rounded(double value, int digits) {
  std::string text = fixed(value, digits);
  return text.find_first_not_of("-0.") == std::string::npos ? fixed(0, digits) : text;
}

std::string number(double value) {
  return rounded(value, value == std::floor(value) && std::abs(value) < 1e15 ? 0 : 4);
}

void print_comparison(const Comparison& comparison) {
  for (const report::DifferingField& field : comparison.settings) {
    std::cout << "differs: " << printable(field.field) << ": " << printable(field.a) << " -> " << printable(field.b)
              << "\n";
  }
  TextTable table({"", "A", "B", "difference", "%", "noise", ""});
  for (const ComparedNumber& each : comparison.numbers) {
    const auto relative = each.relative();
    table.add_row({printable(each.name), number(each.a), number(each.b), number(each.difference()),
                   relative ? rounded(*relative * 100, 1) : "-", each.bound ? number(*each.bound) : "-",
                   each.difference() == 0 ? "equal"
                   : !each.bound          ? ""
                   : each.beyond_noise()  ? "differs"
                                          : "noise"});
  }
  std::cout << table.to_string();
}

Json comparison_json(const Comparison& comparison, const CompareFlags& flags) {
  Json json{{"command", "compare"}, {"a", flags.a}, {"b", flags.b}};
  json["settings"] = Json::array();
  for (const report::DifferingField& field : comparison.settings) {
    json["settings"].push_back({{"field", field.field}, {"a", field.a}, {"b", field.b}});
  }
  json["numbers"] = Json::array();
  for (const ComparedNumber& each : comparison.numbers) {
    const auto relative = each.relative();
    json["numbers"].push_back({{"name", each.name},
                               {"a", each.a},
                               {"b", each.b},
                               {"difference", each.difference()},
                               {"relative", relative ? Json(*relative) : Json()},
                               {"noise", each.bound ? Json(*each.bound) : Json()},
                               {"beyond_noise", each.bound ? Json(each.beyond_noise()) : Json()}});
  }
  return json;
}

// The medians and tails that people agree on: p50 and p99 of TTFT and TPOT.
Status check_within(const Comparison& comparison, double percent) {
  std::string beyond;
  for (const ComparedNumber& each : comparison.numbers) {
    const bool counts = (each.name.starts_with("TTFT p") || each.name.starts_with("TPOT p"));
    const double allowed = percent / 100 * std::abs(each.a);
    if (!counts || std::abs(each.difference()) <= allowed) continue;
    beyond += (beyond.empty() ? "" : "; ") + each.name + ": " + number(each.a) + " and " + number(each.b);
  }
  if (beyond.empty()) return {};
  return {StatusCode::kMismatch, "more than " + number(percent) + " % apart: " + beyond};
}

Status run_compare(const CompareFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  Provenance provenance;
  if (!flags.json.empty()) {
    DSV4RT_RETURN_IF_ERROR(provenance.add_file(flags.a));
    DSV4RT_RETURN_IF_ERROR(provenance.add_file(flags.b));
  }
  DSV4RT_ASSIGN_OR_RETURN(const report::Document a, report::read_saved_report(flags.a));
  DSV4RT_ASSIGN_OR_RETURN(const report::Document b, report::read_saved_report(flags.b));
  DSV4RT_ASSIGN_OR_RETURN(const Comparison comparison, report::compare_reports(a, flags.a, b, flags.b));
  if (flags.json != "-") print_comparison(comparison);
  if (!flags.json.empty()) {
    DSV4RT_RETURN_IF_ERROR(
        write_json_report(comparison_json(comparison, flags), provenance, flags.json, flags.outputs.existing()));
  }
  return flags.within_percent > 0 ? check_within(comparison, flags.within_percent) : Status{};
}

}  // namespace

void add_compare_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = app.add_subcommand("compare", "Compare two saved replay reports of one log");
  command->add_option("a", flags->a, "What `dsv4rt replay --json` wrote")->required();
  command->add_option("b", flags->b, "The same of another run of the same log")->required();
  command
      ->add_option("--within", flags->within_percent,
                   "Fail with 4 if p50 or p99 of TTFT or TPOT are more than so many percent of A apart")
      ->check(CLI::PositiveNumber);
  command->add_option("--json", flags->json, "Write the comparison to a file, or - for stdout instead of the table");
  flags->outputs.add_to(*command, {"--json"});
  command->callback([flags, &chosen] { chosen = [flags] { return run_compare(*flags); }; });
}

}  // namespace dsv4rt::cli
