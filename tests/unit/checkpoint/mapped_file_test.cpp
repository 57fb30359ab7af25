#include "checkpoint/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sys/resource.h>
#include <utility>

#include "checkpoint/output_file.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

void expect_failure(const std::filesystem::path& path, StatusCode code, std::string_view part) {
  const auto file = MappedFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), code) << file.status().to_string();
  EXPECT_NE(file.status().message().find(path.string()), std::string::npos) << file.status().to_string();
  EXPECT_NE(file.status().message().find(part), std::string::npos) << file.status().to_string();
}

TEST(MappedFileTest, MapsTheWholeFileAndMoves) {
  const TempDirectory directory;
  write_bytes(directory / "f", "hello");
  auto file = MappedFile::open(directory / "f");
  ASSERT_TRUE(file.ok());
  const std::byte* const address = file->bytes().data();
  MappedFile moved(std::move(*file));
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_EQ(moved.bytes().size(), 5U);
  EXPECT_EQ(std::to_integer<char>(moved.bytes()[4]), 'o');
  EXPECT_TRUE(file->bytes().empty());
  MappedFile assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.bytes().data(), address);
}

TEST(MappedFileTest, RefusesWhatIsNoRegularFile) {
  const TempDirectory directory;
  expect_failure(directory / "missing", StatusCode::kNotFound, "cannot open");
  expect_failure(directory.path(), StatusCode::kBadInput, "directory");
  write_bytes(directory / "empty", "");
  expect_failure(directory / "empty", StatusCode::kBadInput, "empty");
  expect_failure(directory / "empty/below", StatusCode::kNotFound, "cannot open");
  // Nobody writes to the pipe: opening it must not wait.
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  expect_failure(directory / "pipe", StatusCode::kBadInput, "not a regular file");
  expect_failure("/dev/null", StatusCode::kBadInput, "not a regular file");
  std::filesystem::create_symlink("loop_b", directory / "loop_a");
  std::filesystem::create_symlink("loop_a", directory / "loop_b");
  expect_failure(directory / "loop_a", StatusCode::kBadInput, "cannot open");
}

TEST(MappedFileTest, DescriptorTableFullIsResourceExhausted) {
  const TempDirectory directory;
  write_bytes(directory / "f", "hello");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status read = MappedFile::open(directory / "f").status();
  const Status write = OutputFile::create(directory / "g").status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(read.code(), StatusCode::kResourceExhausted) << read.to_string();
  EXPECT_EQ(write.code(), StatusCode::kResourceExhausted) << write.to_string();
}

}  // namespace
}  // namespace dsv4rt
