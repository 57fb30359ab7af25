#include "checkpoint/safetensors_writer.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_reader.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

namespace fs = std::filesystem;

const std::vector<TensorDeclaration> kTwoTensors = {{"a", TensorDtype::kF32, {2, 3}}, {"b", TensorDtype::kU8, {5}}};

std::span<const std::byte> zeros(std::size_t count) {
  static const std::vector<std::byte> kZeros(64);
  return std::span(kZeros).first(count);
}

TEST(SafetensorsWriterTest, ReaderFindsWhatWasWrittenInPieces) {
  const TempDirectory directory;
  const fs::path path = directory / "out.safetensors";
  auto writer = SafetensorsWriter::create(path,
                                          {{"e", TensorDtype::kI64, {0, 3}},
                                           {"a", TensorDtype::kF32, {2, 3}},
                                           {"b", TensorDtype::kU8, {5}},
                                           {"z", TensorDtype::kBf16, {0}}},
                                          {{"n_prefill", "600"}, {"text", "\xc3\xa4\n\""}});
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  EXPECT_EQ(writer->data_bytes(), 29U);
  const std::string a = "0123456789abcdefghijklmn";
  for (std::size_t i = 0; i < a.size(); i += 5) {
    ASSERT_TRUE(writer->write("a", as_bytes(std::string_view(a).substr(i, 5))).ok());
  }
  ASSERT_TRUE(writer->write("b", {}).ok());
  ASSERT_TRUE(writer->write("b", as_bytes("vwxyz")).ok());
  EXPECT_FALSE(fs::exists(path));
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(writer->finish().code(), StatusCode::kFailedPrecondition);

  constexpr std::string_view kWanted[] = {"n_prefill", "text"};
  const auto reader = SafetensorsReader::open(path, kWanted);
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  for (const TensorView& tensor : reader->tensors()) ASSERT_TRUE(reader->read(tensor.data).ok());
  EXPECT_EQ(reader->path(), path);
  EXPECT_EQ(reader->metadata().at("n_prefill"), "600");
  EXPECT_EQ(reader->metadata().at("text"), "\xc3\xa4\n\"");
  ASSERT_EQ(reader->tensors().size(), 4U);
  const TensorView* view = reader->find("a");
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->dtype, TensorDtype::kF32);
  EXPECT_EQ(std::vector<std::int64_t>(view->shape.begin(), view->shape.end()), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view->data.data()), view->data.size()), a);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view->data.data()) % 8, 0U);
  EXPECT_EQ(std::to_integer<char>(reader->find("b")->data[4]), 'z');
  EXPECT_TRUE(reader->find("e")->data.empty());
  for (const auto& entry : fs::directory_iterator(directory.path())) EXPECT_EQ(entry.path(), path);
}

TEST(SafetensorsWriterTest, UnfinishedFilesDisappear) {
  const TempDirectory directory;
  write_bytes(directory / "out", "old");
  {
    auto writer = SafetensorsWriter::create(directory / "out", kTwoTensors);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write("a", zeros(24)).ok());
    const Status status = writer->finish();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("\"b\" has 0 of 5"), std::string::npos) << status.message();
    EXPECT_EQ(writer->write("b", zeros(5)).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(read_bytes(directory / "out"), "old");
  for (const auto& entry : fs::directory_iterator(directory.path())) EXPECT_EQ(entry.path(), directory / "out");
}

