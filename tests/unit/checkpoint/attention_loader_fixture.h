// A small synthetic checkpoint whose tensors are changed, renamed and loaded.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/attention_loader.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {

// The tensors of a small synthetic checkpoint, to be changed, renamed and loaded.
class AttentionLoaderTest : public testing::Test {
 protected:
  void start(WeightEncoding encoding, const NamingScheme& scheme = {}) {
    static std::map<WeightEncoding, std::vector<TestTensor>> generated;
    if (!generated.contains(encoding)) {
      const auto source = directory_ / "source";
      ASSERT_TRUE(write_synthetic_checkpoint(source, small_config(), layers_, {encoding, 11, 0}).ok());
      auto checkpoint = Checkpoint::open(source);
      ASSERT_TRUE(checkpoint.ok());
      generated[encoding] = read_tensors(*checkpoint);
    }
    tensors_ = generated[encoding];
    for (const LayerSpec& layer : layers_) {
      const auto from = expected_tensors(small_config(), layer, encoding);
      const auto to = expected_tensors(small_config(), layer, encoding, scheme);
      for (std::size_t i = 0; i < from.size(); ++i) tensor(from[i].name).declaration.name = to[i].name;
    }
  }

  TestTensor& tensor(const std::string& name) {
    const auto found =
        std::find_if(tensors_.begin(), tensors_.end(), [&](const TestTensor& t) { return t.declaration.name == name; });
    if (found == tensors_.end()) throw std::out_of_range(name);
    return *found;
  }

  void remove(const std::string& name) {
    const auto gone = std::erase_if(tensors_, [&](const TestTensor& t) { return t.declaration.name == name; });
    ASSERT_EQ(gone, 1U) << name;
  }

  void replace(const std::string& name, TensorDtype dtype, std::vector<std::int64_t> shape, std::string bytes = {}) {
    tensor(name) = {{name, dtype, std::move(shape)}, std::move(bytes)};
  }

  Result<std::vector<HostAttentionWeights>> load(NonFinite vectors = NonFinite::kRefused) {
    write_tensors(directory_ / "model.safetensors", tensors_);
    auto checkpoint = Checkpoint::open(directory_.path());
    if (!checkpoint) return checkpoint.status();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(*checkpoint));
    return load_attention_weights(*checkpoint_, small_config(), layers_, vectors);
  }

  // Expects exactly one problem line that names `name` and holds the parts.
  void expect_problem(StatusCode code, const std::string& name, const std::vector<std::string>& parts) {
    const auto loaded = load();
    ASSERT_FALSE(loaded.ok());
    const Status status = loaded.status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(": 1 problem with"), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find("\n  " + name + ": found "), std::string::npos) << status.to_string();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << "no '" << part << "' in: " << status.to_string();
    }
  }

  const TempDirectory directory_;
  const std::vector<LayerSpec> layers_ = small_layers();
  std::vector<TestTensor> tensors_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace dsv4rt
