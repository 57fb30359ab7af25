// Any bytes as a request log of any format: refused with a text, or requests within the limits; what was read can be
// written in the native form and reads back the same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "expect.h"
#include "fuzz_input.h"
#include "memory_file.h"
#include "replay/native_log.h"
#include "replay/request_source.h"

namespace {

using namespace dsv4rt;

std::vector<replay::Request> read_all(replay::RequestSource& source, Status& status) {
  std::vector<replay::Request> requests;
  for (;;) {
    auto request = source.next();
    status = request.status();
    if (!request || !*request) return requests;
    fuzz::expect((*request)->input_tokens >= 0 && (*request)->output_tokens >= 0, "a negative length");
    fuzz::expect((*request)->block_ids.empty() || source.info().block_tokens > 0, "ids without a block size");
    requests.push_back(std::move(**request));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::FuzzInput input(data, size);
  const auto flags = input.take<std::uint8_t>();
  replay::RequestLogOptions options;
  options.skip_bad = (flags & 1) != 0;
  options.session_turns = static_cast<replay::SessionTurns>((flags >> 1) % 3);
  if ((flags & 0x80) != 0) options.block_tokens = input.take<std::uint8_t>();
  options.max_line_bytes = (flags & 0x40) != 0 ? 4096 : replay::kMaxLineBytes;

  const fuzz::MemoryFile file(input.rest());
  const auto source = replay::open_request_log(file.path(), options);
  if (!source) {
    fuzz::expect_typed(source.status());
    return 0;
  }
  Status status;
  const std::vector<replay::Request> requests = read_all(**source, status);
  fuzz::expect_typed(status);
  fuzz::expect((*source)->progress().requests >= static_cast<std::int64_t>(requests.size()), "requests are miscounted");
  if (!status.ok()) return 0;
  fuzz::expect((*source)->sha256_hex().size() == 64, "a log that was read has no digest");

  std::string native = replay::native_log_header((*source)->info());
  for (const replay::Request& request : requests) native += replay::native_log_line(request, (*source)->info());
  const fuzz::MemoryFile copy(native);
  const auto again = replay::open_request_log(copy.path(), {});
  if (requests.empty()) return 0;
  fuzz::expect(again.ok(), "the native form is refused: " + again.status().to_string());
  const std::vector<replay::Request> read_back = read_all(**again, status);
  fuzz::expect(status.ok(), "the native form is refused: " + status.to_string());
  fuzz::expect(read_back.size() == requests.size(), "the native form has another number of requests");
  for (std::size_t i = 0; i < requests.size(); ++i) {
    fuzz::expect(read_back[i].input_tokens == requests[i].input_tokens &&
                     read_back[i].output_tokens == requests[i].output_tokens &&
                     read_back[i].block_ids.size() == requests[i].block_ids.size() &&
                     (read_back[i].session < 0) == (requests[i].session < 0),
                 "request " + std::to_string(i) + " is another one in the native form");
  }
  return 0;
}
