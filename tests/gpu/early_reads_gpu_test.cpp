// What kernels read before the kernels in front have ended: nothing that those write. A kernel in front lets the one
// under test start, waits, and then writes what a step writes; before, something else lies there. The bytes are those
// of a run for which everything was there from the beginning. And what they write before: nothing.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <cuda_runtime_api.h>
#include <ostream>
#include <span>
#include <vector>

#include "attention/context_split.h"
#include "gpu/support/gpu.h"
#include "gpu/support/late_bytes.h"
#include "gpu/support/late_copies.h"
#include "support/attend_case.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

// --- attention ---------------------------------------------------------------------------------------------

struct EarlyAttend {
  const char* name;
  std::int32_t sequences;
  std::int32_t first;        // position of the first sequence's first token; each next one's is one further
  std::int32_t tokens;       // tokens of a sequence
  std::int32_t piece_first;  // first row of the step that is attended
  std::int32_t ratio;
  std::int32_t top_k = 0;  // 0: all visible rows
  bool norms = false;      // whether attention norms the queries
};
std::ostream& operator<<(std::ostream& out, const EarlyAttend& value) {
  return out << value.name;
}

class EarlyAttendGpuTest : public GpuTest, public testing::WithParamInterface<EarlyAttend> {
 protected:
  static constexpr std::size_t kScratchBytes = std::size_t{40} << 20;

  // Queries and what is selected come late; before, there are others: half as many rows, all of them the first.
  static void add_inputs(const AttendInputs& inputs, const AttendParams& step, LateBytes& late) {
    late.add_array(step.q, {inputs.q.rbegin(), inputs.q.rend()}, inputs.q);
    if (inputs.shape.top_k == 0) return;
    std::vector<std::int32_t> few = inputs.topk_count;
    for (std::int32_t& count : few) count /= 2;
    late.add_array(step.topk_count, few, inputs.topk_count);
    late.add_array(step.topk_indices, std::vector<std::int32_t>(inputs.topk_indices.size()), inputs.topk_indices);
  }
};

