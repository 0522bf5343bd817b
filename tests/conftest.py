"""What holds for all tests: one thread, and no figure windows."""

import os

os.environ.setdefault("MPLBACKEND", "agg")

import torch

torch.set_num_threads(1)
