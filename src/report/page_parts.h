// Parts of a page: tables, tiles, sections.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dsv4rt::report {

// Cells are HTML. The first column is text, the others are numbers unless `text_columns` says so.
class HtmlTable {
 public:
  explicit HtmlTable(std::vector<std::string> header, std::size_t text_columns = 1)
      : header_(std::move(header)), text_columns_(text_columns) {}
  void add_row(const std::vector<std::string>& cells);
  [[nodiscard]] std::string html() const;

 private:
  std::vector<std::string> header_;
  std::size_t text_columns_;
  std::string rows_;
};

// A number that is read first: what it is, the number, and a line below it. All HTML.
std::string tile(const std::string& name, const std::string& value, const std::string& below);
std::string tiles(const std::vector<std::string>& each);
// `id` names the section in links and for tests.
std::string section(const std::string& id, const std::string& heading, const std::string& body);
std::string paragraph(const std::string& html);
std::string gallery(const std::string& figures);

}  // namespace dsv4rt::report
