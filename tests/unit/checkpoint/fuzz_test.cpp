// Seeded byte mutations of valid files: whatever a mutant is, reading it never crashes, never reads
// outside its bytes and never yields a view outside them.
#include <cstring>
#include <random>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/weight_index.h"
#include "unit/checkpoint/allocation_meter.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kPageBytes = 4096;

// Places bytes so that they end where an inaccessible page begins: reading one too many faults.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t capacity_bytes)
      : page_bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        usable_bytes_((capacity_bytes + page_bytes_ - 1) / page_bytes_ * page_bytes_) {
    void* const address =
        ::mmap(nullptr, usable_bytes_ + page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(address);
    if (::mprotect(base_ + usable_bytes_, page_bytes_, PROT_NONE) != 0) throw std::bad_alloc();
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  ~GuardedBuffer() { ::munmap(base_, usable_bytes_ + page_bytes_); }

  std::string_view place(const std::string& bytes) {
    char* const begin = base_ + usable_bytes_ - bytes.size();
    std::memcpy(begin, bytes.data(), bytes.size());
    return {begin, bytes.size()};
  }

 private:
  std::size_t page_bytes_;
  std::size_t usable_bytes_;
  char* base_ = nullptr;
};

// One to four edits: a changed, inserted or removed byte, a copied run, a cut, or a changed length.
std::string mutate(std::string bytes, std::mt19937_64& random) {
  constexpr std::string_view kTokens[] = {"{", "}", "[", "]", ",", ":", "\"", "\\", "-", "0", "9", "1e", ".", "null"};
  const auto below = [&random](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  for (std::size_t edits = 1 + below(4); edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, 1 + below(8));
        break;
      case 3:
        bytes.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 4:
        bytes.insert(below(bytes.size()), bytes.substr(at, below(64)));
        break;
      case 5:
        bytes.resize(at);
        break;
      default:
        bytes[below(std::min<std::size_t>(8, bytes.size()))] = static_cast<char>(random());
        break;
    }
  }
  bytes.resize(std::min(bytes.size(), kPageBytes));
  return bytes;
}

std::string valid_file() {
  return safetensors_bytes(R"({"__metadata__":{"format":"pt","n":"3"},)"
                           R"("layers.0.attn.attn_sink":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                           R"("layers.0.attn.q_norm.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},)"
                           R"("layers.0.attn.wq_a.weight":{"dtype":"F8_E4M3","shape":[4,4],"data_offsets":[28,44]},)"
                           R"("layers.0.attn.wq_a.scale":{"dtype":"F8_E8M0","shape":[1,1],"data_offsets":[44,45]},)"
                           R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[45,46]},)"
                           R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[46,46]}}  )",
                           "0123456789012345678901234567890123456789012345");
}

// Touches every byte of every view and proves that it lies inside `file`.
void expect_views_inside(const SafetensorsHeader& header, std::string_view file) {
  const auto* const begin = reinterpret_cast<const std::byte*>(file.data());
  std::size_t covered = 0;
  unsigned sum = 0;
  for (const TensorView& tensor : header.tensors) {
    ASSERT_GE(tensor.data.data(), begin);
    ASSERT_LE(tensor.data.data() + tensor.data.size(), begin + file.size());
    ASSERT_EQ(tensor.data.size(), *tensor_bytes(tensor.dtype, tensor.shape));
    for (const std::byte byte : tensor.data) sum += std::to_integer<unsigned>(byte);
    covered += tensor.data.size();
  }
  ASSERT_LE(covered, file.size());
  ASSERT_LE(sum, covered * 255);
}

TEST(SafetensorsFuzzTest, MutantsNeverEscapeTheirBytes) {
  constexpr int kMutants = 30'000;
  std::mt19937_64 random(20260401);
  GuardedBuffer buffer(kPageBytes);
  const std::string valid = valid_file();
  ASSERT_TRUE(parse_safetensors(as_bytes(valid), "valid").ok());
  int accepted = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string_view file = buffer.place(mutate(valid, random));
    const AllocationMeter meter;
    const auto header = parse_safetensors(as_bytes(file), "mutant");
    ASSERT_LT(meter.peak_bytes(), 128U * 1024) << "mutant " << i;
    if (!header.ok()) {
      ASSERT_FALSE(header.status().message().empty());
      ASSERT_NE(header.status().code(), StatusCode::kInternal);
      continue;
    }
    ++accepted;
    expect_views_inside(*header, file);
  }
  // Edits inside tensor data or names leave a file valid; most others do not.
  EXPECT_GT(accepted, kMutants / 100);
  EXPECT_LT(accepted, kMutants / 2);
}

TEST(WeightIndexFuzzTest, MutantsNeverNameOtherDirectories) {
  constexpr int kMutants = 20'000;
  std::mt19937_64 random(20260402);
  GuardedBuffer buffer(kPageBytes);
  const std::string valid =
      R"({"metadata":{"total_size":46},"weight_map":{"layers.0.attn.attn_sink":"model-00001-of-00002.safetensors",)"
      R"("layers.0.attn.wq_a.weight":"model-00001-of-00002.safetensors",)"
      R"("layers.1.attn.attn_sink":"model-00002-of-00002.safetensors"}})";
  ASSERT_TRUE(parse_weight_index(valid, "valid").ok());
  int accepted = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string_view text = buffer.place(mutate(valid, random));
    const auto index = parse_weight_index(text, "mutant");
    if (!index.ok()) continue;
    ++accepted;
    for (const std::string& shard : index->shards) {
      ASSERT_EQ(std::filesystem::path(shard).filename().string(), shard);
      ASSERT_NE(shard.front(), '.');
    }
  }
  EXPECT_GT(accepted, kMutants / 100);
}

TEST(SafetensorsFuzzTest, EveryPrefixIsRefused) {
  GuardedBuffer buffer(kPageBytes);
  const std::string valid = valid_file();
  for (std::size_t size = 0; size < valid.size(); ++size) {
    const auto header = parse_safetensors(as_bytes(buffer.place(valid.substr(0, size))), "prefix");
    ASSERT_EQ(header.status().code(), StatusCode::kBadInput) << size;
  }
}

}  // namespace
}  // namespace dsv4rt
