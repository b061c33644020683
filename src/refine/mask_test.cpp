#include "refine/mask.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gapless {
namespace {

Mask mask_of(const std::vector<std::string>& lines) {
  Mask mask = Mask::empty(static_cast<int>(lines[0].size()), static_cast<int>(lines.size()));
  for (int y = 0; y < mask.height; ++y) {
    for (int x = 0; x < mask.width; ++x) {
      mask.at(x, y) = lines[static_cast<std::size_t>(y)][static_cast<std::size_t>(x)] == '#';
    }
  }
  return mask;
}

std::vector<std::string> lines_of(const Mask& mask) {
  std::vector<std::string> lines;
  for (int y = 0; y < mask.height; ++y) {
    std::string line;
    for (int x = 0; x < mask.width; ++x) line += mask.is_inside(x, y) ? '#' : '.';
    lines.push_back(line);
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(MaskTest, SmallHolesAreFilledAndSmallIslandsDropped) {
  Mask mask = mask_of({"#####....",  //
                       "#.###..#.",  //
                       "##..#...#",  // the hole of three holds together by a corner
                       "#####....",  //
                       "....#####"});
  remove_specks(mask, 4, {});
  EXPECT_EQ(lines_of(mask), (Lines{"#####....",  //
                                   "#####....",  //
                                   "#####....",  //
                                   "#####....",  //
                                   "....#####"}));
}

TEST(MaskTest, AHoleOrAnIslandOfTheLeastSizeStays) {
  const Lines lines = {"#####", "#.#.#", "##.##", "#####", ".....", ".###."};
  Mask mask = mask_of(lines);
  remove_specks(mask, 3, {});
  EXPECT_EQ(lines_of(mask), lines);
}

TEST(MaskTest, WhereAllIslandsAreSmallTheLargestStays) {
  Mask mask = mask_of({"#....", ".....", "..##.", ".....", "#...."});
  remove_specks(mask, 5, {});
  EXPECT_EQ(lines_of(mask), (Lines{".....", ".....", "..##.", ".....", "....."}));
}

// The picture goes on there, so nobody knows how large the hole is.
TEST(MaskTest, WhatReachesAnOpenSideIsNoSmallHole) {
  const Lines lines = {"###", ".##", "###"};
  Mask closed = mask_of(lines), open = mask_of(lines);
  remove_specks(closed, 2, {.right = true});
  EXPECT_EQ(lines_of(closed), (Lines{"###", "###", "###"}));
  remove_specks(open, 2, {.left = true});
  EXPECT_EQ(lines_of(open), lines);
  // The other sides.
  for (const OpenSides& sides : {OpenSides{.top = true}, OpenSides{.bottom = true}}) {
    Mask hole = mask_of(sides.top ? Lines{"#.#", "###"} : Lines{"###", "#.#"});
    const Lines before = lines_of(hole);
    remove_specks(hole, 2, sides);
    EXPECT_EQ(lines_of(hole), before);
  }
}

TEST(MaskTest, AnEmptyMaskAndAFullOneStay) {
  Mask empty = Mask::empty(3, 2);
  remove_specks(empty, 2, {});
  close_gaps(empty);
  EXPECT_EQ(lines_of(empty), (Lines{"...", "..."}));
  Mask full = mask_of({"##", "##"});
  remove_specks(full, 2, {});
  close_gaps(full);
  EXPECT_EQ(lines_of(full), (Lines{"##", "##"}));
}

TEST(MaskTest, GapsOfOneOrTwoPixelsAreClosed) {
  Mask mask = mask_of({".........",  //
                       ".........",  //
                       "..##.##..",  //
                       "..##.##..",  //
                       ".........",  //
                       ".........",  //
                       ".........",  //
                       "...##....",  //
                       ".........",  //
                       "........."});
  close_gaps(mask);
  EXPECT_EQ(lines_of(mask), (Lines{".........",  //
                                   ".........",  //
                                   "..#####..",  //
                                   "..#####..",  //
                                   ".........",  //
                                   ".........",  //
                                   ".........",  //
                                   "...##....",  //
                                   ".........",  //
                                   "........."}));
  Mask two = mask_of({"..........", "..........", "..##..##..", "..........", ".........."});
  close_gaps(two);
  EXPECT_EQ(lines_of(two)[2], "..######..");
}

// Nothing outside of the picture keeps what is grown from being shrunk, so what lies a pixel from the edge reaches it.
TEST(MaskTest, TheEdgeOfThePictureIsNoGapButIsReached) {
  Mask mask = mask_of({"......", ".#....", "......", "......"});
  close_gaps(mask);
  EXPECT_EQ(lines_of(mask), (Lines{"##....", "##....", "......", "......"}));
}

}  // namespace
}  // namespace gapless
