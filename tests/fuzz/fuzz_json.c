/* SPDX-License-Identifier: MIT */
/* The printer of the daemon's report: any bytes are refused or printed, within bounds and without a control character
 * that the program did not write itself. */
#include <assert.h>

#include "../../tools/loaderctl/json.c"
#include "../../tools/loaderctl/json_read.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = NULL, *copy = malloc(size + 1);
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert(copy && out);
    memcpy(copy, data, size); /* exactly as long: a read beyond is seen */
    copy[size] = 0;
    bool good = json_print_table(out, copy, size);
    json_string(out, copy);
    fclose(out);
    struct json_span whole;
    if (json_parse(copy, size, &whole)) {
        char word[8];
        assert(strlen(json_text(&whole, "a", word, sizeof word)) < sizeof word);
        double number = json_number(&whole, "a", 1);
        assert(number - number == 0);
    }
    assert(good || text[0] == '"');
    for (size_t i = 0; i < length; i++)
        assert((unsigned char)text[i] >= 0x20 || text[i] == '\n');
    free(text);
    free(copy);
    return 0;
}
