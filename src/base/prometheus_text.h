// Writes metrics in Prometheus' text exposition format 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats. prometheus-cpp would bring an HTTP server and a registry
// for what is one text.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv4rt {

using PrometheusLabels = std::vector<std::pair<std::string_view, std::string_view>>;

// Only what std::string and std::vector throw (std::bad_alloc). Values of labels may be any UTF-8; names are metrics'
// and labels' names as the format has them.
class PrometheusText {
 public:
  // Every metric's name begins with `prefix`; every sample carries `common` before its own labels.
  explicit PrometheusText(std::string_view prefix, PrometheusLabels common = {})
      : prefix_(prefix), common_(std::move(common)) {}

  // Before the first sample of a metric: the samples of one metric stand together.
  void metric(std::string_view name, std::string_view type, std::string_view help);
  // `suffix` is one of those that the type has, such as "_sum" of a summary.
  template <class Number>
  requires std::integral<Number> || std::floating_point<Number>
  void sample(Number value, const PrometheusLabels& labels = {}, std::string_view suffix = {}) {
    char digits[32];
    const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    write_sample({digits, static_cast<std::size_t>(end - digits)}, labels, suffix);
  }
  // A metric of one sample.
  template <class Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    metric(name, "gauge", help);
    sample(value);
  }
  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    metric(name, "counter", help);
    sample(value);
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  void write_sample(std::string_view value, const PrometheusLabels& labels, std::string_view suffix);
  void write_labels(const PrometheusLabels& labels, char before);
  void escape(std::string_view text, bool quotes);

  std::string prefix_;
  PrometheusLabels common_;
  std::string name_;  // the metric that samples belong to
  std::string text_;
};

// [a-zA-Z_][a-zA-Z0-9_]* that does not begin with "__", which Prometheus keeps for itself.
bool is_prometheus_label_name(std::string_view name) noexcept;

}  // namespace dsv4rt
