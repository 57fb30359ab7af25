// dsv4rt pages: the manual page and the shell completion, made of the commands and flags that the parser knows.

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "dsv4rt/version.h"

namespace dsv4rt::cli {
namespace {

// Text as roff takes it: no backslash, hyphen or leading dot that acts.
std::string roff(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else if (letter == '\n') {
      out += "\n.br\n";
    } else {
      out += letter;
    }
  }
  return !out.empty() && (out[0] == '.' || out[0] == '\'') ? "\\&" + out : out;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) commands.push_back(command);  // hidden ones have no group
  }
  return commands;
}

void print_options(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    std::cout << ".TP\n\\fB" << roff(option->get_name(option->get_positional(), true)) << "\\fR";
    if (option->get_expected_max() != 0 && !option->get_type_name().empty()) {
      std::cout << " \\fI" << roff(option->get_type_name()) << "\\fR";
    }
    std::cout << "\n" << roff(option->get_description());
    if (option->get_required()) std::cout << " Required.";
    if (!option->get_default_str().empty()) std::cout << " Default: " << roff(option->get_default_str()) << ".";
    std::cout << "\n";
  }
}

void print_manual(const CLI::App& app) {
  std::cout << ".TH DSV4RT 1 \"\" \"dsv4rt " << build_info().version << "\" \"User Commands\"\n"
            << ".SH NAME\ndsv4rt \\- " << roff(app.get_description()) << "\n"
            << ".SH SYNOPSIS\n.B dsv4rt\n\\fIcommand\\fR [\\fIoptions\\fR]\n.SH OPTIONS\n";
  print_options(app);
  std::cout << ".SH COMMANDS\n";
  for (const CLI::App* command : commands_of(app)) {
    std::cout << ".SS dsv4rt " << roff(command->get_name()) << "\n" << roff(command->get_description()) << "\n";
    print_options(*command);
  }
  std::cout << ".SH EXIT STATUS\n" << roff(app.get_footer()) << "\n";
}

std::string long_flags(const CLI::App& app) {
  std::string flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) flags += (flags.empty() ? "--" : " --") + name;
  }
  return flags;
}

void print_bash(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : commands_of(app)) names += (names.empty() ? "" : " ") + command->get_name();
  std::cout << "# bash completion of dsv4rt: its commands and flags; files for everything else.\n"
            << "_dsv4rt() {\n"
            << "  local current=${COMP_WORDS[COMP_CWORD]} word words=\n"
            << "  COMPREPLY=()\n"
            << "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
            << "    case $word in\n";
  for (const CLI::App* command : commands_of(app)) {
    std::cout << "      " << command->get_name() << ") words='" << long_flags(*command) << "'; break ;;\n";
  }
  std::cout << "    esac\n"
            << "  done\n"
            << "  [[ -n $words ]] || words='" << names << " " << long_flags(app) << "'\n"
            << "  if [[ $current == -* || $words == '" << names << " '* ]]; then\n"
            << "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
            << "  fi\n"
            << "}\n"
            << "complete -o default -F _dsv4rt dsv4rt\n";
}

}  // namespace

void add_pages_command(CLI::App& app, Action& chosen) {
  auto page = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("pages", "Print the manual page or the completion of bash");
  command->group("");  // for builds and packages: not in the help
  command->add_option("page", *page, "man or bash")->required()->check(CLI::IsMember({"man", "bash"}));
  command->callback([page, &app, &chosen] {
    chosen = [page, &app] {
      if (*page == "man") {
        print_manual(app);
      } else {
        print_bash(app);
      }
      return Status{};
    };
  });
}

}  // namespace dsv4rt::cli
