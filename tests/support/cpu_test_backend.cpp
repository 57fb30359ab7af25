// The backend of test programs that say nothing else.
#include "support/test_backend.h"

namespace dsv4rt::test {

constinit const std::string_view kTestBackend = "cpu";

Result<std::unique_ptr<Backend>> create_test_backend() {
  return create_cpu_test_backend({.threads = 1, .max_isa = {}, .on_warning = {}});
}

void settle_test_stream(void*) {}

}  // namespace dsv4rt::test
