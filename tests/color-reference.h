/* SPDX-License-Identifier: MIT */
/* Made by tests/color-reference.py with Pillow 12.0.0. Columns: operation, factor, CRC of picture, of cube. */
static const struct {
    int operation;
    double factor;
    uint32_t picture, cube;
} color_reference[] = {
    {0, 0.0, 0x0e3a4c83, 0x8453d829},
    {0, 0.3, 0x852d8c74, 0x331bd88f},
    {0, 0.7, 0xb79bc4ff, 0xa037bdf2},
    {0, 1.0, 0xd628119b, 0x64eeb99e},
    {0, 1.4, 0x704a48b2, 0x800cbf7d},
    {0, 2.5, 0x103a0840, 0x65250e21},
    {1, 0.0, 0xf2f4e729, 0x8532bab0},
    {1, 0.3, 0x8e1c23fa, 0xbf6a01e1},
    {1, 0.7, 0xe2523f4f, 0x4af82ac6},
    {1, 1.0, 0xd628119b, 0x64eeb99e},
    {1, 1.4, 0xc1bf5f9d, 0x65251e53},
    {1, 2.5, 0x6f3e7072, 0xc6eb06c0},
    {2, 0.0, 0x81a9ad96, 0xb6b4a81a},
    {2, 0.3, 0x48563d9c, 0xd44a1a64},
    {2, 0.7, 0x16dde2fb, 0x6cbed9de},
    {2, 1.0, 0xd628119b, 0x64eeb99e},
    {2, 1.4, 0x4828a6ec, 0xed6627e5},
    {2, 2.5, 0x408f645d, 0xfa7f980b},
    {3, -0.5, 0xa1d40b30, 0x382b93f7},
    {3, -0.21, 0x2b5f55ed, 0x94ffeb87},
    {3, -0.01, 0xfa41a704, 0x7effbaf9},
    {3, 0.0, 0x402b035c, 0xe6d1dc20},
    {3, 0.1, 0x38cbdf60, 0xd02b7cc6},
    {3, 0.333, 0xf824e701, 0x790c6142},
    {3, 0.5, 0x5d59fb2c, 0xa659ab35},
    {4, 0.0, 0x81a9ad96, 0xb6b4a81a},
};
