#include "provenance.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <span>
#include <thread>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_devices.h"
#endif
#include "base/input_file.h"
#include "base/sha256.h"
#include "base/try.h"
#include "build_commit.h"
#include "build_settings.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_index.h"
#include "command.h"
#include "dsv4rt/version.h"

namespace dsv4rt::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kReadBytes = std::size_t{1} << 20;

Status digest_file(const InputFile& file, Sha256& digest) {
  std::vector<std::byte> part(static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, file.bytes())));
  for (std::uint64_t at = 0; at < file.bytes(); at += part.size()) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), file.bytes() - at));
    DSV4RT_RETURN_IF_ERROR(file.read(at, part.data(), bytes));
    digest.update(std::span(part).first(bytes));
  }
  return {};
}

void digest_text(const std::string& text, Sha256& digest) {
  digest.update(std::as_bytes(std::span(text)));
}

void digest_name(const std::filesystem::path& path, std::uint64_t bytes, Sha256& digest) {
  digest_text(path.filename().native() + '\0' + std::to_string(bytes) + '\n', digest);
}

}  // namespace

std::string build_commit() {
  return *kBuildCommit == '\0' ? "unknown" : kBuildCommit;
}

std::string processor_name() {
#if defined(__x86_64__)
  // The brand string: 48 bytes in the registers of three leaves, padded with NULs and spaces.
  std::array<unsigned, 12> words{};
  bool known = true;
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* const part = words.data() + std::size_t{4} * leaf;
    known = known && __get_cpuid(0x80000002U + leaf, part, part + 1, part + 2, part + 3) != 0;
  }
  std::array<char, sizeof(words)> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  std::string name(text.data(), strnlen(text.data(), text.size()));
  name.erase(0, name.find_first_not_of(' '));
  name.erase(name.find_last_not_of(' ') + 1);
  if (known && !name.empty()) return name;
#endif
  return "unknown processor";
}

std::string nvidia_driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version;
}

Status Provenance::add_file(const std::filesystem::path& path) {
  DSV4RT_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
  Sha256 digest;
  DSV4RT_RETURN_IF_ERROR(digest_file(file, digest));
  add_digested(path.native(), digest.hex(), file.bytes());
  return {};
}

Status Provenance::add_checkpoint(const std::filesystem::path& directory) {
  std::uint64_t bytes = 0;
  Sha256 digest;
  const auto add_whole = [&](const std::filesystem::path& path) -> Status {
    DSV4RT_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path));
    bytes += file.bytes();
    digest_name(path, file.bytes(), digest);
    return digest_file(file, digest);
  };
  DSV4RT_RETURN_IF_ERROR(add_whole(directory / "config.json"));
  DSV4RT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(directory));
  std::error_code ignored;
  const std::filesystem::path index = directory / kWeightIndexFileName;
  if (std::filesystem::exists(index, ignored)) DSV4RT_RETURN_IF_ERROR(add_whole(index));
  for (const SafetensorsReader& file : checkpoint.files()) {
    const std::span<const std::byte> image = file.image().bytes();
    bytes += image.size();
    digest_name(file.path(), image.size(), digest);
    const auto head = image.first(kSafetensorsLengthBytes + static_cast<std::size_t>(file.header_bytes()));
    DSV4RT_RETURN_IF_ERROR(file.read(head));
    digest.update(head);
  }
  inputs_.push_back({{"path", directory.native()}, {"headers_sha256", digest.hex()}, {"bytes", bytes}});
  return {};
}

void Provenance::add_digested(const std::string& path, std::optional<std::string> sha256,
                              std::optional<std::uint64_t> bytes) {
  inputs_.push_back(
      {{"path", path}, {"sha256", sha256 ? Json(*sha256) : Json()}, {"bytes", bytes ? Json(*bytes) : Json()}});
}

void Provenance::set_device(const EngineOptions& options) {
#if defined(DSV4RT_HAVE_CUDA)
  if (options.backend != "cuda") return;
  const CudaSystem system = inspect_cuda();
  const auto index = static_cast<std::size_t>(options.device);
  const std::string name = index < system.devices.size() ? system.devices[index].name : "unknown GPU";
  gpu_ = {{"name", name}, {"driver", nvidia_driver_version()}, {"cuda", system.driver_version}};
#else
  static_cast<void>(options);
#endif
}

Json Provenance::json() const {
  const BuildInfo build = build_info();
  return {
      {"version", build.version},
      {"commit", build_commit()},
      {"build",
       {{"type", kBuildType}, {"compiler", build.compiler}, {"flags", kBuildFlags}, {"backends", build.backends}}},
      {"cpu", {{"name", processor_name()}, {"isa", build.cpu_isa}, {"threads", std::thread::hardware_concurrency()}}},
      {"gpu", gpu_},
      {"argv", command_arguments()},
      {"inputs", inputs_}};
}

}  // namespace dsv4rt::cli
