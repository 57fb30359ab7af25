// Ops that notes what it is asked and, if there is somebody to do it, passes it on.
#pragma once

#include <string>
#include <vector>

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
  std::vector<StateStoreParams> state_stores;
  QueryParams query_params;
  IndexQueryParams index_query_params;
  SelectRowsParams select_params;
  AttendParams attend_params;
  // The call with this number fails (-1: none).
  int failing_call = -1;

  Status linear(std::int32_t tokens, std::span<const LinearCall> c) override {
    linears.emplace_back(c.begin(), c.end());
    return pass("linear*" + std::to_string(c.size()), [&] { return inner_->linear(tokens, c); });
  }
  Status rms_norm(const RmsNormParams& p) override {
    return pass("rms_norm", [&] { return inner_->rms_norm(p); });
  }
  Status query(const QueryParams& p) override {
    query_params = p;
    return pass("query", [&] { return inner_->query(p); });
  }
  Status window_rows(const WindowRowsParams& p) override {
    return pass("window_rows", [&] { return inner_->window_rows(p); });
  }
  Status window_store(const WindowStoreParams& p) override {
    return pass("window_store", [&] { return inner_->window_store(p); });
  }
  Status compress(const CompressParams& p) override {
    compressions.push_back(p);
    return pass("compress", [&] { return inner_->compress(p); });
  }
  Status state_store(const StateStoreParams& p) override {
    state_stores.push_back(p);
    return pass("state_store", [&] { return inner_->state_store(p); });
  }
  Status index_query(const IndexQueryParams& p) override {
    index_query_params = p;
    return pass("index_query", [&] { return inner_->index_query(p); });
  }
  Status select_rows(const SelectRowsParams& p) override {
    select_params = p;
    return pass("select_rows", [&] { return inner_->select_rows(p); });
  }
  Status attend(const AttendParams& p) override {
    attend_params = p;
    return pass("attend", [&] { return inner_->attend(p); });
  }
  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override {
    return pass("begin_step", [&] { return inner_->begin_step(step, tables); });
  }
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override {
    return pass("copy_slot", [&] { return inner_->copy_slot(source, target, tables, rings); });
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
