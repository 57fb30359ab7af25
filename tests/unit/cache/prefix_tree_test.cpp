// The tree of cached units: finding, order of leaving, and a check that notices damage.
#include "cache/prefix_tree.h"

#include <functional>
#include <string>

#include "base/check.h"
#include "cache/prefix_identity.h"
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::token_ids;

constexpr std::int32_t kTokens = 4;  // a unit

class PrefixTreeTest : public testing::Test {
 protected:
  PrefixTreeTest() : tree_(16, kTokens, 2), hasher_(PrefixHasher::engine_digest({}, {})) {
    root_ = tree_.insert_root(hasher_.root({}));
  }
  PrefixNodeId add(PrefixNodeId parent, std::int32_t seed) {
    const std::vector<std::int32_t> ids = token_ids(kTokens, seed);
    return tree_.insert(parent, hasher_.unit(tree_[parent].digest, ids), ids);
  }
  PrefixNodeId add_root(const char* salt) { return tree_.insert_root(hasher_.root(testing_cache::salt(salt))); }
  void expect_sound() const { EXPECT_TRUE(tree_.check().ok()) << tree_.check().to_string(); }
  // All leaves that may leave, in the order in which they do.
  std::vector<PrefixNodeId> leave_all() {
    std::vector<PrefixNodeId> order;
    while (tree_.least_useful() != kNoPrefixNode) {
      order.push_back(tree_.least_useful());
      tree_.set_state(order.back(), kNoBoundaryState, false);
      tree_.add_users(order.back(), -tree_[order.back()].users);
      tree_.remove(order.back());
      expect_sound();
    }
    return order;
  }

  PrefixTree tree_;
  PrefixHasher hasher_;
  PrefixNodeId root_ = kNoPrefixNode;
};

TEST_F(PrefixTreeTest, FindsUnitsByParentDigestAndTokenIds) {
  const PrefixNodeId a = add(root_, 1);
  const PrefixNodeId b = add(a, 2);
  const std::vector<std::int32_t> ids = token_ids(kTokens, 2);
  const PrefixDigest digest = tree_[b].digest;
  EXPECT_EQ(tree_.find_child(a, digest, ids), b);
  EXPECT_EQ(tree_.find_child(root_, digest, ids), kNoPrefixNode) << "of another parent";
  EXPECT_EQ(tree_.find_child(a, tree_[a].digest, ids), kNoPrefixNode) << "another digest";
  EXPECT_EQ(tree_.find_child(a, digest, token_ids(kTokens, 3)), kNoPrefixNode) << "a digest is no proof";
  EXPECT_EQ(tree_.find_root(digest), kNoPrefixNode);
  EXPECT_EQ(tree_.find_root(tree_[root_].digest), root_);
  EXPECT_EQ(tree_[b].depth, 2);
  EXPECT_EQ(tree_[b].root, root_);
  EXPECT_EQ(tree_[root_].units_of_root, 2);
  EXPECT_TRUE(std::ranges::equal(tree_.token_ids(b), ids));
  EXPECT_TRUE(tree_.token_ids(root_).empty());
  expect_sound();
}

TEST_F(PrefixTreeTest, LeavesWithoutAStateLeaveFirstThenTheOldest) {
  const PrefixNodeId a = add(root_, 1);
  const PrefixNodeId b = add(root_, 2);
  const PrefixNodeId c = add(root_, 3);
  const PrefixNodeId below_c = add(c, 4);
  tree_.set_state(a, 0, true);
  tree_.set_state(b, 1, true);
  tree_.set_state(below_c, 2, true);
  const PrefixNodeId bare = add(root_, 5);
  tree_.touch(a);
  EXPECT_EQ(leave_all(), (std::vector<PrefixNodeId>{bare, b, below_c, c, a, root_}));
  EXPECT_EQ(tree_.size(), 0);
}

TEST_F(PrefixTreeTest, ReusedPrefixesOutliveThoseThatCameOnce) {
  const PrefixNodeId shared = add(root_, 1);
  const PrefixNodeId below = add(shared, 2);
  tree_.set_state(below, 0, true);
  tree_.mark_reused(below);
  EXPECT_TRUE(tree_[shared].reused) << "so is its path";
  EXPECT_FALSE(tree_[root_].reused);
  // One turnover of the whole tree later it is still there; after that it is old as well.
  for (std::int32_t i = 0; i < tree_.capacity() - 2; ++i) {
    const PrefixNodeId once = add(root_, 10 + i);
    tree_.set_state(once, 1, true);
    EXPECT_EQ(tree_.least_useful(), once) << i;
    tree_.set_state(once, kNoBoundaryState, false);
    tree_.remove(once);
  }
  for (std::int32_t i = 0; i < 4; ++i) tree_.touch(add(root_, 100 + i));
  for (PrefixNodeId node = 0; node < tree_.capacity(); ++node) {
    if (tree_.contains(node) && tree_[node].children == 0) tree_.set_state(node, node, true);
  }
  EXPECT_EQ(tree_.least_useful(), below);
  expect_sound();
}

