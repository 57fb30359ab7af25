#include "log_lines.h"

#include <memory>

#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include "base/message_text.h"

namespace dsv4rt::cli {
namespace {

// The text of a log line, which may quote what came from outside.
class PrintableText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = printable_lines({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableText>();
  }
};

}  // namespace

void set_log_label(const std::string& label) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableText>('*').set_pattern("%^%l%$: " + (label.empty() ? "" : label + ": ") + "%*");
  spdlog::set_formatter(std::move(formatter));
}

}  // namespace dsv4rt::cli
