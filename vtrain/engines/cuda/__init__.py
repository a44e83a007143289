"""The cuda engine: our own kernels (``reference_kernels``), the same bits, on NVIDIA GPUs."""
