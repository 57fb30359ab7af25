// Decides which kernel runs a linear layer, and how: the one place that does, from the device, the tokens and the
// shapes alone. Nothing here asks a driver or launches. README.md says which family serves what, and why.
//
// Results do not depend on any of it: every kernel of tile-packed weights adds in the order of linear_params.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "backend/cuda/device/device_facts.h"
#include "backend/cuda/kernels/linear/fp8/fp8_shape.h"
#include "backend/cuda/kernels/linear/prefill/prefill_params.h"
#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "backend/cuda/kernels/linear/tile/tile_shape.h"
#include "checkpoint/host_linear.h"
#include "dsv4rt/linear_precision.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// CublasLtLinear::takes() decides apart from these (LinearPrecision::kNvfp4).
enum class LinearFamily : std::uint8_t {
  kPortable,  // mma.sync, weights packed in lanes: every device, encoding and shape
  kGemv,      // a few tokens: inputs are rounded and normed in the kernel, a block for each segment
  kSplitK,    // wgmma, segments side by side, all of a launch at once
  kTile,      // wgmma, blocks stay and take item after item; those of a cluster share the segments
  kPrefill,   // wgmma, as kTile, but the two blocks of a cluster share the inputs and each takes all segments
  kFp8,       // wgmma of E4M3 by E4M3, and of BF16 weights beside them or alone, tokens as rows, resident blocks of 128
              // or 192 of them; two of a cluster may share segments
};

// The tiles that a weight is packed in, by its kind and shape; nothing: lanes. The values of an FP8 weight's scales may
// forbid tiles still (tile_kind_of). Products of E4M3 round their inputs whether or not the weight's own rule does.
std::optional<TileKind> tiles_of_shape(bool has_sm90a, WeightEncoding encoding, ActivationRounding activation,
                                       std::int64_t outputs, std::int64_t inputs,
                                       LinearPrecision precision = LinearPrecision::kExact);
// What is served where `asked` is asked for: kFp8 needs tiles, kNvfp4 a device whose cuBLASLt has such products.
LinearPrecision served_precision(bool has_sm90a, bool has_nvfp4_products, LinearPrecision asked) noexcept;

// What the choice depends on of one call.
struct LinearShape {
  std::int64_t outputs = 0;                      // N
  std::int64_t inputs = 0;                       // K
  std::optional<TileKind> tiles = std::nullopt;  // nothing: packed in lanes
  bool rounds = false;                           // its inputs, to E4M3
  bool encoded = false;                          // its inputs come as codes
};

// kUnsupported for inputs that the weight's kernels cannot read: lanes take pairs, tiles whole 16-byte units.
// kInvalidArgument for an x of tiles that is not 16-byte aligned.
Status check_input(const LinearShape& shape, const void* x, std::int64_t x_stride);

// A family and which of its variants. kPortable and kGemv have one, which is number 0.
struct LinearVariant {
  LinearFamily family = LinearFamily::kPortable;
  int number = 0;
  bool operator==(const LinearVariant&) const = default;
};

// Every variant: kPortable, then the families from few tokens to many.
std::span<const LinearVariant> linear_variants();
// Names are "gemv", "splitk 64x2" (64 tokens, two segments a block), "splitk 96r2" (two row tiles a block), "tile 2c2"
// (two row tiles a block, clusters of two, 128 tokens), "tile 2c2t160" (160), "prefill 192", "fp8 128" (two row
// tiles a block), "fp8 128r1c2" (one, clusters of two).
std::string name_of(LinearVariant variant);

// A device, and what it says of kernels.
struct LinearDevice {
  DeviceFacts facts;
  // How many clusters of each variant run at once.
  std::array<int, kTileVariants.size()> tile_clusters{};
  std::array<int, kPrefillVariants.size()> prefill_clusters{};
  std::array<int, kFp8Variants.size()> fp8_clusters{};
};

// How to launch it.
struct LinearPlan {
  LinearVariant variant;
  int item_tokens = 0;      // most tokens of an item; see even_item_tokens()
  int item_row_tiles = 1;   // row tiles of 64 outputs; kPortable has items of 16 outputs
  int clusters = 0;         // clusters of the grid
  int cluster_blocks = 1;   // blocks of a cluster
  int shared_bytes = 0;     // dynamic shared memory of a block
  int ring_bytes = 0;       // kGemv: ring of a block; kSplitK: ring of a segment
  int stages = 0;           // kTile, kPrefill, kFp8: stages of the ring
  int input_offset = 0;     // kTile, kPrefill, kFp8: offset of the inputs in a stage, behind the weights
  int stage_bytes = 0;      // kTile, kPrefill, kFp8: weights and inputs of a stage
  int sum_bytes = 0;        // kTile: for each row tile of a block, see LinearParams
  int single_tiles = 0;     // kTile, kFp8: the last row tiles of the last call, which are items of their own
  int rounding_blocks = 0;  // most blocks of the kernel that rounds inputs before this one; 0: as many as there are
};

// Up to kMaxProblems calls over tile-packed weights that may_share_launch(), or one call over lanes; 1 token and more.
// kInternal for others.
// normed: behind an RMS norm of whole rows of x, which is to be computed in the kernel (kGemv).
Result<LinearPlan> plan_linear(const LinearDevice& device, std::int32_t tokens, std::span<const LinearShape> shapes,
                               bool normed = false);

// The same for a given variant. kUnsupported where it cannot run.
Result<LinearPlan> plan_variant(LinearVariant variant, const LinearDevice& device, std::int32_t tokens,
                                std::span<const LinearShape> shapes, bool normed = false);

// kSplitK and kTile: tokens of every item but the last, as many as the plan's items have room for or fewer: inputs are
// fetched in boxes of so many tokens, and what a box holds beyond the last token is not free. Rows that the copy engine
// fills with zeros take it longer than rows that it fetches (wo_b with 33 tokens in boxes of 64 takes 19.9 us, in boxes
// of 33 14.7). kPrefill and kFp8 have full items, since they store whole groups of tokens; the last of kFp8 has boxes
// of its own.
std::int32_t even_item_tokens(const LinearPlan& plan, std::int32_t tokens);

// Whether the kernel writes outputs of such a shape as codes: a block of 128 of them must be one warpgroup's.
bool encodes_outputs(const LinearPlan& plan, const LinearShape& shape);
// Up to so many tokens kFp8Products and BF16 weights share launches: with 1,024 two launches take less of V4-Pro.
inline constexpr std::int32_t kMostMixedTokens = 768;
// Whether calls over tile-packed weights may run in one launch: those of equally many segments, and with more than
// kMostMixedTokens those of one kind, kFp8Products or not.
bool may_share_launch(const LinearShape& a, const LinearShape& b, std::int32_t tokens);
// How many calls may run as one launch with so many tokens. products: of kFp8Products.
int most_problems(std::int32_t tokens, bool products);
// Up to how many tokens a norm is computed in the products' kernel.
std::int32_t most_norm_tokens();
// From how many on inputs of products of E4M3 may come encoded (LinearCall::encoded); calls of fewer have values.
std::int32_t least_encoded_tokens();
// Up to how many no launch depends on how many clusters run at once.
std::int32_t most_one_wave_tokens();

}  // namespace dsv4rt::cuda
