// The C interface: engines of several ranks.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "base/message_text.h"
#include "base/try.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"
#include "dsv4rt/c_api.h"

namespace dsv4rt::c_api {
namespace {

static_assert(std::tuple_size_v<NcclUniqueId> == DSV4RT_NCCL_ID_BYTES);

dsv4rt_parallel_options default_parallel_options() {
  const ParallelOptions defaults;
  dsv4rt_parallel_options options{};
  options.struct_size = sizeof(options);
  options.context_min_tokens = defaults.context_min_tokens;
  options.deadline_seconds = MpiOptions{}.deadline_seconds;
  options.create_deadline_seconds = defaults.create_deadline_seconds;
  return options;
}

Status refused(const char* field, const std::string& value, const std::string& accepted) {
  return {StatusCode::kInvalidArgument,
          "dsv4rt_parallel_options." + std::string(field) + ": " + value + "; accepted: " + accepted};
}

Result<std::shared_ptr<Communicator>> meet_over_mpi(const dsv4rt_parallel_options& known) {
  if (known.unique_id != nullptr)
    return refused("unique_id", "given", "null with backend cpu, whose ranks meet over MPI");
  DSV4RT_ASSIGN_OR_RETURN(auto ranks, create_mpi_communicator({.communicator = known.mpi_communicator,
                                                               .deadline_seconds = known.deadline_seconds}));
  if (known.size == 0 && known.rank == 0) return ranks;
  if (known.size != ranks->size() || known.rank != ranks->rank()) {
    return refused(
        "rank, size", std::to_string(known.rank) + ", " + std::to_string(known.size),
        "0, 0, or the communicator's: " + std::to_string(ranks->rank()) + ", " + std::to_string(ranks->size()));
  }
  return ranks;
}

Result<std::shared_ptr<Communicator>> meet_over_nccl(const dsv4rt_parallel_options& known, std::int32_t device) {
  if (known.mpi_communicator != nullptr) {
    return refused("mpi_communicator", "given", "null with backend cuda, whose ranks meet over NCCL");
  }
  if (known.unique_id == nullptr) return refused("unique_id", "null", "the bytes of dsv4rt_nccl_unique_id");
  NcclOptions options{
      .rank = known.rank, .size = known.size, .id = {}, .device = device, .deadline_seconds = known.deadline_seconds};
  std::memcpy(options.id.data(), known.unique_id, options.id.size());
  return create_nccl_communicator(options);
}

}  // namespace

Status meet_ranks(const dsv4rt_parallel_options& given, EngineOptions& options) {
  dsv4rt_parallel_options known = default_parallel_options();
  DSV4RT_RETURN_IF_ERROR(read_struct(&given, "dsv4rt_parallel_options", known));
  if (known.kind != DSV4RT_PARALLEL_TENSOR && known.kind != DSV4RT_PARALLEL_CONTEXT) {
    return refused("kind", std::to_string(known.kind), "DSV4RT_PARALLEL_TENSOR (1) and DSV4RT_PARALLEL_CONTEXT (2)");
  }
  if (known.context_own_outputs != 0 && known.context_own_outputs != 1) {
    return refused("context_own_outputs", std::to_string(known.context_own_outputs), "0 or 1");
  }
  if (known.rank < 0 || known.size < 0) {
    return refused("rank, size", std::to_string(known.rank) + ", " + std::to_string(known.size), "0 or more");
  }
  if (options.backend != "cpu" && options.backend != "cuda") {
    return {StatusCode::kInvalidArgument,
            "dsv4rt_engine_options.backend: '" + printable(options.backend) + "'; accepted: cpu, cuda"};
  }
  DSV4RT_ASSIGN_OR_RETURN(auto ranks,
                          options.backend == "cuda" ? meet_over_nccl(known, options.device) : meet_over_mpi(known));
  ParallelOptions& parallel = options.parallel;
  (known.kind == DSV4RT_PARALLEL_TENSOR ? parallel.tensor : parallel.context) = std::move(ranks);
  parallel.context_min_tokens = known.context_min_tokens;
  parallel.context_share_outputs = known.context_own_outputs == 0;
  parallel.create_deadline_seconds = known.create_deadline_seconds;
  return {};
}

}  // namespace dsv4rt::c_api

dsv4rt_status dsv4rt_parallel_options_init(dsv4rt_parallel_options* options, size_t struct_size) {
  if (options == nullptr) return DSV4RT_INVALID_ARGUMENT;
  dsv4rt::c_api::ErrorText error;
  return dsv4rt::c_api::run_guarded(error, [&] {
    return dsv4rt::c_api::write_struct(options, struct_size, "dsv4rt_parallel_options",
                                       dsv4rt::c_api::default_parallel_options());
  });
}

dsv4rt_status dsv4rt_step_context_rows(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t* first, int32_t* count) {
  using namespace dsv4rt::c_api;
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) -> dsv4rt::Status {
    constexpr char kName[] = "dsv4rt_step_context_rows";
    if (step == nullptr) return null_argument(kName, "step");
    if (first == nullptr) return null_argument(kName, "first");
    if (count == nullptr) return null_argument(kName, "count");
    const auto parts = handle.engine->context_rows(
        {.serial = step->serial, .tokens = step->tokens, .valid_tokens = step->valid_tokens});
    for (std::size_t part = 0; part < parts.size(); ++part) {
      first[part] = parts[part].first;
      count[part] = parts[part].count;
    }
    return {};
  });
}

dsv4rt_status dsv4rt_nccl_unique_id(void* id, size_t id_bytes, char* message, size_t message_bytes) {
  using dsv4rt::Status;
  using dsv4rt::StatusCode;
  dsv4rt::c_api::ErrorText error;
  const dsv4rt_status status = dsv4rt::c_api::run_guarded(error, [&]() -> Status {
    if (id == nullptr) return dsv4rt::c_api::null_argument("dsv4rt_nccl_unique_id", "id");
    if (message == nullptr && message_bytes > 0) {
      return dsv4rt::c_api::null_argument("dsv4rt_nccl_unique_id", "message");
    }
    if (id_bytes < DSV4RT_NCCL_ID_BYTES) {
      return {StatusCode::kInvalidArgument, "dsv4rt_nccl_unique_id: id_bytes " + std::to_string(id_bytes) +
                                                "; accepted: DSV4RT_NCCL_ID_BYTES (" +
                                                std::to_string(DSV4RT_NCCL_ID_BYTES) + ") or more"};
    }
    DSV4RT_ASSIGN_OR_RETURN(const dsv4rt::NcclUniqueId made, dsv4rt::create_nccl_unique_id());
    std::memcpy(id, made.data(), made.size());
    return {};
  });
  dsv4rt::c_api::copy_text(error.c_str(), message, message_bytes);
  return status;
}
