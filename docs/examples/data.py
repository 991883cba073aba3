"""A data set made of tensors; a tenth of the training images becomes the validation split."""

import torch

from gemkit import Data

images, labels = torch.randn(100, 3, 8, 8), torch.arange(100) % 5
data = Data.of_tensors(train=(images, labels), test=(images, labels), name="mine")
assert (len(data.train), len(data.validation), len(data.test)) == (90, 10, 100)
assert (data.classes, data.shape) == (5, (3, 8, 8))
