// Ops that notes what it is asked and, if there is somebody to do it, passes it on.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/boundary_state.h"
#include "backend/ops.h"

namespace dsv4rt::test {

class RecordingOps : public Ops {
 public:
  explicit RecordingOps(Ops* inner = nullptr) : inner_(inner) {}

  // Names of the calls in order; "linear*3" is one call with three matrices.
  std::vector<std::string> calls;
  // Parameters of the last call of each kind.
  std::vector<std::vector<LinearCall>> linears;
  std::vector<CompressParams> compressions;
  WriteKvParams update_params;
  // What write_kv was asked, part by part.
  QueryParams query_params;
  IndexQueryParams index_query_params;
  IndexerTopkParams select_params;
  AttendParams attend_params;
  KeepBoundaryParams keep_params;
  // What is said without somebody to ask: by norms_queries(), and from how many tokens on by takes_encoded_rows() and
  // encodes_outputs().
  bool norms = false;
  std::int32_t least_encoded_tokens = std::numeric_limits<std::int32_t>::max();
  std::int32_t least_encoding_tokens = std::numeric_limits<std::int32_t>::max();
  // The call with this number fails (-1: none).
  int failing_call = -1;

  Status linear(std::int32_t tokens, std::span<const LinearCall> c) override {
    linears.emplace_back(c.begin(), c.end());
    return pass("linear*" + std::to_string(c.size()), [&] { return inner_->linear(tokens, c); });
  }
  Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> c) override {
    linears.emplace_back(c.begin(), c.end());
    return pass("normed_linear*" + std::to_string(c.size()), [&] { return inner_->normed_linear(norm, c); });
  }
  Status swa_cache_write(const SwaCacheWriteParams& p) override {
    return pass("swa_cache_write", [&] { return inner_->swa_cache_write(p); });
  }
  Status write_kv(const WriteKvParams& p) override {
    update_params = p;
    if (p.query) query_params = *p.query;
    if (p.index_query) index_query_params = *p.index_query;
    if (p.compress) compressions.push_back(*p.compress);
    if (p.index_compress) compressions.push_back(*p.index_compress);
    return pass("write_kv", [&] { return inner_->write_kv(p); });
  }
  Status query(const QueryParams& p) override {
    return pass("query", [&] { return inner_->query(p); });
  }
  Status index_query(const IndexQueryParams& p) override {
    return pass("index_query", [&] { return inner_->index_query(p); });
  }
  Status swa_kv(const SwaKvParams& p) override {
    return pass("swa_kv", [&] { return inner_->swa_kv(p); });
  }
  Status compress(const CompressParams& p) override {
    return pass("compress", [&] { return inner_->compress(p); });
  }
  Status state_store(const StateStoreParams& p) override {
    return pass("state_store", [&] { return inner_->state_store(p); });
  }
  Status copy_finished_rows(RowDirection direction, const FinishedRowsParams& p) override {
    return pass("copy_finished_rows", [&] { return inner_->copy_finished_rows(direction, p); });
  }
  Status indexer_topk(const IndexerTopkParams& p) override {
    select_params = p;
    return pass("indexer_topk", [&] { return inner_->indexer_topk(p); });
  }
  Status attend(const AttendParams& p) override {
    attend_params = p;
    return pass("attend", [&] { return inner_->attend(p); });
  }
  [[nodiscard]] bool takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const override {
    return inner_ == nullptr ? tokens >= least_encoded_tokens : inner_->takes_encoded_rows(tokens, weight);
  }
  Result<bool> encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) override {
    return inner_ == nullptr ? tokens >= least_encoding_tokens : inner_->encodes_outputs(tokens, calls);
  }
  Result<bool> norms_queries(const AttendParams& p) override {
    return inner_ == nullptr ? Result<bool>(norms) : inner_->norms_queries(p);
  }
  Status flag_non_finite(const FlagNonFiniteParams& p) override {
    return pass("flag_non_finite", [&] { return inner_->flag_non_finite(p); });
  }
  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override {
    return pass("begin_step", [&] { return inner_->begin_step(step, tables); });
  }
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override {
    return pass("copy_slot", [&] { return inner_->copy_slot(source, target, tables, rings); });
  }
  Status copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                            std::span<const BoundaryRows> rows, const BoundaryStates& states) override {
    return pass("copy_boundary_rows", [&] { return inner_->copy_boundary_rows(direction, copies, rows, states); });
  }
  Status keep_boundary_rows(const KeepBoundaryParams& params) override {
    keep_params = params;
    return pass("keep_boundary_rows", [&] { return inner_->keep_boundary_rows(params); });
  }
  Status write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                          std::span<const CacheTable> tables) override {
    return pass("write_table_rows", [&] { return inner_->write_table_rows(slot, ids, columns, tables); });
  }

 private:
  template <class Call>
  Status pass(std::string name, Call call) {
    const int number = static_cast<int>(calls.size());
    calls.push_back(std::move(name));
    if (number == failing_call) return {StatusCode::kInternal, "call " + std::to_string(number) + " was told to fail"};
    return inner_ == nullptr ? Status{} : call();
  }

  Ops* inner_;
};

}  // namespace dsv4rt::test
