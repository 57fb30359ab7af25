// Status and Result: how the library reports expected failures.
//
// No function of the library prints, exits or lets an exception cross its C ABI. A failure that a
// caller can cause or must handle (bad input, exhausted pool, unsupported feature) is a Status;
// a broken promise inside the library is a failed check (see src/base/check.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "dsv4rt/export.h"

namespace dsv4rt {

// The kind of failure; stable across releases, mirrored by dsv4rt_status in c_api.h.
enum class StatusCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // an API argument or flag is outside what the call accepts
  kBadInput = 2,            // a file, config or trace is malformed; the message names file and field
  kNotFound = 3,            // a file, tensor or name does not exist
  kUnsupported = 4,         // understood, but not offered; the message says what is accepted
  kResourceExhausted = 5,   // memory, blocks or slots; the message names the role and the amount
  kFailedPrecondition = 6,  // the call is not allowed in the present state
  kStaleHandle = 7,         // the sequence was released; its id has an old generation
  kMismatch = 8,            // a comparison with recorded values failed
  kFaulted = 9,             // a device or a write failed, or an earlier failure latched the engine
  kInternal = 10,           // a defect of the library
  kBackendLost = 11,        // other ranks of a communicator failed or did not answer in time; a new one may be made
};

// "invalid argument", "bad input", ...: a stable lower-case name for logs and JSON.
DSV4RT_EXPORT std::string_view status_code_name(StatusCode code) noexcept;

// Success, or a code with a message for people. Cheap to return by value when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }

  [[nodiscard]] bool ok() const noexcept { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const noexcept { return code_; }
  // What failed, why, and what would be accepted. Empty when ok.
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  // "<code name>: <message>", or "ok".
  [[nodiscard]] DSV4RT_EXPORT std::string to_string() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value of T, or the Status that explains why there is none (never an ok Status).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  // Precondition: ok(). Throws std::bad_variant_access otherwise (a programming error).
  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  // Returns by value: a reference into a temporary Result would dangle.
  [[nodiscard]] T value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // The failure, or an ok Status when there is a value.
  [[nodiscard]] Status status() const { return ok() ? Status{} : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace dsv4rt
