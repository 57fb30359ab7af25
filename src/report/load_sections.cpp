#include <algorithm>
#include <map>

#include "report/charts.h"
#include "report/markup.h"
#include "report/page_parts.h"
#include "report/sections.h"

namespace dsv4rt::report {
namespace {

// Fewer intervals than a drawing has pixels: neighbours are put together.
constexpr std::size_t kDrawnIntervals = 220;
constexpr std::size_t kDrawnRates = 90;

enum class Join { kMean, kSum, kGreatest };

std::vector<double> joined(const std::vector<double>& values, std::size_t every, Join how) {
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); i += every) {
    const std::size_t end = std::min(values.size(), i + every);
    double value = values[i];
    for (std::size_t j = i + 1; j < end; ++j) {
      value = how == Join::kGreatest ? std::max(value, values[j]) : value + values[j];
    }
    result.push_back(how == Join::kMean ? value / static_cast<double>(end - i) : value);
  }
  return result;
}

// A table of intervals by columns, as occupancy and events are written.
class IntervalTable {
 public:
  IntervalTable(const Field& table, std::string_view rows, std::size_t most_drawn)
      : columns_(table["columns"]), rows_(table[rows]) {
    every_ = std::max<std::size_t>(1, (rows_.size() + most_drawn - 1) / most_drawn);
    interval_ms_ = table["interval_ms"].number() * static_cast<double>(every_);
  }

  [[nodiscard]] double interval_ms() const noexcept { return interval_ms_; }
  [[nodiscard]] std::vector<double> column(const std::string& name, Join how, double scale = 1) const {
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].text() != name) continue;
      std::vector<double> values;
      for (std::size_t i = 0; i < rows_.size(); ++i) values.push_back(rows_[i][c].number() * scale);
      return joined(values, every_, how);
    }
    throw DocumentError("field " + columns_.path() + " has no \"" + name + "\"");
  }
  // Counts as a rate a second.
  [[nodiscard]] std::vector<double> rate(const std::string& name) const {
    return column(name, Join::kSum, 1000 / interval_ms_);
  }

 private:
  Field columns_;
  Field rows_;
  std::size_t every_ = 1;
  double interval_ms_ = 0;
};

std::string requests_chart(const IntervalTable& events) {
  return time_chart(
      {.heading = "Requests a second",
       .what = "What arrived, what was finished and what was refused.",
       .interval_ms = events.interval_ms(),
       .series =
           {{.name = "arrived", .style = "c1 pale", .kind = TimeSeries::Kind::kArea, .values = events.rate("arrived")},
            {.name = "finished", .style = "c3", .values = events.rate("finished")},
            {.name = "rejected", .style = "c4", .values = events.rate("rejected")}},
       .limit = {},
       .limit_name = {},
       .y_label = short_number});
}

std::string queue_chart(const Field& run, const IntervalTable& mean, const IntervalTable& most) {
  return time_chart(
      {.heading = "Waiting requests",
       .what = "In the queue, which takes at most " + shown_count(run["options"]["max_waiting"]) + "; it held " +
               shown_count(run["requests"]["most_waiting"]) + " at most.",
       .interval_ms = mean.interval_ms(),
       .series = {{.name = "mean",
                   .style = "c2",
                   .kind = TimeSeries::Kind::kArea,
                   .values = mean.column("waiting", Join::kMean)},
                  {.name = "most", .style = "c2 thin", .values = most.column("waiting", Join::kGreatest)},
                  {.name = "preempted", .style = "c4 thin", .values = most.column("preempted", Join::kGreatest)}},
       .limit = run["options"]["max_waiting"].number(),
       .limit_name = "the queue is full",
       .y_label = short_number});
}

std::string running_chart(const Field& run, const IntervalTable& mean) {
  return time_chart({.heading = "Running requests",
                     .what = "Sequences with a slot, of " + shown_count(run["options"]["max_sequences"]) + " slots.",
                     .interval_ms = mean.interval_ms(),
                     .series = {{.name = "running",
                                 .style = "c1",
                                 .kind = TimeSeries::Kind::kArea,
                                 .values = mean.column("slots", Join::kMean)}},
                     .limit = run["options"]["max_sequences"].number(),
                     .limit_name = "all slots",
                     .y_label = short_number});
}

std::string tokens_chart(const IntervalTable& events) {
  return time_chart({.heading = "Tokens a second",
                     .what = "Prompt tokens that were run (hits are not), and tokens that were made.",
                     .interval_ms = events.interval_ms(),
                     .series = {{.name = "prompt", .style = "c5", .values = events.rate("prompt tokens")},
                                {.name = "output", .style = "c3", .values = events.rate("output tokens")}},
                     .limit = {},
                     .limit_name = {},
                     .y_label = short_number});
}

