// Engines from tensors in memory, through the C interface.
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "unit/capi/c_api_test.h"

namespace dsv4rt {
namespace {

class CApiTensorsTest : public CApiTest {
 protected:
  CApiTensorsTest() {
    config_ = read_bytes(std::filesystem::path(checkpoint()) / "config.json");
    copies_ = read_tensors(Checkpoint::open(checkpoint()).value());
    for (const TestTensor& copy : copies_) {
      dtypes_.emplace_back(tensor_dtype_name(copy.declaration.dtype));
    }
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const TensorDeclaration& declared = copies_[i].declaration;
      tensors_.push_back({.struct_size = sizeof(dsv4rt_tensor),
                          .name = declared.name.c_str(),
                          .dtype = dtypes_[i].c_str(),
                          .shape = declared.shape.data(),
                          .dimensions = declared.shape.size(),
                          .data = copies_[i].bytes.data(),
                          .bytes = copies_[i].bytes.size(),
                          .memory = DSV4RT_TENSOR_ON_HOST});
    }
  }

  // The status; the text goes to message_.
  dsv4rt_status create(const dsv4rt_engine_options* given, const char* config, const dsv4rt_tensor* tensors,
                       std::size_t count) {
    dsv4rt_engine* engine = nullptr;
    char message[1024] = "";
    const dsv4rt_status status =
        dsv4rt_engine_create_from_tensors(given, config, tensors, count, &engine, message, sizeof(message));
    message_ = message;
    engine_.reset(engine);
    EXPECT_EQ(status == DSV4RT_OK, engine != nullptr);
    return status;
  }

  std::string config_;
  std::vector<TestTensor> copies_;
  std::vector<std::string> dtypes_;
  std::vector<dsv4rt_tensor> tensors_;
  std::string message_;
  EngineHandle engine_;
};

std::vector<dsv4rt_bf16> first_layer_output(dsv4rt_engine* engine, std::int64_t hidden) {
  dsv4rt_sequence sequence{};
  EXPECT_EQ(dsv4rt_sequence_create(engine, 0, &sequence), DSV4RT_OK);
  const dsv4rt_step_entry entry{sequence, 20};
  dsv4rt_step step{};
  EXPECT_EQ(dsv4rt_step_prepare(engine, &entry, 1, nullptr, &step), DSV4RT_OK);
  const auto x = input_rows(0, 0, 20, hidden);
  std::vector<dsv4rt_bf16> out(x.size());
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, 0, x.data(), out.data()), DSV4RT_OK);
  return out;
}

TEST_F(CApiTensorsTest, GiveTheEngineOfTheDirectory) {
  const dsv4rt_engine_options given = options(nullptr);
  ASSERT_EQ(create(&given, config_.c_str(), tensors_.data(), tensors_.size()), DSV4RT_OK) << message_;
  EXPECT_EQ(message_, "");
  const EngineHandle from_files = open();
  const auto expected = first_layer_output(from_files.get(), hidden_);
  EXPECT_EQ(first_layer_output(engine_.get(), hidden_), expected);
  EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](dsv4rt_bf16 bits) { return bits != 0; }));
}

// As a program built against a later header gives them: longer elements, whose further bytes are 0.
TEST_F(CApiTensorsTest, ElementsMayBeLongerThanTheLibraryKnows) {
  constexpr std::size_t kStride = sizeof(dsv4rt_tensor) + 8;
  std::vector<std::uint64_t> storage(tensors_.size() * kStride / sizeof(std::uint64_t));
  auto* const bytes = reinterpret_cast<std::byte*>(storage.data());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].struct_size = kStride;
    std::memcpy(bytes + i * kStride, &tensors_[i], sizeof(dsv4rt_tensor));
  }
  const dsv4rt_engine_options given = options(nullptr);
  const auto* const longer = reinterpret_cast<const dsv4rt_tensor*>(storage.data());
  ASSERT_EQ(create(&given, config_.c_str(), longer, tensors_.size()), DSV4RT_OK) << message_;
  storage[kStride / sizeof(std::uint64_t) * 2 - 1] = 1;  // in the second element
  EXPECT_EQ(create(&given, config_.c_str(), longer, tensors_.size()), DSV4RT_UNSUPPORTED);
  EXPECT_NE(message_.find("dsv4rt_tensor: a field after byte 64"), std::string::npos) << message_;
}

