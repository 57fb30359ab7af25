#include "report/replay_page.h"

#include "report/markup.h"
#include "report/page_style.h"
#include "report/sections.h"

namespace dsv4rt::report {
namespace {

std::string file_name(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return path == "-" ? "standard input" : slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string kind_of(const std::string& execute) {
  if (execute == "none") return "Prefix cache alone, requests one after another, no clock";
  if (execute == "model") return "Served on a model of a machine, in virtual time";
  return "Served by the engine, times measured";
}

std::string page(const Field& doc) {
  if (doc["command"].text() != "replay") throw DocumentError("field /command is not \"replay\"");
  const std::string execute = doc["execute"].text();
  const Field log = doc["log"];
  const std::string title = "Replay of " + file_name(log["path"].text());
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // Nothing may be fetched or run, whatever a log's texts hold.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>" +
      escaped(title) + "</title>\n<style>" + std::string(kPageStyle) +
      "</style>\n</head>\n<body>\n<main>\n<header>\n<h1>" + escaped(title) + "</h1>\n<p>" + escaped(kind_of(execute)) +
      "</p>\n<p>" + shown_count(log["requests"]) + " requests, " + shown_count(log["input_tokens"]) + " prompt and " +
      shown_count(log["output_tokens"]) + " output tokens in the log" +
      (log["lengths_estimated"].boolean() ? " (estimated from words)" : "") + "</p>\n</header>\n";
  if (execute == "none") {
    html += study_headline(doc) + study_capacity_section(doc);
  } else {
    const Field run = doc["run"];
    html += served_headline(run) + latency_section(run) + load_section(run) + cache_section(run);
    if (const auto sweep = doc.find("sweep")) html += sweep_section(*sweep);
    html += slowest_section(run) + memory_section(run);
  }
  return html + run_section(doc) + meaning_section(doc) + "</main>\n</body>\n</html>\n";
}

}  // namespace

Result<std::string> replay_page(const Document& document, std::string_view name) {
  return read_document(document, name, page);
}

}  // namespace dsv4rt::report
