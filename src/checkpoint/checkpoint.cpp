#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <new>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "base/message_text.h"
#include "checkpoint/weight_index.h"

namespace dsv4rt {
namespace {

namespace fs = std::filesystem;

std::string_view name_of(const CheckpointTensor& tensor) {
  return tensor.view->name;
}

// Every tensor lies where the index says, and the index knows every tensor.
Status check_against_index(const WeightIndex& index, const fs::path& index_path, const Checkpoint& checkpoint) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto entry = index.shard_of.find(name_of(tensor));
    const std::string shard = tensor.file->path().filename().string();
    if (entry == index.shard_of.end()) {
      return {StatusCode::kBadInput, tensor.file->path().string() + ": tensor " + quote(name_of(tensor)) +
                                         " is not listed in " + index_path.string()};
    }
    if (entry->second != shard) {
      return {StatusCode::kBadInput, index_path.string() + ": \"weight_map\" places tensor " + quote(name_of(tensor)) +
                                         " in " + quote(entry->second) + ", but " + quote(shard) + " holds it"};
    }
  }
  for (const auto& [name, shard] : index.shard_of) {
    if (checkpoint.find(name).view == nullptr) {
      return {StatusCode::kBadInput, index_path.string() + ": \"weight_map\" places tensor " + quote(name) + " in " +
                                         quote(shard) + ", which does not hold it"};
    }
  }
  return {};
}

// What a directory without the expected names does contain, to point the user at it.
std::string other_weight_files(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") {
      return "; to read " + quote(it->path().filename().string()) + ", give the path of that file";
    }
  }
  return "";
}

bool entry_exists(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found && !error;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& path) {
  try {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      return path.extension() == ".json" ? open_index(path, path) : open_file(path, path);
    }
    if (entry_exists(path / kWeightIndexFileName)) return open_index(path, path / kWeightIndexFileName);
    if (entry_exists(path / kSingleWeightFileName)) return open_file(path, path / kSingleWeightFileName);
    return Status{StatusCode::kNotFound, path.string() + ": holds neither " + std::string(kWeightIndexFileName) +
                                             " nor " + std::string(kSingleWeightFileName) + other_weight_files(path)};
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::kResourceExhausted, path.string() + ": out of memory while opening the checkpoint"};
  }
}

Result<Checkpoint> Checkpoint::open_file(const fs::path& path, const fs::path& file_path) {
  auto file = SafetensorsReader::open(file_path);
  if (!file) return file.status();
  Checkpoint checkpoint(path);
  checkpoint.files_.push_back(std::move(*file));
  if (Status status = checkpoint.collect_tensors(); !status.ok()) return status;
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_index(const fs::path& path, const fs::path& index_path) {
  WeightIndex index;
  {
    const auto file = MappedFile::open(index_path);
    if (!file) return file.status();
    const auto bytes = file->bytes();
    auto parsed = parse_weight_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index_path.string());
    if (!parsed) return parsed.status();
    index = std::move(*parsed);
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : index.shard_of) shards.insert(shard);
  Checkpoint checkpoint(path);
  checkpoint.files_.reserve(shards.size());
  for (const std::string& shard : shards) {
    auto file = SafetensorsReader::open(index_path.parent_path() / shard);
    if (!file) {
      return Status{file.status().code(), file.status().message() + " (a shard named by " + index_path.string() + ")"};
    }
    checkpoint.files_.push_back(std::move(*file));
  }
  if (Status status = checkpoint.collect_tensors(); !status.ok()) return status;
  if (Status status = check_against_index(index, index_path, checkpoint); !status.ok()) return status;
  return checkpoint;
}

Status Checkpoint::collect_tensors() {
  for (const SafetensorsReader& file : files_) {
    for (const TensorView& view : file.tensors()) tensors_.push_back({&view, &file});
  }
  // Files lie in files_ by name, so that of two with the same tensor the message names the first one first.
  const auto by_name = [](const CheckpointTensor& a, const CheckpointTensor& b) {
    return std::pair(name_of(a), a.file) < std::pair(name_of(b), b.file);
  };
  std::sort(tensors_.begin(), tensors_.end(), by_name);
  const auto same_name = [](const CheckpointTensor& a, const CheckpointTensor& b) { return name_of(a) == name_of(b); };
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(), same_name);
  if (twice == tensors_.end()) return {};
  return {StatusCode::kBadInput, path_.string() + ": tensor " + quote(name_of(*twice)) + " is in both " +
                                     quote(twice->file->path().filename().string()) + " and " +
                                     quote((twice + 1)->file->path().filename().string())};
}

CheckpointTensor Checkpoint::find(std::string_view name) const noexcept {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CheckpointTensor& tensor, std::string_view key) { return name_of(tensor) < key; });
  return found != tensors_.end() && name_of(*found) == name ? *found : CheckpointTensor{};
}

}  // namespace dsv4rt
