// The product on Hopper in another shape: stages of half a tile, and clusters of two blocks
// (gemm_wgmma.cuh, "Shapes").  A file of its own, so that only those who use it compile it.
#include "law.cuh"

// --- fast: the readable kernel is matmul.cu's
#define SHAPE_INNER 64
#define SHAPE_CLUSTER 2
#define SHAPED(name) name##_deep_pair

#include "add_bias.cu"
#include "relu.cu"
#include "rescale.cu"

#include "gemm_wgmma.cuh"
