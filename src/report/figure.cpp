#include "report/charts.h"
#include "report/markup.h"

namespace dsv4rt::report {

std::string figure(const std::string& heading, const std::string& what, const std::vector<LegendEntry>& legend,
                   const std::string& svg) {
  std::string html = "<figure><figcaption><strong>" + escaped(heading) + "</strong><span>" + what + "</span>";
  if (legend.size() > 1) {
    html += "<ul class=\"legend\">";
    for (const LegendEntry& entry : legend) {
      html += "<li><i class=\"" + entry.style + "\"></i>" + escaped(entry.name) + "</li>";
    }
    html += "</ul>";
  }
  return html + "</figcaption>" + svg + "</figure>\n";
}

}  // namespace dsv4rt::report