// Of the step are the queries, what is selected and the rows of its tokens: staged, and compressed where they complete
// a block. The scales of rows share 32 bytes with those of rows that are read early; but ordinary loads, which may
// leave them in the first-level cache, pass too: the wait for the kernels in front seems to empty it, which nothing
// promises.
TEST_P(EarlyAttendGpuTest, TakesNothingThatTheStepWrites) {
  const EarlyAttend& param = GetParam();
  ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
  const AttendShape shape{.ratio = param.ratio, .top_k = param.top_k};
  const RowBank bank(shape.format);
  const std::int64_t positions = param.first + param.sequences + param.tokens;
  // Every block is one sequence's alone.
  const std::int64_t blocks = param.ratio == 0 ? 1 : param.sequences * (positions / param.ratio / shape.block_rows + 1);
  const AttendPool pool(shape, bank, param.sequences, positions, blocks);
  std::vector<AttendPart> parts;
  parts.reserve(static_cast<std::size_t>(param.sequences));
  for (std::int32_t i = 0; i < param.sequences; ++i) parts.push_back({i, param.first + i, param.tokens});
  const AttendInputs inputs(shape, bank, param.sequences, parts);

  const DeviceArray<std::byte> device_blocks(gpu(), pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), pool.table);
  const AttendArrays arrays(gpu(), inputs, pool, device_blocks.data(), table.data());
  AttendParams piece = arrays.params;
  piece.step = rows_of_step(piece.step, {param.piece_first, inputs.counts.tokens - param.piece_first});
  const std::int64_t skipped = std::int64_t{param.piece_first} * shape.heads * kHeadDim;
  piece.q += skipped;
  piece.o += skipped;
  if (param.top_k > 0) {
    piece.topk_count += param.piece_first;
    piece.topk_indices += std::int64_t{param.piece_first} * piece.topk_stride;
  }
  if (param.norms) piece.query_eps = 1e-6F;
  std::vector<bf16> expected;
  ASSERT_OK(gpu().ops().attend(piece));
  ASSERT_OK(arrays.output(expected));

  const BlockShape one = block_shape(shape.format, 1);
  std::vector<std::byte> other(static_cast<std::size_t>(one.block_bytes));
  bank.copy(1000, one, other.data(), 0);
  for (int repeat = 0; repeat < 3; ++repeat) {
    LateBytes late(gpu());
    add_inputs(inputs, arrays.params, late);
    for (std::int32_t t = 0; t < inputs.counts.tokens; ++t) {
      late.add_row(inputs.staged_shape, const_cast<std::byte*>(piece.staged), inputs.staged.data(), other.data(), t);
      const std::int32_t position = inputs.position[static_cast<std::size_t>(t)];
      if (param.ratio == 0 || (position + 1) % param.ratio != 0) continue;
      const std::int32_t row = position / param.ratio;
      const std::int64_t block =
          pool.table[static_cast<std::size_t>(inputs.slot_of(t) * pool.stride + row / shape.block_rows)] *
          pool.rows_shape.block_bytes;
      late.add_row(pool.rows_shape, device_blocks.data() + block, pool.bytes.data() + block, other.data(),
                   row % shape.block_rows);
    }
    const std::size_t bytes = expected.size() * sizeof(bf16);
    const std::vector<bf16> before(expected.size(), bf16{0x7fc0});
    ASSERT_OK(gpu().upload(arrays.params.o, before.data(), bytes));
    const DeviceArray<bf16> seen(gpu(), expected);
    late.look(seen.data(), arrays.params.o, bytes);
    late.launch();
    EXPECT_OK(gpu().ops().attend(piece));
    std::vector<bf16> actual(expected.size());
    ASSERT_OK(gpu().download(actual.data(), seen.data(), bytes));
    EXPECT_EQ(std::memcmp(actual.data(), before.data(), bytes), 0) << "outputs before their turn, run " << repeat;
    ASSERT_OK(arrays.output(actual));
    EXPECT_EQ(std::memcmp(actual.data(), expected.data(), bytes), 0) << "run " << repeat;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, EarlyAttendGpuTest,
    testing::Values(
        EarlyAttend{"one sequence", 1, 255, 1, 0, 4}, EarlyAttend{"one sequence, a block's first row", 1, 259, 1, 0, 4},
        EarlyAttend{"one sequence, 8K", 1, 8191, 1, 0, 128}, EarlyAttend{"few sequences", 7, 300, 1, 0, 4},
        EarlyAttend{"clusters of four", 20, 2000, 1, 0, 4}, EarlyAttend{"clusters of two", 50, 1400, 1, 0, 4},
        EarlyAttend{"clusters of two, windows of up to a tile and more", 50, 40, 1, 0, 4},
        EarlyAttend{"clusters of two, drafts", 2, 606, 25, 0, 4}, EarlyAttend{"blocks alone", 140, 2800, 1, 0, 4},
        EarlyAttend{"window alone", 3, 500, 1, 0, 0}, EarlyAttend{"drafts", 2, 606, 6, 0, 4},
        EarlyAttend{"a piece behind others of the step", 1, 606, 12, 9, 4},
        EarlyAttend{"tokens in turn", 280, 1000, 1, 0, 4}, EarlyAttend{"dense rows", 2, 8190, 1, 0, 4},
        EarlyAttend{"a run", 1, 8000, 140, 0, 128},
        EarlyAttend{"a run, norm of queries", 1, 8000, 140, 0, 128, 0, true},
        EarlyAttend{"a run of window rows, norm of queries", 1, 500, 140, 0, 0, 0, true}));
INSTANTIATE_TEST_SUITE_P(Selected, EarlyAttendGpuTest,
                         testing::Values(EarlyAttend{"one sequence", 1, 8191, 1, 0, 4, 512},
                                         EarlyAttend{"few rows", 3, 300, 1, 0, 4, 512},
                                         EarlyAttend{"clusters of four", 20, 3000, 1, 0, 4, 512},
                                         EarlyAttend{"clusters of two", 50, 3000, 1, 0, 4, 512},
                                         EarlyAttend{"clusters of two, short windows", 50, 40, 1, 0, 4, 512},
                                         EarlyAttend{"clusters of two, drafts", 2, 2606, 25, 0, 4, 512},
                                         EarlyAttend{"blocks alone", 140, 4200, 1, 0, 4, 1024},
                                         EarlyAttend{"tokens in turn", 280, 2000, 1, 0, 4, 512},
                                         EarlyAttend{"drafts", 2, 2606, 6, 0, 4, 512},
                                         EarlyAttend{"a piece behind others of the step", 1, 2606, 12, 9, 4, 512}));

// --- what a step begins with -------------------------------------------------------------------------------

