// An engine from tensors that lie on the device is the one of the directory that holds the same.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "backend/cuda/cuda_backend.h"
#include "checkpoint/checkpoint.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class DeviceTensors : public testing::Test {
 protected:
  DeviceTensors()
      : golden_(GoldenCase::open("tiny-fp8")),
        checkpoint_(Checkpoint::open(golden_.checkpoint).value()),
        keeper_(create_cuda_backend({.device = 0}).value()) {
    std::ifstream file(golden_.checkpoint / "config.json");
    std::ostringstream text;
    text << file.rdbuf();
    config_ = text.str();
    for (std::size_t i = 0; i < checkpoint_.tensor_count(); ++i) {
      const TensorView& view = checkpoint_.tensor(i);
      EXPECT_OK(checkpoint_.read(view.data));
      Buffer& copy = device_.emplace_back(keeper_->allocate(view.data.size(), view.name).value());
      EXPECT_OK(keeper_->upload(copy.data(), view.data.data(), view.data.size()));
      given_.push_back({.name = view.name,
                        .dtype = tensor_dtype_name(view.dtype),
                        .shape = view.shape,
                        .data = {copy.data(), view.data.size()},
                        .memory = TensorMemory::kDevice});
    }
    EXPECT_OK(keeper_->synchronize());
  }
  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.backend = "cuda";
    options.checkpoint.clear();
    return options;
  }
  Result<std::unique_ptr<Engine>> create(const EngineOptions& options) const {
    return Engine::create(options, {.config_json = config_, .tensors = given_});
  }

  const GoldenCase golden_;
  Checkpoint checkpoint_;
  std::unique_ptr<Backend> keeper_;
  std::string config_;
  std::vector<Buffer> device_;
  std::vector<MemoryTensor> given_;
};

TEST_F(DeviceTensors, ComputeWhatFilesDo) {
  auto from_device = create(options());
  ASSERT_OK(from_device);
  // Nothing refers to them any more.
  device_.clear();
  EngineOptions files = options();
  files.checkpoint = golden_.checkpoint;
  const auto from_files = make_engine(files);
  std::vector<std::vector<std::byte>> saved;
  for (Engine* const engine : {from_device->get(), from_files.get()}) {
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, 140, 50);
    saved.push_back(engine->save_sequence(sequence.id).value());
  }
  EXPECT_EQ(saved[0], saved[1]);
}

TEST_F(DeviceTensors, WhereATensorIsHasToBeSaid) {
  given_[1].memory = TensorMemory::kHost;
  EXPECT_TRUE(fails_with(create(options()), StatusCode::kInvalidArgument,
                         {given_[1].name, "is said to be in host memory and is not"}));
  given_[1].memory = TensorMemory::kDevice;
  given_[1].data = checkpoint_.tensor(1).data;
  EXPECT_TRUE(fails_with(create(options()), StatusCode::kInvalidArgument,
                         {given_[1].name, "is said to be in device memory and is not"}));
  given_[1].memory = TensorMemory::kHost;
  EXPECT_OK(create(options())) << "each is where it is";
  EngineOptions cpu = options();
  cpu.backend = "cpu";
  EXPECT_TRUE(fails_with(create(cpu), StatusCode::kUnsupported, {"is in device memory", "backend cpu"}));
}

}  // namespace
}  // namespace dsv4rt::test
