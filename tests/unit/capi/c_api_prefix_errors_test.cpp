// What the C interface refuses about prefixes; a refused call changes nothing.
#include <limits>
#include <string>

#include "unit/capi/c_api_prefix_test.h"

namespace dsv4rt {
namespace {

TEST_F(CApiPrefixTest, CreateNamesWhatIsWrong) {
  const auto names = [](const dsv4rt_prefix_options& options, const char* part) {
    const std::string text = refused(options, DSV4RT_INVALID_ARGUMENT);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  dsv4rt_prefix_options options = prefix_options();
  options.boundary_states = -1;
  names(options, "boundary_states: -1");
  options = prefix_options();
  options.tenant_quota_tokens = -1;
  names(options, "tenant_quota_tokens: -1");
  options = prefix_options();
  options.event_token_ids = 2;
  names(options, "event_token_ids: 2");
  for (const std::size_t size : {std::size_t{0}, std::size_t{23}, std::numeric_limits<std::size_t>::max()}) {
    options = prefix_options();
    options.struct_size = size;
    names(options, "dsv4rt_prefix_options.struct_size");
    dsv4rt_prefix_policy policy = prefix_policy();
    policy.struct_size = size;
    options = prefix_options();
    options.policy = &policy;
    names(options, "dsv4rt_prefix_policy.struct_size");
    EXPECT_EQ(dsv4rt_prefix_options_init(&options, size), DSV4RT_INVALID_ARGUMENT);
    EXPECT_EQ(dsv4rt_prefix_policy_init(&policy, size), DSV4RT_INVALID_ARGUMENT);
  }
  EXPECT_EQ(dsv4rt_prefix_options_init(nullptr, sizeof(options)), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_prefix_policy_init(nullptr, sizeof(dsv4rt_prefix_policy)), DSV4RT_INVALID_ARGUMENT);
  for (std::int32_t dsv4rt_prefix_policy::*field :
       {&dsv4rt_prefix_policy::interval_tokens, &dsv4rt_prefix_policy::prompt_end, &dsv4rt_prefix_policy::output_end,
        &dsv4rt_prefix_policy::fork_points}) {
    dsv4rt_prefix_policy policy = prefix_policy();
    policy.*field = -1;
    options = prefix_options();
    options.policy = &policy;
    names(options, "dsv4rt_prefix_policy.");
  }
}

TEST_F(CApiPrefixTest, CallsNameWhatIsWrongAndChangeNothing) {
  const EngineHandle handle = open_with(prefix_options());
  dsv4rt_engine* engine = handle.get();
  const Ids ids = ids_of(200);
  leave(engine, ids);
  dsv4rt_sequence sequence{5, 5};
  std::int64_t tokens = 77;
  std::int64_t matched = 77;
  const auto named = [&](dsv4rt_status status, const std::string& part) {
    EXPECT_EQ(status, DSV4RT_INVALID_ARGUMENT) << part;
    expect_error_names(engine, part);
  };
  using NamedCall =
      dsv4rt_status (*)(dsv4rt_engine*, const std::int32_t*, std::size_t, const void*, std::size_t, std::int64_t*);
  const Ids negative{1, 2, -3};
  const std::size_t too_many = std::numeric_limits<std::size_t>::max();
  for (const NamedCall call : {&dsv4rt_prefix_pin, &dsv4rt_prefix_unpin, &dsv4rt_prefix_evict}) {
    named(call(engine, nullptr, 1, nullptr, 0, &tokens), "token_ids must not be null");
    named(call(engine, ids.data(), 1, nullptr, 1, &tokens), "salt must not be null");
    named(call(engine, ids.data(), 1, nullptr, 0, nullptr), "tokens must not be null");
    named(call(engine, ids.data(), too_many, nullptr, 0, &tokens), "count");
    named(call(engine, ids.data(), 1, "", too_many, &tokens), "salt_bytes");
    named(call(engine, negative.data(), 3, nullptr, 0, &tokens), "token_ids[2] = -3");
    EXPECT_EQ(call(nullptr, ids.data(), 1, nullptr, 0, &tokens), DSV4RT_INVALID_ARGUMENT);
  }
  named(dsv4rt_prefix_lookup(engine, nullptr, 1, nullptr, 0, &tokens, &matched), "token_ids must not be null");
  named(dsv4rt_prefix_lookup(engine, ids.data(), 1, nullptr, 0, nullptr, &matched), "hit_tokens must not be null");
  named(dsv4rt_prefix_lookup(engine, ids.data(), 1, nullptr, 0, &tokens, nullptr), "matched_tokens must not be null");
  named(dsv4rt_prefix_lookup(engine, negative.data(), 3, nullptr, 0, &tokens, &matched), "token_ids[2] = -3");
  named(dsv4rt_engine_prefix_unit_tokens(engine, nullptr), "tokens must not be null");
  named(dsv4rt_engine_prefix_stats(engine, nullptr), "stats must not be null");
  dsv4rt_prefix_stats counts{};
  named(dsv4rt_engine_prefix_stats(engine, &counts), "dsv4rt_prefix_stats.struct_size");
  named(dsv4rt_sequence_branch(engine, sequence, 0, 0, nullptr), "child must not be null");

  const auto create_with = [&](const dsv4rt_sequence_options& options) {
    return dsv4rt_sequence_create_with_ids(engine, ids.data(), ids.size(), &options, &sequence, &tokens);
  };
  dsv4rt_sequence_options options{};
  named(create_with(options), "dsv4rt_sequence_options.struct_size");
  options.struct_size = sizeof(options);
  options.salt_bytes = 1;
  named(create_with(options), "salt must not be null");
  options.salt_bytes = 0;
  options.reserve_tokens = -1;
  named(create_with(options), "reserve_tokens");
  options.reserve_tokens = 0;
  dsv4rt_prefix_policy policy = prefix_policy();
  policy.interval_tokens = -1;
  options.policy = &policy;
  named(create_with(options), "interval_tokens: -1");
  named(dsv4rt_sequence_create_with_ids(engine, nullptr, 1, nullptr, &sequence, &tokens), "token_ids must not be null");
  named(dsv4rt_sequence_create_with_ids(engine, ids.data(), 1, nullptr, nullptr, &tokens), "sequence must not be null");
  named(dsv4rt_sequence_create_with_ids(engine, ids.data(), 1, nullptr, &sequence, nullptr),
        "hit_tokens must not be null");
  named(dsv4rt_sequence_create_with_ids(engine, negative.data(), 3, nullptr, &sequence, &tokens), "token_ids[2] = -3");
  const Ids too_long = ids_of(kMaxContextTokens + 1);
  named(dsv4rt_sequence_create_with_ids(engine, too_long.data(), too_long.size(), nullptr, &sequence, &tokens),
        "max_context_tokens");
  EXPECT_EQ(sequence.index, 5U);
  EXPECT_EQ(tokens, 77);
  EXPECT_EQ(matched, 77);
  EXPECT_EQ(lookup(engine, ids).hit_tokens, kUnit);
  for (const dsv4rt_status status :
       {dsv4rt_sequence_create_with_ids(nullptr, ids.data(), 1, nullptr, &sequence, &tokens),
        dsv4rt_sequence_branch(nullptr, sequence, 0, 0, &sequence), dsv4rt_engine_prefix_unit_tokens(nullptr, &tokens),
        dsv4rt_prefix_lookup(nullptr, ids.data(), 1, nullptr, 0, &tokens, &matched), dsv4rt_prefix_clear(nullptr),
        dsv4rt_engine_prefix_stats(nullptr, &counts)}) {
    EXPECT_EQ(status, DSV4RT_INVALID_ARGUMENT);
  }
}

TEST_F(CApiPrefixTest, AnEngineWithoutPrefixCacheSaysSo) {
  dsv4rt_prefix_options none = prefix_options();
  none.boundary_states = 0;
  for (const bool given : {false, true}) {
    const EngineHandle handle = given ? open_with(none) : open();
    dsv4rt_engine* engine = handle.get();
    const Ids ids = ids_of(200);
    dsv4rt_sequence sequence{};
    std::int64_t tokens = 0;
    for (const dsv4rt_status status :
         {dsv4rt_sequence_create_with_ids(engine, ids.data(), ids.size(), nullptr, &sequence, &tokens),
          dsv4rt_prefix_lookup(engine, ids.data(), ids.size(), nullptr, 0, &tokens, &tokens),
          dsv4rt_prefix_pin(engine, ids.data(), ids.size(), nullptr, 0, &tokens),
          dsv4rt_prefix_unpin(engine, ids.data(), ids.size(), nullptr, 0, &tokens),
          dsv4rt_prefix_evict(engine, ids.data(), ids.size(), nullptr, 0, &tokens), dsv4rt_prefix_clear(engine)}) {
      EXPECT_EQ(status, DSV4RT_FAILED_PRECONDITION);
      expect_error_names(engine, "no prefix cache");
    }
    EXPECT_EQ(stats(engine).lookups, 0);
    feed(engine, new_sequence(engine), ids_of(3));  // ids that nobody keeps
  }
}

TEST_F(CApiPrefixTest, NothingChangesDuringAStep) {
  const EngineHandle handle = open_with(prefix_options());
  dsv4rt_engine* engine = handle.get();
  const Ids ids = ids_of(200);
  leave(engine, ids);
  const dsv4rt_step step = prepare(engine, new_sequence(engine), 1);
  dsv4rt_sequence sequence{};
  std::int64_t tokens = 0;
  for (const dsv4rt_status status :
       {dsv4rt_sequence_create_with_ids(engine, ids.data(), ids.size(), nullptr, &sequence, &tokens),
        dsv4rt_prefix_pin(engine, ids.data(), ids.size(), nullptr, 0, &tokens),
        dsv4rt_prefix_evict(engine, ids.data(), ids.size(), nullptr, 0, &tokens), dsv4rt_prefix_clear(engine)}) {
    EXPECT_EQ(status, DSV4RT_FAILED_PRECONDITION);
  }
  EXPECT_EQ(run(engine, step), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK);
  EXPECT_EQ(lookup(engine, ids).hit_tokens, kUnit);
}

}  // namespace
}  // namespace dsv4rt
