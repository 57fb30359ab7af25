// Tensors in the caller's memory: what is refused, and that nothing of them is copied.
#include "checkpoint/memory_tensors.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/attention_loader.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

constexpr std::array<std::int64_t, 2> kShape = {2, 3};
alignas(16) constexpr std::array<std::byte, 13> kBytes{};

MemoryTensor six_values(std::string_view name) {
  return {.name = name, .dtype = "BF16", .shape = kShape, .data = std::span(kBytes).first(12)};
}

TEST(MemoryTensorsTest, MoreThanAnyModelHasAreRefused) {
  const std::vector<MemoryTensor> given(kMaxTensors + 1, six_values("a"));
  const Status status = MemoryTensors::create(given).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "tensors: 350001 of them; accepted: up to 350000");
}

TEST(MemoryTensorsTest, AreFoundByNameAtTheirOwnAddress) {
  const std::array<MemoryTensor, 3> given = {six_values("c"), six_values("a"), six_values("b")};
  const auto tensors = MemoryTensors::create(given);
  ASSERT_TRUE(tensors.ok()) << tensors.status().to_string();
  ASSERT_EQ(tensors->tensor_count(), 3U);
  EXPECT_EQ(tensors->tensor(0).name, "a");
  const TensorView* const b = tensors->find_tensor("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->name, "b");
  EXPECT_EQ(b->dtype, TensorDtype::kBf16);
  EXPECT_EQ(b->data.data(), kBytes.data());
  EXPECT_EQ(tensors->find_tensor("d"), nullptr);
  EXPECT_EQ(tensors->find_tensor(""), nullptr);
  EXPECT_EQ(MemoryTensors::create({})->tensor_count(), 0U);
}

// Tensors of a device: what is read is fetched, and nothing else; what is dropped can be read again.
TEST(MemoryTensorsTest, DevicesAreReadAsFarAsTheyAreAsked) {
  constexpr std::size_t kDeviceBytes = 3 * 4096;
  std::vector<std::byte> device(kDeviceBytes);
  for (std::size_t i = 0; i < kDeviceBytes; ++i) device[i] = static_cast<std::byte>(i * 7 % 251);
  constexpr std::array<std::int64_t, 1> kLength = {kDeviceBytes};
  const std::array<MemoryTensor, 3> given = {
      MemoryTensor{.name = "far", .dtype = "U8", .shape = kLength, .data = device, .memory = TensorMemory::kDevice},
      six_values("near"),
      MemoryTensor{
          .name = "farther", .dtype = "U8", .shape = kLength, .data = device, .memory = TensorMemory::kDevice}};
  std::size_t fetched = 0;
  bool broken = false;
  const auto tensors = MemoryTensors::create(given, [&](void* host, const void* from, std::size_t bytes) -> Status {
    if (broken) return {StatusCode::kFaulted, "the device is gone"};
    const auto* const begin = static_cast<const std::byte*>(from);
    EXPECT_TRUE(begin >= device.data() && begin + bytes <= device.data() + device.size());
    std::copy_n(begin, bytes, static_cast<std::byte*>(host));
    fetched += bytes;
    return {};
  });
  ASSERT_TRUE(tensors.ok()) << tensors.status().to_string();
  const std::span<const std::byte> far = tensors->find_tensor("far")->data;
  ASSERT_EQ(far.size(), kDeviceBytes);
  EXPECT_NE(far.data(), device.data());
  EXPECT_EQ(tensors->find_tensor("near")->data.data(), kBytes.data());
  EXPECT_TRUE(tensors->read(tensors->find_tensor("near")->data).ok());
  EXPECT_EQ(fetched, 0U);
  EXPECT_TRUE(tensors->read(far.subspan(5000, 100)).ok());
  EXPECT_EQ(fetched, 100U);
  EXPECT_TRUE(std::equal(far.begin() + 5000, far.begin() + 5100, device.begin() + 5000));
  EXPECT_TRUE(tensors->read(far).ok());
  EXPECT_TRUE(std::equal(far.begin(), far.end(), device.begin(), device.end()));
  tensors->drop(far);
  EXPECT_EQ(far[100], std::byte{0}) << "its memory was given back";
  EXPECT_TRUE(tensors->read(far.first(101)).ok());
  EXPECT_EQ(far[100], device[100]);
  broken = true;
  EXPECT_EQ(tensors->read(far).code(), StatusCode::kFaulted);
}

TEST(MemoryTensorsTest, WhatNoTensorIsIsRefused) {
  const std::string long_name(kMaxTensorNameBytes + 1, 'n');
  const std::array<std::int64_t, kMaxTensorDims + 1> many{};
  constexpr std::array<std::int64_t, 2> kNegative = {-2, 3};
  constexpr std::array<std::int64_t, 2> kHuge = {INT64_MAX, 3};
  struct Case {
    std::function<void(MemoryTensor&)> change;
    StatusCode code;
    std::string_view part;
  };
  const auto invalid = StatusCode::kInvalidArgument;
  const std::vector<Case> cases = {
      {[](auto& t) { t.name = ""; }, invalid, "a name of 0 bytes"},
      {[&](auto& t) { t.name = long_name; }, invalid, "a name of 1025 bytes"},
      {[](auto& t) { t.dtype = "bfloat16"; }, invalid, "dtype \"bfloat16\"; accepted: "},
      {[&](auto& t) { t.shape = many; }, invalid, "9 dimensions; accepted: up to 8"},
      {[&](auto& t) { t.shape = kNegative; }, invalid, "there is no tensor BF16 [-2, 3]"},
      {[&](auto& t) { t.shape = kHuge; }, invalid, "there is no tensor BF16 [9223372036854775807, 3]"},
      {[](auto& t) { t.data = std::span(kBytes).first(11); }, invalid, "11 bytes; BF16 [2, 3] has 12"},
      {[](auto& t) { t.data = kBytes; }, invalid, "13 bytes; BF16 [2, 3] has 12"},
      {[](auto& t) {
         t.data = {static_cast<const std::byte*>(nullptr), 12};
       },
       invalid, "its data is null"},
      {[](auto& t) { t.memory = TensorMemory::kDevice; }, StatusCode::kUnsupported, "is in device memory"},
      {[](auto& t) { t.memory = TensorMemory{7}; }, invalid, "memory 7; accepted: 0 (host), 1 (device)"},
      {[](auto& t) { t.name = "a"; }, invalid, "\"a\" is given twice"},
  };
  for (const Case& c : cases) {
    std::array<MemoryTensor, 2> given = {six_values("a"), six_values("b\n")};
    ASSERT_TRUE(MemoryTensors::create(given).ok());
    c.change(given[1]);
    const Status status = MemoryTensors::create(given).status();
    EXPECT_EQ(status.code(), c.code) << c.part;
    EXPECT_NE(status.message().find(c.part), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

// At any address, so also where matrices of BF16 have to be copied.
TEST(MemoryTensorsTest, LoadAsTheFilesDo) {
  const TempDirectory directory;
  const std::vector<LayerSpec> layers = small_layers();
  for (const WeightEncoding encoding : {WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4}) {
    const auto path = directory / std::to_string(static_cast<int>(encoding));
    ASSERT_TRUE(write_synthetic_checkpoint(path, small_config(), layers, {encoding, 11, 0}).ok());
    const auto files = Checkpoint::open(path);
    ASSERT_TRUE(files.ok());
    std::vector<TestTensor> copies = read_tensors(*files);
    const auto from_files = load_attention_weights(*files, small_config(), layers);
    ASSERT_TRUE(from_files.ok()) << from_files.status().to_string();
    std::vector<MemoryTensor> given;
    for (TestTensor& copy : copies) {
      copy.bytes.insert(0, 1, '\0');  // no address is a multiple of 2
      given.push_back({.name = copy.declaration.name,
                       .dtype = tensor_dtype_name(copy.declaration.dtype),
                       .shape = copy.declaration.shape,
                       .data = as_bytes(copy.bytes).subspan(1)});
    }
    const auto tensors = MemoryTensors::create(given);
    ASSERT_TRUE(tensors.ok()) << tensors.status().to_string();
    const auto loaded = load_attention_weights(*tensors, small_config(), layers);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const HostLinear& expected = (*from_files)[i].wq_b;
      const HostLinear& actual = (*loaded)[i].wq_b;
      EXPECT_TRUE(std::ranges::equal(expected.weight, actual.weight));
      EXPECT_TRUE(std::ranges::equal(expected.scale, actual.scale));
      EXPECT_FALSE(actual.weight.empty());
    }
    given.pop_back();
    const auto fewer = MemoryTensors::create(given);
    ASSERT_TRUE(fewer.ok());
    const Status missing = load_attention_weights(*fewer, small_config(), layers).status();
    EXPECT_EQ(missing.code(), StatusCode::kNotFound);
    EXPECT_EQ(missing.message().find("tensors in memory: 1 problem with"), 0U) << missing.message();
  }
}

}  // namespace
}  // namespace dsv4rt
