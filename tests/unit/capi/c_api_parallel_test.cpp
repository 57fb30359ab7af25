// What the C interface refuses of ranks, as far as one process shows it; tests/mpi has several.
#include <functional>
#include <string>

#include "unit/capi/c_api_test.h"

namespace dsv4rt {
namespace {

class CApiParallelTest : public CApiTest {
 protected:
  // The text of a failed creation with the tiny checkpoint's options after `change`.
  static std::string refused_with(const std::function<void(dsv4rt_engine_options&)>& change, dsv4rt_status expected) {
    const std::string path = checkpoint();
    dsv4rt_engine_options given = options(path.c_str());
    change(given);
    dsv4rt_engine* engine = nullptr;
    char message[512] = "?";
    EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), expected) << message;
    EXPECT_EQ(engine, nullptr);
    return message;
  }
  static void expect_names(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' does not name '" << part << "'";
  }
};

TEST_F(CApiParallelTest, RanksThatCannotMeetAreRefused) {
  using Ranks = dsv4rt_parallel_options;
  const auto with_ranks = [](const std::function<void(Ranks&, dsv4rt_engine_options&)>& change, dsv4rt_status status) {
    Ranks ranks;
    EXPECT_EQ(dsv4rt_parallel_options_init(&ranks, sizeof(ranks)), DSV4RT_OK);
    EXPECT_EQ(ranks.kind, 0);
    EXPECT_EQ(ranks.context_min_tokens, 256);
    EXPECT_EQ(ranks.deadline_seconds, 10.0);
    EXPECT_EQ(ranks.create_deadline_seconds, 300.0);
    ranks.kind = DSV4RT_PARALLEL_TENSOR;
    return refused_with(
        [&](dsv4rt_engine_options& options) {
          options.parallel = &ranks;
          change(ranks, options);
        },
        status);
  };
  const char id[DSV4RT_NCCL_ID_BYTES] = "";
  using Options = dsv4rt_engine_options;
  expect_names(with_ranks([](Ranks& r, Options&) { r.kind = 0; }, DSV4RT_INVALID_ARGUMENT), "kind: 0");
  expect_names(with_ranks([](Ranks& r, Options&) { r.kind = 3; }, DSV4RT_INVALID_ARGUMENT), "kind: 3");
  expect_names(with_ranks([](Ranks& r, Options&) { r.struct_size -= 8; }, DSV4RT_INVALID_ARGUMENT),
               "dsv4rt_parallel_options.struct_size");
  expect_names(with_ranks([](Ranks& r, Options&) { r.context_own_outputs = 2; }, DSV4RT_INVALID_ARGUMENT),
               "context_own_outputs: 2");
  expect_names(with_ranks([](Ranks& r, Options&) { r.rank = -1; }, DSV4RT_INVALID_ARGUMENT), "rank, size: -1, 0");
  expect_names(with_ranks([&](Ranks& r, Options&) { r.unique_id = id; }, DSV4RT_INVALID_ARGUMENT), "unique_id");
  expect_names(with_ranks([](Ranks&, Options& o) { o.backend = "cuda"; }, DSV4RT_INVALID_ARGUMENT), "unique_id: null");
  expect_names(with_ranks(
                   [&](Ranks& r, Options& o) {
                     o.backend = "cuda";
                     r.unique_id = r.mpi_communicator = id;
                   },
                   DSV4RT_INVALID_ARGUMENT),
               "mpi_communicator");
#if defined(DSV4RT_HAVE_MPI)
  expect_names(with_ranks([](Ranks&, Options&) {}, DSV4RT_FAILED_PRECONDITION), "MPI_Init");
#else
  expect_names(with_ranks([](Ranks&, Options&) {}, DSV4RT_UNSUPPORTED), "DSV4RT_MPI");
#endif
  EXPECT_EQ(dsv4rt_parallel_options_init(nullptr, sizeof(Ranks)), DSV4RT_INVALID_ARGUMENT);
  Ranks ranks;
  EXPECT_EQ(dsv4rt_parallel_options_init(&ranks, 8), DSV4RT_INVALID_ARGUMENT);
}

