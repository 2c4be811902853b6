"""Knowledge graphs: facts (head, relation, tail) with features of some entities; data, scores, training."""
