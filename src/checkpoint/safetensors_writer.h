// Writes a safetensors file as a stream: the tensors are declared first, then their bytes follow in
// the declared order, in pieces of any size. Memory does not grow with the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/output_file.h"
#include "checkpoint/tensor_declaration.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// The file appears under its name only after finish(); see OutputFile for that and for I/O errors.
class SafetensorsWriter {
 public:
  // Tensor data starts at a multiple of 8 bytes; tensors follow one another without padding, so
  // callers that want aligned tensors declare wide elements first. Errors: kInvalidArgument for a
  // duplicate, reserved or non-UTF-8 name, a shape that overflows, or a header beyond the format's
  // limit; those of OutputFile.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                                          const std::map<std::string, std::string>& metadata = {},
                                          Existing existing = Existing::kReplace);

  // The next bytes of tensor `name`, which must be the first one not yet complete. kInvalidArgument
  // when it is another tensor's turn or the bytes are too many; those of OutputFile. After an error
  // the writer only fails.
  [[nodiscard]] Status write(std::string_view name, std::span<const std::byte> bytes);

  // kFailedPrecondition when a tensor lacks bytes or the writer has finished before.
  [[nodiscard]] Status finish();

  // Bytes of all tensors, headers not counted.
  [[nodiscard]] std::uint64_t data_bytes() const noexcept;

 private:
  struct Tensor {
    std::string name;
    std::uint64_t bytes = 0;
  };

  SafetensorsWriter(OutputFile file, std::vector<Tensor> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}
  Status fail(StatusCode code, const std::string& reason);
  void skip_complete_tensors();

  OutputFile file_;
  std::vector<Tensor> tensors_;
  std::size_t current_ = 0;          // tensor being written; tensors_.size() when all are complete
  std::uint64_t current_bytes_ = 0;  // bytes of that tensor written so far
  bool finished_ = false;
  Status failure_;
};

}  // namespace dsv4rt
