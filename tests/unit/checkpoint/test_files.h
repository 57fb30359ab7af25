// Files, configs and tensors that the checkpoint tests share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_declaration.h"
#include "dsv4rt/model.h"

namespace dsv4rt {

// A fresh directory, removed with its contents at the end.
class TempDirectory {
 public:
  TempDirectory();
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_bytes(const std::filesystem::path& path, std::string_view bytes);
std::string read_bytes(const std::filesystem::path& path);

// Length field, JSON and data, exactly as given.
std::string safetensors_bytes(std::string_view json, std::string_view data);
std::string length_field(std::uint64_t length);

std::span<const std::byte> as_bytes(std::string_view text);

// A file with the given tensors; `fill` sets every byte.
struct TestTensor {
  TensorDeclaration declaration;
  std::string bytes;  // empty: zeros
};
void write_tensors(const std::filesystem::path& path, const std::vector<TestTensor>& tensors);
// All tensors of a checkpoint as TestTensors, to be changed and written again.
std::vector<TestTensor> read_tensors(const Checkpoint& checkpoint);

// Three layers, one of each kind (SWA, CSA, HCA), small but with every shape distinct: d 192, 4 heads,
// q_lora 160, 2 groups of 48, 3 index heads.
ModelConfig small_config();
LayerSpec swa_layer(int id);
LayerSpec csa_layer(int id);
LayerSpec hca_layer(int id);
std::vector<LayerSpec> small_layers();

}  // namespace dsv4rt
