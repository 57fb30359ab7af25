// The workspace's arrays: inside the buffer, aligned, none over another.
#include "attention/workspace.h"

#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "support/expect_ok.h"

namespace dsv4rt {
namespace {

struct Region {
  const char* name;
  const void* begin;
  std::int64_t bytes;
};

std::vector<Region> regions(const WorkspaceShape& shape, const Workspace& ws) {
  const std::int64_t t = shape.max_tokens;
  return {{"q_latent", ws.q_latent, t * shape.q_lora_rank * 2},
          {"q", ws.q, t * shape.heads * kHeadDim * 2},
          {"kv", ws.kv, t * kHeadDim * 2},
          {"staged_rows", ws.staged_rows, ws.staged_shape.block_bytes},
          {"compressor_kv", ws.compressor_kv, t * shape.compressor_width * 4},
          {"compressor_score", ws.compressor_score, t * shape.compressor_width * 4},
          {"index_kv", ws.index_kv, t * shape.index_width * 4},
          {"index_score", ws.index_score, t * shape.index_width * 4},
          {"index_q", ws.index_q, t * shape.index_heads * kIndexHeadDim * 2},
          {"index_head_weight", ws.index_head_weight, t * shape.index_heads * 2},
          {"selected", ws.topk_indices, t * shape.top_k * 4},
          {"topk_count", ws.topk_count, t * 4},
          {"o", ws.o, t * shape.heads * kHeadDim * 2},
          {"o_latent", ws.o_latent, t * shape.output_rank * 2},
          {"packed_rows", ws.packed_rows, shape.packed_row_bytes}};
}

void expect_laid_out(const WorkspaceShape& shape) {
  const std::size_t bytes = workspace_bytes(shape);
  auto* base = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  const Workspace ws = workspace_at(shape, base);
  std::vector<Region> all = regions(shape, ws);
  const std::pair<const EncodedRows&, std::int64_t> encoded[] = {{ws.encoded_o, shape.heads * kHeadDim},
                                                                 {ws.encoded_latent, shape.output_rank}};
  for (const auto& [rows, width] : encoded) {
    EXPECT_EQ(rows.codes != nullptr, shape.has_codes);
    EXPECT_EQ(rows.width, shape.has_codes ? width : 0);
    EXPECT_EQ(rows.scale_stride, shape.has_codes ? encoded_scale_stride(shape.max_tokens) : 0);
    if (!shape.has_codes) continue;
    all.push_back({"codes", rows.codes, shape.max_tokens * rows.width});
    all.push_back({"scales", rows.scales, rows.width / 128 * rows.scale_stride * 4});
  }
  for (const Region& region : all) {
    const auto at = static_cast<const std::byte*>(region.begin) - base;
    EXPECT_GE(at, 0) << region.name;
    EXPECT_LE(at + region.bytes, static_cast<std::int64_t>(bytes)) << region.name;
    EXPECT_EQ(at % 256, 0) << region.name;
  }
  std::erase_if(all, [](const Region& region) { return region.bytes == 0; });
  std::sort(all.begin(), all.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_LE(static_cast<const std::byte*>(all[i - 1].begin) + all[i - 1].bytes, all[i].begin)
        << all[i - 1].name << " reaches into " << all[i].name;
  }
  EXPECT_GE(ws.staged_shape.rows, shape.max_tokens);
  EXPECT_EQ(ws.packed_row_bytes, shape.packed_row_bytes);
  std::free(base);
}

WorkspaceShape shape_of(const std::string& config_name, std::int32_t tokens, RowFormat format) {
  const auto path = std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs" / config_name;
  const ModelConfig config = ModelConfig::from_file(path).value();
  return WorkspaceShape::of(config, LayerSchedule::create(config).value(), format, tokens);
}

TEST(Workspace, ArraysLieInTheBufferAlignedAndApart) {
  for (const char* config : {"tiny.json", "deepseek-v4-flash.json", "deepseek-v4-pro.json"}) {
    for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16}) {
      for (const std::int32_t tokens : {1, 3, 128, 129}) {
        SCOPED_TRACE(std::string(config) + ", " + std::to_string(tokens) + " tokens");
        WorkspaceShape shape = shape_of(config, tokens, format);
        expect_laid_out(shape);
        shape.packed_row_bytes = 1000;
        expect_laid_out(shape);
        shape.has_codes = true;
        expect_laid_out(shape);
      }
    }
  }
}

TEST(Workspace, ShapeFollowsFromTheWidestLayer) {
  const WorkspaceShape flash = shape_of("deepseek-v4-flash.json", 7, RowFormat::kFp8DsMla);
  EXPECT_EQ(flash.max_tokens, 7);
  EXPECT_EQ(flash.heads, 64);
  EXPECT_EQ(flash.q_lora_rank, 1024);
  EXPECT_EQ(flash.output_rank, 8 * 1024);
  EXPECT_EQ(flash.compressor_width, 1024);  // overlapping
  EXPECT_EQ(flash.index_width, 256);
  EXPECT_EQ(flash.index_heads, 64);
  EXPECT_EQ(flash.top_k, 512);
}

TEST(Workspace, LayersWithoutCompressorTakeNoneOfIt) {
  ModelConfig config = ModelConfig::from_file(std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs/tiny.json").value();
  config.compress_ratios = {0};
  config.num_hidden_layers = 1;
  const WorkspaceShape window_only =
      WorkspaceShape::of(config, LayerSchedule::create(config).value(), RowFormat::kFp8DsMla, 5);
  EXPECT_EQ(window_only.compressor_width, 0);
  EXPECT_EQ(window_only.index_width, 0);
  EXPECT_EQ(window_only.top_k, 0);
  expect_laid_out(window_only);
  config.compress_ratios = {128};
  const WorkspaceShape heavily =
      WorkspaceShape::of(config, LayerSchedule::create(config).value(), RowFormat::kFp8DsMla, 5);
  EXPECT_EQ(heavily.compressor_width, 512);
  EXPECT_EQ(heavily.index_width, 0);
  expect_laid_out(heavily);
}

}  // namespace
}  // namespace dsv4rt
