/* SPDX-License-Identifier: MIT */
/* Fuzz target: any packet that a client may send to the control socket, through every parser of src/protocol.h. */
#include <stdlib.h>
#include <string.h>

#include "protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct diag diag = DIAG_INIT;
    struct protocol_versions versions;
    struct protocol_open open;
    uint32_t type;
    uint64_t sample;
    if (protocol_type(data, size, &type, &diag) < 0 && diag.code >= 0)
        abort();
    protocol_parse_hello(data, size, &versions, &diag);
    protocol_parse_sample_path(data, size, &sample, &diag);
    uint32_t timeout_ms;
    protocol_parse_drain(data, size, &timeout_ms, &diag);
    struct loaderd_detach detach;
    struct loaderd_stalls stalls;
    protocol_parse_trace(data, size, &timeout_ms, &diag);
    protocol_parse_stalls(data, size, &stalls, &diag);
    if (protocol_parse_detach(data, size, &detach, &diag) == 0 && strlen(detach.reason) >= sizeof detach.reason)
        __builtin_trap();
    if (protocol_parse_open(data, size, &open, &diag) == 0) {
        size_t seen = strlen(open.name) + 1 + strlen(open.job) + 1;
        for (const char *key = protocol_first_key(&open); key; key = protocol_next_key(&open, key)) {
            if (!strchr(key, '='))
                abort();
            seen += strlen(key) + 1;
        }
        if (open.name + seen != open.end || open.fixed.rank >= open.fixed.world)
            abort();
    }
    char packet[64];
    size_t length = protocol_make_error(packet, sizeof packet, -22, diag.text);
    if (length > sizeof packet || packet[length - 1] != '\0')
        abort();
    return 0;
}