TEST_F(PrefixTreeTest, PlainRecencyAsksNeitherForStatesNorForReuse) {
  const auto order_of = [](PrefixEviction eviction) {
    PrefixTree tree(16, kTokens, 2, eviction);
    PrefixHasher hasher(PrefixHasher::engine_digest({}, {}));
    const PrefixNodeId root = tree.insert_root(hasher.root({}));
    std::vector<PrefixNodeId> order;
    for (std::int32_t seed = 0; seed < 4; ++seed) {
      const std::vector<std::int32_t> ids = token_ids(kTokens, seed);
      order.push_back(tree.insert(root, hasher.unit(tree[root].digest, ids), ids));
    }
    tree.mark_reused(order[0]);
    tree.set_state(order[0], 0, true);
    tree.set_state(order[1], 1, true);
    tree.add_users(order[2], 1);
    std::vector<PrefixNodeId> left;
    while (tree.units() > 0) {
      const PrefixNodeId node = tree.least_useful();
      left.push_back(static_cast<PrefixNodeId>(std::ranges::find(order, node) - order.begin()));
      tree.set_state(node, kNoBoundaryState, false);
      tree.add_users(node, -tree[node].users);
      tree.remove(node);
      EXPECT_TRUE(tree.check().ok());
    }
    return left;
  };
  EXPECT_EQ(order_of(PrefixEviction::kLru), (std::vector<PrefixNodeId>{0, 1, 3, 2}));
  EXPECT_EQ(order_of(PrefixEviction::kUseful), (std::vector<PrefixNodeId>{3, 1, 0, 2}));
}

TEST_F(PrefixTreeTest, UsedLeavesLeaveLastAndPinnedOnesNever) {
  const PrefixNodeId used = add(root_, 1);
  const PrefixNodeId pinned = add(add(root_, 2), 3);
  const PrefixNodeId other = add(root_, 4);
  tree_.set_state(other, 0, true);
  tree_.add_users(used, 1);
  tree_.add_pins(pinned, 1);
  EXPECT_EQ(tree_.least_useful(), other);
  EXPECT_EQ(leave_all(), (std::vector<PrefixNodeId>{other, used}));
  tree_.add_pins(pinned, -1);
  EXPECT_EQ(tree_.least_useful(), pinned);
  expect_sound();
}

TEST_F(PrefixTreeTest, AQuotaLooksAtItsOwnSaltOnly) {
  const PrefixNodeId other_root = add_root("b");
  const PrefixNodeId oldest = add(root_, 1);
  const PrefixNodeId first = add(other_root, 1);
  const PrefixNodeId second = add(other_root, 2);
  EXPECT_EQ(tree_.least_useful(), oldest);
  EXPECT_EQ(tree_.least_useful_of(other_root), first);
  tree_.touch(first);
  EXPECT_EQ(tree_.least_useful_of(other_root), second);
  tree_.add_users(second, 1);
  EXPECT_EQ(tree_.least_useful_of(other_root), first);
  const PrefixNodeId empty_root = add_root("c");
  EXPECT_EQ(tree_.least_useful_of(empty_root), kNoPrefixNode) << "a root is no unit";
  EXPECT_EQ(tree_.units(), 3);
}

TEST_F(PrefixTreeTest, RootsLeaveWhenNothingIsBelowAndNobodyHasTheirSalt) {
  tree_.add_users(root_, 1);
  EXPECT_EQ(tree_.least_useful(), kNoPrefixNode);
  tree_.add_users(root_, -1);
  EXPECT_EQ(tree_.least_useful(), root_);
  const PrefixNodeId a = add(root_, 1);
  EXPECT_EQ(tree_.least_useful(), a);
}

TEST_F(PrefixTreeTest, TakesNoMoreThanItsCapacityAndReusesPlaces) {
  while (!tree_.full()) add(root_, tree_.size());
  EXPECT_THROW(add(root_, 99), CheckFailure);
  tree_.remove(tree_.least_useful());
  EXPECT_FALSE(tree_.full());
  const PrefixNodeId again = add(root_, 99);
  EXPECT_FALSE(tree_[again].reused);
  expect_sound();
  EXPECT_THROW(tree_.remove(root_), CheckFailure) << "it has children";
}

// Every link and count that the check compares is damaged once.
TEST_F(PrefixTreeTest, TheCheckNoticesDamage) {
  const PrefixNodeId a = add(root_, 1);
  const PrefixNodeId b = add(a, 2);
  const PrefixNodeId c = add(a, 3);
  tree_.add_pins(c, 1);
  const auto damaged = [&](PrefixNodeId node, const std::string& says, const std::function<void(PrefixNode&)>& damage) {
    PrefixTree copy = tree_;
    damage(const_cast<PrefixNode&>(copy[node]));
    const Status status = copy.check();
    EXPECT_EQ(status.code(), StatusCode::kInternal) << says;
    EXPECT_NE(status.message().find(says), std::string::npos) << says << " in: " << status.message();
  };
  expect_sound();
  damaged(root_, "digest does not find", [](PrefixNode& node) { node.digest[0] ^= std::byte{1}; });
  damaged(b, "does not follow its parent", [](PrefixNode& node) { node.depth = 3; });
  damaged(b, "does not follow its parent", [=](PrefixNode& node) { node.parent = b; });
  damaged(b, "not found by its digest", [](PrefixNode& node) { node.digest[0] ^= std::byte{1}; });
  damaged(a, "miscounts its children", [](PrefixNode& node) { ++node.children; });
  damaged(a, "miscounts its pins", [](PrefixNode& node) { ++node.pins; });
  damaged(root_, "miscounts its units", [](PrefixNode& node) { ++node.units_of_root; });
  damaged(b, "in or out of the heap", [](PrefixNode& node) { node.heap_position = -1; });
  damaged(b, "count:", [](PrefixNode& node) { node.root = kNoPrefixNode; });
  tree_.add_pins(c, -1);
  damaged(tree_.least_useful(), "out of order in the heap", [](PrefixNode& node) { node.last_used += 1000; });
}

}  // namespace
}  // namespace dsv4rt
