// What cannot work on this GPU is refused before anything runs, and what broke stays broken: a device
// fault latches. (The children are processes of their own: a fault ends a CUDA context for good.)
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "backend/cuda/cuda_devices.h"
#include "gpu/support/child_process.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt::test {
namespace {

EngineOptions cuda_options() {
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.backend = "cuda";
  options.limits = {.max_sequences = 2, .max_context_tokens = 300, .max_step_tokens = 200, .pool_tokens = 0};
  return options;
}

void expect_serves(const EngineOptions& options) {
  const auto engine = make_engine(options);
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(random_rows(1, 3, 150, engine->config().hidden_size));
  feeder.feed_to(sequence, 150, 60);
}

TEST(EngineErrorsGpu, PlanLargerThanTheDevice) {
  EngineOptions large = cuda_options();
  large.csa_rows_per_block = 4096;
  large.limits.max_sequences = 1;
  large.limits.max_context_tokens = 1000000;
  large.limits.pool_tokens = std::int64_t{1} << 33;  // terabytes of rows
  EXPECT_TRUE(fails_with(Engine::create(large), StatusCode::kResourceExhausted,
                         {"CSA_KV blocks of layer 1", "B of device memory", "are free"}));
  large.memory_limit_bytes = std::int64_t{64} << 30;
  EXPECT_TRUE(fails_with(Engine::create(large), StatusCode::kResourceExhausted, {"exceeds the limit", "CSA_KV"}));
  expect_serves(cuda_options());  // nothing was kept
}

TEST(EngineErrorsGpu, PoolTooSmallChangesNothing) {
  EngineOptions options = cuda_options();
  options.csa_rows_per_block = 32;
  options.hca_rows_per_block = 2;
  options.limits.pool_tokens = 300;
  const auto engine = make_engine(options);
  EXPECT_OK(engine->can_admit(300));
  SequenceFeeder feeder(*engine);
  FedSequence first = feeder.create(random_rows(1, 3, 300, engine->config().hidden_size));
  feeder.feed_to(first, 290, 145);
  EXPECT_TRUE(fails_with(engine->can_admit(300), StatusCode::kResourceExhausted, {"KV"}));
  FedSequence second = feeder.create(random_rows(2, 3, 300, engine->config().hidden_size));
  feeder.feed(second, 100);
  EXPECT_FALSE(HasFatalFailure());
  const StepEntry entry{second.id, 200};
  EXPECT_TRUE(fails_with(engine->prepare({&entry, 1}), StatusCode::kResourceExhausted, {"KV"}));
  EXPECT_EQ(engine->length(second.id).value(), 100);
  const auto digests = feeder.digests(first);
  feeder.feed(second, 1);
  EXPECT_EQ(feeder.digests(first), digests);
  feeder.feed_to(first, 300, 5);
}

// A caller's slip is refused before it reaches the device, and latches nothing.
TEST(EngineErrorsGpu, RowsThatTheDeviceCannotReadAreRefused) {
  const auto engine = make_engine(cuda_options());
  const StepEntry entry{engine->create_sequence().value(), 2};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  Bf16Bits* x = engine->input();
  Bf16Bits* out = x + 8 * engine->config().hidden_size;
  for (const std::ptrdiff_t offset : {1, 2, 4}) {
    EXPECT_TRUE(fails_with(engine->forward_layer(*step, LayerId(0), x + offset, out), StatusCode::kInvalidArgument,
                           {"x lies", "16"}));
    EXPECT_TRUE(fails_with(engine->forward_layer(*step, LayerId(0), x, out + offset), StatusCode::kInvalidArgument,
                           {"out lies", "16"}));
  }
  EXPECT_TRUE(
      fails_with(engine->forward_layer(*step, LayerId(0), nullptr, out), StatusCode::kInvalidArgument, {"null"}));
  std::vector<Bf16Bits> rows(static_cast<std::size_t>(2 * engine->config().hidden_size));
  EXPECT_TRUE(fails_with(engine->forward_layer_from_host(*step, LayerId(0), nullptr, rows.data()),
                         StatusCode::kInvalidArgument, {"x is null"}));
  EXPECT_TRUE(fails_with(engine->forward_layer_from_host(*step, LayerId(0), rows.data(), nullptr),
                         StatusCode::kInvalidArgument, {"out is null"}));
  Step altered = *step;
  altered.tokens = 1 << 24;
  EXPECT_TRUE(fails_with(engine->forward_layer_from_host(altered, LayerId(0), rows.data(), rows.data()),
                         StatusCode::kInvalidArgument, {"prepare gave 2"}));
  for (const LayerId layer : engine->layers()) EXPECT_OK(engine->forward_layer(*step, layer, x, out));
  EXPECT_OK(engine->synchronize());
  EXPECT_OK(engine->commit(*step));
}

TEST(EngineErrorsGpu, DevicesThatDoNotExist) {
  for (const std::int32_t device : {-1, 99}) {
    EngineOptions options = cuda_options();
    options.device = device;
    EXPECT_TRUE(fails_with(Engine::create(options), StatusCode::kInvalidArgument,
                           {"device " + std::to_string(device), "0 to"}));
  }
}

TEST(EngineErrorsGpu, HeadCountsWithoutAKernel) {
  for (const std::int64_t heads : {6, 12, 136}) {
    const SyntheticModel model{.config = "tiny", .first_layer = 0, .layer_count = 1, .heads = 8};
    const TempDirectory directory;
    std::filesystem::copy(model.directory(), directory.path());
    ModelConfig config = ModelConfig::from_file(directory / "config.json").value();
    config.num_attention_heads = heads;
    std::ofstream(directory / "config.json") << config_json(config, model.encoding);
    EngineOptions options = cuda_options();
    options.checkpoint = directory.path();
    EXPECT_TRUE(fails_with(Engine::create(options), StatusCode::kUnsupported,
                           {"num_attention_heads = " + std::to_string(heads), "8 to 128"}));
  }
}

// Devices older or newer than the kernels; only the decision can be tested on one machine.
TEST(EngineErrorsGpu, ComputeCapabilities) {
  EXPECT_TRUE(fails_with(check_compute_capability("NVIDIA A100", 8, 0), StatusCode::kUnsupported,
                         {"NVIDIA A100", "8.0", "9.0 or later"}));
  EXPECT_OK(check_compute_capability("NVIDIA H200", 9, 0));
  EXPECT_OK(check_compute_capability("NVIDIA B200", 10, 0));
  const CudaSystem system = inspect_cuda();
  ASSERT_OK(system.devices_found);
  ASSERT_FALSE(system.devices.empty());
  EXPECT_OK(system.devices[0].usable);
  EXPECT_GT(system.devices[0].memory_bytes, 0);
  EXPECT_FALSE(system.architectures.empty());
  EXPECT_EQ(system.cublaslt_version.empty(), !system.cublaslt_found.ok());
  EXPECT_EQ(system.devices[0].has_nvfp4_products, system.cublaslt_found.ok() && system.devices[0].compute_major == 10);
}

TEST(EngineErrorsGpu, FaultLatches) {
  const ChildResult child = run_in_child("DISABLED_ChildOfEngineErrorsGpu.PoisonedBlockTable");
  EXPECT_EQ(child.exit_code, 0) << child.output;
  EXPECT_NE(child.output.find("[  PASSED  ] 1 test"), std::string::npos) << child.output;
}

TEST(EngineErrorsGpu, MachineWithoutAGpu) {
  const ChildResult child = run_in_child("DISABLED_ChildOfEngineErrorsGpu.NoDevice", "CUDA_VISIBLE_DEVICES=");
  // The message is not repeated here: ctest takes it for a reason to skip.
  EXPECT_EQ(child.exit_code, 0);
  EXPECT_NE(child.output.find("[  PASSED  ] 1 test"), std::string::npos);
}

TEST(DISABLED_ChildOfEngineErrorsGpu, NoDevice) {
  EXPECT_TRUE(
      fails_with(Engine::create(cuda_options()), StatusCode::kUnsupported, {"no usable CUDA device", "cpu backend"}));
  // The CPU serves.
  EngineOptions cpu = cuda_options();
  cpu.backend = "cpu";
  expect_serves(cpu);
}

// A block table that points outside of every allocation.
TEST(DISABLED_ChildOfEngineErrorsGpu, PoisonedBlockTable) {
  const auto engine = make_engine(cuda_options());
  SequenceFeeder feeder(*engine);
  const std::int64_t hidden = engine->config().hidden_size;
  FedSequence sequence = feeder.create(random_rows(1, 3, 300, hidden));
  feeder.feed_to(sequence, 150);
  const SequenceId other = engine->create_sequence().value();
  EngineEditor editor(*engine);
  ASSERT_OK(editor.write_table_entry(LayerId(1), CacheRole::kCsaKv, sequence.id, 0, 1 << 22));  // 150 GB on

  const StepEntry entry{sequence.id, 1};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  std::vector<Bf16Bits> x(static_cast<std::size_t>(hidden), to_bf16(0.25F).bits);
  std::vector<Bf16Bits> out(x.size());
  const Status fault = engine->forward_layer_from_host(*step, LayerId(1), x.data(), out.data());
  ASSERT_EQ(fault.code(), StatusCode::kFaulted) << fault.to_string();
  EXPECT_NE(fault.message().find("cuda"), std::string::npos) << fault.message();   // the call that failed
  EXPECT_NE(fault.message().find(".cpp:"), std::string::npos) << fault.message();  // the place of that call

  const auto is_the_fault = [&](const Status& status) {
    return status.code() == fault.code() && status.message() == fault.message();
  };
  EXPECT_TRUE(is_the_fault(engine->create_sequence().status()));
  EXPECT_TRUE(is_the_fault(engine->fork(other).status()));
  EXPECT_TRUE(is_the_fault(engine->truncate(other, 0)));
  EXPECT_TRUE(is_the_fault(engine->save_sequence(other).status()));
  EXPECT_TRUE(is_the_fault(engine->restore_sequence({}).status()));
  EXPECT_TRUE(is_the_fault(engine->can_admit(1)));
  EXPECT_TRUE(is_the_fault(engine->prepare({&entry, 1}).status()));
  EXPECT_TRUE(is_the_fault(engine->forward_layer(*step, LayerId(0), x.data(), out.data())));
  EXPECT_TRUE(is_the_fault(engine->forward_layer_from_host(*step, LayerId(0), x.data(), out.data())));
  EXPECT_TRUE(is_the_fault(engine->step(*step, x.data(), [](const LayerOutput&) { return Status{}; })));
  EXPECT_TRUE(is_the_fault(engine->commit(*step)));
  EXPECT_TRUE(is_the_fault(engine->cancel(*step).status()));
  EXPECT_TRUE(is_the_fault(engine->synchronize()));
  // Others in the process find the device broken too; they say so instead of computing nonsense.
  EXPECT_EQ(Engine::create(cuda_options()).status().code(), StatusCode::kFaulted);
}

}  // namespace
}  // namespace dsv4rt::test
