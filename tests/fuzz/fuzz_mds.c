/* SPDX-License-Identifier: MIT */
/* MDS: the bytes as an index.json; and as a record of columns of every kind, whose pieces lie inside of it. */
#include <stdlib.h>
#include <string.h>

#include "dataset/mds.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct mds_index columns = {
        .columns = 4,
        .column = {{.name = "a", .kind = MDS_ARRAY},
                   {.name = "b", .kind = MDS_ARRAY, .dtype = LOADERD_I16},
                   {.name = "n", .kind = MDS_NUMBER, .dtype = LOADERD_U64, .size = 8},
                   {.name = "t", .kind = MDS_TEXT}},
    };
    struct mds_index index;
    struct diag diag = DIAG_INIT;
    if (mds_parse_index((const char *)data, size, &index, &diag) == 0) {
        if (index.columns == 0 || index.columns > MDS_MAX_COLUMNS)
            abort();
        for (size_t i = 0; i < index.shards; i++)
            if (!index.shard[i].raw || index.shard[i].raw[0] == '/' || strstr(index.shard[i].raw, "/../"))
                abort();
        mds_index_deinit(&index);
    } else if (!*diag.text) {
        abort();
    }
    struct dataset_piece piece[MDS_MAX_COLUMNS];
    if (mds_split_record(&columns, data, size, piece, &diag) < 0)
        return 0;
    for (uint32_t i = 0; i < columns.columns; i++) {
        struct field_spec spec;
        size_t header;
        int64_t value;
        if (piece[i].bytes < data || piece[i].length > size - (size_t)(piece[i].bytes - data))
            abort();
        if (mds_parse_array(&columns.column[i], piece[i].bytes, piece[i].length, &spec, &header, &diag) == 0 &&
            header > piece[i].length)
            abort();
        (void)mds_parse_integer(&columns.column[i], piece[i].bytes, piece[i].length, &value, &diag);
    }
    return 0;
}
