// Lesson 14: a snapshot with an unknown role or layout, or with any damage, is refused before a byte of
// the cache changes.
#include "engine/sequence_snapshot.h"

#include <gtest/gtest.h>

#include "layout/bytes.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kChecksumBytes = sizeof(Sha256::Digest);
constexpr std::size_t kHeaderBytes = sizeof(SnapshotHeader) + kChecksumBytes;

// Where a section begins and ends, its checksum included.
struct Extent {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<Extent> section_extents(const Bytes& snapshot) {
  std::vector<Extent> extents;
  std::size_t at = kHeaderBytes;
  while (at < snapshot.size()) {
    const auto header = load_bytes<SnapshotSectionHeader>(snapshot.data() + at);
    extents.push_back({at, at + sizeof header + static_cast<std::size_t>(header.bytes) + kChecksumBytes});
    at = extents.back().end;
  }
  EXPECT_EQ(at, snapshot.size());
  return extents;
}

// Checksums of content that was changed on purpose.
void seal(Bytes& snapshot, const Extent& part) {
  Sha256 digest;
  digest.update({snapshot.data() + part.begin, part.end - part.begin - kChecksumBytes});
  store_bytes(snapshot.data() + part.end - kChecksumBytes, digest.bytes());
}
template <class Change>
Bytes with_header(Bytes snapshot, const Change& change) {
  auto header = load_bytes<SnapshotHeader>(snapshot.data());
  change(header);
  store_bytes(snapshot.data(), header);
  seal(snapshot, {0, kHeaderBytes});
  return snapshot;
}
template <class Change>
Bytes with_section(Bytes snapshot, std::size_t index, const Change& change) {
  const Extent extent = section_extents(snapshot).at(index);
  auto header = load_bytes<SnapshotSectionHeader>(snapshot.data() + extent.begin);
  change(header);
  store_bytes(snapshot.data() + extent.begin, header);
  seal(snapshot, extent);
  return snapshot;
}

class SequenceSnapshotTest : public testing::Test {
 protected:
  explicit SequenceSnapshotTest(std::int32_t first_layer = 0, std::int32_t layer_count = 0)
      : golden_(GoldenCase::open("tiny-bf16", first_layer, layer_count)), engine_(make_engine(options())) {}

  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.limits = {.max_sequences = 2, .max_context_tokens = 300, .max_step_tokens = 300, .pool_tokens = 0};
    return options;
  }
  Bytes snapshot_of(std::int64_t length) {
    SequenceFeeder feeder(*engine_);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, length);
    auto snapshot = engine_->save_sequence(sequence.id);
    EXPECT_OK(snapshot);
    feeder.release(sequence);
    return std::move(snapshot).value();
  }
  // A digest of everything the engine caches, block tables and dead rows included.
  [[nodiscard]] std::string cache_digest() const {
    Sha256 digest;
    for (const CacheRegion& region : EngineInspector(*engine_).cache_memory().regions()) {
      digest.update({region.data, static_cast<std::size_t>(region.bytes)});
    }
    return digest.hex();
  }
  // Refused, and neither a slot nor a block nor a byte is different afterwards.
  void expect_refused(const Bytes& snapshot, StatusCode code, std::initializer_list<std::string_view> parts) {
    const std::string before = cache_digest();
    EXPECT_TRUE(fails_with(engine_->restore_sequence(snapshot), code, parts));
    EXPECT_EQ(cache_digest(), before);
    const auto one = engine_->create_sequence(300);
    const auto two = engine_->create_sequence(300);
    ASSERT_OK(one);
    ASSERT_OK(two);
    ASSERT_OK(engine_->release(*one));
    ASSERT_OK(engine_->release(*two));
  }
  // Every `stride`-th byte with one bit, then with all bits, wrong.
  void expect_flips_refused(const Bytes& good, std::size_t stride) {
    const std::string before = cache_digest();
    Bytes flipped = good;
    for (std::size_t i = 0; i < good.size(); i += stride) {
      for (const std::byte mask : {std::byte{1}, std::byte{0xff}}) {
        flipped[i] = good[i] ^ mask;
        const auto restored = engine_->restore_sequence(flipped);
        ASSERT_FALSE(restored.ok()) << "byte " << i;
        const StatusCode code = restored.status().code();
        ASSERT_TRUE(code == StatusCode::kBadInput || code == StatusCode::kUnsupported)
            << "byte " << i << ": " << restored.status().to_string();
      }
      flipped[i] = good[i];
    }
    EXPECT_EQ(cache_digest(), before);
    ASSERT_OK(engine_->restore_sequence(flipped));
  }

  GoldenCase golden_;
  std::unique_ptr<Engine> engine_;
};

