// Checkpoints that differ from a SyntheticModel in a few bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "support/synthetic_model.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt::test {

struct TensorChange {
  std::string tensor;
  std::size_t byte = 0;  // where the new bytes begin in the tensor
  std::string bytes;
};

// A copy of the model's checkpoint in `directory`, with one change.
inline void write_changed(const SyntheticModel& model, const TensorChange& change,
                          const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  std::filesystem::copy_file(model.directory() / "config.json", directory / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const auto checkpoint = Checkpoint::open(model.directory());
  ASSERT_OK(checkpoint);
  std::vector<TestTensor> tensors = read_tensors(*checkpoint);
  bool found = false;
  for (TestTensor& tensor : tensors) {
    if (tensor.declaration.name != change.tensor) continue;
    tensor.bytes.replace(change.byte, change.bytes.size(), change.bytes);
    found = true;
  }
  if (!found) throw std::out_of_range(change.tensor);
  write_tensors(directory / "model.safetensors", tensors);
}

}  // namespace dsv4rt::test
