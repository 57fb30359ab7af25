#include "checkpoint/file_image.h"

#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoint/attention_loader.h"
#include "checkpoint/output_file.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

void expect_failure(const std::filesystem::path& path, StatusCode code, std::string_view part) {
  const auto file = FileImage::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), code) << file.status().to_string();
  EXPECT_NE(file.status().message().find(path.string()), std::string::npos) << file.status().to_string();
  EXPECT_NE(file.status().message().find(part), std::string::npos) << file.status().to_string();
}

TEST(FileImageTest, ReadsPartsAndMoves) {
  const TempDirectory directory;
  write_bytes(directory / "f", "hello");
  auto file = FileImage::open(directory / "f");
  ASSERT_TRUE(file.ok());
  const std::byte* const address = file->bytes().data();
  const FileImage moved(std::move(*file));
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_EQ(moved.bytes().size(), 5U);
  EXPECT_TRUE(file->bytes().empty());
  EXPECT_TRUE(moved.holds(moved.bytes().subspan(5)));
  EXPECT_FALSE(moved.holds({address, 6}));
  ASSERT_TRUE(moved.read(moved.bytes().subspan(3, 2)).ok());
  EXPECT_EQ(std::to_integer<char>(moved.bytes()[4]), 'o');
  ASSERT_TRUE(moved.read(moved.bytes().subspan(0, 3)).ok());
  EXPECT_EQ(std::to_integer<char>(moved.bytes()[0]), 'h');
  EXPECT_EQ(std::to_integer<char>(moved.bytes()[3]), 'l');
  FileImage assigned;
  assigned = *FileImage::open(directory / "f");
  ASSERT_TRUE(assigned.read(assigned.bytes()).ok());
  EXPECT_EQ(std::to_integer<char>(assigned.bytes()[4]), 'o');
}

TEST(FileImageTest, DropGivesWholePagesBackAndKeepsTheRest) {
  const TempDirectory directory;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::string text(4 * page, 'x');
  text.replace(page - 1, 1, "a").replace(3 * page, 1, "b");
  write_bytes(directory / "f", text);
  const auto file = FileImage::open(directory / "f");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->read(file->bytes()).ok());
  const auto resident = [&] {
    unsigned char pages[4] = {};
    EXPECT_EQ(::mincore(const_cast<std::byte*>(file->bytes().data()), 4 * page, pages), 0);
    return std::string(1, static_cast<char>('0' + (pages[0] & 1))) + static_cast<char>('0' + (pages[1] & 1)) +
           static_cast<char>('0' + (pages[2] & 1)) + static_cast<char>('0' + (pages[3] & 1));
  };
  EXPECT_EQ(resident(), "1111");
  file->drop(file->bytes().subspan(page - 1, 2 * page + 2));
  EXPECT_EQ(resident(), "1001");
  EXPECT_EQ(std::to_integer<char>(file->bytes()[page - 1]), 'a');
  EXPECT_EQ(std::to_integer<char>(file->bytes()[3 * page]), 'b');
  ASSERT_TRUE(file->read(file->bytes()).ok());
  EXPECT_EQ(std::to_integer<char>(file->bytes()[2 * page]), 'x');
}

TEST(FileImageTest, RefusesWhatIsNoRegularFile) {
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

TEST(FileImageTest, DescriptorTableFullIsResourceExhausted) {
  const TempDirectory directory;
  write_bytes(directory / "f", "hello");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status read = FileImage::open(directory / "f").status();
  const Status write = OutputFile::create(directory / "g").status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(read.code(), StatusCode::kResourceExhausted) << read.to_string();
  EXPECT_EQ(write.code(), StatusCode::kResourceExhausted) << write.to_string();
}

// What a map of the file would answer with SIGBUS.
class ShrinkingFileTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(write_synthetic_checkpoint(directory_.path(), small_config(), small_layers(), {}).ok());
  }
  [[nodiscard]] std::filesystem::path weights() const { return directory_ / "model.safetensors"; }
  static void expect_changed(const Status& status, std::string_view part) {
    EXPECT_EQ(status.code(), StatusCode::kBadInput) << status.to_string();
    EXPECT_NE(status.message().find("model.safetensors: "), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  }

  TempDirectory directory_;
};

TEST_F(ShrinkingFileTest, BetweenHeaderAndDataIsAStatus) {
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::resize_file(weights(), std::filesystem::file_size(weights()) / 2);
  expect_changed(load_attention_weights(*checkpoint, small_config(), small_layers()).status(), "has changed");
}

TEST_F(ShrinkingFileTest, AfterItWasReadChangesNothing) {
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto layers = load_attention_weights(*checkpoint, small_config(), small_layers());
  ASSERT_TRUE(layers.ok());
  std::filesystem::resize_file(weights(), 0);
  unsigned sum = 0;
  for (const std::byte byte : layers->front().wq_b.weight) sum += std::to_integer<unsigned>(byte);
  EXPECT_GT(sum, 0U);
}

TEST_F(ShrinkingFileTest, AnotherFileOfTheNameIsAStatus) {
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::copy_file(weights(), directory_ / "other");
  std::filesystem::rename(directory_ / "other", weights());
  expect_changed(load_attention_weights(*checkpoint, small_config(), small_layers()).status(), "in another file");
}

// The file has its length when it is opened and less when it is read.
TEST_F(ShrinkingFileTest, WithinAReadIsAStatus) {
  const auto file = InputFile::open(weights());
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(weights(), 100);
  std::string bytes(200, '\0');
  EXPECT_TRUE(file->read(0, bytes.data(), 100).ok());
  expect_changed(file->read(0, bytes.data(), 200), "ends at byte 100");
}

}  // namespace
}  // namespace dsv4rt
