// Reads Prometheus' text format 0.0.4 strictly: https://prometheus.io/docs/instrumenting/exposition_formats.
#pragma once

#include <cmath>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace dsv4rt::test {

// Types by the metrics' names; samples by name and labels as they are written: a{b="c"}.
struct PrometheusMetrics {
  std::map<std::string, std::string> types;
  std::map<std::string, double> samples;
};

// Every line is a HELP, the TYPE that follows it, or a sample of that metric; a metric, its labels and their names
// occur once; counters are not negative and end with _total. What is not so is a failure of the test.
inline PrometheusMetrics read_prometheus(std::string_view text) {
  static const std::string kLabel = R"re([a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*")re";
  static const std::regex kSample("([a-zA-Z_][a-zA-Z0-9_]*?)(_sum|_count)?(\\{" + kLabel + "(?:," + kLabel +
                                  ")*\\})? ([0-9.e+-]+)");
  static const std::regex kName(R"re([{,]([a-zA-Z_][a-zA-Z0-9_]*)=")re");
  static const std::set<std::string> kTypes{"counter", "gauge", "summary"};
  PrometheusMetrics read;
  std::string current;
  EXPECT_TRUE(!text.empty() && text.back() == '\n');
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string_view::npos; begin = end + 1) {
    const std::string line(text.substr(begin, end - begin));
    if (line.starts_with("# HELP ")) {
      EXPECT_TRUE(current.empty() || read.types.contains(current)) << current << " has no type";
      current = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_FALSE(read.types.contains(current)) << line;
      EXPECT_GT(line.size(), 8 + current.size()) << line;
    } else if (line.starts_with("# TYPE ")) {
      const std::string type = line.substr(line.rfind(' ') + 1);
      EXPECT_EQ(line, "# TYPE " + current + " " + type);
      EXPECT_TRUE(kTypes.contains(type)) << line;
      EXPECT_TRUE(read.types.emplace(current, type).second) << line;
      EXPECT_EQ(type == "counter", current.ends_with("_total")) << line;
    } else {
      std::smatch match;
      if (!std::regex_match(line, match, kSample)) {
        ADD_FAILURE() << line;
        continue;
      }
      const bool summary = read.types[current] == "summary";
      EXPECT_EQ(match[1].str() + (summary ? "" : match[2].str()), current) << line;
      const double value = std::stod(match[4]);
      EXPECT_TRUE(std::isfinite(value) && (read.types[current] != "counter" || value >= 0)) << line;
      const std::string labels = match[3];
      std::set<std::string> names;
      for (std::sregex_iterator name(labels.begin(), labels.end(), kName), none; name != none; ++name) {
        EXPECT_TRUE(names.insert((*name)[1]).second) << line;
      }
      EXPECT_TRUE(read.samples.emplace(line.substr(0, line.rfind(' ')), value).second) << line;
    }
  }
  return read;
}

}  // namespace dsv4rt::test
