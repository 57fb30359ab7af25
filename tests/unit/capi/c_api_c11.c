/* A decode loop in C11: what a serving stack without C++ writes. Called by c_api_test. */
#include <stdlib.h>
#include <string.h>

#include "dsv4rt/c_api.h"

enum { kPrefillTokens = 12, kDecodeSteps = 5 };

int dsv4rt_c11_decode(const char* checkpoint, char* text, size_t text_bytes);

struct hook_state {
  int64_t values; /* tokens * hidden_size */
  int32_t layers_seen;
};

static dsv4rt_status on_layer(void* user_data, int32_t layer, const dsv4rt_bf16* output, dsv4rt_bf16* next_input) {
  struct hook_state* state = user_data;
  if (layer != state->layers_seen) return DSV4RT_MISMATCH;
  state->layers_seen++;
  if (next_input != NULL) memcpy(next_input, output, (size_t)state->values * sizeof(*output));
  return DSV4RT_OK;
}

static dsv4rt_status decode(dsv4rt_engine* engine, int64_t hidden_size, dsv4rt_bf16* x) {
  dsv4rt_sequence sequence;
  dsv4rt_status status = dsv4rt_sequence_create(engine, kPrefillTokens + kDecodeSteps, &sequence);
  for (int i = 0; status == DSV4RT_OK && i <= kDecodeSteps; ++i) {
    const dsv4rt_step_entry entry = {sequence, i == 0 ? kPrefillTokens : 1};
    dsv4rt_step step;
    struct hook_state state = {0, 0};
    status = dsv4rt_step_prepare(engine, &entry, 1, NULL, &step);
    if (status != DSV4RT_OK) break;
    state.values = step.tokens * hidden_size;
    status = dsv4rt_step_run(engine, &step, x, on_layer, &state);
    if (status != DSV4RT_OK) break;
    status = dsv4rt_step_commit(engine, &step, NULL, 0);
  }
  if (status == DSV4RT_OK) {
    int64_t length = 0;
    status = dsv4rt_sequence_length(engine, sequence, &length);
    if (status == DSV4RT_OK && length != kPrefillTokens + kDecodeSteps) status = DSV4RT_MISMATCH;
  }
  if (status == DSV4RT_OK) status = dsv4rt_sequence_release(engine, sequence);
  return status;
}

/* 0, or the status that stopped it with its text. */
int dsv4rt_c11_decode(const char* checkpoint, char* text, size_t text_bytes) {
  dsv4rt_engine_options options;
  dsv4rt_engine* engine = NULL;
  int64_t hidden_size = 0;
  dsv4rt_bf16* x = NULL;
  dsv4rt_status status = dsv4rt_engine_options_init(&options, sizeof(options));
  if (status != DSV4RT_OK) return status;
  options.checkpoint = checkpoint;
  options.threads = 1;
  options.max_context_tokens = 256;
  options.max_step_tokens = kPrefillTokens;
  status = dsv4rt_engine_create(&options, &engine, text, text_bytes);
  if (status != DSV4RT_OK) return status;

  status = dsv4rt_engine_hidden_size(engine, &hidden_size);
  if (status == DSV4RT_OK) x = calloc((size_t)(kPrefillTokens * hidden_size), sizeof(*x));
  if (x == NULL) {
    dsv4rt_engine_destroy(engine);
    return DSV4RT_RESOURCE_EXHAUSTED;
  }
  for (int64_t i = 0; i < kPrefillTokens * hidden_size; ++i) x[i] = (dsv4rt_bf16)(0x3f00 + i % 61); /* 0.5 to 1 */
  status = decode(engine, hidden_size, x);
  if (status != DSV4RT_OK && text_bytes > 0) {
    text[0] = '\0';
    strncat(text, dsv4rt_engine_last_error(engine), text_bytes - 1);
  }
  free(x);
  dsv4rt_engine_destroy(engine);
  return status;
}
