"""Graphs of things: facts (head, relation, tail) with features of some entities; data, scores, training."""
