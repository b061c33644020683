#include "engine/device_chooser.h"

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>

namespace gapless {
namespace {

constexpr int kPicture = 730;

class DeviceChooserTest : public ::testing::Test {
 protected:
  using Choice = DeviceChooser::Choice;

  static DeviceChooser::Options options(int num_devices, int known = 8) {
    return {.num_devices = num_devices, .picture_tokens = kPicture, .max_known_pictures = known};
  }
  static RequestOutline about(std::vector<std::uint64_t> pictures, int answer = 10) {
    RequestOutline outline;
    outline.prefixes = std::move(pictures);
    outline.text_tokens = 5;
    outline.most_answer_tokens = answer;
    outline.answers_in_full = true;
    return outline;
  }
  // Accepted.
  Choice take(const RequestOutline& request) {
    const auto choice = chooser_->choose(request, refused_);
    EXPECT_TRUE(choice);
    chooser_->accepted(*choice, request);
    return *choice;
  }
  int device_of(const RequestOutline& request) {
    const Choice choice = take(request);
    chooser_->end(choice);
    return choice.device;
  }

  std::optional<DeviceChooser> chooser_{options(3)};
  std::vector<bool> refused_ = std::vector<bool>(3);
};

TEST_F(DeviceChooserTest, ANewPictureGoesWhereTheLeastIsToDo) {
  const Choice first = take(about({1}, 500));
  const Choice second = take(about({2}, 100));
  const Choice third = take(about({3}, 300));
  EXPECT_THAT((std::vector{first.device, second.device, third.device}),
              ::testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_EQ(first.tokens, 5 + kPicture + 500);
  EXPECT_EQ(take(about({4}, 100)).device, second.device);
  chooser_->end(first);
  EXPECT_EQ(chooser_->tokens_to_do(first.device), 0);
  EXPECT_EQ(take(about({5}, 1)).device, first.device);
}

TEST_F(DeviceChooserTest, TextsTakeTurnsWhereNobodyIsBusy) {
  std::vector<int> devices;
  for (int i = 0; i < 6; ++i) devices.push_back(device_of(about({})));
  EXPECT_THAT(devices, ::testing::ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST_F(DeviceChooserTest, AKnownPictureGoesWhereItIsKnownWhileThatIsWorthTheWait) {
  const Choice first = take(about({1}, 100));
  const Choice again = take(about({1}, 100));
  EXPECT_EQ(again.device, first.device) << "the others are idle, but would compute it once more";
  EXPECT_EQ(again.tokens, 5 + 100) << "without the picture";
  // Until the device has so much more to do than the others as the picture is worth.
  int num_there = 0;
  while (take(about({1}, 100)).device == first.device) ++num_there;
  const std::int64_t waiting = 5 + kPicture + 100 + (num_there + 1) * (5 + 100);
  EXPECT_GT(waiting, DeviceChooser::kPictureWorth * kPicture);
  EXPECT_LE(waiting - 105, DeviceChooser::kPictureWorth * kPicture);
}

TEST_F(DeviceChooserTest, APictureThatWasNotAcceptedIsNotKnown) {
  const auto refused = chooser_->choose(about({1}), refused_);
  ASSERT_TRUE(refused);
  chooser_->end(*refused);
  EXPECT_NE(device_of(about({1})), refused->device);
}

TEST_F(DeviceChooserTest, OfSeveralPicturesTheLongestPrefixCounts) {
  const int both = device_of(about({1, 12}));
  const Choice third = take(about({1, 12, 123}));
  EXPECT_EQ(third.device, both);
  EXPECT_EQ(third.tokens, 5 + kPicture + 10);
  const Choice other_second = take(about({1, 13}));
  EXPECT_EQ(other_second.device, both) << "the first picture alone is a prefix, too";
  EXPECT_EQ(other_second.tokens, 5 + kPicture + 10);
}

TEST_F(DeviceChooserTest, ADeviceKnowsThePicturesThatWereUsedLast) {
  chooser_.emplace(options(2, 2));
  refused_.resize(2);
  const int device = device_of(about({1}));
  refused_[1 - device] = true;  // all of them go there
  device_of(about({2}));
  device_of(about({1}));
  device_of(about({3}));
  EXPECT_EQ(take(about({1})).tokens, 5 + 10);
  EXPECT_EQ(take(about({3})).tokens, 5 + 10);
  EXPECT_EQ(take(about({2})).tokens, 5 + kPicture + 10) << "used the longest time ago";
  chooser_.emplace(options(2, 0));
  device_of(about({1}));
  EXPECT_EQ(take(about({1})).tokens, 5 + kPicture + 10) << "no prefix is kept";
}

TEST_F(DeviceChooserTest, RefusedDevicesArePassedOver) {
  const int knows = device_of(about({1}));
  refused_[knows] = true;
  const int other = device_of(about({1}));
  EXPECT_NE(other, knows);
  refused_[other] = true;
  EXPECT_EQ(device_of(about({1})), 3 - knows - other);
  refused_ = {true, true, true};
  EXPECT_FALSE(chooser_->choose(about({1}), refused_));
}

TEST_F(DeviceChooserTest, AnswersAreExpectedToBeAsLongAsThoseBefore) {
  RequestOutline query = about({}, 768);
  query.answers_in_full = false;
  const std::int64_t at_first = take(query).tokens;
  EXPECT_LT(at_first, 100);
  for (int i = 0; i < 200; ++i) chooser_->learn(Skill::kQuery, 400);
  EXPECT_NEAR(static_cast<double>(take(query).tokens), 5 + 400, 2);
  query.most_answer_tokens = 20;
  EXPECT_EQ(take(query).tokens, 5 + 20) << "its own limit is less";
  query.num_answers = 3;
  EXPECT_EQ(take(query).tokens, 5 + 3 * 20);
  query.num_answers = 1;
  query.most_answer_tokens = 768;
  for (const Skill skill : kSkills) {
    query.skill = skill;
    if (skill != Skill::kQuery) {
      EXPECT_EQ(take(query).tokens, at_first) << skill_name(skill);
    }
    chooser_->learn(skill, 400);  // the others do not hear of it
  }
}

SkillRequest request_about(std::vector<std::string> pictures) {
  SkillRequest request;
  request.text = "How many circles are there?";
  for (std::string& picture : pictures) {
    request.images.push_back(std::make_shared<const std::string>(std::move(picture)));
  }
  return request;
}

TEST(RequestOutlineTest, PrefixesAreOfThePicturesSoFar) {
  const auto of = [](std::vector<std::string> pictures) {
    return outline_of(request_about(std::move(pictures)), 1).prefixes;
  };
  EXPECT_TRUE(of({}).empty());
  EXPECT_EQ(of({"a", "b"}).size(), 2u);
  EXPECT_EQ(of({"a", "b"})[0], of({"a"})[0]);
  EXPECT_NE(of({"a", "b"})[1], of({"b"})[0]);
  EXPECT_NE(of({"a", "b"})[1], of({"b", "a"})[1]);
  SkillRequest as_stored = request_about({"a"});
  as_stored.apply_exif_orientation = false;
  EXPECT_NE(outline_of(as_stored, 1).prefixes, of({"a"})) << "other pixels";
}

// Large ones are not read whole, but both ends are, and something of every part.
TEST(RequestOutlineTest, LargePicturesAreToldApart) {
  const auto of = [](std::string picture) {
    return outline_of(request_about({std::move(picture)}), 1).prefixes[0];
  };
  std::string picture(5'000'003, 'x');
  const std::uint64_t plain = of(picture);
  EXPECT_EQ(of(picture), plain);
  for (const std::size_t at : {std::size_t{0}, picture.size() - 1}) {
    std::string other = picture;
    other[at] = 'y';
    EXPECT_NE(of(other), plain) << at;
  }
  EXPECT_NE(of(picture + "x"), plain);
  std::string other = picture;
  std::fill(other.begin() + 2'400'000, other.begin() + 2'600'000, 'y');
  EXPECT_NE(of(other), plain) << "a twenty-fifth of it";
}

TEST(RequestOutlineTest, WhatNobodyHasJudgedYetDoesNoHarm) {
  SkillRequest request = request_about({""});
  for (const int most : {-7, 2'000'000'000}) {
    request.settings.max_tokens = most;
    const RequestOutline outline = outline_of(request, 1);
    EXPECT_GE(outline.most_answer_tokens, 0);
    EXPECT_LE(outline.most_answer_tokens, 1 << 20);
  }
}

}  // namespace
}  // namespace gapless