TEST_F(CApiTensorsTest, WrongCallsAreRefused) {
  const dsv4rt_engine_options given = options(nullptr);
  const char* const config = config_.c_str();
  const dsv4rt_tensor* const tensors = tensors_.data();
  const std::size_t count = tensors_.size();
  EXPECT_EQ(create(nullptr, config, tensors, count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(message_.find("options must not be null"), std::string::npos) << message_;
  EXPECT_EQ(create(&given, nullptr, tensors, count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(message_.find("config_json must not be null"), std::string::npos) << message_;
  EXPECT_EQ(create(&given, config, nullptr, count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(message_.find("tensors must not be null"), std::string::npos) << message_;
  EXPECT_EQ(create(&given, config, nullptr, 0), DSV4RT_NOT_FOUND);
  EXPECT_EQ(create(&given, config, tensors, SIZE_MAX), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(create(&given, "[", tensors, count), DSV4RT_BAD_INPUT);
  const std::string path = checkpoint();
  const dsv4rt_engine_options with_directory = options(path.c_str());
  EXPECT_EQ(create(&with_directory, config, tensors, count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(message_.find("checkpoint: "), std::string::npos) << message_;
  EXPECT_EQ(dsv4rt_engine_create_from_tensors(&given, config, tensors, count, nullptr, nullptr, 0),
            DSV4RT_INVALID_ARGUMENT);
  dsv4rt_engine* engine = nullptr;
  EXPECT_EQ(dsv4rt_engine_create_from_tensors(&given, config, tensors, count, &engine, nullptr, 4),
            DSV4RT_INVALID_ARGUMENT);
  char message[200] = "";
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(std::string(message).find("a directory is required"), std::string::npos) << message;
}

TEST_F(CApiTensorsTest, WrongTensorsAreNamed) {
  struct Case {
    std::function<void(dsv4rt_tensor&)> change;
    dsv4rt_status status;
    const char* part;
  };
  const Case cases[] = {
      {[](auto& t) { t.struct_size = 0; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].struct_size: 0"},
      {[](auto& t) { t.struct_size = 72; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].struct_size: 72"},
      {[](auto& t) { t.name = nullptr; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].name: null"},
      {[](auto& t) { t.dtype = nullptr; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].dtype: null"},
      {[](auto& t) { t.dtype = "bf16"; }, DSV4RT_INVALID_ARGUMENT, "\"bf16\"; accepted: "},
      {[](auto& t) { t.shape = nullptr; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].shape: null"},
      {[](auto& t) { t.dimensions = 9; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].dimensions: 9"},
      {[](auto& t) { t.data = nullptr; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].data: null"},
      {[](auto& t) { --t.bytes; }, DSV4RT_INVALID_ARGUMENT, "bytes; "},
      {[](auto& t) { t.memory = 2; }, DSV4RT_INVALID_ARGUMENT, "tensors[1].memory: 2"},
      {[](auto& t) { t.memory = DSV4RT_TENSOR_ON_DEVICE; }, DSV4RT_UNSUPPORTED, "device memory"},
  };
  const dsv4rt_engine_options given = options(nullptr);
  for (const Case& c : cases) {
    std::vector<dsv4rt_tensor> changed = tensors_;
    c.change(changed[1]);
    EXPECT_EQ(create(&given, config_.c_str(), changed.data(), changed.size()), c.status) << c.part;
    EXPECT_NE(message_.find(c.part), std::string::npos) << message_;
  }
  std::vector<dsv4rt_tensor> first = tensors_;
  first[0].struct_size = 8;
  EXPECT_EQ(create(&given, config_.c_str(), first.data(), first.size()), DSV4RT_INVALID_ARGUMENT);
  EXPECT_NE(message_.find("dsv4rt_tensor.struct_size: 8"), std::string::npos) << message_;
}

}  // namespace
}  // namespace dsv4rt
