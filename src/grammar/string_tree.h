// Strings as a tree of their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace gapless {

class StringTree {
 public:
  // Node 0 is the empty beginning. A node's number is larger than that of the node it comes from.
  struct Node {
    int parent = -1;
    std::uint8_t byte = 0;  // that leads here
    int string = -1;        // that ends here, by the order in which they were added; -1: none
    int first_child = -1, last_child = -1, next_child = -1;  // next_child: the parent's
  };

  // Strings are added in their order, none of them twice. False: the tree would have more than kMaxGrammarStates nodes, and is of no
  // use any more.
  bool add(std::string_view string);

  const Node& node(int number) const { return nodes_[static_cast<std::size_t>(number)]; }
  int size() const { return static_cast<int>(nodes_.size()); }

 private:
  std::vector<Node> nodes_ = std::vector<Node>(1);
  int num_strings_ = 0;
};

}  // namespace gapless
