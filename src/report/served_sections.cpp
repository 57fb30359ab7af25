#include "report/charts.h"
#include "report/markup.h"
#include "report/page_parts.h"
#include "report/sections.h"

namespace dsv4rt::report {
namespace {

std::string percentile_tile(const std::string& name, const Field& latency) {
  if (latency["count"].integer() == 0) return tile(name, "-", "no request got that far");
  return tile(name, shown_number(latency["p50"]) + "&nbsp;ms",
              "median; p99 " + shown_number(latency["p99"]) + "&nbsp;ms");
}

std::string goodput_tile(const Field& run) {
  const auto goodput = run.find("goodput");
  if (!goodput) return tile("Goodput", "-", "no service level was given");
  std::string levels;
  for (const auto& [key, name] :
       {std::pair{"ttft_ms", "TTFT"}, std::pair{"tpot_ms", "TPOT"}, std::pair{"e2el_ms", "end to end"}}) {
    if (const auto level = goodput->find(key)) {
      levels += (levels.empty() ? "" : ", ") + std::string(name) + " " + shown_number(*level) + "&nbsp;ms";
    }
  }
  return tile("Goodput", shown_share((*goodput)["share_of_arrived"], 1),
              shown_number((*goodput)["requests_per_s"]) + " a second keep " + levels);
}

std::string hit_tile(const Field& tokens) {
  const auto rate = tokens.find("hit_rate");
  if (!rate) return tile("Prefix hit rate", "-", "the log does not say what prompts share");
  return tile("Prefix hit rate", shown_share(*rate, 1), shown_count(tokens["hit"]) + " prompt tokens not run");
}

// Where a metric is in a line of request_writer.h.
std::string metric(const Field& metrics, std::string_view name, bool is_count) {
  const auto quantity = metrics.find(name);
  if (!quantity) return "-";
  return is_count ? shown_count((*quantity)["value"]) : shown_number((*quantity)["value"]);
}

}  // namespace

std::string served_headline(const Field& run) {
  const Field requests = run["requests"];
  const Field throughput = run["throughput"];
  const Field latency = run["latency_ms"];
  const Field by_reason = requests["rejected_for"];
  const std::vector<std::string> each{
      tile("Throughput", shown_number(throughput["output_tokens_per_s"]) + "&nbsp;tok/s",
           "output; prompts " + shown_number(throughput["input_tokens_per_s"]) + "&nbsp;tok/s"),
      tile("Finished", shown_count(requests["finished"]),
           "of " + shown_count(requests["arrived"]) + "; " + shown_number(throughput["requests_per_s"]) + " a second"),
      goodput_tile(run),
      hit_tile(run["tokens"]),
      percentile_tile("Time to first token", latency["ttft"]),
      percentile_tile("Time per output token", latency["tpot"]),
      tile("Preemptions", shown_count(requests["preemptions"]),
           shown_count(run["tokens"]["recomputed"]) + " tokens run again"),
      tile("Rejected", shown_count(requests["rejected"]),
           shown_count(by_reason["queue full"]) + " for a full queue, " + shown_count(by_reason["too long"]) +
               " too long"),
  };
  std::string stopped;
  if (run["stopped"].boolean()) {
    stopped = paragraph("The replay was stopped: " + shown_count(requests["aborted"]) + " requests were aborted.");
  }
  return "<section id=\"headline\">\n" + tiles(each) + stopped + "</section>\n";
}

std::string latency_section(const Field& run) {
  const Field latency = run["latency_ms"];
  const Field distributions = run["distribution_ms"];
  const auto goodput = run.find("goodput");
  const auto level = [&](const char* name) -> std::optional<double> {
    const auto field = goodput ? goodput->find(name) : std::nullopt;
    return field ? std::optional(field->number()) : std::nullopt;
  };
  std::string figures;
  figures +=
      distribution_chart("Time to first token (TTFT)", "Share of finished requests whose first token came by then.",
                         distributions["ttft"], latency["ttft"], level("ttft_ms"));
  figures += distribution_chart("Time per output token (TPOT)", "Share of finished requests; a mean for each request.",
                                distributions["tpot"], latency["tpot"], level("tpot_ms"));
  figures += distribution_chart("Gap between tokens (ITL)", "Share of all gaps: where single stalls show.",
                                distributions["itl"], latency["itl"], {});
  figures += distribution_chart("End to end", "Share of finished requests: arrival to last token.",
                                distributions["e2el"], latency["e2el"], level("e2el_ms"));
  HtmlTable table({"milliseconds", "count", "mean", "least", "p50", "p90", "p95", "p99", "greatest"});
  for (const auto& [key, name] :
       {std::pair{"ttft", "Time to first token"}, std::pair{"tpot", "Time per output token"},
        std::pair{"itl", "Gap between tokens"}, std::pair{"e2el", "End to end"}, std::pair{"queue", "In the queue"}}) {
    const Field row = latency[key];
    std::vector<std::string> cells{name};
    cells.push_back(shown_count(row["count"]));
    for (const char* value : {"mean", "min", "p50", "p90", "p95", "p99", "max"}) {
      cells.push_back(shown_number(row[value]));
    }
    table.add_row(cells);
  }
  return section("latency", "Latency", gallery(figures) + table.html());
}

std::string slowest_section(const Field& run) {
  const Field slowest = run["slowest"];
  if (slowest.size() == 0) return section("slowest", "Slowest requests", paragraph("No request finished."));
  HtmlTable table({"request", "line", "prompt", "hit", "output", "queue&nbsp;ms", "TTFT&nbsp;ms", "TPOT&nbsp;ms",
                   "end&nbsp;to&nbsp;end&nbsp;ms", "preempted"});
  for (std::size_t i = 0; i < slowest.size(); ++i) {
    const Field metadata = slowest[i]["metadata"];
    const Field metrics = slowest[i]["metrics"];
    const std::string id = shown_text(metadata["x_request_id"]);
    table.add_row({id.empty() ? std::string("#").append(shown_count(metadata["session_num"])) : id,
                   shown_count(metadata["log_line"]), metric(metrics, "input_sequence_length", true),
                   metric(metrics, "prefix_hit_tokens", true), metric(metrics, "output_sequence_length", true),
                   metric(metrics, "queue_time", false), metric(metrics, "time_to_first_token", false),
                   metric(metrics, "inter_token_latency", false), metric(metrics, "request_latency", false),
                   metric(metrics, "preemptions", true)});
  }
  return section("slowest", "Slowest requests",
                 paragraph("The finished requests that took longest from arrival to end. Lines are those of the log.") +
                     table.html());
}

std::string memory_section(const Field& run) {
  const auto plan = run.find("memory");
  if (!plan) return "";
  HtmlTable table({"role", "layers", "bytes a token", "bytes a sequence", "blocks a layer", "bytes", ""});
  const Field roles = (*plan)["roles"];
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const Field role = roles[i];
    table.add_row({shown_text(role["role"]), shown_count(role["layers"]), shown_number_or_dash(role, "bytes_per_token"),
                   shown_count_or_dash(role, "bytes_per_sequence"), shown_count(role["blocks_per_layer"]),
                   shown_count(role["total_bytes"]), bytes_text(role["total_bytes"].number())});
  }
  for (const auto& [key, name] :
       {std::pair{"boundary_state_bytes", "boundary states"}, std::pair{"block_table_bytes", "block tables"},
        std::pair{"step_metadata_bytes", "step metadata"}, std::pair{"cache_bytes", "the cache"},
        std::pair{"weight_bytes", "weights"}, std::pair{"workspace_bytes", "workspace of steps"},
        std::pair{"scratch_bytes", "scratch memory of kernels"}, std::pair{"graph_bytes", "graphs, at most"},
        std::pair{"output_row_bytes", "rows to be digested"}, std::pair{"total_bytes", "all"}}) {
    // What only an engine has is left out of a model's plan.
    if (const auto bytes = plan->find(key)) {
      table.add_row({name, "", "", "", "", shown_count(*bytes), bytes_text(bytes->number())});
    }
  }
  return section(
      "memory", "Memory plan",
      paragraph("What the cache takes on the device, planned before anything is allocated. Blocks hold "
                "tokens of any sequence; slots belong to one. Figures a token and a sequence are of all layers.") +
          table.html());
}

}  // namespace dsv4rt::report
