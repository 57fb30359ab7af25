#include "report/page_parts.h"

#include "base/check.h"

namespace dsv4rt::report {

void HtmlTable::add_row(const std::vector<std::string>& cells) {
  DSV4RT_CHECK(cells.size() == header_.size());
  rows_ += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    rows_ += (i < text_columns_ ? "<td>" : "<td class=\"n\">") + cells[i] + "</td>";
  }
  rows_ += "</tr>\n";
}

std::string HtmlTable::html() const {
  std::string head;
  for (std::size_t i = 0; i < header_.size(); ++i) {
    head += (i < text_columns_ ? "<th>" : "<th class=\"n\">") + header_[i] + "</th>";
  }
  return "<table><thead><tr>" + head + "</tr></thead><tbody>\n" + rows_ + "</tbody></table>\n";
}

std::string tile(const std::string& name, const std::string& value, const std::string& below) {
  return "<div class=\"tile\"><h3>" + name + "</h3><p class=\"value\">" + value + "</p><p class=\"below\">" + below +
         "</p></div>\n";
}

std::string tiles(const std::vector<std::string>& each) {
  std::string html = "<div class=\"tiles\">\n";
  for (const std::string& one : each) html += one;
  return html + "</div>\n";
}

std::string section(const std::string& id, const std::string& heading, const std::string& body) {
  return "<section id=\"" + id + "\">\n<h2>" + heading + "</h2>\n" + body + "</section>\n";
}

std::string paragraph(const std::string& html) {
  return "<p>" + html + "</p>\n";
}

std::string gallery(const std::string& figures) {
  return figures.empty() ? "" : "<div class=\"gallery\">\n" + figures + "</div>\n";
}

}  // namespace dsv4rt::report
