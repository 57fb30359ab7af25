// Accepted counts in backend memory, through the C interface.
#include <array>
#include <string>
#include <vector>

#include "unit/capi/c_api_test.h"

namespace dsv4rt {
namespace {

class CApiCountsTest : public CApiTest {
 protected:
  CApiCountsTest() : handle_(open()), engine_(handle_.get()), sequence_(new_sequence(engine_)) {}

  // A verification of `tokens` tokens that has run.
  dsv4rt_step verified(std::int32_t tokens) {
    const dsv4rt_step step = prepare(engine_, sequence_, tokens);
    EXPECT_EQ(run(engine_, step), DSV4RT_OK) << dsv4rt_engine_last_error(engine_);
    return step;
  }
  void commit(const dsv4rt_step& step, const std::int32_t& count) {
    EXPECT_EQ(dsv4rt_step_commit_from_device(engine_, &step, &count, 1), DSV4RT_OK)
        << dsv4rt_engine_last_error(engine_);
  }

  const EngineHandle handle_;
  dsv4rt_engine* const engine_;
  const dsv4rt_sequence sequence_;
};

TEST_F(CApiCountsTest, StepsFollowEachOtherBeforeCountsAreApplied) {
  append(engine_, sequence_, 20);
  std::int64_t expected = 20;
  for (std::int32_t count = 0; count <= kDraftTokens + 1; ++count) {
    const std::int32_t on_device = count;
    const dsv4rt_step step = verified(kDraftTokens + 1);
    commit(step, on_device);
    expected += count;
    std::int32_t known = 7;
    std::int32_t read = 7;
    std::size_t entries = 7;
    ASSERT_EQ(dsv4rt_step_accepted(engine_, &step, &known, &read, 1, &entries), DSV4RT_OK);
    EXPECT_EQ(known, 1);
    EXPECT_EQ(read, count);
    EXPECT_EQ(entries, 1U);
  }
  EXPECT_EQ(length(engine_, sequence_), expected) << "the last one was accepted whole";
  const dsv4rt_step step = verified(2);
  commit(step, 1);
  EXPECT_EQ(length(engine_, sequence_), expected + 2);
  ASSERT_EQ(dsv4rt_engine_settle(engine_), DSV4RT_OK);
  EXPECT_EQ(length(engine_, sequence_), expected + 1);
  EXPECT_EQ(dsv4rt_engine_settle(engine_), DSV4RT_OK) << "nothing is under way";
}

TEST_F(CApiCountsTest, WrongCallsAreRefused) {
  const std::array<std::int32_t, 2> counts{1, 1};
  const dsv4rt_step none{};
  EXPECT_EQ(dsv4rt_step_commit_from_device(engine_, &none, counts.data(), 1), DSV4RT_FAILED_PRECONDITION);
  std::int32_t known = 7;
  std::int32_t read = 7;
  std::size_t entries = 7;
  EXPECT_EQ(dsv4rt_step_accepted(engine_, &none, &known, &read, 1, &entries), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(known, 7);
  EXPECT_EQ(entries, 7U);
  const dsv4rt_step unrun = prepare(engine_, sequence_, 2);
  EXPECT_EQ(dsv4rt_step_commit_from_device(engine_, &unrun, counts.data(), 1), DSV4RT_FAILED_PRECONDITION);
  expect_error_names(engine_, "layer 0 has not run");
  EXPECT_EQ(dsv4rt_engine_settle(engine_), DSV4RT_FAILED_PRECONDITION);
  expect_error_names(engine_, "is outstanding");
  ASSERT_EQ(run(engine_, unrun), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_commit_from_device(engine_, &unrun, counts.data(), 2), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine_, "accepted has 2 entries");
  commit(unrun, counts[0]);
  EXPECT_EQ(dsv4rt_step_commit_from_device(engine_, &unrun, counts.data(), 1), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_accepted(engine_, &unrun, &known, nullptr, 0, &entries), DSV4RT_OK);
  EXPECT_EQ(entries, 1U);
  ASSERT_EQ(dsv4rt_engine_settle(engine_), DSV4RT_OK);
  EXPECT_EQ(length(engine_, sequence_), 1);
}

TEST_F(CApiCountsTest, AShortArrayIsRefusedWithTheCount) {
  commit(verified(2), 2);
  const dsv4rt_sequence second = new_sequence(engine_);
  const std::array<dsv4rt_step_entry, 2> both{dsv4rt_step_entry{sequence_, 1}, dsv4rt_step_entry{second, 2}};
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(engine_, both.data(), both.size(), nullptr, &step), DSV4RT_OK);
  ASSERT_EQ(run(engine_, step), DSV4RT_OK);
  const std::array<std::int32_t, 2> counts{1, 0};
  ASSERT_EQ(dsv4rt_step_commit_from_device(engine_, &step, counts.data(), 2), DSV4RT_OK);
  std::int32_t known = 7;
  std::array<std::int32_t, 2> read{7, 7};
  std::size_t entries = 7;
  EXPECT_EQ(dsv4rt_step_accepted(engine_, &step, &known, read.data(), 1, &entries), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine_, "capacity 1; the step has 2 entries");
  EXPECT_EQ(entries, 2U);
  EXPECT_EQ(read[0], 7);
  EXPECT_EQ(dsv4rt_step_accepted(engine_, &step, &known, read.data(), 2, &entries), DSV4RT_OK);
  EXPECT_EQ(read, counts);
}

// Found by the call that waits, told once; the sequence keeps all of its tokens.
TEST_F(CApiCountsTest, AWrongCountIsNamed) {
  for (const std::int32_t wrong : {-1, 4}) {
    commit(verified(3), wrong);
    dsv4rt_sequence other{};
    EXPECT_EQ(dsv4rt_sequence_create(engine_, 0, &other), DSV4RT_INVALID_ARGUMENT);
    expect_error_names(engine_, "accepted[0] = " + std::to_string(wrong) + " of sequence index " +
                                    std::to_string(sequence_.index) + "; accepted: 0 .. 3");
  }
  EXPECT_EQ(length(engine_, sequence_), 6);
  EXPECT_EQ(dsv4rt_engine_settle(engine_), DSV4RT_OK);
}

}  // namespace
}  // namespace dsv4rt
