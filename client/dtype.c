/* SPDX-License-Identifier: MIT */
/* Element types and the version: the part of <loaderd/loaderd.h> that the daemon and the tools use as well. Pure. */
#include <loaderd/loaderd.h>

#ifndef LOADERD_VERSION
#define LOADERD_VERSION "unknown"
#endif

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
    [LOADERD_U8] = {"u8", 1},   [LOADERD_I8] = {"i8", 1},     [LOADERD_U16] = {"u16", 2}, [LOADERD_I16] = {"i16", 2},
    [LOADERD_U32] = {"u32", 4}, [LOADERD_I32] = {"i32", 4},   [LOADERD_U64] = {"u64", 8}, [LOADERD_I64] = {"i64", 8},
    [LOADERD_F16] = {"f16", 2}, [LOADERD_BF16] = {"bf16", 2}, [LOADERD_F32] = {"f32", 4}, [LOADERD_F64] = {"f64", 8},
};

const char *loaderd_dtype_name(uint32_t dtype) {
    return dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].name : NULL;
}

size_t loaderd_dtype_size(uint32_t dtype) {
    return dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].size : 0;
}

const char *loaderd_version(void) {
    return LOADERD_VERSION;
}
