// What every public call of the engine goes through: refusing a latched engine, keeping exceptions in, checking
// the caller's pointers, and calling what the caller gave.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {
namespace {

// A Status with these parts as its text. Without memory for it `brief` takes their place, of up to 15 characters,
// which a std::string holds without allocating.
Status status_of_parts(StatusCode code, std::initializer_list<std::string_view> parts, const char* brief) noexcept {
  try {
    std::string text;
    for (const std::string_view part : parts) text += part;
    return {code, std::move(text)};
  } catch (...) {
    return {code, brief};
  }
}

Status out_of_memory(const char* name) noexcept {
  return status_of_parts(StatusCode::kResourceExhausted, {name, ": the host has no memory left"}, "no host memory");
}

// While the caller's code runs, the engine refuses to be changed.
class CallingOut {
 public:
  explicit CallingOut(bool& flag) : flag_(flag) { flag_ = true; }
  ~CallingOut() { flag_ = false; }
  CallingOut(const CallingOut&) = delete;
  CallingOut& operator=(const CallingOut&) = delete;

 private:
  bool& flag_;
};

template <class Call>
Status call_out(bool& flag, const std::string_view who, const Call& call) {
  try {
    const CallingOut scope(flag);
    return call();
  } catch (const std::bad_alloc&) {
    return status_of_parts(StatusCode::kResourceExhausted, {who, " threw std::bad_alloc"}, "no host memory");
  } catch (const std::exception& exception) {
    return status_of_parts(StatusCode::kInvalidArgument, {who, " threw: ", exception.what()}, "hook threw");
  } catch (...) {
    return status_of_parts(StatusCode::kInvalidArgument, {who, " threw an exception of unknown type"}, "hook threw");
  }
}

}  // namespace

Status Engine::Impl::latch(Status cause) noexcept {
  if (!latched.ok()) return cause;  // the first cause is the one to tell
  if (cause.code() == StatusCode::kFaulted || cause.code() == StatusCode::kBackendLost) {
    latched = status_of_parts(cause.code(), {cause.message()}, "engine latched");
    return cause;
  }
  latched = status_of_parts(StatusCode::kFaulted,
                            {"an earlier failure left the engine in an unknown state, destroy it: ",
                             status_code_name(cause.code()), ": ", cause.message()},
                            "engine latched");
  if (cause.code() == StatusCode::kInternal) return cause;
  return status_of_parts(StatusCode::kFaulted, {latched.message()}, "engine latched");
}

Status Engine::Impl::latch_if_broken(Status status) noexcept {
  const bool broken = status.code() == StatusCode::kFaulted || status.code() == StatusCode::kInternal ||
                      status.code() == StatusCode::kBackendLost;
  return broken ? latch(std::move(status)) : status;
}

void Engine::Impl::note_lost_ranks() {
  // A communicator may ask its device, which a capture of this thread forbids.
  if (peers == nullptr || capturing || !latched.ok()) return;
  static_cast<void>(latch_if_broken(peers->state()));
}

Status Engine::Impl::watch_ranks() {
  return peers == nullptr ? Status{} : latch_if_broken(peers->watch(settings.stream));
}

Status Engine::Impl::of_exception(const char* name, const std::exception_ptr& thrown) noexcept {
  // Out of memory for the answer of a latched engine, or while something latched it.
  if (!latched.ok()) return status_of_parts(latched.code(), {latched.message()}, "engine latched");
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    return out_of_memory(name);
  } catch (const std::exception& exception) {
    return latch(status_of_parts(StatusCode::kInternal, {name, ": ", exception.what()}, "defect"));
  } catch (...) {
    return latch(status_of_parts(StatusCode::kInternal, {name, ": an exception of unknown type"}, "defect"));
  }
}

Status Engine::Impl::changed_from_within(const char* name) {
  return {StatusCode::kFailedPrecondition,
          std::string(name) + ": a layer hook or sink must not change the engine that called it"};
}

Status Engine::Impl::call_hook(const LayerHook& hook, const LayerOutput& output) {
  // This takes no memory: it is on the path of every layer.
  constexpr std::string_view kWho = "the hook of layer ";
  std::array<char, kWho.size() + std::numeric_limits<std::int32_t>::digits10 + 2> who{};
  char* number = std::copy(kWho.begin(), kWho.end(), who.data());
  const char* end = std::to_chars(number, who.data() + who.size(), output.layer.value).ptr;
  return call_out(calling_out, {who.data(), static_cast<std::size_t>(end - who.data())}, [&] { return hook(output); });
}

Status Engine::Impl::call_sink(const SnapshotSink& sink, std::span<const std::byte> bytes) {
  return call_out(calling_out, "save_sequence: the sink", [&] { return sink(bytes); });
}

Result<std::size_t> Engine::Impl::call_source(const SnapshotSource& source, std::span<std::byte> buffer) {
  std::size_t given = 0;
  DSV4RT_RETURN_IF_ERROR(call_out(calling_out, "restore_sequence_from: the source", [&]() -> Status {
    DSV4RT_ASSIGN_OR_RETURN(given, source(buffer));
    return {};
  }));
  return given;
}

void Engine::Impl::warn(const std::string& text) noexcept {
  if (!options.on_warning) return;
  static_cast<void>(call_out(calling_out, "on_warning", [&] {
    options.on_warning(text);
    return Status{};
  }));
}

void Engine::Impl::tell(const PrefixEvent& event) noexcept {
  static_cast<void>(call_out(calling_out, "on_event", [&] {
    options.prefix_cache.on_event(event);
    return Status{};
  }));
}

Status Engine::Impl::check_rows(const char* name, const char* argument, const void* rows, RowsIn memory) const {
  if (rows == nullptr) return {StatusCode::kInvalidArgument, std::string(name) + ": " + argument + " is null"};
  const std::size_t alignment = memory == RowsIn::kHost ? alignof(Bf16Bits) : backend->row_alignment();
  const std::size_t excess = reinterpret_cast<std::uintptr_t>(rows) % alignment;
  if (excess == 0) return {};
  return {StatusCode::kInvalidArgument, std::string(name) + ": " + argument + " lies " + std::to_string(excess) +
                                            " bytes past a multiple of " + std::to_string(alignment) +
                                            "; accepted: multiples"};
}

}  // namespace dsv4rt
