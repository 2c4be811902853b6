"""The life of a round: ``states`` says what there is, ``machine`` decides, ``driver`` acts."""
