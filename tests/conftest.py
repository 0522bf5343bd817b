"""What holds for all tests: one thread, no figure windows, and Ctrl-C that acts."""

import os
import signal

os.environ.setdefault("MPLBACKEND", "agg")

import torch

torch.set_num_threads(1)

# a shell starts what runs in the background with SIGINT ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
