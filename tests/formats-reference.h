/* SPDX-License-Identifier: MIT */
/* Made by tests/formats-reference.py. */
static const struct reference references[] = {
    {"npy/x-u1.npy", {"dataset", "npy/x-u1.npy"}, 5, 1,
     {
         {"x-u1", LOADERD_U8, 2, {2, 3}, 0xeeef036au},
     }},
    {"npy/x-i1.npy", {"dataset", "npy/x-i1.npy"}, 5, 1,
     {
         {"x-i1", LOADERD_I8, 2, {2, 3}, 0xeeef036au},
     }},
    {"npy/x-le-u2.npy", {"dataset", "npy/x-le-u2.npy"}, 5, 1,
     {
         {"x-le-u2", LOADERD_U16, 2, {2, 3}, 0xad6cdf41u},
     }},
    {"npy/x-be-u2.npy", {"dataset", "npy/x-be-u2.npy"}, 5, 1,
     {
         {"x-be-u2", LOADERD_U16, 2, {2, 3}, 0xad6cdf41u},
     }},
    {"npy/x-le-i2.npy", {"dataset", "npy/x-le-i2.npy"}, 5, 1,
     {
         {"x-le-i2", LOADERD_I16, 2, {2, 3}, 0xad6cdf41u},
     }},
    {"npy/x-be-i2.npy", {"dataset", "npy/x-be-i2.npy"}, 5, 1,
     {
         {"x-be-i2", LOADERD_I16, 2, {2, 3}, 0xad6cdf41u},
     }},
    {"npy/x-le-u4.npy", {"dataset", "npy/x-le-u4.npy"}, 5, 1,
     {
         {"x-le-u4", LOADERD_U32, 2, {2, 3}, 0xbcf31d92u},
     }},
    {"npy/x-be-u4.npy", {"dataset", "npy/x-be-u4.npy"}, 5, 1,
     {
         {"x-be-u4", LOADERD_U32, 2, {2, 3}, 0xbcf31d92u},
     }},
    {"npy/x-le-i4.npy", {"dataset", "npy/x-le-i4.npy"}, 5, 1,
     {
         {"x-le-i4", LOADERD_I32, 2, {2, 3}, 0xbcf31d92u},
     }},
    {"npy/x-be-i4.npy", {"dataset", "npy/x-be-i4.npy"}, 5, 1,
     {
         {"x-be-i4", LOADERD_I32, 2, {2, 3}, 0xbcf31d92u},
     }},
    {"npy/x-le-u8.npy", {"dataset", "npy/x-le-u8.npy"}, 5, 1,
     {
         {"x-le-u8", LOADERD_U64, 2, {2, 3}, 0x94cfd436u},
     }},
    {"npy/x-be-u8.npy", {"dataset", "npy/x-be-u8.npy"}, 5, 1,
     {
         {"x-be-u8", LOADERD_U64, 2, {2, 3}, 0x94cfd436u},
     }},
    {"npy/x-le-i8.npy", {"dataset", "npy/x-le-i8.npy"}, 5, 1,
     {
         {"x-le-i8", LOADERD_I64, 2, {2, 3}, 0x94cfd436u},
     }},
    {"npy/x-be-i8.npy", {"dataset", "npy/x-be-i8.npy"}, 5, 1,
     {
         {"x-be-i8", LOADERD_I64, 2, {2, 3}, 0x94cfd436u},
     }},
    {"npy/x-le-f2.npy", {"dataset", "npy/x-le-f2.npy"}, 5, 1,
     {
         {"x-le-f2", LOADERD_F16, 2, {2, 3}, 0x9a85cb36u},
     }},
    {"npy/x-be-f2.npy", {"dataset", "npy/x-be-f2.npy"}, 5, 1,
     {
         {"x-be-f2", LOADERD_F16, 2, {2, 3}, 0x9a85cb36u},
     }},
    {"npy/x-le-f4.npy", {"dataset", "npy/x-le-f4.npy"}, 5, 1,
     {
         {"x-le-f4", LOADERD_F32, 2, {2, 3}, 0x721d9c59u},
     }},
    {"npy/x-be-f4.npy", {"dataset", "npy/x-be-f4.npy"}, 5, 1,
     {
         {"x-be-f4", LOADERD_F32, 2, {2, 3}, 0x721d9c59u},
     }},
    {"npy/x-le-f8.npy", {"dataset", "npy/x-le-f8.npy"}, 5, 1,
     {
         {"x-le-f8", LOADERD_F64, 2, {2, 3}, 0x95341a6bu},
     }},
    {"npy/x-be-f8.npy", {"dataset", "npy/x-be-f8.npy"}, 5, 1,
     {
         {"x-be-f8", LOADERD_F64, 2, {2, 3}, 0x95341a6bu},
     }},
    {"fortran", {"dataset", "npy/fortran.npy"}, 7, 1,
     {
         {"fortran", LOADERD_I32, 2, {4, 5}, 0x852090eeu},
     }},
    {"fortran of the report", {"dataset", "npy/fortran-6.npy"}, 2, 1,
     {
         {"fortran-6", LOADERD_I64, 1, {3}, 0xa1c6c70cu},
     }},
    {"bool", {"dataset", "npy/flag.npy"}, 6, 1,
     {
         {"flag", LOADERD_U8, 0, {0}, 0x0d994290u},
     }},
    {"version 1", {"dataset", "npy/v1.npy"}, 4, 1,
     {
         {"v1", LOADERD_F32, 1, {3}, 0x438850b1u},
     }},
    {"version 2", {"dataset", "npy/v2.npy"}, 4, 1,
     {
         {"v2", LOADERD_F32, 1, {3}, 0xf2d4e943u},
     }},
    {"version 3", {"dataset", "npy/v3.npy"}, 4, 1,
     {
         {"v3", LOADERD_F32, 1, {3}, 0xb4fce795u},
     }},
    {"pair by file names", {"dataset", "npy/images.npy,npy/labels.npy", "layout", "nchw"}, 9, 2,
     {
         {"image", LOADERD_U8, 3, {3, 4, 5}, 0x5def8490u},
         {"label", LOADERD_I32, 0, {0}, 0x1ab6112cu},
     }},
    {"pair by NAME=", {"dataset", "y=npy/labels.npy,label=npy/labels.npy,x=npy/images.npy", "label-dtype", "i64"}, 9, 3,
     {
         {"y", LOADERD_I16, 0, {0}, 0xeb8f54ceu},
         {"label", LOADERD_I64, 0, {0}, 0x6c9a6831u},
         {"x", LOADERD_U8, 3, {3, 4, 5}, 0x5def8490u},
     }},
    {"a column of labels is cast and swapped", {"dataset", "label=npy/column.npy"}, 9, 1,
     {
         {"label", LOADERD_I32, 1, {1}, 0x6ba18289u},
     }},
    {"idx 08", {"dataset", "x=idx/x08"}, 4, 1,
     {
         {"x", LOADERD_U8, 2, {2, 3}, 0xa6f77625u},
     }},
    {"idx 09", {"dataset", "x=idx/x09"}, 4, 1,
     {
         {"x", LOADERD_I8, 2, {2, 3}, 0x4af9ee0bu},
     }},
    {"idx 0b", {"dataset", "x=idx/x0b"}, 4, 1,
     {
         {"x", LOADERD_I16, 2, {2, 3}, 0xb41adc43u},
     }},
    {"idx 0c", {"dataset", "x=idx/x0c"}, 4, 1,
     {
         {"x", LOADERD_I32, 2, {2, 3}, 0x59286dd3u},
     }},
    {"idx 0d", {"dataset", "x=idx/x0d"}, 4, 1,
     {
         {"x", LOADERD_F32, 2, {2, 3}, 0xb03a8aa0u},
     }},
    {"idx 0e", {"dataset", "x=idx/x0e"}, 4, 1,
     {
         {"x", LOADERD_F64, 2, {2, 3}, 0xece5375au},
     }},
    {"MNIST", {"dataset", "idx/images-idx3-ubyte,idx/labels-idx1-ubyte"}, 8, 2,
     {
         {"image", LOADERD_U8, 2, {28, 28}, 0x6e57ad22u},
         {"label", LOADERD_I32, 0, {0}, 0x2d69a186u},
     }},
    {"MNIST as pictures", {"dataset", "idx/images-idx3-ubyte,idx/labels-idx1-ubyte", "dtype", "f32", "layout", "nchw"}, 8, 2,
     {
         {"image", LOADERD_F32, 3, {1, 28, 28}, 0x1714fdd5u},
         {"label", LOADERD_I32, 0, {0}, 0x2d69a186u},
     }},
    {"idx labels of 4 bytes", {"dataset", "idx/wide-labels", "label-dtype", "i64"}, 3, 1,
     {
         {"label", LOADERD_I64, 0, {0}, 0xb36a5441u},
     }},
    {"CIFAR-10", {"dataset", "cifar10", "layout", "nchw"}, 5, 2,
     {
         {"label", LOADERD_I32, 0, {0}, 0xf6668c05u},
         {"image", LOADERD_U8, 3, {3, 32, 32}, 0xfb2d5f1eu},
     }},
    {"CIFAR-10", {"dataset", "cifar10", "format", "cifar10", "layout", "nchw"}, 5, 2,
     {
         {"label", LOADERD_I32, 0, {0}, 0xf6668c05u},
         {"image", LOADERD_U8, 3, {3, 32, 32}, 0xfb2d5f1eu},
     }},
    {"CIFAR-10, test", {"dataset", "cifar10/test_batch.bin", "format", "cifar10", "layout", "nchw"}, 1, 2,
     {
         {"label", LOADERD_I32, 0, {0}, 0x5c4c9096u},
         {"image", LOADERD_U8, 3, {3, 32, 32}, 0xaff69a1eu},
     }},
    {"CIFAR-100", {"dataset", "cifar100", "layout", "nchw"}, 6, 3,
     {
         {"coarse-label", LOADERD_U8, 0, {0}, 0xe5cc1c16u},
         {"label", LOADERD_I32, 0, {0}, 0x27b3616fu},
         {"image", LOADERD_U8, 3, {3, 32, 32}, 0xf681580bu},
     }},
    {"llm.c", {"dataset", "tokens/tok_*.bin", "tokens", "16"}, 190, 1,
     {
         {"tokens", LOADERD_I32, 1, {17}, 0x67958ccbu},
     }},
    {"llm.c u32", {"dataset", "tokens/wide.bin", "tokens", "3"}, 2, 1,
     {
         {"tokens", LOADERD_I32, 1, {4}, 0x74987cb8u},
     }},
    {"bare u16", {"dataset", "tokens/bare-u16", "format", "tokens", "token-dtype", "u16", "tokens", "2"}, 2, 1,
     {
         {"tokens", LOADERD_I32, 1, {3}, 0x74b3298bu},
     }},
    {"bare u32", {"dataset", "tokens/bare-u32", "token-dtype", "u32", "tokens", "7"}, 1, 1,
     {
         {"tokens", LOADERD_I32, 1, {8}, 0x5139fe66u},
     }},
    {"meg-u16", {"dataset", "tokens/meg-u16.idx", "tokens", "5"}, 7, 1,
     {
         {"tokens", LOADERD_I32, 1, {6}, 0x891f9e7bu},
     }},
    {"meg-i32", {"dataset", "tokens/meg-i32", "tokens", "5"}, 7, 1,
     {
         {"tokens", LOADERD_I32, 1, {6}, 0x891f9e7bu},
     }},
    {"meg-i64", {"dataset", "tokens/meg-i64", "tokens", "5", "format", "tokens"}, 7, 1,
     {
         {"tokens", LOADERD_I32, 1, {6}, 0x891f9e7bu},
     }},
    {"tar ustar", {"image", "8", "augment", "stretch", "dataset", "wds/ustar.tar"}, 4, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xc0bd84ffu},
         {"label", LOADERD_I32, 0, {0}, 0xcb93e8e4u},
     }},
    {"tar gnu", {"image", "8", "augment", "stretch", "dataset", "wds/gnu.tar"}, 4, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xc0bd84ffu},
         {"label", LOADERD_I32, 0, {0}, 0xcb93e8e4u},
     }},
    {"tar pax", {"image", "8", "augment", "stretch", "dataset", "wds/pax.tar"}, 4, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xc0bd84ffu},
         {"label", LOADERD_I32, 0, {0}, 0xcb93e8e4u},
     }},
    {"long-gnu", {"image", "8", "augment", "stretch", "dataset", "wds/long-gnu.tar"}, 2, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x7085e406u},
         {"label", LOADERD_I32, 0, {0}, 0xdd9eb80cu},
     }},
    {"long-pax", {"image", "8", "augment", "stretch", "dataset", "wds/long-pax.tar"}, 2, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x7085e406u},
         {"label", LOADERD_I32, 0, {0}, 0xdd9eb80cu},
     }},
    {"shards", {"image", "8", "augment", "stretch", "dataset", "wds/written-{000..001}.tar"}, 4, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x99e33b51u},
         {"label", LOADERD_I32, 0, {0}, 0x5312900bu},
     }},
    {"shards by pattern, fields by key", {"image", "8", "augment", "stretch", "dataset", "wds/written-*.tar", "fields", "cls:label png;jpg:image"}, 4, 2,
     {
         {"label", LOADERD_I32, 0, {0}, 0x5312900bu},
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x99e33b51u},
     }},
    {"dots", {"image", "8", "augment", "stretch", "dataset", "wds/dots.tar", "fields", "b.seg.jpg:image b.cls:label"}, 1, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xe405b13bu},
         {"label", LOADERD_I32, 0, {0}, 0x33f170f2u},
     }},
    {"apart", {"image", "8", "augment", "stretch", "dataset", "wds/apart.tar"}, 2, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x7085e406u},
         {"label", LOADERD_I32, 0, {0}, 0xd6b621a1u},
     }},
    {"twice", {"image", "8", "augment", "stretch", "dataset", "wds/twice.tar"}, 2, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x7a6e772fu},
         {"label", LOADERD_I32, 0, {0}, 0xd6b621a1u},
     }},
    {"by hand", {"image", "8", "augment", "stretch", "dataset", "wds/by-hand.tar"}, 2, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x32ed585au},
         {"label", LOADERD_I32, 0, {0}, 0x0381177cu},
     }},
    {"v7", {"image", "8", "augment", "stretch", "dataset", "wds/v7.tar"}, 1, 1,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x91e93b38u},
     }},
    {"tfrecord", {"image", "8", "augment", "stretch", "dataset", "tfrecord/{a,b}.tfrecord"}, 5, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x660fd60eu},
         {"label", LOADERD_I32, 0, {0}, 0x08d4b157u},
     }},
    {"tfrecord, fields", {"image", "8", "augment", "stretch", "dataset", "tfrecord/?.tfrecord", "batch", "5", "fields", "image/class/label:label nothing;image/encoded:image"}, 5, 2,
     {
         {"label", LOADERD_I32, 0, {0}, 0x08d4b157u},
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0x660fd60eu},
     }},
    {"tfrecord without a picture", {"dataset", "tfrecord/plain.tfrecord", "fields", "n:label raw:raw box:box score:s", "label-dtype", "i64"}, 3, 4,
     {
         {"label", LOADERD_I64, 0, {0}, 0x58226963u},
         {"raw", LOADERD_U8, 1, {6}, 0xa6e44b11u},
         {"box", LOADERD_F32, 1, {4}, 0xb4fce795u},
         {"s", LOADERD_F32, 0, {0}, 0x58ef700bu},
     }},
    {"mds", {"image", "8", "augment", "stretch", "dataset", "mds/photos"}, 4, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xc0bd84ffu},
         {"label", LOADERD_I32, 0, {0}, 0x995c37eau},
     }},
    {"mds by index.json, fields", {"image", "8", "augment", "stretch", "dataset", "mds/photos/index.json", "fields", "class:label photo:image"}, 4, 2,
     {
         {"label", LOADERD_I32, 0, {0}, 0x995c37eau},
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xc0bd84ffu},
     }},
    {"mds zstd", {"image", "8", "augment", "stretch", "dataset", "mds/zstd"}, 4, 2,
     {
         {"image", LOADERD_U8, 3, {8, 8, 3}, 0xc0bd84ffu},
         {"label", LOADERD_I32, 0, {0}, 0x995c37eau},
     }},
    {"mds beside a pickle", {"dataset", "mds/pickled"}, 3, 1,
     {
         {"x", LOADERD_I32, 0, {0}, 0x381d51a6u},
     }},
    {"mds arrays", {"dataset", "mds/numbers", "fields", "a:a b:b c:c h:h"}, 3, 4,
     {
         {"a", LOADERD_I16, 2, {2, 5}, 0xb423cefeu},
         {"b", LOADERD_F32, 1, {4}, 0x9ffb2184u},
         {"c", LOADERD_F64, 2, {2, 300}, 0x4f4e17e3u},
         {"h", LOADERD_F16, 0, {0}, 0xbbce1b0bu},
     }},
    {"mds numbers", {"dataset", "mds/numbers", "fields", "u:label t:t raw:raw u:u", "label-dtype", "i64"}, 3, 4,
     {
         {"label", LOADERD_I64, 0, {0}, 0x6cb354eau},
         {"t", LOADERD_I64, 0, {0}, 0x0f250304u},
         {"raw", LOADERD_U8, 1, {4}, 0x7710e36bu},
         {"u", LOADERD_U32, 0, {0}, 0x277d3d87u},
     }},
};
