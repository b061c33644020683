"""Python side of gapless: the reference model (oracle), the scene generator and the training of models/tiny and models/tiny3."""
