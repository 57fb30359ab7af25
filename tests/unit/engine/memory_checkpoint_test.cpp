// An engine from tensors in memory is the one of the directory that holds the same.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt::test {
namespace {

class MemoryCheckpointTest : public testing::Test {
 protected:
  MemoryCheckpointTest() : golden_(GoldenCase::open("tiny-fp8")) {
    std::ifstream file(golden_.checkpoint / "config.json");
    std::ostringstream text;
    text << file.rdbuf();
    config_ = text.str();
    tensors_ = read_tensors(Checkpoint::open(golden_.checkpoint).value());
    for (const TestTensor& tensor : tensors_) {
      given_.push_back({.name = tensor.declaration.name,
                        .dtype = tensor_dtype_name(tensor.declaration.dtype),
                        .shape = tensor.declaration.shape,
                        .data = as_bytes(tensor.bytes)});
    }
  }

  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.checkpoint.clear();
    return options;
  }
  [[nodiscard]] MemoryCheckpoint checkpoint() const { return {.config_json = config_, .tensors = given_}; }

  const GoldenCase golden_;
  std::string config_;
  std::vector<TestTensor> tensors_;
  std::vector<MemoryTensor> given_;
};

TEST_F(MemoryCheckpointTest, ComputesTheSameBytesAndReadsTheOthersSnapshots) {
  auto created = Engine::create(options(), checkpoint());
  ASSERT_OK(created);
  // Nothing may refer to what was given.
  for (TestTensor& tensor : tensors_) tensor.bytes.assign(tensor.bytes.size(), '\xff');
  config_.assign(config_.size(), ' ');
  Engine& from_memory = **created;
  const auto from_files = make_engine(golden_.options());
  EXPECT_EQ(from_memory.memory().total_bytes, from_files->memory().total_bytes);

  std::vector<LayerRows> outputs;
  std::vector<std::byte> snapshot;
  for (Engine* const engine : {&from_memory, from_files.get()}) {
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, 40);
    outputs.push_back(sequence.outputs);
    snapshot = engine->save_sequence(sequence.id).value();
    EXPECT_OK(engine->release(sequence.id));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_OK(from_memory.restore_sequence(snapshot));
}

TEST_F(MemoryCheckpointTest, RefusesWhatIsNoCheckpoint) {
  const auto refused = [&](const MemoryCheckpoint& given, StatusCode code,
                           std::initializer_list<std::string_view> parts) {
    return fails_with(Engine::create(options(), given), code, parts);
  };
  EXPECT_TRUE(refused({.config_json = "", .tensors = given_}, StatusCode::kBadInput, {"config_json"}));
  EXPECT_TRUE(refused({.config_json = "{}", .tensors = given_}, StatusCode::kBadInput, {"config_json"}));
  EXPECT_TRUE(refused({.config_json = config_, .tensors = {}}, StatusCode::kNotFound, {"tensors in memory: no "}));
  EngineOptions both = options();
  both.checkpoint = golden_.checkpoint;
  EXPECT_TRUE(fails_with(Engine::create(both, checkpoint()), StatusCode::kInvalidArgument, {"checkpoint: ", "place"}));
  EXPECT_TRUE(fails_with(Engine::create(options()), StatusCode::kInvalidArgument, {"checkpoint: empty"}));
  given_.back().memory = TensorMemory::kDevice;
  EXPECT_TRUE(refused(checkpoint(), StatusCode::kUnsupported, {given_.back().name, "device memory"}));
  given_.pop_back();
  EXPECT_TRUE(refused(checkpoint(), StatusCode::kNotFound, {"tensors in memory: 1 problem", "found nothing"}));
}

}  // namespace
}  // namespace dsv4rt::test
