// dsv4rt convert-log: a recorded log of any format as a native one.

#include <memory>
#include <utility>

#include "base/try.h"
#include "checkpoint/output_file.h"
#include "command.h"
#include "log_report.h"
#include "outputs.h"
#include "replay/native_log.h"

namespace dsv4rt::cli {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

struct ConvertFlags {
  LogFlags log;
  std::string out;
  std::string json;
  Outputs outputs;
};

// An OutputFile with a buffer.
class LogOutput {
 public:
  static Result<LogOutput> create(const std::string& path, Existing existing) {
    DSV4RT_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, existing));
    return LogOutput(std::move(file));
  }

  Status add(const std::string& line) {
    buffer_ += line;
    return buffer_.size() < kBufferBytes ? Status{} : flush();
  }

  Status commit() {
    DSV4RT_RETURN_IF_ERROR(flush());
    return file_.commit();
  }

 private:
  explicit LogOutput(OutputFile file) : file_(std::move(file)) {}
  Status flush() {
    Status written = file_.write(buffer_.data(), buffer_.size());
    buffer_.clear();
    return written;
  }

  OutputFile file_;
  std::string buffer_;
};

Status convert_log(const ConvertFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  DSV4RT_ASSIGN_OR_RETURN(const auto source, open_log(flags.log));
  DSV4RT_ASSIGN_OR_RETURN(LogOutput output, LogOutput::create(flags.out, flags.outputs.existing()));
  DSV4RT_RETURN_IF_ERROR(output.add(replay::native_log_header(source->info())));
  while (flags.log.limit < 0 || source->progress().requests < flags.log.limit) {
    DSV4RT_ASSIGN_OR_RETURN(const std::optional<replay::Request> request, source->next());
    if (!request) break;
    DSV4RT_RETURN_IF_ERROR(output.add(replay::native_log_line(*request, source->info())));
  }
  DSV4RT_RETURN_IF_ERROR(output.commit());
  if (flags.out != "-" && flags.json != "-") print_log(flags.log, *source);
  if (flags.json.empty()) return {};
  const nlohmann::ordered_json report{
      {"command", "convert-log"}, {"log", log_json(flags.log, *source)}, {"out", flags.out}};
  Provenance provenance;
  add_log(provenance, flags.log, *source);
  return write_json_report(report, provenance, flags.json, flags.outputs.existing());
}

}  // namespace

void add_convert_log_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ConvertFlags>();
  CLI::App* command = app.add_subcommand("convert-log", "Write a request log of any known format as a native one");
  flags->log.add_to(*command);
  command->add_option("out", flags->out, "Native log to write, or - for stdout")->required();
  command->add_option("--json", flags->json, "Write a summary as JSON to a file, or - for stdout");
  flags->outputs.add_to(*command, {"out", "--json"});
  command->callback([flags, &chosen] { chosen = [flags] { return convert_log(*flags); }; });
}

}  // namespace dsv4rt::cli