// Values in the host's memory that the device takes from there: it takes microseconds to begin with, and many take
// long.
template <class T>
class FarArray {
 public:
  explicit FarArray(std::size_t count) : count_(count) {
    void* memory = nullptr;
    EXPECT_EQ(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault), cudaSuccess);
    values_ = static_cast<T*>(memory);
  }
  explicit FarArray(const std::vector<T>& values) : FarArray(values.size()) { set(values); }
  ~FarArray() { static_cast<void>(cudaFreeHost(values_)); }
  FarArray(const FarArray&) = delete;
  FarArray& operator=(const FarArray&) = delete;

  void set(const std::vector<T>& values) { std::memcpy(values_, values.data(), count_ * sizeof(T)); }
  [[nodiscard]] T* data() const { return values_; }

 private:
  std::size_t count_;
  T* values_ = nullptr;
};

// The kernels that shift positions, write to tables and copy blocks end before any of the step's others begins, though
// those do not wait for them. They take longer here than the start of a kernel and its first reads do. That their last
// stores are published (publish_to_early_readers) is not seen: these arrive long before a kernel has started.
class EarlyReadersGpuTest : public GpuTest {
 protected:
  static constexpr std::int32_t kPosition = 2001;
  static constexpr std::int32_t kRejected = 3;
  static constexpr std::int64_t kBlocks = 97;

  // One token of a sequence, and the blocks of another one.
  AttendShape shape_{.ratio = 4};
  RowBank bank_{shape_.format};
  AttendPool pool_{shape_, bank_, 2, kPosition + kRejected + 1, kBlocks};
  AttendInputs inputs_{shape_, bank_, 1, {{0, kPosition, 1}}};

  static std::vector<bf16> attend(const AttendArrays& arrays, const AttendParams& params) {
    EXPECT_OK(gpu().ops().attend(params));
    std::vector<bf16> out;
    EXPECT_OK(arrays.output(out));
    return out;
  }
  // reset() undoes, begin() enqueues what the step begins with. Attention is directly behind it, and behind a kernel
  // that lets it start and waits. Nothing runs before all is enqueued.
  template <class Reset, class Begin>
  static void expect_found(const AttendArrays& arrays, const AttendParams& params, const std::vector<bf16>& expected,
                           const Reset& reset, const Begin& begin) {
    const auto hold = [] {
      EXPECT_OK(launch_late_copies(nullptr, 0, kLateNanoseconds, static_cast<cudaStream_t>(gpu().native_stream())));
    };
    for (int repeat = 0; repeat < 20; ++repeat) {
      reset();
      hold();
      begin();
      const bool beside = repeat % 2 == 1;
      if (beside) hold();
      const std::vector<bf16> actual = attend(arrays, params);
      ASSERT_EQ(actual.size(), expected.size());
      EXPECT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(bf16)), 0)
          << "run " << repeat << (beside ? ", behind another kernel" : "");
    }
  }
};

// Before, the table names the blocks of another sequence.
TEST_F(EarlyReadersGpuTest, FindTheTablesOfTheStep) {
  const DeviceArray<std::byte> blocks(gpu(), pool_.bytes);
  const DeviceArray<std::int32_t> table(gpu(), pool_.table);
  const AttendArrays arrays(gpu(), inputs_, pool_, blocks.data(), table.data());
  const std::vector<bf16> expected = attend(arrays, arrays.params);

  constexpr std::size_t kOthers = std::size_t{1} << 15;  // entries of a table that there is not are passed over
  std::vector<BlockTableDelta> deltas(kOthers, {.table = 1, .slot = 0, .index = 0, .block = 0});
  for (std::int32_t i = 0; i < pool_.stride; ++i) {
    deltas.push_back({.table = 0, .slot = 0, .index = i, .block = pool_.table[static_cast<std::size_t>(i)]});
  }
  const FarArray<BlockTableDelta> far_deltas(deltas);
  StepView step = arrays.params.step;
  step.counts.table_deltas = static_cast<std::int32_t>(deltas.size());
  step.table_deltas = far_deltas.data();
  const CacheTable view{table.data(), pool_.stride, blocks.data(), pool_.rows_shape.block_bytes};
  expect_found(
      arrays, arrays.params, expected,
      [&] {
        EXPECT_OK(gpu().upload(table.data(), pool_.table.data() + pool_.stride,
                               static_cast<std::size_t>(pool_.stride) * sizeof(std::int32_t)));
      },
      [&] {
        EXPECT_OK(gpu().ops().begin_step(step, {&view, 1}));
      });
}

