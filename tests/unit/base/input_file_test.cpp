#include "base/input_file.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "support/expect_ok.h"
#include "support/temp_directory.h"

namespace dsv4rt {
namespace {

using test::fails_with;

TEST(InputFile, IsReadWholeUpToTheBound) {
  const test::TempDirectory folder;
  std::ofstream(folder / "text", std::ios::binary) << "12345";
  const auto text = read_whole_file(folder / "text", 5);
  ASSERT_OK(text);
  EXPECT_EQ(*text, "12345");
  EXPECT_TRUE(fails_with(read_whole_file(folder / "text", 4), StatusCode::kBadInput,
                         {"text: file has 5 bytes; at most 4 are accepted"}));
}

TEST(InputFile, WhatIsNoFileIsNamed) {
  const test::TempDirectory folder;
  EXPECT_TRUE(fails_with(InputFile::open(folder / "none"), StatusCode::kNotFound, {"none", "open"}));
  EXPECT_TRUE(fails_with(InputFile::open(folder.path()), StatusCode::kBadInput, {"is a directory, not a file"}));
  EXPECT_TRUE(fails_with(InputFile::open("/dev/null"), StatusCode::kBadInput, {"/dev/null: is not a regular file"}));
}

TEST(InputFile, AFileThatEndsTooEarlyIsNamedWithThePlace) {
  const test::TempDirectory folder;
  std::ofstream(folder / "text", std::ios::binary) << "12345";
  const auto file = InputFile::open(folder / "text");
  ASSERT_OK(file);
  std::string bytes(4, ' ');
  EXPECT_TRUE(fails_with(file->read(3, bytes.data(), bytes.size()), StatusCode::kBadInput,
                         {"text: ends at byte 5, but had 5 bytes when it was opened"}));
}

// The memory of this process: a regular file whose first page is not there to be read.
TEST(InputFile, AReadThatFailsIsAStatus) {
  const auto file = InputFile::open("/proc/self/mem");
  ASSERT_OK(file);
  char byte = 0;
  EXPECT_TRUE(fails_with(file->read(0, &byte, 1), StatusCode::kBadInput, {"/proc/self/mem", "read"}));
}

}  // namespace
}  // namespace dsv4rt
