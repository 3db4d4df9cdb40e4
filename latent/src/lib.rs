//! Learned gradient compression (LGC, arXiv 2103.08870) for gcodec.
