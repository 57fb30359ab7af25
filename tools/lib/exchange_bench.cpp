#include "tools/lib/exchange_bench.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/bfloat16.h"
#include "base/try.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt {
namespace {

class ExchangeBench {
 public:
  ExchangeBench(Engine& engine, Communicator& ranks, std::int64_t elements)
      : engine_(engine), backend_(EngineInspector(engine).backend()), ranks_(ranks), elements_(elements) {}

  Result<double> run(std::int32_t repeats) {
    const std::size_t terms_bytes = static_cast<std::size_t>(elements_) * sizeof(float);
    DSV4RT_ASSIGN_OR_RETURN(terms_, backend_.allocate(terms_bytes, "terms of a timed sum"));
    DSV4RT_ASSIGN_OR_RETURN(sum_, backend_.allocate(terms_bytes / 2, "a timed sum"));
    // Powers of two: the sum of any number of ranks up to 256 is exact.
    const std::vector<float> terms(static_cast<std::size_t>(elements_), term_of(ranks_.rank()));
    DSV4RT_RETURN_IF_ERROR(backend_.upload(terms_.as<float>(), terms.data(), terms_bytes));
    std::unique_ptr<CapturedWork> graph;
    if (backend_.can_capture()) {
      DSV4RT_RETURN_IF_ERROR(backend_.begin_capture());
      const Status recorded = add_as_layers_do();
      Result<std::unique_ptr<CapturedWork>> captured = backend_.end_capture();
      DSV4RT_RETURN_IF_ERROR(recorded);
      DSV4RT_RETURN_IF_ERROR(captured.status());
      graph = std::move(captured).value();
    }
    double us = 0;
    for (const bool timed : {false, true}) {
      const auto begin = std::chrono::steady_clock::now();
      for (std::int32_t i = 0; i < repeats; ++i) {
        DSV4RT_RETURN_IF_ERROR(graph != nullptr ? backend_.launch(*graph) : add_as_layers_do());
        DSV4RT_RETURN_IF_ERROR(ranks_.watch(backend_.native_stream()));
      }
      DSV4RT_RETURN_IF_ERROR(backend_.synchronize());
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (timed) us = took.count() / repeats / static_cast<double>(engine_.layers().size());
    }
    DSV4RT_RETURN_IF_ERROR(check_sum());
    return us;
  }

 private:
  static float term_of(std::int32_t rank) { return rank % 2 == 0 ? 1.0F : 0.5F; }

  Status add_as_layers_do() {
    for (std::size_t layer = 0; layer < engine_.layers().size(); ++layer) {
      DSV4RT_RETURN_IF_ERROR(ranks_.all_reduce_sum(terms_.as<float>(), ElementType::kF32, sum_.as<bf16>(),
                                                   ElementType::kBf16, elements_, backend_.native_stream()));
    }
    return {};
  }

  Status check_sum() {
    float expected = 0;
    for (std::int32_t rank = 0; rank < ranks_.size(); ++rank) expected += term_of(rank);
    std::vector<bf16> sum(static_cast<std::size_t>(elements_));
    DSV4RT_RETURN_IF_ERROR(backend_.download(sum.data(), sum_.as<bf16>(), sum.size() * sizeof(bf16)));
    for (const bf16 value : sum) {
      if (to_float(value) == expected) continue;
      return {StatusCode::kMismatch,
              "the ranks add up to " + std::to_string(to_float(value)) + " instead of " + std::to_string(expected)};
    }
    return {};
  }

  Engine& engine_;
  Backend& backend_;
  Communicator& ranks_;
  std::int64_t elements_;
  Buffer terms_;
  Buffer sum_;
};

}  // namespace

Result<double> time_exchange_us(Engine& engine, Communicator& ranks, std::int32_t tokens, std::int32_t repeats) {
  const std::int32_t most = engine.memory().cache.limits.max_step_tokens;
  if (tokens < 1 || tokens > most || repeats < 1) {
    return Status{StatusCode::kInvalidArgument, "tokens = " + std::to_string(tokens) +
                                                    ", repeats = " + std::to_string(repeats) + "; accepted: 1 to " +
                                                    std::to_string(most) + ", 1 or more"};
  }
  return ExchangeBench(engine, ranks, tokens * engine.config().hidden_size).run(repeats);
}

}  // namespace dsv4rt
