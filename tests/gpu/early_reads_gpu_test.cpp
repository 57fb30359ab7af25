// What kernels read before the kernels in front have ended: nothing that those write. A kernel in front lets the one
// under test start, waits, and then writes what a step writes; before, something else lies there. The bytes are those
// of a run for which everything was there from the beginning.
#include <cstddef>
#include <cstring>
#include <ostream>
#include <span>
#include <vector>

#include "attention/context_split.h"
#include "gpu/support/gpu.h"
#include "gpu/support/late_copies.h"
#include "support/attend_case.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr std::int64_t kLateNanoseconds = 200'000;  // the host takes less until the next kernel is launched

// Arrays on the device of which some bytes come late.
class LateBytes {
 public:
  explicit LateBytes(Backend& backend) : backend_(backend) {}

  // `bytes` at `to` on the device: first as `early`, late as `late`.
  void add(std::byte* to, const std::byte* early, const std::byte* late, std::int64_t bytes) {
    const std::span now(early, static_cast<std::size_t>(bytes));
    EXPECT_OK(backend_.upload(to, now.data(), now.size()));
    values_.emplace_back(backend_, std::span(late, now.size()));
    copies_.push_back({to, values_.back().data(), bytes});
  }
  // The same of an array whose values are `late` in the end.
  template <class T>
  void add_array(const T* device, const std::vector<T>& early, const std::vector<T>& late) {
    add(reinterpret_cast<std::byte*>(const_cast<T*>(device)), reinterpret_cast<const std::byte*>(early.data()),
        reinterpret_cast<const std::byte*>(late.data()), static_cast<std::int64_t>(late.size() * sizeof(T)));
  }
  // Row `row` of a block: as another row of the bank, and late as it is in `block`, which lies at `device`.
  void add_row(const BlockShape& shape, std::byte* device, const std::byte* block, const std::byte* other,
               std::int64_t row) {
    add(device + shape.data_offset(row), other, block + shape.data_offset(row), shape.data_bytes);
    if (shape.scale_bytes == 0) return;
    add(device + shape.scale_offset(row), other + shape.data_bytes, block + shape.scale_offset(row), shape.scale_bytes);
  }
  // Puts the kernel in front of the next one.
  void launch() {
    list_ = DeviceArray<LateCopy>(backend_, copies_);
    EXPECT_OK(launch_late_copies(list_.data(), static_cast<std::int32_t>(copies_.size()), kLateNanoseconds,
                                 static_cast<cudaStream_t>(backend_.native_stream())));
  }

 private:
  Backend& backend_;
  std::vector<DeviceArray<std::byte>> values_;
  std::vector<LateCopy> copies_;
  DeviceArray<LateCopy> list_;
};

// --- attention ---------------------------------------------------------------------------------------------

struct EarlyAttend {
  const char* name;
  std::int32_t sequences;
  std::int32_t first;        // position of the first sequence's first token; each next one's is one further
  std::int32_t tokens;       // tokens of a sequence
  std::int32_t piece_first;  // first row of the step that is attended
  std::int32_t ratio;
  std::int32_t top_k = 0;  // 0: all visible rows
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
    late.launch();
    EXPECT_OK(gpu().ops().attend(piece));
    std::vector<bf16> actual;
    ASSERT_OK(arrays.output(actual));
    const std::size_t bytes = expected.size() * sizeof(bf16);
    EXPECT_EQ(std::memcmp(actual.data(), expected.data(), bytes), 0) << "run " << repeat;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, EarlyAttendGpuTest,
    testing::Values(EarlyAttend{"one sequence", 1, 255, 1, 0, 4},
                    EarlyAttend{"one sequence, a block's first row", 1, 259, 1, 0, 4},
                    EarlyAttend{"one sequence, 8K", 1, 8191, 1, 0, 128}, EarlyAttend{"few sequences", 7, 300, 1, 0, 4},
                    EarlyAttend{"clusters of four", 20, 1000, 1, 0, 4},
                    EarlyAttend{"clusters of two", 50, 1400, 1, 0, 4}, EarlyAttend{"blocks alone", 140, 2800, 1, 0, 4},
                    EarlyAttend{"window alone", 3, 500, 1, 0, 0}, EarlyAttend{"drafts", 2, 606, 6, 0, 4},
                    EarlyAttend{"a piece behind others of the step", 1, 606, 12, 9, 4},
                    EarlyAttend{"tokens in turn", 280, 1000, 1, 0, 4}, EarlyAttend{"dense rows", 2, 8190, 1, 0, 4},
                    EarlyAttend{"a run", 1, 8000, 140, 0, 128}));
