// Runs a test of the same program in a process of its own: for what would spoil this one.
#pragma once

#include <array>
#include <climits>
#include <cstdio>
#include <string>
#include <unistd.h>

#include <sys/wait.h>

namespace dsv4rt::test {

struct ChildResult {
  int exit_code = -1;
  std::string output;  // stdout and stderr
};

// Set in a child: gpu_main.cpp then starts without looking for a device.
inline constexpr const char* kChildVariable = "DSV4RT_TEST_CHILD";

// `test` is the full name of one test of this program, DISABLED_ prefix included; `environment` are
// assignments as env(1) takes them.
inline ChildResult run_in_child(const std::string& test, const std::string& environment = {}) {
  std::array<char, PATH_MAX> path{};
  if (::readlink("/proc/self/exe", path.data(), path.size() - 1) < 0) return {};
  const std::string command = "env " + std::string(kChildVariable) + "=1 " + environment + " '" + path.data() +
                              "' --gtest_also_run_disabled_tests --gtest_filter=" + test + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  ChildResult result;
  std::array<char, 4096> buffer{};
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), bytes);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace dsv4rt::test
