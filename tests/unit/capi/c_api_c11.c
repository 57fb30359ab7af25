/* Decode loops in C11: what a serving stack without C++ writes. Called by c_api_test. */
#include <stdlib.h>
#include <string.h>

#include "dsv4rt/c_api.h"

enum { kPrefillTokens = 12, kDecodeSteps = 5 };

int dsv4rt_c11_decode(const char* checkpoint, char* text, size_t text_bytes);
int dsv4rt_c11_prefix(const char* checkpoint, long long* hit_tokens, char* text, size_t text_bytes);

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

enum { kPromptTokens = 200 };

struct prefix_counts {
  int units;
  int states;
};

static void on_event(void* user_data, const dsv4rt_prefix_event* event) {
  struct prefix_counts* counts = user_data;
  if (event->kind == DSV4RT_UNIT_STORED) counts->units++;
  if (event->kind == DSV4RT_STATE_STORED) counts->states++;
}

/* Runs what of the prompt is not cached yet; *hit_tokens says how much was. */
static dsv4rt_status run_prompt(dsv4rt_engine* engine, const int32_t* ids, const dsv4rt_bf16* x, int64_t hidden_size,
                                int64_t* hit_tokens) {
  static const char tenant[] = "tenant 7";
  const dsv4rt_sequence_options how = {sizeof(how), tenant, sizeof(tenant) - 1, 0, NULL};
  dsv4rt_sequence sequence;
  dsv4rt_step step;
  struct hook_state state = {0, 0};
  dsv4rt_status status = dsv4rt_sequence_create_with_ids(engine, ids, kPromptTokens, &how, &sequence, hit_tokens);
  if (status != DSV4RT_OK) return status;
  const dsv4rt_step_entry entry = {sequence, (int32_t)(kPromptTokens - *hit_tokens)};
  const int32_t* entry_ids[1] = {ids + *hit_tokens};
  const dsv4rt_step_options options = {sizeof(options), 0, 0, 0, entry_ids};
  status = dsv4rt_step_prepare(engine, &entry, 1, &options, &step);
  if (status != DSV4RT_OK) return status;
  state.values = step.tokens * hidden_size;
  status = dsv4rt_step_run(engine, &step, x + *hit_tokens * hidden_size, on_layer, &state);
  if (status == DSV4RT_OK) status = dsv4rt_step_commit(engine, &step, NULL, 0);
  if (status == DSV4RT_OK) status = dsv4rt_sequence_release(engine, sequence);
  return status;
}

/* The same prompt twice; 0, or the status that stopped it with its text. *hit_tokens: of the second time. */
int dsv4rt_c11_prefix(const char* checkpoint, long long* hit_tokens, char* text, size_t text_bytes) {
  struct prefix_counts counts = {0, 0};
  dsv4rt_prefix_options prefixes;
  dsv4rt_engine_options options;
  dsv4rt_engine* engine = NULL;
  dsv4rt_bf16* x = NULL;
  int64_t hidden_size = 0;
  int64_t hit = 0;
  int32_t ids[kPromptTokens];
  for (int32_t i = 0; i < kPromptTokens; ++i) ids[i] = 3 * i;
  dsv4rt_status status = dsv4rt_engine_options_init(&options, sizeof(options));
  if (status == DSV4RT_OK) status = dsv4rt_prefix_options_init(&prefixes, sizeof(prefixes));
  if (status != DSV4RT_OK) return status;
  prefixes.boundary_states = 4;
  prefixes.on_event = on_event;
  prefixes.user_data = &counts;
  options.checkpoint = checkpoint;
  options.threads = 1;
  options.max_context_tokens = 256;
  options.max_step_tokens = kPromptTokens;
  options.prefix_cache = &prefixes;
  status = dsv4rt_engine_create(&options, &engine, text, text_bytes);
  if (status != DSV4RT_OK) return status;
  status = dsv4rt_engine_hidden_size(engine, &hidden_size);
  if (status == DSV4RT_OK) x = calloc((size_t)(kPromptTokens * hidden_size), sizeof(*x));
  if (x == NULL) {
    dsv4rt_engine_destroy(engine);
    return DSV4RT_RESOURCE_EXHAUSTED;
  }
  for (int i = 0; status == DSV4RT_OK && i < 2; ++i) status = run_prompt(engine, ids, x, hidden_size, &hit);
  if (status == DSV4RT_OK && (counts.units != 1 || counts.states != 1)) status = DSV4RT_MISMATCH;
  if (status != DSV4RT_OK && text_bytes > 0) {
    text[0] = '\0';
    strncat(text, dsv4rt_engine_last_error(engine), text_bytes - 1);
  }
  *hit_tokens = hit;
  free(x);
  dsv4rt_engine_destroy(engine);
  return status;
}
