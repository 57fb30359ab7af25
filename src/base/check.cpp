#include "base/check.h"

namespace dsv4rt {

void fail_check(const char* condition, const char* file, int line) {
  throw CheckFailure(std::string("check failed: ") + condition + " at " + file + ":" + std::to_string(line));
}

}  // namespace dsv4rt
