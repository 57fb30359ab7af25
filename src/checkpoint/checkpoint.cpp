#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/input_file.h"
#include "base/message_text.h"
#include "base/system_failure.h"
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
    const std::string* const entry = index.shard_of(name_of(tensor));
    const fs::path shard = tensor.file->path().filename();
    if (entry == nullptr) {
      return {StatusCode::kBadInput, shown(tensor.file->path()) + ": tensor " + quote(name_of(tensor)) +
                                         " is not listed in " + shown(index_path)};
    }
    if (shard != *entry) {
      return {StatusCode::kBadInput, shown(index_path) + ": \"weight_map\" places tensor " + quote(name_of(tensor)) +
                                         " in " + quote(*entry) + ", but " + quote(shard.native()) + " holds it"};
    }
  }
  for (const WeightIndex::Entry& entry : index.entries) {
    if (checkpoint.find(entry.name).view == nullptr) {
      return {StatusCode::kBadInput, shown(index_path) + ": \"weight_map\" places tensor " + quote(entry.name) +
                                         " in " + quote(index.shards[entry.shard]) + ", which does not hold it"};
    }
  }
  return {};
}

// What a directory without the expected names does contain, to point the user at it.
std::string other_weight_files(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") {
      return "; to read " + quote(it->path().filename().native()) + ", give the path of that file";
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
    return Status{StatusCode::kNotFound, shown(path) + ": holds neither " + std::string(kWeightIndexFileName) +
                                             " nor " + std::string(kSingleWeightFileName) + other_weight_files(path)};
  } catch (const std::bad_alloc&) {
    return out_of_memory(path.native(), "opening the checkpoint");
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
  const auto text = read_whole_file(index_path, kMaxWeightIndexBytes);
  if (!text) return text.status();
  if (text->empty()) return Status{StatusCode::kBadInput, shown(index_path) + ": is empty (0 bytes)"};
  const auto parsed = parse_weight_index(*text, index_path.native());
  if (!parsed) return parsed.status();
  const WeightIndex& index = *parsed;
  Checkpoint checkpoint(path);
  checkpoint.files_.reserve(index.shards.size());
  std::uint64_t header_bytes = 0;
  std::size_t tensors = 0;
  for (const std::string& shard : index.shards) {
    auto file = SafetensorsReader::open(index_path.parent_path() / shard);
    if (!file) {
      return Status{file.status().code(), file.status().message() + " (a shard named by " + shown(index_path) + ")"};
    }
    // What one file may take is what all of them may take: the number of files is no way around it.
    header_bytes += file->header_bytes();
    tensors += file->tensors().size();
    if (header_bytes > kMaxSafetensorsHeaderBytes || tensors > kMaxTensors) {
      return Status{StatusCode::kBadInput, shown(index_path) + ": the headers of its shards up to " + quote(shard) +
                                               " have " + std::to_string(header_bytes) + " bytes and " +
                                               std::to_string(tensors) + " tensors; at most " +
                                               std::to_string(kMaxSafetensorsHeaderBytes) + " and " +
                                               std::to_string(kMaxTensors) + " are accepted"};
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
  return {StatusCode::kBadInput, shown(path_) + ": tensor " + quote(name_of(*twice)) + " is in both " +
                                     quote(twice->file->path().filename().native()) + " and " +
                                     quote((twice + 1)->file->path().filename().native())};
}

CheckpointTensor Checkpoint::find(std::string_view name) const noexcept {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const CheckpointTensor& tensor, std::string_view key) { return name_of(tensor) < key; });
  return found != tensors_.end() && name_of(*found) == name ? *found : CheckpointTensor{};
}

Status Checkpoint::read(std::span<const std::byte> data) const {
  const auto file = std::find_if(files_.begin(), files_.end(),
                                 [data](const SafetensorsReader& candidate) { return candidate.image().holds(data); });
  return file == files_.end() ? Status{} : file->read(data);
}

void Checkpoint::drop(std::span<const std::byte> data) const noexcept {
  const auto file = std::find_if(files_.begin(), files_.end(),
                                 [data](const SafetensorsReader& candidate) { return candidate.image().holds(data); });
  if (file != files_.end()) file->image().drop(data);
}

}  // namespace dsv4rt
