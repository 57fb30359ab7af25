#include "backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

namespace dsv4rt {
namespace {

TEST(CpuBackend, RefusesUnknownOptions) {
  for (const int threads : {-1, 1025}) {
    CpuBackendOptions options;
    options.threads = threads;
    EXPECT_EQ(create_cpu_backend(options).status().code(), StatusCode::kInvalidArgument);
  }
  CpuBackendOptions options;
  options.max_isa = "sse9";
  EXPECT_EQ(create_cpu_backend(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(CpuBackend, MemoryIsAlignedZeroedAndCopied) {
  const auto backend = create_cpu_backend({}).value();
  auto buffer = backend->allocate(1000, "test buffer");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 256, 0U);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0});
  const std::byte sent[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::byte back[3] = {};
  EXPECT_TRUE(backend->upload(buffer->data() + 7, sent, 3).ok());
  EXPECT_TRUE(backend->download(back, buffer->data() + 7, 3).ok());
  EXPECT_EQ(std::memcmp(sent, back, 3), 0);
  const auto refused = backend->allocate(std::numeric_limits<std::size_t>::max() - 10, "huge buffer");
  EXPECT_EQ(refused.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("huge buffer"), std::string::npos);
}

}  // namespace
}  // namespace dsv4rt