// A rank that met the others and was refused afterwards would leave them waiting for it. Here nobody can be met, so
// that an attempt is an error of its own.
TEST_F(CApiParallelTest, WhatARankAloneIsRefusedForIsCheckedBeforeItMeetsTheOthers) {
  dsv4rt_parallel_options ranks;
  ASSERT_EQ(dsv4rt_parallel_options_init(&ranks, sizeof(ranks)), DSV4RT_OK);
  ranks.kind = DSV4RT_PARALLEL_TENSOR;
  const auto with_ranks = [&ranks](dsv4rt_engine_options& options) { options.parallel = &ranks; };
  for (const char* const none : {static_cast<const char*>(nullptr), ""}) {
    expect_names(refused_with(
                     [&](dsv4rt_engine_options& options) {
                       with_ranks(options);
                       options.checkpoint = none;
                     },
                     DSV4RT_INVALID_ARGUMENT),
                 "dsv4rt_engine_options.checkpoint");
  }
  for (const char* const backend : {"metal", ""}) {
    expect_names(refused_with(
                     [&](dsv4rt_engine_options& options) {
                       with_ranks(options);
                       options.backend = backend;
                     },
                     DSV4RT_INVALID_ARGUMENT),
                 "backend: '" + std::string(backend) + "'");
  }

  dsv4rt_engine_options given = options(nullptr);
  with_ranks(given);
  dsv4rt_tensor tensor{};
  tensor.struct_size = sizeof(tensor);
  dsv4rt_engine* engine = nullptr;
  char message[512] = "";
  EXPECT_EQ(dsv4rt_engine_create_from_tensors(&given, "{}", &tensor, 1, &engine, message, sizeof(message)),
            DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(engine, nullptr);
  expect_names(message, "tensors[0].name");
}

// An engine of several ranks has weights of its own: what is said of ranks is not even read.
TEST_F(CApiParallelTest, EnginesThatShareWeightsHaveNoRanks) {
  const EngineHandle owner = open();
  dsv4rt_engine_options given = options(nullptr);
  const dsv4rt_parallel_options unread{};
  given.parallel = &unread;
  dsv4rt_engine* engine = nullptr;
  char message[512] = "";
  EXPECT_EQ(dsv4rt_engine_create_sharing(owner.get(), &given, &engine, message, sizeof(message)), DSV4RT_UNSUPPORTED);
  EXPECT_EQ(engine, nullptr);
  expect_names(message, "create_sharing: parallel");
}

TEST_F(CApiParallelTest, AnIdOfRanksNeedsItsBytes) {
  char id[DSV4RT_NCCL_ID_BYTES] = "";
  char message[256] = "";
  EXPECT_EQ(dsv4rt_nccl_unique_id(nullptr, sizeof(id), message, sizeof(message)), DSV4RT_INVALID_ARGUMENT);
  expect_names(message, "id");
  EXPECT_EQ(dsv4rt_nccl_unique_id(id, sizeof(id) - 1, message, sizeof(message)), DSV4RT_INVALID_ARGUMENT);
  expect_names(message, "id_bytes 127");
  EXPECT_EQ(dsv4rt_nccl_unique_id(id, sizeof(id), nullptr, 1), DSV4RT_INVALID_ARGUMENT);
  // Not part of builds without CUDA; a machine has it or not.
  if (const dsv4rt_status made = dsv4rt_nccl_unique_id(id, sizeof(id), message, sizeof(message)); made != DSV4RT_OK) {
    EXPECT_EQ(made, DSV4RT_UNSUPPORTED);
    expect_names(message, "nccl");
  }
}

TEST_F(CApiParallelTest, AnImpossibleRankOverNcclIsRefusedBeforeAnyoneIsMet) {
  char id[DSV4RT_NCCL_ID_BYTES] = "";
  const bool nccl = dsv4rt_nccl_unique_id(id, sizeof(id), nullptr, 0) == DSV4RT_OK;
  dsv4rt_parallel_options ranks;
  ASSERT_EQ(dsv4rt_parallel_options_init(&ranks, sizeof(ranks)), DSV4RT_OK);
  ranks.kind = DSV4RT_PARALLEL_CONTEXT;
  ranks.unique_id = id;
  ranks.rank = 5;
  ranks.size = 2;
  expect_names(refused_with(
                   [&ranks](dsv4rt_engine_options& options) {
                     options.backend = "cuda";
                     options.parallel = &ranks;
                   },
                   nccl ? DSV4RT_INVALID_ARGUMENT : DSV4RT_UNSUPPORTED),
               nccl ? "rank" : "nccl");
}

}  // namespace
}  // namespace dsv4rt
