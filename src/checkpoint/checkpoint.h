// A model's weight files as one set of named tensors.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_reader.h"
#include "checkpoint/tensor_source.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// A tensor and the file that holds it.
struct CheckpointTensor {
  const TensorView* view = nullptr;
  const SafetensorsReader* file = nullptr;
};

// Opening reads the header of every file; the data of a view is read by read(), before which it must not be touched, so
// tensors nobody asks for cost neither I/O nor memory. Views and pointers live as long as this object, across moves.
// All members but open are const and may be called from several threads.
class Checkpoint final : public TensorSource {
 public:
  // `path` is a directory with `model.safetensors.index.json` (which wins) or `model.safetensors`; or
  // an index file (*.json); or one safetensors file of any name.
  // Errors: kNotFound for a missing path, missing weights or a missing shard; kBadInput for a malformed
  // file, a shard name that is not a plain file name, a tensor that occurs in two shards, one that the
  // index places in a shard that lacks it, one that the index does not list, and shards whose headers
  // together are beyond what one file's may be.
  static Result<Checkpoint> open(const std::filesystem::path& path);

  // The path given to open.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  // Ascending by name.
  [[nodiscard]] std::span<const CheckpointTensor> tensors() const noexcept { return tensors_; }
  // {nullptr, nullptr} when there is no such tensor.
  [[nodiscard]] CheckpointTensor find(std::string_view name) const noexcept;
  // Errors: those of FileImage::read.
  [[nodiscard]] Status read(std::span<const std::byte> data) const override;
  void drop(std::span<const std::byte> data) const noexcept override;
  [[nodiscard]] std::string_view source_name() const noexcept override { return path_.native(); }
  [[nodiscard]] std::size_t tensor_count() const noexcept override { return tensors_.size(); }
  [[nodiscard]] const TensorView& tensor(std::size_t index) const noexcept override { return *tensors_[index].view; }

  // The files, ascending by name.
  [[nodiscard]] std::span<const SafetensorsReader> files() const noexcept { return files_; }

 private:
  explicit Checkpoint(std::filesystem::path path) : path_(std::move(path)) {}
  static Result<Checkpoint> open_index(const std::filesystem::path& path, const std::filesystem::path& index_path);
  static Result<Checkpoint> open_file(const std::filesystem::path& path, const std::filesystem::path& file_path);
  Status collect_tensors();

  std::filesystem::path path_;
  std::vector<SafetensorsReader> files_;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace dsv4rt
