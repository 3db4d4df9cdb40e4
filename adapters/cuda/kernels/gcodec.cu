// All kernels, in the translation unit that `cargo xtask cuda` compiles.
#include "delta.cu"
#include "dense.cu"
#include "digest.cu"
#include "fit.cu"
#include "rice.cu"
#include "scatter.cu"
#include "select.cu"
#include "sums.cu"