// Only the CSA layer: small enough to try every byte with compressed rows and index keys in it.
class CsaSnapshotTest : public SequenceSnapshotTest {
 protected:
  CsaSnapshotTest() : SequenceSnapshotTest(1, 1) {}
};

TEST_F(SequenceSnapshotTest, Lesson14EveryFlippedByteIsRefused) {
  const Bytes good = snapshot_of(1);
  EXPECT_EQ(section_extents(good).size(), 9U);
  expect_flips_refused(good, 1);
}

TEST_F(CsaSnapshotTest, Lesson14FlippedBytesOfCompressedRowsAreRefused) {
  const Bytes good = snapshot_of(5);
  EXPECT_EQ(section_extents(good).size(), 5U);
  expect_flips_refused(good, 7);
}

TEST_F(SequenceSnapshotTest, Lesson14TruncationAndAppendingAreRefused) {
  const Bytes good = snapshot_of(130);
  std::vector<std::size_t> ends = {0, 1, 7, 8, 12, sizeof(SnapshotHeader), kHeaderBytes - 1, kHeaderBytes};
  for (const Extent& extent : section_extents(good)) {
    ends.insert(ends.end(), {extent.begin, extent.begin + 1, extent.begin + sizeof(SnapshotSectionHeader),
                             extent.end - kChecksumBytes, extent.end - 1, extent.end});
  }
  for (const std::size_t end : ends) {
    if (end == good.size()) continue;
    SCOPED_TRACE("cut to " + std::to_string(end));
    EXPECT_TRUE(fails_with(engine_->restore_sequence({good.data(), end}), StatusCode::kBadInput,
                           {end < kHeaderBytes ? "header" : "section"}));
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  expect_refused(longer, StatusCode::kBadInput, {"increment 1", "1 bytes are all there is"});
  longer.insert(longer.end(), good.begin(), good.end());
  expect_refused(longer, StatusCode::kBadInput, {"increment 1", "DSV4SEQ"});
}

TEST_F(SequenceSnapshotTest, Lesson14HeadersOfOthersAreRefused) {
  const Bytes good = snapshot_of(9);
  Bytes bad = good;
  bad[0] = std::byte{'X'};
  expect_refused(bad, StatusCode::kBadInput, {"header", "DSV4SEQ"});
  expect_refused(with_header(good, [](auto& header) { header.version = 1; }), StatusCode::kUnsupported,
                 {"version 1;", "accepted: 2", "whose weights"});
  expect_refused(with_header(good, [](auto& header) { header.version = 3; }), StatusCode::kUnsupported,
                 {"version 3", "accepted: 2", "adds to a snapshot"});
  expect_refused(with_header(good, [](auto& header) { header.version = 4; }), StatusCode::kUnsupported,
                 {"version 4", "accepted: 2"});
  expect_refused(with_header(good,
                             [](auto& header) {
                               header.profile = {'s', 'e', 'e', 'd'};
                             }),
                 StatusCode::kUnsupported, {"profile 'seed'", "'deepseek-v4'"});
  // Behind the name and the zero that ends it.
  for (const std::size_t at : {std::size_t{12}, std::size_t{15}}) {
    expect_refused(with_header(good, [at](auto& header) { header.profile[at] = 'x'; }), StatusCode::kBadInput,
                   {"profile 'deepseek-v4'", "padded"});
  }
  expect_refused(with_header(good, [](auto& header) { header.config[3] ^= std::byte{1}; }), StatusCode::kUnsupported,
                 {"config fingerprint"});
  expect_refused(with_header(good, [](auto& header) { header.weights[31] ^= std::byte{1}; }), StatusCode::kUnsupported,
                 {"header: weights ", "accepted: ", "of this engine"});
  expect_refused(with_header(good, [](auto& header) { header.reserved = 1; }), StatusCode::kBadInput, {"reserved = 1"});
  expect_refused(with_header(good, [](auto& header) { header.authentication = 2; }), StatusCode::kUnsupported,
                 {"authentication 2", "0 (none), 1"});
  expect_refused(with_header(good, [](auto& header) { header.authentication = 1; }), StatusCode::kInvalidArgument,
                 {"key"});
  expect_refused(with_header(good, [](auto& header) { header.length = -1; }), StatusCode::kBadInput, {"length = -1"});
  expect_refused(with_header(good, [](auto& header) { header.length = 301; }), StatusCode::kUnsupported,
                 {"length = 301", "300", "max_context_tokens"});
  expect_refused(with_header(good, [](auto& header) { header.length = std::int64_t{1} << 62; }),
                 StatusCode::kUnsupported, {"length = 4611686018427387904"});
  // A length that the sections do not have.
  expect_refused(with_header(good, [](auto& header) { header.length = 10; }), StatusCode::kBadInput,
                 {"section 0", "rows = 9", "10"});
}

TEST_F(SequenceSnapshotTest, Lesson14UnknownRolesAndLayoutsAreRefused) {
  const Bytes good = snapshot_of(9);
  for (const std::uint32_t role : {0U, 8U, 0xffffffffU}) {
    expect_refused(with_section(good, 2, [=](auto& header) { header.role = role; }), StatusCode::kUnsupported,
                   {"section 2", "role id " + std::to_string(role), "1 to 7"});
  }
  for (const std::uint32_t layout : {0U, 5U, 16U, 21U, 32U, 34U, 0xffffffffU}) {
    expect_refused(with_section(good, 2, [=](auto& header) { header.layout = layout; }), StatusCode::kUnsupported,
                   {"section 2", "layout id " + std::to_string(layout)});
  }
  // Known, but not what this engine keeps in that place.
  expect_refused(with_section(good, 0, [](auto& header) { header.layout = snapshot_layout_id(RowFormat::kBf16); }),
                 StatusCode::kUnsupported,
                 {"section 0 (SWA_KV of layer 0)", "bf16", "accepted: row format fp8_ds_mla"});
  expect_refused(with_section(good, 3, [](auto& header) { header.role = snapshot_role_id(CacheRole::kHcaKv); }),
                 StatusCode::kBadInput, {"section 3 is HCA_KV of layer 1", "SWA_KV of layer 1"});
  expect_refused(with_section(good, 3, [](auto& header) { header.layer = 7; }), StatusCode::kBadInput,
                 {"SWA_KV of layer 7", "SWA_KV of layer 1"});
}

TEST_F(SequenceSnapshotTest, Lesson14SectionFieldsMustFitTheLength) {
  const Bytes good = snapshot_of(9);
  expect_refused(with_section(good, 4, [](auto& header) { header.rows = 3; }), StatusCode::kBadInput,
                 {"section 4 (CSA_KV of layer 1)", "rows = 3", "2"});
  expect_refused(with_section(good, 4, [](auto& header) { header.first_row = 1; }), StatusCode::kBadInput,
                 {"first row = 1"});
  expect_refused(with_section(good, 4, [](auto& header) { header.reserved = 1; }), StatusCode::kBadInput,
                 {"reserved = 1"});
  for (const std::int64_t bytes : {std::int64_t{-1}, std::int64_t{0}, std::numeric_limits<std::int64_t>::max()}) {
    Bytes bad = good;
    const Extent extent = section_extents(good)[4];
    store_bytes(bad.data() + extent.begin + offsetof(SnapshotSectionHeader, bytes), bytes);
    expect_refused(bad, StatusCode::kBadInput, {"section 4", "bytes = " + std::to_string(bytes)});
  }
}

TEST_F(SequenceSnapshotTest, Lesson14SectionsMustBeCompleteAndInOrder) {
  const Bytes good = snapshot_of(9);
  const auto extents = section_extents(good);
  const auto fewer = [](auto& header) { --header.sections; };
  for (std::size_t i = 0; i < extents.size(); ++i) {
    SCOPED_TRACE("without section " + std::to_string(i));
    Bytes without = good;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(extents[i].begin),
                  without.begin() + static_cast<std::ptrdiff_t>(extents[i].end));
    expect_refused(with_header(without, fewer), StatusCode::kBadInput, {"section " + std::to_string(i)});
  }
  expect_refused(with_header(good, fewer), StatusCode::kBadInput, {"section 8: missing"});
  Bytes twice = good;
  twice.insert(twice.end(), good.begin() + static_cast<std::ptrdiff_t>(extents[8].begin), good.end());
  expect_refused(with_header(twice, [](auto& header) { ++header.sections; }), StatusCode::kBadInput,
                 {"section 9 (SWA_KV of layer 2) is one more"});
  expect_refused(with_header(good, [](auto& header) { header.sections = 0xffffffffU; }), StatusCode::kBadInput,
                 {"section 9"});
}

