#include <string>

#include <gtest/gtest.h>

#include "dsv4rt/model.h"

namespace dsv4rt {
namespace {

TEST(Profile, DeepseekV4IsTheDefault) {
  const auto profile = Profile::from_name("deepseek-v4");
  ASSERT_TRUE(profile.ok());
  for (const Profile& candidate : {*profile, Profile::deepseek_v4(), Profile{}}) {
    EXPECT_EQ(candidate.rope_anchor, Profile::RopeAnchor::kFirstToken);
    EXPECT_TRUE(candidate.compressor_norm);
    EXPECT_TRUE(candidate.index_rope);
    EXPECT_TRUE(candidate.index_hadamard);
    EXPECT_EQ(candidate.default_row_format, RowFormat::kFp8DsMla);
    EXPECT_EQ(candidate.default_index_format, IndexKeyFormat::kMxfp4);
  }
}

TEST(Profile, Seed) {
  const auto profile = Profile::from_name("seed");
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->rope_anchor, Profile::RopeAnchor::kLastToken);
  EXPECT_FALSE(profile->compressor_norm);
  EXPECT_FALSE(profile->index_rope);
  EXPECT_FALSE(profile->index_hadamard);
  EXPECT_EQ(profile->default_row_format, RowFormat::kFp8Row);
  EXPECT_EQ(profile->default_index_format, IndexKeyFormat::kNvfp4);
}

TEST(Profile, OtherNamesAreRefusedNamingTheAccepted) {
  for (const std::string& name : {std::string(), std::string("Seed"), std::string("deepseek-v3"),
                                  std::string(100000, 'x')}) {
    const auto profile = Profile::from_name(name);
    ASSERT_FALSE(profile.ok());
    EXPECT_EQ(profile.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(profile.status().message().find("accepted: deepseek-v4, seed"), std::string::npos);
    EXPECT_LT(profile.status().message().size(), 200u);
  }
}

}  // namespace
}  // namespace dsv4rt
