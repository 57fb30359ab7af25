// The C interface: saving and restoring sequences.
#include <exception>
#include <span>
#include <string>

#include "base/try.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"

namespace dsv4rt::c_api {
namespace {

Result<SnapshotOptions> read_snapshot_options(const dsv4rt_snapshot_options* given) {
  dsv4rt_snapshot_options known{};
  if (given != nullptr) DSV4RT_RETURN_IF_ERROR(read_struct(given, "dsv4rt_snapshot_options", known));
  if (known.key == nullptr && known.key_bytes > 0) return null_argument("dsv4rt_snapshot_options", "key");
  return SnapshotOptions{.key = {static_cast<const std::byte*>(known.key), known.key_bytes}};
}

// Calls the caller's sink; what it returns or throws is its own failure, not the engine's.
Status run_sink(dsv4rt_engine& handle, dsv4rt_snapshot_sink sink, void* user_data, std::span<const std::byte> bytes) {
  dsv4rt_status status = DSV4RT_OK;
  try {
    const HookScope scope(handle);
    status = sink(user_data, bytes.data(), bytes.size());
  } catch (const std::exception& exception) {
    return {StatusCode::kInvalidArgument, std::string("the sink threw: ") + exception.what()};
  } catch (...) {
    return {StatusCode::kInvalidArgument, "the sink threw an exception of unknown type"};
  }
  if (status == DSV4RT_OK) return {};
  if (status < DSV4RT_OK || status > DSV4RT_BACKEND_LOST) {
    return {StatusCode::kInvalidArgument, "the sink returned " + std::to_string(status) + ", which is no status"};
  }
  const auto code = static_cast<StatusCode>(status);
  return {code, "the sink returned '" + std::string(status_code_name(code)) + "'"};
}

}  // namespace
}  // namespace dsv4rt::c_api

using dsv4rt::SequenceId;
using dsv4rt::SnapshotOptions;
using dsv4rt::Status;
using dsv4rt::c_api::call;
using dsv4rt::c_api::id_of;
using dsv4rt::c_api::null_argument;
using dsv4rt::c_api::read_snapshot_options;
using dsv4rt::c_api::Use;

dsv4rt_status dsv4rt_sequence_snapshot_bytes(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                             const dsv4rt_snapshot_options* options, int64_t* bytes) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) -> Status {
    if (bytes == nullptr) return null_argument("dsv4rt_sequence_snapshot_bytes", "bytes");
    DSV4RT_ASSIGN_OR_RETURN(const SnapshotOptions known, read_snapshot_options(options));
    DSV4RT_ASSIGN_OR_RETURN(*bytes, handle.engine->snapshot_bytes(id_of(sequence), known));
    return {};
  });
}

dsv4rt_status dsv4rt_sequence_save(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                   const dsv4rt_snapshot_options* options, dsv4rt_snapshot_sink sink, void* user_data) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (sink == nullptr) return null_argument("dsv4rt_sequence_save", "sink");
    DSV4RT_ASSIGN_OR_RETURN(const SnapshotOptions known, read_snapshot_options(options));
    const dsv4rt::SnapshotSink callers = [&](std::span<const std::byte> bytes) {
      return dsv4rt::c_api::run_sink(handle, sink, user_data, bytes);
    };
    return handle.engine->save_sequence(id_of(sequence), callers, known);
  });
}

dsv4rt_status dsv4rt_sequence_restore(dsv4rt_engine* engine, const void* snapshot, size_t bytes, int64_t reserve_tokens,
                                      const dsv4rt_snapshot_options* options, dsv4rt_sequence* sequence) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (sequence == nullptr) return null_argument("dsv4rt_sequence_restore", "sequence");
    if (snapshot == nullptr) return null_argument("dsv4rt_sequence_restore", "snapshot");
    DSV4RT_ASSIGN_OR_RETURN(const SnapshotOptions known, read_snapshot_options(options));
    DSV4RT_ASSIGN_OR_RETURN(
        const SequenceId restored,
        handle.engine->restore_sequence({static_cast<const std::byte*>(snapshot), bytes}, reserve_tokens, known));
    *sequence = {restored.index, restored.generation};
    return {};
  });
}
