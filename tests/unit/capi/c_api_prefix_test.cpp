// The prefix cache through the C interface: hits have the bytes of cold runs, events tell what came and went.
#include "unit/capi/c_api_prefix_test.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" int dsv4rt_c11_prefix(const char* checkpoint, long long* hit_tokens, char* text, size_t text_bytes);

namespace dsv4rt {
namespace {

TEST_F(CApiPrefixTest, DefaultsAreThoseOfTheEngine) {
  const PrefixPolicy policy;
  const dsv4rt_prefix_policy given = prefix_policy();
  EXPECT_EQ(given.struct_size, sizeof(given));
  EXPECT_EQ(given.interval_tokens, policy.interval_tokens);
  EXPECT_EQ(given.prompt_end, policy.prompt_end ? 1 : 0);
  EXPECT_EQ(given.output_end, policy.output_end ? 1 : 0);
  EXPECT_EQ(given.fork_points, policy.fork_points ? 1 : 0);
  dsv4rt_prefix_options options;
  ASSERT_EQ(dsv4rt_prefix_options_init(&options, sizeof(options)), DSV4RT_OK);
  EXPECT_EQ(options.boundary_states, 0);
  EXPECT_EQ(options.tenant_quota_tokens, PrefixCacheOptions{}.tenant_quota_tokens);
  EXPECT_EQ(options.policy, nullptr);
  EXPECT_EQ(options.on_event, nullptr);
  EXPECT_EQ(options.event_token_ids, 0);
}

TEST_F(CApiPrefixTest, HitHasTheBytesOfAColdRun) {
  const EngineHandle handle = open_with(prefix_options());
  const Ids ids = ids_of(300);
  const OutputsByPosition cold = leave(handle.get(), ids);
  ASSERT_EQ(cold.size(), ids.size());
  const Start warm = create(handle.get(), ids);
  EXPECT_EQ(warm.hit_tokens, 2 * kUnit);
  EXPECT_EQ(length(handle.get(), warm.sequence), warm.hit_tokens);
  const OutputsByPosition rest = feed(handle.get(), warm.sequence, ids, 17);
  ASSERT_EQ(rest.size(), ids.size() - 2 * kUnit);
  for (const auto& [position, output] : rest) EXPECT_EQ(output, cold.at(position)) << "token " << position;

  const dsv4rt_prefix_stats counts = stats(handle.get());
  EXPECT_EQ(counts.lookups, 2);
  EXPECT_EQ(counts.hit_tokens, 2 * kUnit);
  EXPECT_EQ(counts.missed_tokens, 300 + 300 - 2 * kUnit);
  EXPECT_EQ(counts.units_stored, 2);
  EXPECT_EQ(counts.kept_units, 2);
  EXPECT_EQ(counts.kept_states, 1);
}

TEST_F(CApiPrefixTest, PlanNamesWhatStatesTake) {
  const EngineHandle handle = open_with(prefix_options());
  dsv4rt_memory memory{};
  memory.struct_size = sizeof(memory);
  ASSERT_EQ(dsv4rt_engine_memory(handle.get(), &memory), DSV4RT_OK);
  EXPECT_EQ(memory.prefix_unit_tokens, kUnit);
  EXPECT_GT(memory.bytes_per_boundary_state, 4 * 128 * 584);  // window rows of four layers, and more
  EXPECT_EQ(memory.boundary_state_bytes, kStates * memory.bytes_per_boundary_state);
  EXPECT_GT(memory.table_row_bytes, 0);
  std::int64_t sum =
      memory.block_table_bytes + memory.step_metadata_bytes + memory.boundary_state_bytes + memory.table_row_bytes;
  for (std::size_t i = 0; i < memory.region_count; ++i) {
    dsv4rt_memory_region region{};
    region.struct_size = sizeof(region);
    ASSERT_EQ(dsv4rt_engine_memory_region(handle.get(), i, &region), DSV4RT_OK);
    sum += region.total_bytes;
  }
  EXPECT_EQ(memory.cache_bytes, sum);
  std::int64_t unit = 0;
  EXPECT_EQ(dsv4rt_engine_prefix_unit_tokens(handle.get(), &unit), DSV4RT_OK);
  EXPECT_EQ(unit, kUnit);

  const EngineHandle without = open();
  ASSERT_EQ(dsv4rt_engine_memory(without.get(), &memory), DSV4RT_OK);
  EXPECT_EQ(memory.boundary_state_bytes, 0);
  EXPECT_EQ(memory.table_row_bytes, 0);
  EXPECT_EQ(dsv4rt_engine_prefix_unit_tokens(without.get(), &unit), DSV4RT_OK);
  EXPECT_EQ(unit, 0);
}

TEST_F(CApiPrefixTest, SaltsShareNothing) {
  const EngineHandle handle = open_with(prefix_options());
  const Ids ids = ids_of(200);
  leave(handle.get(), ids, "tenant a");
  EXPECT_EQ(lookup(handle.get(), ids, "tenant a"), (Lookup{kUnit, kUnit}));
  for (const char* salt : {"", "tenant b", "tenant"}) EXPECT_EQ(lookup(handle.get(), ids, salt), (Lookup{0, 0}));
  EXPECT_EQ(create(handle.get(), ids, "tenant b").hit_tokens, 0);
  EXPECT_EQ(create(handle.get(), ids, "tenant a").hit_tokens, kUnit);
}

TEST_F(CApiPrefixTest, PoliciesComeFromTheEngineOrTheSequence) {
  dsv4rt_prefix_policy never = prefix_policy();
  never.interval_tokens = 0;
  never.prompt_end = never.output_end = never.fork_points = 0;
  dsv4rt_prefix_policy every = never;
  every.interval_tokens = 1;
  dsv4rt_prefix_options options = prefix_options();
  options.policy = &never;
  const EngineHandle handle = open_with(options);
  const Ids ids = ids_of(400);
  const Start first = create(handle.get(), ids);
  feed(handle.get(), first.sequence, ids);
  EXPECT_EQ(lookup(handle.get(), ids), (Lookup{0, 3 * kUnit}));  // units without a state
  EXPECT_EQ(dsv4rt_sequence_release(handle.get(), first.sequence), DSV4RT_OK);
  const Start second = create(handle.get(), ids, "", &every);
  EXPECT_EQ(second.hit_tokens, 0);
  feed(handle.get(), second.sequence, ids);
  EXPECT_EQ(stats(handle.get()).kept_states, 3);
  EXPECT_EQ(lookup(handle.get(), ids), (Lookup{3 * kUnit, 3 * kUnit}));
  EXPECT_EQ(lookup(handle.get(), ids_of(3 * kUnit)), (Lookup{2 * kUnit, 2 * kUnit})) << "the last token is to be run";
}

TEST_F(CApiPrefixTest, QuotaIsEachSalts) {
  dsv4rt_prefix_options options = prefix_options();
  options.tenant_quota_tokens = kUnit;
  const EngineHandle handle = open_with(options);
  leave(handle.get(), ids_of(200, 0));
  leave(handle.get(), ids_of(200, 1000));
  EXPECT_EQ(lookup(handle.get(), ids_of(200, 0)).hit_tokens, 0);
  EXPECT_EQ(lookup(handle.get(), ids_of(200, 1000)).hit_tokens, kUnit);
  EXPECT_EQ(stats(handle.get()).units_removed_by_quota, 1);
}

TEST_F(CApiPrefixTest, StepsWithoutIdsEndTheCaching) {
  const EngineHandle handle = open_with(prefix_options());
  const Ids ids = ids_of(300);
  const Start start = create(handle.get(), ids);
  feed(handle.get(), start.sequence, ids_of(140));
  append(handle.get(), start.sequence, 1);
  EXPECT_EQ(stats(handle.get()).sequences_detached, 1);
  feed(handle.get(), start.sequence, ids);
  EXPECT_EQ(lookup(handle.get(), ids).matched_tokens, kUnit);

  // One entry of a step may have ids and another none.
  const Start with = create(handle.get(), ids_of(150, 5000));
  const dsv4rt_step_entry entries[] = {{start.sequence, 1}, {with.sequence, 150}};
  const Ids more = ids_of(150, 5000);
  const std::int32_t* step_ids[] = {nullptr, more.data()};
  dsv4rt_step_options options{};
  options.struct_size = sizeof(options);
  options.token_ids = step_ids;
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(handle.get(), entries, 2, &options, &step), DSV4RT_OK);
  ASSERT_EQ(run(handle.get(), step), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_step_commit(handle.get(), &step, nullptr, 0), DSV4RT_OK);
  EXPECT_EQ(lookup(handle.get(), more), (Lookup{kUnit, kUnit}));
}

TEST_F(CApiPrefixTest, PinnedPrefixesStayUntilTheyAreUnpinned) {
  const EngineHandle handle = open_with(prefix_options());
  dsv4rt_engine* engine = handle.get();
  const Ids ids = ids_of(300);
  leave(engine, ids);
  std::int64_t tokens = -1;
  ASSERT_EQ(dsv4rt_prefix_pin(engine, ids.data(), ids.size(), nullptr, 0, &tokens), DSV4RT_OK);
  EXPECT_EQ(tokens, 2 * kUnit);
  EXPECT_EQ(stats(engine).pinned_units, 2);
  EXPECT_EQ(dsv4rt_prefix_clear(engine), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_prefix_evict(engine, ids.data(), ids.size(), nullptr, 0, &tokens), DSV4RT_OK);
  EXPECT_EQ(tokens, 0);
  EXPECT_EQ(lookup(engine, ids).hit_tokens, 2 * kUnit);
  ASSERT_EQ(dsv4rt_prefix_unpin(engine, ids.data(), ids.size(), nullptr, 0, &tokens), DSV4RT_OK);
  EXPECT_EQ(tokens, 2 * kUnit);
  ASSERT_EQ(dsv4rt_prefix_unpin(engine, ids.data(), ids.size(), nullptr, 0, &tokens), DSV4RT_OK);
  EXPECT_EQ(tokens, 0) << "nothing is pinned any more";
  ASSERT_EQ(dsv4rt_prefix_evict(engine, ids.data(), ids.size(), nullptr, 0, &tokens), DSV4RT_OK);
  EXPECT_EQ(tokens, 2 * kUnit);
  EXPECT_EQ(lookup(engine, ids), (Lookup{0, 0}));
  EXPECT_EQ(stats(engine).units_removed_on_request, 2);
  leave(engine, ids);
  EXPECT_EQ(dsv4rt_prefix_clear(engine), DSV4RT_OK);
  EXPECT_EQ(stats(engine).kept_units, 0);
}

TEST_F(CApiPrefixTest, BranchesAndTruncatesToKeptBoundaries) {
  dsv4rt_prefix_policy every = prefix_policy();
  every.interval_tokens = 1;
  dsv4rt_prefix_options options = prefix_options();
  options.policy = &every;
  const EngineHandle handle = open_with(options);
  dsv4rt_engine* engine = handle.get();
  const Ids ids = ids_of(300);
  const Start start = create(engine, ids);
  const OutputsByPosition cold = feed(engine, start.sequence, ids);
  dsv4rt_sequence child{};
  ASSERT_EQ(dsv4rt_sequence_branch(engine, start.sequence, kUnit, 0, &child), DSV4RT_OK)
      << dsv4rt_engine_last_error(engine);
  EXPECT_EQ(length(engine, child), kUnit);
  for (const auto& [position, output] : feed(engine, child, ids)) EXPECT_EQ(output, cold.at(position)) << position;
  ASSERT_EQ(dsv4rt_sequence_truncate(engine, start.sequence, kUnit), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
  const OutputsByPosition again = feed(engine, start.sequence, ids, 60);
  for (const auto& [position, output] : again) EXPECT_EQ(output, cold.at(position)) << position;
  EXPECT_EQ(dsv4rt_sequence_branch(engine, start.sequence, 200, 0, &child), DSV4RT_FAILED_PRECONDITION);
  expect_error_names(engine, "the nearest one below is at 128");
  EXPECT_EQ(dsv4rt_sequence_branch(engine, start.sequence, -1, 0, &child), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_sequence_branch(engine, start.sequence, kUnit, -1, &child), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_sequence_branch(engine, {9, 9}, kUnit, 0, &child), DSV4RT_STALE_HANDLE);
}

// ---- Events ----

struct Told {
  std::int32_t kind;
  std::int32_t removal;
  std::array<std::uint8_t, 32> digest;
  std::array<std::uint8_t, 32> parent;
  std::int64_t end_tokens;
  Ids token_ids;
  std::vector<std::int32_t> roles;
  std::string medium;
};

struct Listener {
  dsv4rt_engine* engine = nullptr;
  bool throws = false;
  std::vector<Told> events;
  std::vector<dsv4rt_status> asked;
  std::vector<dsv4rt_status> changed;

  static void call(void* self, const dsv4rt_prefix_event* event) {
    auto& listener = *static_cast<Listener*>(self);
    EXPECT_EQ(event->struct_size, sizeof(*event));
    Told told{.kind = event->kind,
              .removal = event->removal,
              .digest = {},
              .parent = {},
              .end_tokens = event->end_tokens,
              .token_ids = Ids(event->token_ids, event->token_ids + event->token_id_count),
              .roles = {event->roles, event->roles + event->role_count},
              .medium = event->medium};
    std::copy(std::begin(event->digest), std::end(event->digest), told.digest.begin());
    std::copy(std::begin(event->parent), std::end(event->parent), told.parent.begin());
    listener.events.push_back(std::move(told));
    std::int64_t number = 0;
    dsv4rt_sequence sequence{};
    listener.asked.push_back(dsv4rt_engine_prefix_unit_tokens(listener.engine, &number));
    listener.asked.push_back(dsv4rt_prefix_lookup(listener.engine, nullptr, 0, nullptr, 0, &number, &number));
    listener.changed.push_back(dsv4rt_prefix_clear(listener.engine));
    listener.changed.push_back(dsv4rt_sequence_create(listener.engine, 0, &sequence));
    listener.changed.push_back(dsv4rt_engine_destroy(listener.engine));
    if (listener.throws) throw std::runtime_error("the listener broke");
  }
};

TEST_F(CApiPrefixTest, EventsTellWhatCameAndWent) {
  for (const bool with_ids : {true, false}) {
    Listener listener;
    dsv4rt_prefix_options options = prefix_options();
    options.on_event = Listener::call;
    options.user_data = &listener;
    options.event_token_ids = with_ids ? 1 : 0;
    const EngineHandle handle = open_with(options);
    listener.engine = handle.get();
    const Ids ids = ids_of(300);
    leave(handle.get(), ids);
    ASSERT_EQ(listener.events.size(), 3U);
    const Told& first = listener.events[0];
    const Told& second = listener.events[1];
    const Told& state = listener.events[2];
    EXPECT_EQ(first.kind, DSV4RT_UNIT_STORED);
    EXPECT_EQ(first.end_tokens, kUnit);
    EXPECT_EQ(first.roles, (std::vector<std::int32_t>{DSV4RT_ROLE_CSA_KV, DSV4RT_ROLE_INDEX_K, DSV4RT_ROLE_HCA_KV}));
    EXPECT_EQ(first.medium, "cpu");
    EXPECT_EQ(second.kind, DSV4RT_UNIT_STORED);
    EXPECT_EQ(second.end_tokens, 2 * kUnit);
    EXPECT_EQ(second.parent, first.digest);
    EXPECT_NE(second.digest, first.digest);
    EXPECT_EQ(second.token_ids, with_ids ? Ids(ids.begin() + kUnit, ids.begin() + 2 * kUnit) : Ids{});
    EXPECT_EQ(state.kind, DSV4RT_STATE_STORED);
    EXPECT_EQ(state.end_tokens, 2 * kUnit);
    EXPECT_EQ(state.digest, second.digest);
    EXPECT_EQ(std::count(state.roles.begin(), state.roles.end(), DSV4RT_ROLE_SWA_KV), 1);
    EXPECT_EQ(std::count(state.roles.begin(), state.roles.end(), DSV4RT_ROLE_HCA_STATE), 0) << "dead at a boundary";

    EXPECT_EQ(dsv4rt_prefix_clear(handle.get()), DSV4RT_OK);
    ASSERT_EQ(listener.events.size(), 6U);
    EXPECT_EQ(listener.events[3].kind, DSV4RT_STATE_REMOVED);
    EXPECT_EQ(listener.events[4].kind, DSV4RT_UNIT_REMOVED);
    for (std::size_t i = 3; i < 6; ++i) EXPECT_EQ(listener.events[i].removal, DSV4RT_REMOVED_ON_REQUEST);
    for (const dsv4rt_status status : listener.asked) EXPECT_EQ(status, DSV4RT_OK);
    for (const dsv4rt_status status : listener.changed) EXPECT_EQ(status, DSV4RT_FAILED_PRECONDITION);
  }
}

TEST_F(CApiPrefixTest, ListenersThatThrowAreNotHeard) {
  Listener listener;
  listener.throws = true;
  dsv4rt_prefix_options options = prefix_options();
  options.on_event = Listener::call;
  options.user_data = &listener;
  const EngineHandle handle = open_with(options);
  listener.engine = handle.get();
  const Ids ids = ids_of(300);
  leave(handle.get(), ids);
  EXPECT_EQ(listener.events.size(), 3U);
  EXPECT_EQ(create(handle.get(), ids).hit_tokens, 2 * kUnit) << "the engine goes on and may be changed again";
}

TEST_F(CApiPrefixTest, ServesAC11Program) {
  char text[256] = "";
  long long hit_tokens = -1;
  EXPECT_EQ(dsv4rt_c11_prefix(checkpoint().c_str(), &hit_tokens, text, sizeof(text)), 0) << text;
  EXPECT_EQ(hit_tokens, kUnit);
}

}  // namespace
}  // namespace dsv4rt
