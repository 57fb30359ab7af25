#include "report/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/message_text.h"

namespace dsv4rt::report {
namespace {

// Student's t, two-sided 95 %, for 7 to 31 degrees of freedom: fewer than 8 groups with values say too little.
constexpr std::size_t kFewestGroups = 8;
constexpr std::array kStudent{2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
                              2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 2.040};
constexpr std::size_t kMostGroups = kFewestGroups + kStudent.size() - 1;

// A correlation of neighbours beyond this is not told apart from a drift.
constexpr double kMostCorrelation = 0.9;

using Value = std::optional<double>;

std::string shown_or_none(const std::optional<Field>& field) {
  return field ? field->shown() : "none";
}

void note(std::vector<DifferingField>& differing, const std::string& name, const std::optional<Field>& a,
          const std::optional<Field>& b) {
  const std::string a_text = shown_or_none(a);
  const std::string b_text = shown_or_none(b);
  if (a_text != b_text) differing.push_back({name, a_text, b_text});
}

// Every field of two objects, in the order of the first, then those that only the second has.
void note_all(std::vector<DifferingField>& differing, const std::string& prefix, const Field& a, const Field& b) {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const Field& object : {a, b}) {
    for (const auto& [key, value] : object.object().items()) {
      if (known.insert(key).second) names.push_back(key);
    }
  }
  for (const std::string& name : names) note(differing, prefix + name, a.find(name), b.find(name));
}

// Of the provenance, what makes runs differ: the program and the machine, not arguments and names of files.
void note_provenance(std::vector<DifferingField>& differing, const Field& a, const Field& b) {
  for (const char* name : {"version", "commit"}) {
    note(differing, std::string("provenance.") + name, a.find(name), b.find(name));
  }
  const auto part = [](const Field& provenance, const char* object, const char* name) -> std::optional<Field> {
    const auto found = provenance.find(object);
    return found ? found->find(name) : std::nullopt;
  };
  for (const auto& [object, name] :
       {std::pair("build", "type"), std::pair("build", "compiler"), std::pair("build", "flags"),
        std::pair("cpu", "name"), std::pair("cpu", "isa"), std::pair("gpu", "name"), std::pair("gpu", "driver")}) {
    note(differing, std::string("provenance.") + object + "." + name, part(a, object, name), part(b, object, name));
  }
}

// What has to be the same for differences to mean anything.
std::vector<DifferingField> unlike(const Field& a, const Field& b) {
  std::vector<DifferingField> differing;
  const bool a_studies = a["execute"].text() == "none";
  const bool b_studies = b["execute"].text() == "none";
  if (a_studies != b_studies) note(differing, "execute", a["execute"], b["execute"]);
  const Field a_log = a["log"];
  const Field b_log = b["log"];
  for (const char* name :
       {"sha256", "format", "prefix_identity", "block_tokens", "requests", "input_tokens", "output_tokens"}) {
    note(differing, std::string("log.") + name, a_log.find(name), b_log.find(name));
  }
  if (a_studies || b_studies) return differing;
  const Field a_run = a["run"];
  const Field b_run = b["run"];
  for (const char* name : {"limit", "scale_lengths"}) {
    note(differing, std::string("options.") + name, a_run["options"].find(name), b_run["options"].find(name));
  }
  for (const auto& [run, path] : {std::pair{a_run, "the first"}, std::pair{b_run, "the second"}}) {
    if (run["stopped"].boolean()) differing.push_back({"stopped", path, "stopped before the end of the log"});
  }
  return differing;
}

// ---- Numbers of served logs ---------------------------------------------------------------------

Value number_of(const std::optional<Field>& field) {
  return field ? Value(field->number()) : Value();
}

Value share_of(const Field& group, const char* part, const char* whole) {
  const double all = group[whole].number();
  return all > 0 ? Value(group[part].number() / all) : Value();
}

// A number of a run, and of one of its groups.
struct Measure {
  std::string name;
  std::function<Value(const Field& run)> whole;
  std::function<Value(const Field& group)> part;  // empty: groups do not tell
  bool is_total = false;                          // the whole is the sum of its groups
};

std::vector<Measure> measures() {
  std::vector<Measure> all;
  for (const char* name : {"finished", "rejected", "preemptions"}) {
    all.push_back({name, [name](const Field& run) { return number_of(run["requests"][name]); },
                   [name](const Field& group) { return number_of(group[name]); }, true});
  }
  all.push_back({"prefix hit rate", [](const Field& run) { return number_of(run["tokens"].find("hit_rate")); },
                 [](const Field& group) { return share_of(group, "hit_tokens", "admitted_input_tokens"); }});
  all.push_back({"goodput, share of arrived",
                 [](const Field& run) {
                   const auto goodput = run.find("goodput");
                   return goodput ? number_of((*goodput)["share_of_arrived"]) : Value();
                 },
                 [](const Field& group) { return share_of(group, "kept_service_levels", "requests"); }});
  all.push_back({"output tokens", [](const Field& run) { return number_of(run["tokens"]["output"]); },
                 [](const Field& group) { return number_of(group["output_tokens"]); }, true});
  all.push_back({"output tokens a second",
                 [](const Field& run) { return number_of(run["throughput"]["output_tokens_per_s"]); },
                 {}});
  for (const auto& [key, name] : {std::pair{"ttft", "TTFT"}, std::pair{"tpot", "TPOT"}, std::pair{"itl", "ITL"},
                                  std::pair{"e2el", "end to end"}}) {
    for (const char* value : {"mean", "p50", "p99"}) {
      Measure measure{std::string(name) + " " + value + ", ms",
                      [key = key, value](const Field& run) -> Value {
                        const Field latency = run["latency_ms"][key];
                        return latency["count"].integer() > 0 ? number_of(latency[value]) : Value();
                      },
                      {}};
      if (std::string_view(key) != "itl") {
        measure.part = [key = std::string(key) + "_ms", value](const Field& group) -> Value {
          const Field latency = group[key];
          return latency["count"].integer() > 0 ? number_of(latency[value]) : Value();
        };
      }
      all.push_back(std::move(measure));
    }
  }
  return all;
}

// `a` and `b`: {size, each}, the groups of two runs.
Value bound_of(const Measure& measure, const Field& a, const Field& b) {
  if (!measure.part) return {};
  const std::size_t groups = a["each"].size();
  if (groups > kMostGroups || b["each"].size() != groups || a["size"].integer() != b["size"].integer()) {
    throw DocumentError("field " + a.path() + " has other groups in the two reports, or more than 32");
  }
  std::vector<double> differences;
  for (std::size_t g = 0; g < groups; ++g) {
    // The last group may be a few requests only.
    if (2 * a["each"][g]["requests"].integer() < a["size"].integer()) continue;
    const Value from = measure.part(a["each"][g]);
    const Value to = measure.part(b["each"][g]);
    if (from && to) differences.push_back(*to - *from);
  }
  const std::size_t count = differences.size();
  if (count < kFewestGroups) return {};
  double mean = 0;
  for (const double difference : differences) mean += difference / static_cast<double>(count);
  double squares = 0;
  double products = 0;
  for (std::size_t i = 0; i < count; ++i) {
    squares += (differences[i] - mean) * (differences[i] - mean);
    if (i > 0) products += (differences[i] - mean) * (differences[i - 1] - mean);
  }
  const double correlation = squares > 0 ? std::clamp(products / squares, 0.0, kMostCorrelation) : 0;
  const double deviation = std::sqrt(squares / static_cast<double>(count - 1) * (1 + correlation) / (1 - correlation));
  const double root = std::sqrt(static_cast<double>(count));
  return kStudent[count - kFewestGroups] * deviation * (measure.is_total ? root : 1 / root);
}

Comparison compare_served(const Field& a, const Field& b) {
  Comparison comparison;
  note(comparison.settings, "execute", a["execute"], b["execute"]);
  note_provenance(comparison.settings, a["provenance"], b["provenance"]);
  const Field a_run = a["run"];
  const Field b_run = b["run"];
  note_all(comparison.settings, "", a_run["options"], b_run["options"]);
  const auto device = [](const Field& run) -> std::optional<Field> {
    const auto times = run.find("step_times");
    return times ? (*times)["provenance"].find("device") : std::nullopt;
  };
  note(comparison.settings, "step_times.device", device(a_run), device(b_run));
  for (const Measure& measure : measures()) {
    const Value from = measure.whole(a_run);
    const Value to = measure.whole(b_run);
    if (!from || !to) continue;
    comparison.numbers.push_back({measure.name, *from, *to, bound_of(measure, a_run["groups"], b_run["groups"])});
  }
  return comparison;
}

// ---- Studies of the cache alone -----------------------------------------------------------------

Comparison compare_studies(const Field& a, const Field& b) {
  Comparison comparison;
  note_provenance(comparison.settings, a["provenance"], b["provenance"]);
  note(comparison.settings, "policy", a["policy"], b["policy"]);
  const auto a_capacities = a.find("capacities");
  const auto b_capacities = b.find("capacities");
  if (!a_capacities || !b_capacities) return comparison;
  // A capacity that one report has several times counts once.
  std::map<std::string, double> hit_rates;
  for (std::size_t i = 0; i < b_capacities->size(); ++i) {
    const Field to = (*b_capacities)[i];
    const auto hit_rate = to.find("hit_rate");
    if (hit_rate) hit_rates.emplace(to["capacity_tokens"].shown(), hit_rate->number());
  }
  for (std::size_t i = 0; i < a_capacities->size(); ++i) {
    const Field from = (*a_capacities)[i];
    const auto hit_rate = from.find("hit_rate");
    if (!hit_rate) continue;
    const auto to = hit_rates.extract(from["capacity_tokens"].shown());
    if (!to) continue;
    // Counted, not measured: every difference is one.
    comparison.numbers.push_back({"hit rate at " + to.key(), hit_rate->number(), to.mapped(), 0.0});
  }
  return comparison;
}

// The fields for which the reports are not of the same requests, as a list; empty if they are.
std::string unlike_fields(const Field& a, const Field& b) {
  for (const Field& report : {a, b}) {
    if (report["command"].text() != "replay") throw DocumentError("field /command is not \"replay\"");
  }
  std::string list;
  for (const DifferingField& field : unlike(a, b)) {
    list += " " + field.field + " (" + printable(field.a) + ", " + printable(field.b) + ")";
  }
  return list;
}

}  // namespace

std::optional<double> ComparedNumber::relative() const noexcept {
  return a != 0 ? std::optional(difference() / std::abs(a)) : std::nullopt;
}

bool ComparedNumber::beyond_noise() const noexcept {
  return bound && std::abs(difference()) > *bound;
}

Result<Comparison> compare_reports(const Document& a, std::string_view a_name, const Document& b,
                                   std::string_view b_name) {
  const std::string both = std::string(a_name) + " and " + std::string(b_name);
  const auto fields = read_document(a, both, [&](const Field& from) { return unlike_fields(from, Field(b)); });
  if (!fields.ok()) return fields.status();
  if (!fields->empty()) {
    return Status{StatusCode::kMismatch,
                  printable(both, 2 * kShownPathBytes) + " are not of the same requests:" + *fields};
  }
  return read_document(a, both, [&](const Field& from) {
    const Field to(b);
    return from["execute"].text() == "none" ? compare_studies(from, to) : compare_served(from, to);
  });
}

}  // namespace dsv4rt::report