INSTANTIATE_TEST_SUITE_P(Selected, EarlyAttendGpuTest,
                         testing::Values(EarlyAttend{"one sequence", 1, 8191, 1, 0, 4, 512},
                                         EarlyAttend{"few rows", 3, 300, 1, 0, 4, 512},
                                         EarlyAttend{"clusters of four", 20, 3000, 1, 0, 4, 512},
                                         EarlyAttend{"clusters of two", 50, 3000, 1, 0, 4, 512},
                                         EarlyAttend{"blocks alone", 140, 4200, 1, 0, 4, 1024},
                                         EarlyAttend{"tokens in turn", 280, 2000, 1, 0, 4, 512},
                                         EarlyAttend{"drafts", 2, 2606, 6, 0, 4, 512},
                                         EarlyAttend{"a piece behind others of the step", 1, 2606, 12, 9, 4, 512}));

// --- tables ------------------------------------------------------------------------------------------------

// The kernel that writes a step's entries of tables ends before any of the step's other kernels begins, though those
// do not wait for it. Before, the table names the blocks of another sequence.
TEST_F(GpuTest, EarlyReadersFindTheTablesOfTheStep) {
  const AttendShape shape{.ratio = 4};
  constexpr std::int32_t kPosition = 2001;
  const RowBank bank(shape.format);
  const AttendPool pool(shape, bank, 2, kPosition + 1, 97);
  const AttendInputs inputs(shape, bank, 1, {{0, kPosition, 1}});
  const DeviceArray<std::byte> blocks(gpu(), pool.bytes);
  const DeviceArray<std::int32_t> table(gpu(), pool.table);
  const AttendArrays arrays(gpu(), inputs, pool, blocks.data(), table.data());
  std::vector<bf16> expected;
  ASSERT_OK(gpu().ops().attend(arrays.params));
  ASSERT_OK(arrays.output(expected));

  std::vector<BlockTableDelta> deltas;
  deltas.reserve(static_cast<std::size_t>(pool.stride));
  for (std::int32_t i = 0; i < pool.stride; ++i) {
    deltas.push_back({.table = 0, .slot = 0, .index = i, .block = pool.table[static_cast<std::size_t>(i)]});
  }
  const DeviceArray<BlockTableDelta> device_deltas(gpu(), deltas);
  StepView step = arrays.params.step;
  step.counts.table_deltas = static_cast<std::int32_t>(deltas.size());
  step.table_deltas = device_deltas.data();
  const CacheTable view{table.data(), pool.stride, blocks.data(), pool.rows_shape.block_bytes};
  for (int repeat = 0; repeat < 20; ++repeat) {
    ASSERT_OK(gpu().upload(table.data(), pool.table.data() + pool.stride,
                           static_cast<std::size_t>(pool.stride) * sizeof(std::int32_t)));
    ASSERT_OK(gpu().ops().begin_step(step, {&view, 1}));
    ASSERT_OK(launch_late_copies(nullptr, 0, kLateNanoseconds, static_cast<cudaStream_t>(gpu().native_stream())));
    ASSERT_OK(gpu().ops().attend(arrays.params));
    std::vector<bf16> actual;
    ASSERT_OK(arrays.output(actual));
    EXPECT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(bf16)), 0) << "run " << repeat;
  }
}

}  // namespace
}  // namespace dsv4rt
