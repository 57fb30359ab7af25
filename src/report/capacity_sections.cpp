#include <algorithm>

#include "report/charts.h"
#include "report/markup.h"
#include "report/page_parts.h"
#include "report/sections.h"

namespace dsv4rt::report {
namespace {

// A capacity is a number of tokens, or "inf".
std::string capacity_cell(const Field& capacity) {
  return capacity.is_text() ? "no limit" : shown_count(capacity);
}

// The hit rates of one policy at every capacity; `under` is the key of its figures, empty for those of the entry.
CapacityCurve curve_of(const Field& capacities, const std::string& name, const std::string& style, const char* under) {
  CapacityCurve curve{.name = name, .style = style, .points = {}, .unlimited = {}};
  for (std::size_t i = 0; i < capacities.size(); ++i) {
    const Field entry = capacities[i];
    const auto rate = (*under == '\0' ? entry : entry[under]).find("hit_rate");
    if (!rate) continue;
    if (entry["capacity_tokens"].is_text()) {
      curve.unlimited = rate->number();
    } else {
      curve.points.emplace_back(entry["capacity_tokens"].number(), rate->number());
    }
  }
  std::sort(curve.points.begin(), curve.points.end());
  return curve;
}

std::string policy_name(const std::string& policy) {
  return policy == "belady" ? "Belady: the best that any policy can do" : policy == "lru" ? "LRU" : policy;
}

}  // namespace

std::string study_headline(const Field& doc) {
  const Field log = doc["log"];
  std::vector<std::string> each{
      tile("Requests", shown_count(log["requests"]), shown_count(doc["requests_without_ids"]) + " without block ids"),
      tile("Prompt tokens", shown_count(log["input_tokens"]), shown_count(log["output_tokens"]) + " output tokens")};
  const auto capacities = doc.find("capacities");
  if (!capacities) {
    each.push_back(tile("Prefix hit rate", "-", "the log does not say what prompts share"));
  } else if (capacities->size() > 0) {
    const Field most = (*capacities)[capacities->size() - 1];
    const auto rate = most.find("hit_rate");
    each.push_back(tile("Prefix hit rate", rate ? shown_share(*rate, 1) : "-",
                        most["capacity_tokens"].is_text()
                            ? "with a cache without limit"
                            : "with a cache of " + capacity_cell(most["capacity_tokens"]) + " tokens"));
  }
  return "<section id=\"headline\">\n" + tiles(each) + "</section>\n";
}

std::string study_capacity_section(const Field& doc) {
  const auto capacities = doc.find("capacities");
  if (!capacities) {
    return section("capacity", "Against capacity",
                   paragraph("Not known: the log does not say what prompts share. That is not a hit rate of 0."));
  }
  const std::string policy = doc["policy"].text();
  const bool compared = policy != "lru";
  std::vector<CapacityCurve> curves{curve_of(*capacities, policy_name(policy), compared ? "c2" : "c1", "")};
  if (compared) curves.push_back(curve_of(*capacities, "LRU", "c1", "lru"));
  const std::string chart = capacity_chart({.heading = "Hit rate against capacity",
                                            .what = "Share of the prompt tokens that the cache would have had.",
                                            .curves = curves,
                                            .y_label = percent});
  std::vector<std::string> header{"pool tokens", "blocks", "hit tokens", "computed", "requests with a hit", "hit rate"};
  if (compared) header.emplace_back("LRU");
  HtmlTable table(header, 0);
  for (std::size_t i = 0; i < capacities->size(); ++i) {
    const Field entry = (*capacities)[i];
    const auto rate_cell = [](const Field& hits) {
      const auto rate = hits.find("hit_rate");
      return rate ? shown_share(*rate) : std::string("-");
    };
    std::vector<std::string> cells{capacity_cell(entry["capacity_tokens"]), capacity_cell(entry["capacity_blocks"]),
                                   shown_count(entry["hit_tokens"]),        shown_count(entry["computed_tokens"]),
                                   shown_count(entry["hit_requests"]),      rate_cell(entry)};
    if (compared) cells.push_back(rate_cell(entry["lru"]));
    table.add_row(cells);
  }
  return section("capacity", "Against capacity", gallery(chart) + table.html());
}

std::string sweep_section(const Field& sweep) {
  CapacityCurve rate{.name = "prefix hit rate", .style = "c1", .points = {}, .unlimited = {}};
  CapacityCurve kept{.name = "goodput, share of arrived", .style = "c3", .points = {}, .unlimited = {}};
  CapacityCurve first{.name = "p50", .style = "c1", .points = {}, .unlimited = {}};
  CapacityCurve late{.name = "p99", .style = "c2", .points = {}, .unlimited = {}};
  HtmlTable table({"pool tokens", "hit rate", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "preempted", "rejected",
                   "output tok/s", "goodput"},
                  0);
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    const Field entry = sweep[i];
    const double capacity = entry["pool_tokens"].number();
    const auto hit_rate = entry.find("hit_rate");
    const auto goodput = entry.find("goodput_share");
    if (hit_rate) rate.points.emplace_back(capacity, hit_rate->number());
    if (goodput) kept.points.emplace_back(capacity, goodput->number());
    first.points.emplace_back(capacity, entry["ttft_ms"]["p50"].number());
    late.points.emplace_back(capacity, entry["ttft_ms"]["p99"].number());
    table.add_row({shown_count(entry["pool_tokens"]), hit_rate ? shown_share(*hit_rate) : "-",
                   shown_number(entry["ttft_ms"]["p50"]), shown_number(entry["ttft_ms"]["p99"]),
                   shown_number(entry["tpot_ms"]["p50"]), shown_number(entry["tpot_ms"]["p99"]),
                   shown_count(entry["preemptions"]), shown_count(entry["rejected"]),
                   shown_number(entry["output_tokens_per_s"]), goodput ? shown_share(*goodput, 1) : "-"});
  }
  std::vector<CapacityCurve> shares;
  if (!rate.points.empty()) shares.push_back(rate);
  if (!kept.points.empty()) shares.push_back(kept);
  const std::string figures = capacity_chart({.heading = "Hit rate against capacity",
                                              .what = "The whole replay, once for every size of the pool.",
                                              .curves = shares,
                                              .y_label = percent}) +
                              capacity_chart({.heading = "Time to first token against capacity",
                                              .what = "Over the finished requests.",
                                              .curves = {first, late},
                                              .y_label = short_ms});
  return section("capacity", "Against capacity",
                 gallery(figures) + table.html() +
                     paragraph("Times are milliseconds. The other sections are about the largest pool."));
}

}  // namespace dsv4rt::report
