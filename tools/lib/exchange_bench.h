// Times what ends a layer of several ranks with tensor parallelism: the sum of their outputs.
#pragma once

#include <cstdint>

#include "dsv4rt/communicator.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

// Microseconds that one sum of [tokens, hidden_size] takes, of as many one after another as the engine has layers,
// `repeats` times, captured where the backend can; after as many to warm up. Every rank calls it at the same time, with
// the communicator of its engine. kMismatch when a sum is not that of the ranks; kInvalidArgument for tokens beyond the
// engine's max_step_tokens and repeats below 1.
Result<double> time_exchange_us(Engine& engine, Communicator& ranks, std::int32_t tokens, std::int32_t repeats);

}  // namespace dsv4rt