// What differs between two engines is named: formats, layers, profile, limits.
TEST_F(SequenceSnapshotTest, Lesson14SnapshotsOfOtherEnginesAreRefused) {
  const Bytes good = snapshot_of(9);
  const auto restored_with = [&](const EngineOptions& options) {
    return make_engine(options)->restore_sequence(good).status();
  };
  EngineOptions other = options();
  other.row_format = RowFormat::kNvfp4;
  EXPECT_TRUE(fails_with(restored_with(other), StatusCode::kUnsupported, {"fp8_ds_mla", "nvfp4"}));
  other = options();
  other.index_format = IndexKeyFormat::kFp8;
  EXPECT_TRUE(fails_with(restored_with(other), StatusCode::kUnsupported, {"INDEX_K", "mxfp4", "fp8"}));
  other = options();
  other.layer_count = 2;
  EXPECT_TRUE(fails_with(restored_with(other), StatusCode::kUnsupported, {"config fingerprint"}));
  other = options();
  other.profile = "seed";
  EXPECT_TRUE(fails_with(restored_with(other), StatusCode::kUnsupported, {"profile 'deepseek-v4'", "'seed'"}));
  other = options();
  other.limits.max_context_tokens = 8;
  EXPECT_TRUE(fails_with(restored_with(other), StatusCode::kUnsupported, {"length = 9", "8"}));
}

