// Runs the tests of a program on every rank. Rank 0 prints as usual, the others what fails. What a test expects of all
// ranks it has to ask them: each rank's process ends with the result of its own expectations.
#include <cstdio>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "mpi/mpi_ranks.h"

namespace dsv4rt::test {
namespace {

class FailuresOfRank final : public testing::EmptyTestEventListener {
 public:
  explicit FailuresOfRank(int rank) : rank_(rank) {}
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const char* file = result.file_name();
    std::fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank_, file == nullptr ? "?" : file, result.line_number(),
                 test_.c_str(), result.message());
  }

 private:
  int rank_;
  std::string test_;  // GoogleTest holds its lock while it reports, and may not be asked
};

MpiSession session;

}  // namespace

MpiSession& mpi_session() {
  return session;
}

}  // namespace dsv4rt::test

int main(int argc, char** argv) {
  using namespace dsv4rt;
  testing::InitGoogleTest(&argc, argv);
  auto started = MpiSession::start();
  if (!started) {
    std::fprintf(stderr, "%s\n", started.status().to_string().c_str());
    return 1;
  }
  test::mpi_session() = std::move(started).value();
  if (const int rank = test::mpi_session().rank(); rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new test::FailuresOfRank(rank));
  }
  const int result = RUN_ALL_TESTS();
  test::mpi_session() = MpiSession();  // finalises
  return result;
}