// Before, the sequence's blocks hold what another sequence's do; copies go on for long before theirs.
TEST_F(EarlyReadersGpuTest, FindTheBlocksThatTheStepCopies) {
  const auto own = static_cast<std::size_t>(pool_.stride);
  ASSERT_GT(kBlocks, 3 * pool_.stride);
  const AttendPool& pool = pool_;
  std::vector<std::int32_t> sources;  // blocks that no sequence has, and one more
  for (std::int32_t block = 0; sources.size() <= own; ++block) {
    if (std::ranges::count(pool.table, block) == 0) sources.push_back(block);
  }
  std::vector<std::byte> begun = pool.bytes;  // blocks as the step finds them
  const auto copy_block = [&](std::int32_t from, std::int32_t to) {
    const auto bytes = static_cast<std::size_t>(pool.rows_shape.block_bytes);
    std::memcpy(begun.data() + static_cast<std::size_t>(to) * bytes,
                pool.bytes.data() + static_cast<std::size_t>(from) * bytes, bytes);
  };
  constexpr int kOthers = 64;
  std::vector<BlockCopy> copies(kOthers,
                                {.table = 0, .source = pool.table[own], .target = sources[own], .reserved = 0});
  for (std::size_t i = 0; i < own; ++i) {
    copy_block(pool.table[i], sources[i]);
    copy_block(pool.table[own + i], pool.table[i]);
    copies.push_back({.table = 0, .source = sources[i], .target = pool.table[i], .reserved = 0});
  }
  const DeviceArray<std::byte> blocks(gpu(), pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), pool.table);
  const AttendArrays arrays(gpu(), inputs_, pool, blocks.data(), table.data());
  const std::vector<bf16> expected = attend(arrays, arrays.params);

  const DeviceArray<BlockCopy> device_copies(gpu(), copies);
  StepView step = arrays.params.step;
  step.counts.block_copies = static_cast<std::int32_t>(copies.size());
  step.block_copies = device_copies.data();
  const CacheTable view{table.data(), pool.stride, blocks.data(), pool.rows_shape.block_bytes};
  expect_found(
      arrays, arrays.params, expected, [&] { EXPECT_OK(gpu().upload(blocks.data(), begun.data(), begun.size())); },
      [&] {
        EXPECT_OK(gpu().ops().begin_step(step, {&view, 1}));
      });
}

// Before, the token lies as far ahead as if no token of the last step had been rejected.
TEST_F(EarlyReadersGpuTest, FindThePositionsOfTheStep) {
  const DeviceArray<std::byte> blocks(gpu(), pool_.bytes);
  const DeviceArray<std::int32_t> table(gpu(), pool_.table);
  const AttendArrays arrays(gpu(), inputs_, pool_, blocks.data(), table.data());
  const std::vector<bf16> expected = attend(arrays, arrays.params);

  constexpr std::array<std::int32_t, 1> kRatios{4};
  const DeviceArray<std::int32_t> rejected(gpu(), std::size_t{1});
  auto shifts = gpu().create_step_shifts({rejected.data(), 1}, {.most_rejected = kRejected, .ratios = kRatios});
  ASSERT_OK(shifts);
  const DeviceArray<std::int32_t> last_tokens(gpu(), std::vector<std::int32_t>{0, kRejected + 1});
  const DeviceArray<std::int32_t> accepted(gpu(), std::vector<std::int32_t>{1});
  StepView last = arrays.params.step;
  last.sequence_first_token = last_tokens.data();
  ASSERT_OK((*shifts)->note(last, accepted.data()));

  const StepOffsets offsets = step_offsets({.tokens = 1, .sequences = 1, .ratio_classes = 1});
  std::vector<std::byte> begun(offsets.total_bytes);  // metadata as it is uploaded
  const auto put = [&](std::size_t offset, std::int32_t value) {
    std::memcpy(begun.data() + offset, &value, sizeof(value));
  };
  put(offsets.token_position, kPosition + kRejected);
  put(offsets.sequence_start, kPosition + kRejected);
  put(offsets.sequence_first_token + sizeof(std::int32_t), 1);
  FarArray<std::byte> metadata(begun.size());
  AttendParams params = arrays.params;
  params.step = step_view(metadata.data(), offsets, inputs_.counts);
  params.step.counts.context_end += kRejected;
  expect_found(
      arrays, params, expected, [&] { metadata.set(begun); },
      [&] { EXPECT_OK((*shifts)->shift(metadata.data(), offsets, params.step.counts)); });
}

}  // namespace
}  // namespace dsv4rt