// ---- Keys ---------------------------------------------------------------------------------------

class SnapshotKeyTest : public CsaSnapshotTest {
 protected:
  SnapshotKeyTest() {
    const Bytes unsigned_one = snapshot_of(5);
    sequence_ = engine_->restore_sequence(unsigned_one).value();
    signed_ = engine_->save_sequence(sequence_, SnapshotOptions{.key = key_}).value();
  }
  Result<SequenceId> restore(const Bytes& snapshot, const Bytes& key) {
    auto restored = engine_->restore_sequence(snapshot, 0, {.key = key});
    if (restored.ok()) {
      EXPECT_OK(engine_->release(*restored));
    }
    return restored;
  }

  const Bytes key_ = Bytes(16, std::byte{0x5a});
  SequenceId sequence_;
  Bytes signed_;
};

TEST_F(SnapshotKeyTest, TheCodeIsThatOfEverythingBeforeIt) {
  const Bytes plain = engine_->save_sequence(sequence_).value();
  ASSERT_EQ(signed_.size(), plain.size() + kChecksumBytes);
  EXPECT_EQ(engine_->snapshot_bytes(sequence_, {.key = key_}).value(), static_cast<std::int64_t>(signed_.size()));
  HmacSha256 code(key_);
  code.update({signed_.data(), plain.size()});
  EXPECT_EQ(code.finish(), load_bytes<Sha256::Digest>(signed_.data() + plain.size()));
  EXPECT_OK(restore(signed_, key_));
  EXPECT_OK(restore(plain, {}));
}

TEST_F(SnapshotKeyTest, WhatTheKeyDoesNotVouchForIsRefused) {
  const Bytes plain = engine_->save_sequence(sequence_).value();
  const std::string before = cache_digest();
  EXPECT_TRUE(fails_with(restore(plain, key_), StatusCode::kBadInput, {"nothing authenticates it"}));
  EXPECT_TRUE(fails_with(restore(signed_, {}), StatusCode::kInvalidArgument, {"authenticated", "key"}));
  for (std::size_t i = 0; i < key_.size(); ++i) {
    Bytes other = key_;
    other[i] ^= std::byte{1};
    EXPECT_TRUE(fails_with(restore(signed_, other), StatusCode::kBadInput, {"authentication code"}));
  }
  EXPECT_TRUE(fails_with(restore(signed_, Bytes(17, std::byte{0x5a})), StatusCode::kBadInput, {"authentication"}));
  // Forged with all checksums right: a row, and a header that says there is no code.
  Bytes row = signed_;
  const Extent extent = section_extents(plain)[0];
  row[extent.begin + sizeof(SnapshotSectionHeader)] ^= std::byte{1};
  seal(row, extent);
  EXPECT_TRUE(fails_with(restore(row, key_), StatusCode::kBadInput, {"authentication code"}));
  row.resize(plain.size());
  EXPECT_TRUE(fails_with(restore(with_header(row, [](auto& header) { header.authentication = 0; }), key_),
                         StatusCode::kBadInput, {"nothing authenticates it"}));
  Bytes flipped = signed_;
  for (std::size_t i = 0; i < signed_.size(); i += 61) {
    flipped[i] ^= std::byte{1};
    EXPECT_FALSE(restore(flipped, key_).ok()) << "byte " << i;
    flipped[i] = signed_[i];
    EXPECT_FALSE(restore(Bytes(signed_.begin(), signed_.begin() + static_cast<std::ptrdiff_t>(i)), key_).ok()) << i;
  }
  EXPECT_EQ(cache_digest(), before);
}

