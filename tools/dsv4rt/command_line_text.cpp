#include "command.h"

namespace dsv4rt::cli {

std::string command_line_text(int argc, char** argv) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  std::string text = "dsv4rt";  // wherever it lies
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    text += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string_view::npos) {
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
