#include "checkpoint/safetensors_writer.h"

#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/arithmetic.h"
#include "base/message_text.h"
#include "checkpoint/safetensors_header.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kDataAlignmentBytes = 8;

std::string too_long(std::uint64_t header_bytes) {
  return "the header would take " + std::to_string(header_bytes) + " bytes or more; at most " +
         std::to_string(kMaxSafetensorsHeaderBytes) + " are allowed";
}

// The 8-byte length and the JSON, padded by spaces.
Result<std::string> header_bytes(const std::filesystem::path& path, std::span<const TensorDeclaration> tensors,
                                 const std::map<std::string, std::string>& metadata) {
  const auto invalid = [&](const std::string& reason) {
    return Status{StatusCode::kInvalidArgument, shown(path) + ": " + reason};
  };
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::set<std::string_view> names;
  std::uint64_t offset = 0;
  std::uint64_t name_bytes = 0;
  for (const TensorDeclaration& tensor : tensors) {
    name_bytes += tensor.name.size();
    if (name_bytes > kMaxSafetensorsHeaderBytes) return invalid(too_long(name_bytes));
    if (tensor.name == kMetadataKey) return invalid("a tensor cannot be named " + quote(kMetadataKey));
    if (tensor.name.size() > kMaxTensorNameBytes) {
      return invalid("tensor " + quote(tensor.name) + " has a name of " + std::to_string(tensor.name.size()) +
                     " bytes; at most " + std::to_string(kMaxTensorNameBytes) + " are accepted");
    }
    if (!names.insert(tensor.name).second) return invalid("tensor " + quote(tensor.name) + " is declared twice");
    if (tensor.shape.size() > kMaxTensorDims) {
      return invalid("tensor " + quote(tensor.name) + " has more than " + std::to_string(kMaxTensorDims) +
                     " dimensions");
    }
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    const auto end = bytes ? checked_add(offset, *bytes) : std::nullopt;
    if (!end) {
      return invalid("tensor " + quote(tensor.name) + " of shape " + shape_text(tensor.shape) +
                     " overflows or does not fill whole bytes");
    }
    // Appended without a search for the key: names are unique, and files hold many thousands.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        tensor.name,
        nlohmann::ordered_json{
            {"dtype", tensor_dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, *end}}});
    offset = *end;
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::json::type_error&) {
    return invalid("a tensor name or metadata text is not valid UTF-8");
  }
  json.resize(round_up(json.size(), kDataAlignmentBytes), ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes) return invalid(too_long(json.size()));
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) out += static_cast<char>((std::uint64_t{json.size()} >> (8 * i)) & 0xffu);
  return out + json;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::vector<TensorDeclaration> tensors,
                                                    const std::map<std::string, std::string>& metadata,
                                                    Existing existing) {
  const auto header = header_bytes(path, tensors, metadata);
  if (!header) return header.status();
  std::vector<Tensor> sizes;
  sizes.reserve(tensors.size());
  for (TensorDeclaration& tensor : tensors) {
    const std::uint64_t bytes = *tensor_bytes(tensor.dtype, tensor.shape);
    sizes.push_back({std::move(tensor.name), bytes});
  }
  auto file = OutputFile::create(path, existing);
  if (!file) return file.status();
  if (Status status = file->write(header->data(), header->size()); !status.ok()) return status;
  SafetensorsWriter writer(std::move(*file), std::move(sizes));
  writer.skip_complete_tensors();
  return writer;
}

Status SafetensorsWriter::fail(StatusCode code, const std::string& reason) {
  failure_ = {code, shown(file_.path()) + ": " + reason};
  return failure_;
}

void SafetensorsWriter::skip_complete_tensors() {
  while (current_ < tensors_.size() && current_bytes_ == tensors_[current_].bytes) {
    ++current_;
    current_bytes_ = 0;
  }
}

Status SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (!failure_.ok()) return failure_;
  if (bytes.empty()) return {};
  if (current_ == tensors_.size()) {
    return fail(StatusCode::kInvalidArgument, "bytes for tensor " + quote(name) + " after the last declared one");
  }
  const Tensor& tensor = tensors_[current_];
  if (tensor.name != name) {
    return fail(StatusCode::kInvalidArgument,
                "bytes for tensor " + quote(name) + " while " + quote(tensor.name) + " is next in declared order");
  }
  if (bytes.size() > tensor.bytes - current_bytes_) {
    return fail(StatusCode::kInvalidArgument, "tensor " + quote(name) + " is declared with " +
                                                  std::to_string(tensor.bytes) + " bytes; " +
                                                  std::to_string(current_bytes_) + " are written and " +
                                                  std::to_string(bytes.size()) + " more were given");
  }
  failure_ = file_.write(bytes.data(), bytes.size());
  if (!failure_.ok()) return failure_;
  current_bytes_ += bytes.size();
  skip_complete_tensors();
  return {};
}

Status SafetensorsWriter::finish() {
  if (!failure_.ok()) return failure_;
  if (finished_) return fail(StatusCode::kFailedPrecondition, "already finished");
  if (current_ < tensors_.size()) {
    const Tensor& tensor = tensors_[current_];
    return fail(StatusCode::kFailedPrecondition, "tensor " + quote(tensor.name) + " has " +
                                                     std::to_string(current_bytes_) + " of " +
                                                     std::to_string(tensor.bytes) + " bytes");
  }
  finished_ = true;
  return file_.commit();
}

std::uint64_t SafetensorsWriter::data_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const Tensor& tensor : tensors_) sum += tensor.bytes;
  return sum;
}

}  // namespace dsv4rt
