#include "command.h"

namespace dsv4rt::cli {
namespace {

std::vector<std::string>& arguments() {
  static std::vector<std::string> kept;
  return kept;
}

}  // namespace

void keep_arguments(int argc, char** argv) {
  arguments().assign(argv, argv + argc);
  if (!arguments().empty()) arguments().front() = "dsv4rt";  // wherever it lies
}

const std::vector<std::string>& command_arguments() {
  return arguments();
}

std::string command_line_text() {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  std::string text;
  for (const std::string& argument : arguments()) {
    if (!text.empty()) text += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) {
      text += argument;
      continue;
    }
    text += '\'';
    for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

}  // namespace dsv4rt::cli