TEST(SafetensorsWriterTest, RefusesBytesThatDoNotFitTheDeclarations) {
  const TempDirectory directory;
  const auto message_of = [&](auto&& use) {
    auto writer = SafetensorsWriter::create(directory / "out", kTwoTensors);
    const Status status = use(*writer);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_EQ(writer->finish().code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(message_of([](auto& w) { return w.write("b", zeros(5)); }).find("\"a\" is next"), std::string::npos);
  EXPECT_NE(message_of([](auto& w) { return w.write("a", zeros(25)); }).find("24 bytes"), std::string::npos);
  EXPECT_NE(message_of([](auto& w) {
              EXPECT_TRUE(w.write("a", zeros(20)).ok());
              return w.write("a", zeros(5));
            }).find("20 are written"),
            std::string::npos);
  EXPECT_NE(message_of([](auto& w) {
              EXPECT_TRUE(w.write("a", zeros(24)).ok());
              EXPECT_TRUE(w.write("b", zeros(5)).ok());
              return w.write("b", zeros(1));
            }).find("after the last"),
            std::string::npos);
}

TEST(SafetensorsWriterTest, RefusesDeclarationsThatNoReaderWouldTake) {
  const TempDirectory directory;
  const auto expect_refused = [&](const std::vector<TensorDeclaration>& tensors, std::string_view part) {
    const auto writer = SafetensorsWriter::create(directory / "out", tensors);
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(writer.status().message().find(part), std::string::npos) << writer.status().message();
  };
  expect_refused({{"a", TensorDtype::kU8, {1}}, {"a", TensorDtype::kU8, {1}}}, "twice");
  expect_refused({{"__metadata__", TensorDtype::kU8, {1}}}, "cannot be named");
  expect_refused({{"a", TensorDtype::kU8, {-1}}}, "overflows");
  expect_refused({{"a", TensorDtype::kF32, {std::int64_t{1} << 62}}}, "overflows");
  expect_refused({{"a", TensorDtype::kU8, {INT64_MAX}},
                  {"b", TensorDtype::kU8, {INT64_MAX}},
                  {"c", TensorDtype::kU8, {INT64_MAX}}},
                 "overflows");
  expect_refused({{"a", TensorDtype::kF4, {3}}}, "whole bytes");
  expect_refused({{"a", TensorDtype::kU8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}}, "8 dimensions");
  expect_refused({{"a\xff", TensorDtype::kU8, {1}}}, "UTF-8");
  expect_refused({{std::string(kMaxTensorNameBytes + 1, 'n'), TensorDtype::kU8, {1}}}, "at most 1024");
  expect_refused({{std::string(100'000'001, 'n'), TensorDtype::kU8, {1}}}, "100000000");
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(SafetensorsWriterTest, FileSystemFailuresAreTyped) {
  const TempDirectory directory;
  EXPECT_EQ(SafetensorsWriter::create(directory / "gone/out", kTwoTensors).status().code(), StatusCode::kNotFound);
  fs::create_directory(directory / "taken");
  EXPECT_EQ(SafetensorsWriter::create(directory / "taken", kTwoTensors).status().code(), StatusCode::kInvalidArgument);
  // The name became that of a directory meanwhile: the finished file cannot replace it.
  auto writer = SafetensorsWriter::create(directory / "out", {});
  ASSERT_TRUE(writer.ok());
  fs::create_directories(directory / "out/below");
  const Status status = writer->finish();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
  EXPECT_NE(status.message().find("is a directory"), std::string::npos) << status.message();
}

// A limit on the file size stands for a full disk: write() fails in the same way, part of it done.
TEST(SafetensorsWriterTest, AFullDiskIsAFailedWrite) {
  const TempDirectory directory;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Status data_status;
  Status header_status;
  Status text_status;
  {
    auto writer = SafetensorsWriter::create(directory / "out", {{"a", TensorDtype::kU8, {100'000}}});
    ASSERT_TRUE(writer.ok());
    data_status = writer->write("a", std::vector<std::byte>(100'000));
    EXPECT_EQ(writer->finish().code(), data_status.code());
    std::vector<TensorDeclaration> many;
    for (char c = 'a'; c < 'k'; ++c) many.push_back({std::string(1000, c), TensorDtype::kU8, {1}});
    header_status = SafetensorsWriter::create(directory / "big", many).status();
    text_status = write_text_file(directory / "text", std::string(9000, 'n'));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  for (const Status& status : {data_status, header_status, text_status}) {
    EXPECT_EQ(status.code(), StatusCode::kFaulted) << status.to_string();
    EXPECT_NE(status.message().find(directory.path().string()), std::string::npos) << status.to_string();
  }
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

}  // namespace
}  // namespace dsv4rt
