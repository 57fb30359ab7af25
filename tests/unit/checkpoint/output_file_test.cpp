#include "checkpoint/output_file.h"

#include <csignal>
#include <fcntl.h>
#include <future>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

namespace fs = std::filesystem;

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

TEST(OutputFileTest, FailsForGoodAfterAnError) {
  const TempDirectory directory;
  std::signal(SIGXFSZ, SIG_IGN);
  auto file = OutputFile::create(directory / "out");
  ASSERT_TRUE(file.ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const Status first = file->write("x", 1);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(first.code(), StatusCode::kFaulted);
  EXPECT_EQ(file->write("x", 1).message(), first.message());
  EXPECT_EQ(file->commit().message(), first.message());
  EXPECT_EQ(write_text_file(directory / "gone/out", "x").code(), StatusCode::kNotFound);
}

TEST(OutputFileTest, ReplacesOnlyRegularFiles) {
  const TempDirectory directory;
  write_bytes(directory / "old", "old");
  fs::create_symlink("old", directory / "link");
  fs::create_symlink("nowhere", directory / "dangling");
  fs::create_symlink("/dev/null", directory / "device");
  for (const fs::path& path : {directory / "link", directory / "dangling", directory / "device", fs::path("/dev/null"),
                               directory.path(), directory / "folder/"}) {
    for (const Existing existing : {Existing::kReplace, Existing::kRefuse}) {
      const Status status = write_text_file(path, "new", existing);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << path << status.to_string();
      EXPECT_EQ(check_output_path(path, existing).message(), status.message());
    }
  }
  EXPECT_EQ(read_bytes(directory / "old"), "old");
  EXPECT_FALSE(fs::exists(directory / "nowhere"));
  EXPECT_EQ(entries(directory.path()), 4U);
}

TEST(OutputFileTest, AnExistingFileIsReplacedOnlyWhereAsked) {
  const TempDirectory directory;
  const fs::path path = directory / "out";
  ASSERT_TRUE(write_text_file(path, "first", Existing::kRefuse).ok());
  const Status refused = write_text_file(path, "second", Existing::kRefuse);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("already exists"), std::string::npos);
  EXPECT_EQ(read_bytes(path), "first");
  ASSERT_TRUE(write_text_file(path, "third", Existing::kReplace).ok());
  EXPECT_EQ(read_bytes(path), "third");
}

TEST(OutputFileTest, AFileThatAppearsMeanwhileIsNotReplacedUnasked) {
  const TempDirectory directory;
  auto file = OutputFile::create(directory / "out", Existing::kRefuse);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->write("mine", 4).ok());
  write_bytes(directory / "out", "theirs");
  EXPECT_EQ(file->commit().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(read_bytes(directory / "out"), "theirs");
}

TEST(OutputFileTest, ANamedPipeGetsTheBytes) {
  const TempDirectory directory;
  const fs::path pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto reader = std::async(std::launch::async, [&] { return read_bytes(pipe); });
  const Status status = write_text_file(pipe, "through the pipe", Existing::kRefuse);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(reader.get(), "through the pipe");
  EXPECT_TRUE(fs::is_fifo(pipe));
}

// What is there is always one writer's file, whole.
TEST(OutputFileTest, WritersOfOnePathDoNotMix) {
  const TempDirectory directory;
  const fs::path path = directory / "out";
  std::vector<std::thread> writers;
  for (const char c : {'a', 'b', 'c', 'd'}) {
    writers.emplace_back([&, c] {
      for (int i = 0; i < 5; ++i) {
        auto file = OutputFile::create(path);
        for (int piece = 0; piece < 20; ++piece) EXPECT_TRUE(file->write(std::string(1000, c).data(), 1000).ok());
        EXPECT_TRUE(file->commit().ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = read_bytes(path);
  EXPECT_EQ(text, std::string(20'000, text[0]));
  EXPECT_EQ(entries(directory.path()), 1U);
}

TEST(OutputFileTest, AnEndingProcessRemovesWhatItHasNotFinished) {
  const TempDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGTERM, [](int) {
      remove_unfinished_outputs();
      ::_exit(7);
    });
    auto finished = OutputFile::create(directory / "finished");
    if (!finished || !finished->commit().ok()) ::_exit(1);
    auto first = OutputFile::create(directory / "first");
    auto second = OutputFile::create(directory / "second");
    if (!first || !second || !first->write("x", 1).ok() || entries(directory.path()) != 3) ::_exit(2);
    std::raise(SIGTERM);
    ::_exit(3);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_EQ(WEXITSTATUS(state), 7);
  EXPECT_EQ(entries(directory.path()), 1U);
  EXPECT_TRUE(fs::exists(directory / "finished"));
}

TEST(OutputFileTest, TooManyAtOnceAreRefused) {
  const TempDirectory directory;
  std::vector<OutputFile> files;
  Status status;
  while (status.ok() && files.size() < 1000) {
    auto file = OutputFile::create(directory / std::to_string(files.size()));
    status = file.status();
    if (file) files.push_back(std::move(*file));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(files.size(), 64U);
  files.clear();
  EXPECT_TRUE(fs::is_empty(directory.path()));
  EXPECT_TRUE(write_text_file(directory / "again", "x").ok());
}

}  // namespace
}  // namespace dsv4rt