std::string role_chart(const Field& role, const IntervalTable& mean) {
  const std::string name = role["role"].text();
  const double blocks = std::max(1.0, role["blocks"].number());
  const auto share = [&](const char* what) { return mean.column(name + what, Join::kMean, 1 / blocks); };
  std::vector<double> promised = share(" live");
  const std::vector<double> reserved = share(" reserved");
  for (std::size_t i = 0; i < promised.size(); ++i) promised[i] += reserved[i];
  return time_chart(
      {.heading = "Blocks of " + name,
       .what = "Share of " + shown_count(role["blocks"]) + " blocks.",
       .interval_ms = mean.interval_ms(),
       .series =
           {{.name = "live", .style = "c1", .kind = TimeSeries::Kind::kArea, .stacked = true, .values = share(" live")},
            {.name = "cached",
             .style = "c3 pale",
             .kind = TimeSeries::Kind::kArea,
             .stacked = true,
             .values = share(" cached")},
            {.name = "live and reserved", .style = "c2 dashed thin", .values = promised}},
       .limit = 1.0,
       .limit_name = "",
       .y_label = percent});
}

std::string overload_sentence(const Field& run) {
  const auto overload = run.find("overload");
  const auto last = overload ? overload->find("last_rejected_ms") : std::nullopt;
  if (!last) return paragraph("The queue never was full.");
  std::string text = "The queue was full: requests were rejected from " +
                     shown_number((*overload)["first_rejected_ms"], 0.001) + "&nbsp;s to " +
                     shown_number(*last, 0.001) + "&nbsp;s of the replay. ";
  if (const auto recovery = overload->find("recovery_ms")) {
    text += "Nobody waited any more " + shown_number(*recovery, 0.001) + "&nbsp;s after the last rejection.";
  } else {
    text += "The queue did not empty before the end.";
  }
  if (const auto least = run["requests"].find("least_tokens_per_s")) {
    text +=
        " Of the finished requests the slowest got " + shown_number(*least) + " tokens a second from its admission on.";
  }
  return paragraph(text);
}

}  // namespace

std::string load_section(const Field& run) {
  const IntervalTable events(run["events"], "counts", kDrawnRates);
  const IntervalTable mean(run["occupancy"], "mean", kDrawnIntervals);
  const IntervalTable most(run["occupancy"], "max", kDrawnIntervals);
  return section("load", "Load and recovery",
                 overload_sentence(run) + gallery(requests_chart(events) + queue_chart(run, mean, most) +
                                                  running_chart(run, mean) + tokens_chart(events)));
}

std::string cache_section(const Field& run) {
  const Field cache = run["cache"];
  const Field roles = cache["roles"];
  const IntervalTable mean(run["occupancy"], "mean", kDrawnIntervals);
  std::string figures;
  HtmlTable table({"role", "blocks", "most live", "share", "live at the end", "cached at the end"});
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const Field role = roles[i];
    figures += role_chart(role, mean);
    table.add_row({shown_text(role["role"]), shown_count(role["blocks"]), shown_count(role["most_live"]),
                   shown_share(role["most_live_share"], 1), shown_count(role["live_at_end"]),
                   shown_count(role["cached_at_end"])});
  }
  const auto states = run["options"].find("boundary_states");
  if (states && states->integer() > 0) {
    figures +=
        time_chart({.heading = "Boundary states",
                    .what = "States at which a prompt can begin with cached tokens, of " + shown_count(*states) + ".",
                    .interval_ms = mean.interval_ms(),
                    .series = {{.name = "kept",
                                .style = "c3",
                                .kind = TimeSeries::Kind::kArea,
                                .values = mean.column("boundary states", Join::kMean)}},
                    .limit = states->number(),
                    .limit_name = "all states",
                    .y_label = short_number});
  }
  return section(
      "cache", "Cache occupancy",
      paragraph("Live blocks are held by requests that run; cached ones only by the prefix cache, which gives "
                "them up when blocks are short; reserved ones are promised to admitted requests.") +
          gallery(figures) + table.html() +
          paragraph("Prefix cache: " + shown_count(cache["prefix_lookups"]) + " look-ups, " +
                    shown_count(cache["prefix_units_stored"]) + " units stored and " +
                    shown_count(cache["prefix_units_removed"]) + " removed, " +
                    shown_count(cache["boundary_states_taken"]) + " boundary states taken and " +
                    shown_count(cache["boundary_states_removed"]) +
                    " removed. Moved to host memory: " + shown_count(cache["saves"]) + " sequences."));
}

}  // namespace dsv4rt::report