TEST_F(SnapshotKeyTest, ShortKeysAreRefused) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{15}}) {
    const Bytes key(bytes, std::byte{0x5a});
    EXPECT_TRUE(fails_with(restore(signed_, key), StatusCode::kInvalidArgument, {"key of " + std::to_string(bytes)}));
    EXPECT_TRUE(fails_with(engine_->save_sequence(sequence_, SnapshotOptions{.key = key}), StatusCode::kInvalidArgument,
                           {"16"}));
  }
}

// No room: refused by the manager, after the checks and before the first change.
TEST_F(SequenceSnapshotTest, Lesson14ShortPoolsRefuseWithoutATrace) {
  const Bytes good = snapshot_of(9);
  const auto one = engine_->create_sequence();
  const auto two = engine_->create_sequence();
  ASSERT_OK(one);
  ASSERT_OK(two);
  const std::string before = cache_digest();
  EXPECT_TRUE(fails_with(engine_->restore_sequence(good), StatusCode::kResourceExhausted, {"max_sequences"}));
  EXPECT_EQ(cache_digest(), before);
}

// Ids are written to disks and must never change their meaning.
TEST(SnapshotIds, AreFixed) {
  EXPECT_EQ(snapshot_role_id(CacheRole::kSwaKv), 1U);
  EXPECT_EQ(snapshot_role_id(CacheRole::kCsaKv), 2U);
  EXPECT_EQ(snapshot_role_id(CacheRole::kIndexK), 3U);
  EXPECT_EQ(snapshot_role_id(CacheRole::kHcaKv), 4U);
  EXPECT_EQ(snapshot_role_id(CacheRole::kCsaState), 5U);
  EXPECT_EQ(snapshot_role_id(CacheRole::kIndexState), 6U);
  EXPECT_EQ(snapshot_role_id(CacheRole::kHcaState), 7U);
  EXPECT_EQ(snapshot_layout_id(RowFormat::kFp8DsMla), 1U);
  EXPECT_EQ(snapshot_layout_id(RowFormat::kFp8Row), 2U);
  EXPECT_EQ(snapshot_layout_id(RowFormat::kNvfp4), 3U);
  EXPECT_EQ(snapshot_layout_id(RowFormat::kBf16), 4U);
  EXPECT_EQ(snapshot_layout_id(IndexKeyFormat::kMxfp4), 17U);
  EXPECT_EQ(snapshot_layout_id(IndexKeyFormat::kNvfp4), 18U);
  EXPECT_EQ(snapshot_layout_id(IndexKeyFormat::kFp8), 19U);
  EXPECT_EQ(snapshot_layout_id(IndexKeyFormat::kBf16), 20U);
}

// Every field counts: a config that differs in any of them is another one.
TEST(SnapshotIds, FingerprintCoversEveryConfigField) {
  const ModelConfig config = GoldenCase::open("tiny-bf16").config;
  const auto fingerprint = [](const ModelConfig& of, std::int32_t first_layer = 0) {
    return snapshot_identity("deepseek-v4", of, first_layer, {}).config;
  };
  const auto good = fingerprint(config);
  EXPECT_EQ(fingerprint(config), good);
  EXPECT_NE(fingerprint(config, 1), good);
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig& c) { ++c.hidden_size; },
      [](ModelConfig& c) { ++c.num_hidden_layers; },
      [](ModelConfig& c) { ++c.num_attention_heads; },
      [](ModelConfig& c) { ++c.q_lora_rank; },
      [](ModelConfig& c) { ++c.o_lora_rank; },
      [](ModelConfig& c) { ++c.o_groups; },
      [](ModelConfig& c) { ++c.sliding_window; },
      [](ModelConfig& c) { ++c.index_n_heads; },
      [](ModelConfig& c) { ++c.index_topk; },
      [](ModelConfig& c) { c.rms_norm_eps *= 2; },
      [](ModelConfig& c) { c.rope_theta += 1; },
      [](ModelConfig& c) { c.compress_rope_theta += 1; },
      [](ModelConfig& c) { c.rope_scaling.reset(); },
      [](ModelConfig& c) { c.rope_scaling->factor += 1; },
      [](ModelConfig& c) { c.rope_scaling->beta_fast += 1; },
      [](ModelConfig& c) { c.rope_scaling->beta_slow += 1; },
      [](ModelConfig& c) { ++c.rope_scaling->original_max_position_embeddings; },
      [](ModelConfig& c) { ++c.max_position_embeddings; },
      [](ModelConfig& c) { std::swap(c.compress_ratios[0], c.compress_ratios[1]); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    ModelConfig changed = config;
    changes[i](changed);
    EXPECT_NE(fingerprint(changed), good) << "change " << i;
  }
}

}  // namespace
}  // namespace dsv4rt::test
