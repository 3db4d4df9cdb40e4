// All kernels: what `cargo xtask cuda` compiles.
#include "fit.cu"
#include "rice.cu"
#include "scatter.cu"
#include "select.cu"
