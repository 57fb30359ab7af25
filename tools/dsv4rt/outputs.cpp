#include "outputs.h"

#include <csignal>
#include <fcntl.h>
#include <iostream>
#include <unistd.h>
#include <utility>

#include "base/message_text.h"
#include "base/try.h"

namespace dsv4rt::cli {

StandardOutput::StandardOutput() : before_(std::cout.rdbuf(this)) {
  setp(buffer_.data(), buffer_.data() + buffer_.size());
}

StandardOutput::~StandardOutput() {
  (void)sync();
  std::cout.rdbuf(before_);
}

StandardOutput::int_type StandardOutput::overflow(int_type c) {
  if (sync() != 0) return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof())) {
    *pptr() = traits_type::to_char_type(c);
    pbump(1);
  }
  return traits_type::not_eof(c);
}

int StandardOutput::sync() {
  const auto bytes = static_cast<std::size_t>(pptr() - pbase());
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  if (!failure_.ok()) return -1;
  if (bytes == 0) return 0;
  failure_ = write_text_file("-", {buffer_.data(), bytes});
  return failure_.ok() ? 0 : -1;
}

Status StandardOutput::finish() {
  (void)sync();
  return failure_;
}

void Outputs::add_to(CLI::App& command, std::vector<std::string> names) {
  for (const std::string& name : names) options_.push_back(command.get_option(name));
  command.add_flag("--force", force_, "Replace files that exist");
}

Status Outputs::check() const {
  std::vector<std::pair<std::string, std::string>> seen;  // path and flag
  for (const CLI::Option* option : options_) {
    if (option->count() == 0) continue;
    const std::string flag = option->get_name();
    const std::string path = option->results().front();
    const bool may_be_stdout = flag == "--json" || flag == "--out" || flag == "out";
    if (path.empty()) return {StatusCode::kInvalidArgument, flag + ": is empty; accepted: a file name"};
    if (path == "-" && !may_be_stdout) {
      return {StatusCode::kInvalidArgument, flag + ": standard output takes the report; accepted: a file name"};
    }
    for (const auto& [other_path, other_flag] : seen) {
      if (path != other_path) continue;
      const std::string what = path == "-" ? "standard output" : quote(path);
      return {StatusCode::kInvalidArgument, flag + " and " + other_flag + " both name " + what};
    }
    seen.emplace_back(path, flag);
    Status status = check_output_path(path, existing());
    if (status.ok()) continue;
    const bool exists = existing() == Existing::kRefuse && check_output_path(path, Existing::kReplace).ok();
    return {status.code(), flag + " " + status.message() + (exists ? "; --force replaces it" : "")};
  }
  return {};
}

Status write_json_report(nlohmann::ordered_json report, const Provenance& provenance, const std::string& path,
                         Existing existing) {
  if (!report.contains("provenance")) report["provenance"] = provenance.json();
  // ASCII alone: what names in the report may hold is nothing that a terminal acts on.
  const std::string text = report.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (path != "-") return write_text_file(path, text, existing);
  std::cout << text << std::flush;  // main asks StandardOutput whether it came through
  return {};
}

namespace {

void end_by_signal(int signal) {
  remove_unfinished_outputs();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGABRT, SIGXCPU}) {
    // What the parent process chose to ignore (nohup) stays ignored.
    if (std::signal(signal, end_by_signal) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Read-only: what is written to it fails. The lowest free number is the one that is missing.
    if (::fcntl(fd, F_GETFD) < 0) (void)!::open("/dev/null", O_RDONLY);
  }
}

}  // namespace dsv4rt::cli
