/* The same prompt twice through the prefix cache, in C: c_prefix <checkpoint directory>
 *
 * The second sequence begins with what the first one left behind and runs only the rest. The program prints how much
 * that was and a checksum of the last token's outputs, which are the same both times; cpp_prefix.cpp prints the same
 * line. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "dsv4rt/c_api.h"

enum { kPromptTokens = 200 };

static const char kTenant[] = "tenant 7";

/* BF16 values of magnitude 0.5 to 2 for one token in one layer: the embedding and the experts of a model come here. */
static void fill_row(int32_t token_id, int32_t layer, dsv4rt_bf16* row, int64_t hidden_size) {
  uint32_t random = (uint32_t)token_id * 2654435761u + (uint32_t)layer;
  for (int64_t i = 0; i < hidden_size; ++i) {
    random = random * 1664525u + 1013904223u;
    row[i] = (dsv4rt_bf16)(((random >> 16) & 0x8000u) | (0x3f00u + ((random >> 8) & 0xffu)));
  }
}

struct answer {
  const int32_t* ids; /* of the step's tokens */
  int32_t tokens;
  int64_t hidden_size;
  int64_t hit_tokens;
  uint64_t checksum; /* FNV-1a over the last token's outputs, layer by layer */
};

static void fill_rows(const struct answer* answer, int32_t layer, dsv4rt_bf16* rows) {
  for (int32_t i = 0; i < answer->tokens; ++i) {
    fill_row(answer->ids[i], layer, rows + i * answer->hidden_size, answer->hidden_size);
  }
}

static dsv4rt_status on_layer(void* user_data, int32_t layer, const dsv4rt_bf16* output, dsv4rt_bf16* next_input) {
  struct answer* answer = user_data;
  const dsv4rt_bf16* last = output + (answer->tokens - 1) * answer->hidden_size;
  for (int64_t i = 0; i < answer->hidden_size; ++i) answer->checksum = (answer->checksum ^ last[i]) * 1099511628211u;
  if (next_input != NULL) fill_rows(answer, layer + 1, next_input);
  return DSV4RT_OK;
}

static void on_event(void* user_data, const dsv4rt_prefix_event* event) {
  (void)user_data;
  if (event->kind != DSV4RT_STATE_STORED) return;
  fprintf(stderr, "a sequence can begin with %" PRId64 " tokens\n", event->end_tokens);
}

static dsv4rt_status run_prompt(dsv4rt_engine* engine, const int32_t* prompt, dsv4rt_bf16* x, struct answer* answer) {
  const dsv4rt_sequence_options how = {sizeof(how), kTenant, sizeof(kTenant) - 1, kPromptTokens, NULL};
  dsv4rt_sequence sequence;
  dsv4rt_step step;
  dsv4rt_status status =
      dsv4rt_sequence_create_with_ids(engine, prompt, kPromptTokens, &how, &sequence, &answer->hit_tokens);
  if (status != DSV4RT_OK) return status;
  answer->checksum = 14695981039346656037u;
  answer->ids = prompt + answer->hit_tokens;
  answer->tokens = (int32_t)(kPromptTokens - answer->hit_tokens); /* never 0: a hit ends before the last token */
  const dsv4rt_step_entry entry = {sequence, answer->tokens};
  const int32_t* entry_ids[1] = {answer->ids};
  const dsv4rt_step_options with_ids = {sizeof(with_ids), 0, 0, 0, entry_ids};
  status = dsv4rt_step_prepare(engine, &entry, 1, &with_ids, &step);
  if (status != DSV4RT_OK) return status;
  fill_rows(answer, 0, x);
  status = dsv4rt_step_run(engine, &step, x, on_layer, answer);
  if (status == DSV4RT_OK) status = dsv4rt_step_commit(engine, &step, NULL, 0);
  /* What it computed stays in the cache. */
  if (status == DSV4RT_OK) status = dsv4rt_sequence_release(engine, sequence);
  return status;
}

static dsv4rt_status run(dsv4rt_engine* engine) {
  int32_t prompt[kPromptTokens];
  struct answer cold = {0};
  struct answer warm = {0};
  int64_t hidden_size = 0;
  dsv4rt_status status = dsv4rt_engine_hidden_size(engine, &hidden_size);
  if (status != DSV4RT_OK) return status;
  for (int32_t i = 0; i < kPromptTokens; ++i) prompt[i] = 1000 + i;
  cold.hidden_size = warm.hidden_size = hidden_size;
  dsv4rt_bf16* x = malloc((size_t)(kPromptTokens * hidden_size) * sizeof(*x));
  if (x == NULL) return DSV4RT_RESOURCE_EXHAUSTED;
  status = run_prompt(engine, prompt, x, &cold);
  if (status == DSV4RT_OK) status = run_prompt(engine, prompt, x, &warm);
  if (status == DSV4RT_OK && warm.checksum != cold.checksum) status = DSV4RT_MISMATCH;
  if (status == DSV4RT_OK) {
    printf("hit %" PRId64 " of %d tokens, checksum %016" PRIx64 "\n", warm.hit_tokens, kPromptTokens, warm.checksum);
  }
  free(x);
  return status;
}

int main(int argc, char** argv) {
  char message[512] = "";
  dsv4rt_engine_options options;
  dsv4rt_prefix_options prefixes;
  dsv4rt_engine* engine = NULL;
  if (argc != 2) {
    fprintf(stderr, "usage: %s <checkpoint directory>\n", argv[0]);
    return 2;
  }
  dsv4rt_engine_options_init(&options, sizeof(options));
  dsv4rt_prefix_options_init(&prefixes, sizeof(prefixes));
  prefixes.boundary_states = 4;
  prefixes.on_event = on_event;
  options.checkpoint = argv[1];
  options.max_context_tokens = 256;
  options.max_step_tokens = kPromptTokens;
  options.prefix_cache = &prefixes;
  dsv4rt_status status = dsv4rt_engine_create(&options, &engine, message, sizeof(message));
  if (status != DSV4RT_OK) {
    fprintf(stderr, "%s: %s\n", dsv4rt_status_name(status), message);
    return 1;
  }
  status = run(engine);
  if (status != DSV4RT_OK) fprintf(stderr, "%s: %s\n", dsv4rt_status_name(status), dsv4rt_engine_last_error(engine));
  dsv4rt_engine_destroy(engine);
  return status == DSV4RT_OK ? 0 : 1;
}
