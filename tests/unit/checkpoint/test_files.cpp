#include "unit/checkpoint/test_files.h"

#include <fstream>
#include <iterator>
#include <stdlib.h>
#include <system_error>

#include <gtest/gtest.h>

#include "checkpoint/safetensors_writer.h"

namespace dsv4rt {

TempDirectory::TempDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "dsv4rt-checkpoint-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
  path_ = name;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::system_error(errno, std::generic_category(), path.string());
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string length_field(std::uint64_t length) {
  std::string field;
  for (int i = 0; i < 8; ++i) field += static_cast<char>((length >> (8 * i)) & 0xffu);
  return field;
}

std::string safetensors_bytes(std::string_view json, std::string_view data) {
  return length_field(json.size()).append(json).append(data);
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void write_tensors(const std::filesystem::path& path, const std::vector<TestTensor>& tensors) {
  std::vector<TensorDeclaration> declarations;
  for (const TestTensor& tensor : tensors) declarations.push_back(tensor.declaration);
  auto writer = SafetensorsWriter::create(path, declarations);
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  for (const TestTensor& tensor : tensors) {
    std::string bytes = tensor.bytes;
    if (bytes.empty()) bytes.resize(*tensor_bytes(tensor.declaration.dtype, tensor.declaration.shape));
    const Status status = writer->write(tensor.declaration.name, as_bytes(bytes));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  const Status status = writer->finish();
  ASSERT_TRUE(status.ok()) << status.to_string();
}

std::vector<TestTensor> read_tensors(const Checkpoint& checkpoint) {
  std::vector<TestTensor> out;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto data = tensor.view->data;
    const Status status = checkpoint.read(data);
    EXPECT_TRUE(status.ok()) << status.to_string();
    const auto shape = tensor.view->shape;
    out.push_back({{std::string(tensor.view->name), tensor.view->dtype, {shape.begin(), shape.end()}},
                   {reinterpret_cast<const char*>(data.data()), data.size()}});
  }
  return out;
}

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 192;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.q_lora_rank = 160;
  config.o_lora_rank = 48;
  config.o_groups = 2;
  config.sliding_window = 128;
  config.index_n_heads = 3;
  config.index_topk = 16;
  config.rms_norm_eps = 1e-6;
  config.rope_theta = 1e4;
  config.compress_rope_theta = 1.6e5;
  config.rope_scaling = YarnScaling{16.0, 32.0, 1.0, 65536};
  config.max_position_embeddings = 1048576;
  config.compress_ratios = {0, 4, 128};
  return config;
}

LayerSpec swa_layer(int id) {
  return {LayerId(id), AttentionKind::kSlidingWindow, 0, false, false, RopeChoice::kPlain};
}
LayerSpec csa_layer(int id) {
  return {LayerId(id), AttentionKind::kCompressedSparse, 4, true, true, RopeChoice::kCompressed};
}
LayerSpec hca_layer(int id) {
  return {LayerId(id), AttentionKind::kHeavilyCompressed, 128, false, false, RopeChoice::kCompressed};
}
std::vector<LayerSpec> small_layers() {
  return {swa_layer(0), csa_layer(1), hca_layer(2)};
}

}  // namespace dsv4rt
