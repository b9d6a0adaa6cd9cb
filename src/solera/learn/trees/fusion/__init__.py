"""One readable tree out of the trees of many clients (ICDTA4FL): rules, their merging, the tree."""
