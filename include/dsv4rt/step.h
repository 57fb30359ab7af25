// What a step is made of: which sequences advance by how many tokens.
#pragma once

#include <cstdint>
#include <optional>

#include "dsv4rt/types.h"

namespace dsv4rt {

// One sequence's part of a step. Rows of x follow the order of the entries; tokens of one entry are
// consecutive. 1 token is a decode, k a speculative verify, many a prefill chunk; mixed freely.
struct StepEntry {
  SequenceId sequence;
  std::int32_t tokens = 0;
  // Ids of these tokens, [tokens], read during prepare: what the prefix cache knows them by. Null where there are
  // none; from then on the sequence's tokens are not cached. Without meaning for sequences that began without ids.
  const std::int32_t* token_ids = nullptr;
};

struct StepOptions {
  // Rows of x including padding rows after the real ones (a captured batch bucket); 0: no padding.
  std::int32_t pad_to_tokens = 0;

  // Engine::step shall run the step as a captured graph of its shape where the backend can capture and
  // GraphOptions allow it. Rows of x are padded to a bucket (Step::tokens says how many there are).
  bool capture = false;

  // With context parallelism: the rank that alone has the step's sequences once it is committed; the same on every
  // rank. For the last step of prompts. That rank's cache is what it would have been, its further steps of these
  // sequences are its own whatever their length, and nobody waits for it. On the others the sequences become empty and
  // give back blocks and reservation, and every call for them is kFailedPrecondition but release, length and
  // sequence_state. A snapshot does not say whose it was: what that rank restores from it, it has to claim
  // (Engine::claim). Every rank commits the same hand-overs, in any order, before the next step that is dealt out: that
  // one is kBackendLost otherwise. Sequences of one rank and of all are not in one step. A step that is dealt out
  // brings them only what their own tokens read, and the rank's tokens are the last ones. Unset: every rank has them.
  // kInvalidArgument for a rank that does not exist and with tensor parallelism; kFailedPrecondition for sequences that
  // one rank has already; kUnsupported with a prefix cache, in which ranks would find different prefixes. Without other
  // ranks, 0 changes nothing.
  std::optional<std::int32_t> hand_over_to = std::nullopt;
};

}  // namespace dsv4rt
