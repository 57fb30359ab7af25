#include "base/prometheus_text.h"

#include <algorithm>

namespace dsv4rt {

void PrometheusText::metric(std::string_view name, std::string_view type, std::string_view help) {
  name_.assign(prefix_).append(name);
  text_.append("# HELP ").append(name_).append(" ");
  escape(help, false);
  text_.append("\n# TYPE ").append(name_).append(" ").append(type).append("\n");
}

void PrometheusText::write_sample(std::string_view value, const PrometheusLabels& labels, std::string_view suffix) {
  text_.append(name_).append(suffix);
  if (!common_.empty() || !labels.empty()) {
    write_labels(common_, '{');
    write_labels(labels, common_.empty() ? '{' : ',');
    text_ += '}';
  }
  text_.append(" ").append(value).append("\n");
}

void PrometheusText::write_labels(const PrometheusLabels& labels, char before) {
  for (const auto& [name, value] : labels) {
    text_.append(1, before).append(name).append("=\"");
    escape(value, true);
    text_ += '"';
    before = ',';
  }
}

// A label's value escapes backslash, quote and line end; a help text the first and the last.
void PrometheusText::escape(std::string_view text, bool quotes) {
  for (const char c : text) {
    if (c == '\\') {
      text_ += "\\\\";
    } else if (c == '\n') {
      text_ += "\\n";
    } else if (c == '"' && quotes) {
      text_ += "\\\"";
    } else {
      text_ += c;
    }
  }
}

bool is_prometheus_label_name(std::string_view name) noexcept {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && letter(name.front()) && !name.starts_with("__") &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || digit(c); });
}

}  // namespace dsv4rt
