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
  return SnapshotOptions{.key = {static_cast<const std::byte*>(known.key), known.key_bytes},
                         .base_tokens = known.base_tokens};
}

// Calls the caller's sink or source, `who`; what it returns or throws is its own failure, not the engine's.
template <class Call>
Status run_callback(dsv4rt_engine& handle, const std::string& who, const Call& call) {
  dsv4rt_status status = DSV4RT_OK;
  try {
    const HookScope scope(handle);
    status = call();
  } catch (const std::exception& exception) {
    return {StatusCode::kInvalidArgument, who + " threw: " + exception.what()};
  } catch (...) {
    return {StatusCode::kInvalidArgument, who + " threw an exception of unknown type"};
  }
  if (status == DSV4RT_OK) return {};
  if (status < DSV4RT_OK || status > DSV4RT_BACKEND_LOST) {
    return {StatusCode::kInvalidArgument, who + " returned " + std::to_string(status) + ", which is no status"};
  }
  const auto code = static_cast<StatusCode>(status);
  return {code, who + " returned '" + std::string(status_code_name(code)) + "'"};
}

}  // namespace
}  // namespace dsv4rt::c_api

using dsv4rt::Result;
using dsv4rt::SequenceId;
using dsv4rt::SnapshotOptions;
using dsv4rt::Status;
using dsv4rt::c_api::call;
using dsv4rt::c_api::id_of;
using dsv4rt::c_api::null_argument;
using dsv4rt::c_api::read_snapshot_options;
using dsv4rt::c_api::run_callback;
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
      return run_callback(handle, "the sink", [&] { return sink(user_data, bytes.data(), bytes.size()); });
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

dsv4rt_status dsv4rt_sequence_restore_from(dsv4rt_engine* engine, dsv4rt_snapshot_source source, void* user_data,
                                           int64_t reserve_tokens, const dsv4rt_snapshot_options* options,
                                           dsv4rt_sequence* sequence) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (sequence == nullptr) return null_argument("dsv4rt_sequence_restore_from", "sequence");
    if (source == nullptr) return null_argument("dsv4rt_sequence_restore_from", "source");
    DSV4RT_ASSIGN_OR_RETURN(const SnapshotOptions known, read_snapshot_options(options));
    const dsv4rt::SnapshotSource callers = [&](std::span<std::byte> buffer) -> Result<std::size_t> {
      std::size_t given = 0;
      DSV4RT_RETURN_IF_ERROR(
          run_callback(handle, "the source", [&] { return source(user_data, buffer.data(), buffer.size(), &given); }));
      return given;
    };
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId restored,
                            handle.engine->restore_sequence_from(callers, reserve_tokens, known));
    *sequence = {restored.index, restored.generation};
    return {};
  });
}
