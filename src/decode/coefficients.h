/* SPDX-License-Identifier: MIT */
/*
 * Coefficient records: a JPEG whose quantised DCT coefficients were stored anew, without loss, in a form that SIMD
 * reads at memory speed and in which a region touches only its own blocks. docs/jpeg-coefficients.md is the format's
 * specification. A record is about 105 % of its JPEG and decodes to the same pixels, byte for byte.
 *
 *     JPEG --coefficients_encode--> record --decoder_open, decoder_read--> pixels     (decode.h: told by its magic)
 *                                   record --coefficients_restore--------> JPEG       (where its headers were kept)
 *
 * Records are outside bytes like any others: every function here takes any (pointer, length).
 */
#ifndef DECODE_COEFFICIENTS_H
#define DECODE_COEFFICIENTS_H

#include "base/diag.h"
#include "base/types.h"

#define COEFFICIENTS_KIND "JPEG coefficients" /* what decode_sniff() calls a record */
#define COEFFICIENTS_MAGIC "\xABJCR"
#define COEFFICIENTS_VERSION 1u

struct coefficients_options {
    bool keep_headers;   /* so that the file can be restored byte for byte; refused where that would fail */
    uint64_t max_pixels; /* beyond it a file is refused; 0: 100,000,000 */
};

/* One thread at a time; keeps its memory from file to file. */
struct coefficients_encoder;
int coefficients_encoder_new(struct coefficients_encoder **ret); /* 0, -ENOMEM */
void coefficients_encoder_free(struct coefficients_encoder *encoder);

/* Makes the record of a JPEG; it stays valid until the encoder's next call. It was decoded again and equals the file
 * coefficient by coefficient. NULL options: the defaults. Returns 0; -ENOTSUP: a kind of JPEG that records do not hold
 * ("unsupported: why"; the caller keeps the file as it is); -EBADMSG: no JPEG, or a damaged one; -EFBIG, -ENOMEM. */
int coefficients_encode(struct coefficients_encoder *encoder, const uint8_t *bytes, size_t length,
                        const struct coefficients_options *options, const uint8_t **ret_record, size_t *ret_length,
                        struct diag *diag);

/* Reads all of a record: header, every checksum, every tile. 0, or -EBADMSG and what is wrong with it. */
int coefficients_verify(const uint8_t *record, size_t length, struct diag *diag);

/* The JPEG that the record was made of, in memory of its own (free()). -ENODATA: its headers were not kept. */
int coefficients_restore(const uint8_t *record, size_t length, uint8_t **ret_bytes, size_t *ret_length,
                         struct diag *diag);

/* "avx512", "avx2", "scalar": the twin chosen at run time ($LOADERD_SIMD lowers it). */
const char *coefficients_simd(void);

#endif
