#include "report/markup.h"
#include "report/page_parts.h"
#include "report/sections.h"

namespace dsv4rt::report {
namespace {

class Definitions {
 public:
  void add(const std::string& name, const std::string& html) {
    if (!html.empty()) html_ += "<dt>" + escaped(name) + "</dt><dd>" + html + "</dd>\n";
  }
  // Every field of an object under its own name, with blanks for underscores.
  void add_all(const Field& object) {
    for (const auto& [key, value] : object.object().items()) {
      std::string name = key;
      for (char& c : name) c = c == '_' ? ' ' : c;
      if (!value.is_null()) add(name, shown_text(object[key]));
    }
  }
  [[nodiscard]] std::string html() const { return "<dl>\n" + html_ + "</dl>\n"; }

 private:
  std::string html_;
};

std::string text_or_nothing(const Field& object, std::string_view key) {
  const auto field = object.find(key);
  return field ? shown_text(*field) : "";
}

std::string skipped_text(const Field& skipped) {
  std::string text;
  for (const auto& [reason, count] : skipped.object().items()) {
    text += (text.empty() ? "" : ", ") + escaped(reason) + " " + shown_text(skipped[reason]);
  }
  return text;
}

}  // namespace

std::string run_section(const Field& doc) {
  const Field log = doc["log"];
  Definitions what;
  if (const auto command = doc.find("command_line")) what.add("command", "<code>" + shown_text(*command) + "</code>");
  what.add("log", shown_text(log["path"]));
  const auto digest = log.find("sha256");
  what.add("SHA-256",
           digest ? "<code>" + shown_text(*digest) + "</code>" : "not known: the log was not read to its end");
  what.add("format", shown_text(log["format"]) + ", prefix identity " + shown_text(log["prefix_identity"]));
  if (const auto block = log.find("block_tokens")) what.add("block", shown_count(*block) + " tokens");
  what.add("left out", skipped_text(log["skipped"]));
  const Field build = doc["provenance"];
  what.add("dsv4rt", text_or_nothing(build, "version"));
  what.add("commit", text_or_nothing(build, "commit"));
  if (const auto made = build.find("build")) {
    what.add("compiler", text_or_nothing(*made, "compiler"));
    what.add("build", text_or_nothing(*made, "type") + ", " + text_or_nothing(*made, "flags"));
  }
  if (const auto cpu = build.find("cpu")) {
    what.add("processor", text_or_nothing(*cpu, "name") + ", " + text_or_nothing(*cpu, "isa"));
  }
  if (const auto gpu = build.find("gpu")) {
    what.add("GPU", text_or_nothing(*gpu, "name") + ", driver " + text_or_nothing(*gpu, "driver"));
  }
  std::string html = what.html();
  if (const auto run = doc.find("run")) {
    Definitions options;
    options.add_all((*run)["options"]);
    html += "<h3>Options</h3>\n" + options.html();
    if (const auto engine = run->find("engine")) {
      Definitions table;
      table.add_all(*engine);
      if (const auto outputs = run->find("outputs"))
        table.add("outputs, SHA-256", "<code>" + shown_text((*outputs)["sha256"]) + "</code>");
      html += "<h3>Engine</h3>\n" + table.html();
    }
    if (const auto times = run->find("step_times")) {
      Definitions table;
      table.add_all((*times)["provenance"]);
      table.add("points", shown_count((*times)["points"]));
      table.add("experts, µs a step", shown_number((*times)["moe_us_per_step"]));
      table.add("experts, µs a token", shown_number((*times)["moe_us_per_token"]));
      html += "<h3>Table of step times</h3>\n" + table.html();
    }
  } else {
    Definitions options;
    options.add("policy", text_or_nothing(doc, "policy"));
    html += options.html();
  }
  return section("run", "What was run", html);
}

std::string meaning_section(const Field& doc) {
  const std::string execute = doc["execute"].text();
  std::string html;
  if (execute == "none") {
    html += paragraph(
        "No clock and no scheduler: requests pass one after another, and a block of the log hits if the cache still "
        "holds it. Capacities count prompt tokens of cached blocks. The engine shares prefixes in units of its own, so "
        "its rates differ by the rounding at the ends of prefixes.");
    return section("meaning", "What these numbers mean", html);
  }
  const Field run = doc["run"];
  html += paragraph(
      "<strong>Performance only.</strong> A log has lengths and times, no text: token ids are made up from block ids "
      "and "
      "the seed. What a model would answer, which rows its indexer would choose and which drafts would be right is not "
      "told.");
  if (execute == "model") {
    const Field steps = run["steps"];
    std::string extrapolated;
    if (const auto count = steps.find("extrapolated")) {
      extrapolated = " Of " + shown_count(steps["count"]) + " steps " + shown_count(*count) + " (" +
                     shown_share(steps["extrapolated_share"], 1) +
                     ") had a shape that no measured ones surround: their times are extrapolated.";
    }
    html += paragraph(
        "<strong>Real</strong>: which blocks and states the cache has, who is admitted, preempted or refused, which "
        "prefixes hit, and what every step is made of. <strong>Modelled</strong>: how long a step takes, from the "
        "table of measured steps above; time is virtual, and the host is taken to be never late." +
        extrapolated);
  } else {
    html += paragraph("Steps were run by the engine and timed by the clock of this machine.");
  }
  html += paragraph(
      "TTFT is arrival to first token; TPOT is (last token - first token) / (tokens - 1) of a request; ITL is a gap "
      "between tokens; goodput counts the requests that keep every service level, as a share of all that arrived. "
      "Percentiles are off by at most " +
      shown_share(run["percentile_error"], 1) + ". Experts are no part of this library: their time is what was given.");
  html += paragraph("The replay itself took " + shown_number(run["wall_ms"], 0.001) + "&nbsp;s of this machine.");
  return section("meaning", "What these numbers mean", html);
}

}  // namespace dsv4rt::report
