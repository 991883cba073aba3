"""One batch of a data set."""

from gemkit.testing import tiny_data

images, labels = next(tiny_data().train.batches(8, seed=0))
assert images.shape == (8, 2, 6, 6)
assert labels.shape == (8,)
