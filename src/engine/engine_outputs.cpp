// Engine::output_check: outputs that are not finite, found on the way.
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include "base/try.h"
#include "engine/engine_impl.h"

namespace dsv4rt {

Status Engine::Impl::flag_outputs(const StepView& view, const bf16* output) {
  if (!outputs.on()) return {};
  return backend->ops().flag_non_finite(
      {.step = view, .width = settings.config.hidden_size, .x = output, .flags = outputs.flags()});
}

// The step is over by then: whatever fails here is no answer to its commit.
Status Engine::Impl::end_output_step(std::uint64_t serial, std::int32_t entries) {
  if (!outputs.on()) return {};
  if (Status status = outputs.end_step(serial, entries); !status.ok()) return latch(std::move(status));
  return poll_outputs();
}

// A sequence does not recover, so that every later step of it is found as well: warnings become rare.
Status Engine::Impl::poll_outputs() {
  if (!outputs.on()) return {};
  const Result<OutputWatch::Found> found = outputs.poll();
  if (!found.ok()) return latch(found.status());
  if (found->serial == 0) return {};
  ++output_warnings;
  if (!options.on_warning || !std::has_single_bit(static_cast<std::uint64_t>(output_warnings))) return {};
  try {
    warn("outputs of step " + std::to_string(found->serial) + " are not finite: " + std::to_string(found->entries) +
         " of its entries (Engine::output_check says which), " + std::to_string(outputs.found()) +
         " entries of all steps so far");
  } catch (const std::bad_alloc&) {
    // The warning is lost, the count is not.
  }
  return {};
}

Result<OutputCheck> Engine::output_check(const Step& step) {
  return impl_->call("output_check", Impl::Use::kStep, [&]() -> Result<OutputCheck> {
    if (!impl_->outputs.on()) {
      return Status{StatusCode::kFailedPrecondition, "output_check: EngineOptions::check_outputs is not set"};
    }
    DSV4RT_RETURN_IF_ERROR(impl_->poll_outputs());
    return impl_->outputs.check(step.serial);
  });
}

std::int64_t Engine::non_finite_entries() const noexcept {
  return impl_->outputs.found();
}

}  // namespace dsv4rt
