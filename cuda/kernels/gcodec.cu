// All kernels: what `cargo xtask cuda` compiles.
#include "rice.cu"
#include "scatter.cu"
#include "select.cu"
