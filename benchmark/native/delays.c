#include "delays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Make room for COUNT delays. */
static void reserve(struct delays *delays, size_t count) {
    if (count <= delays->room) return;
    while (delays->room < count) delays->room = delays->room ? 2 * delays->room : 1 << 16;
    delays->microseconds =
        realloc(delays->microseconds, delays->room * sizeof *delays->microseconds);
    if (!delays->microseconds) exit(1);
}

void record_delay(struct delays *delays, long microseconds) {
    reserve(delays, delays->count + 1);
    delays->microseconds[delays->count++] = microseconds > 0 ? (uint32_t)microseconds : 0;
}

void add_delays(struct delays *sum, const struct delays *delays) {
    if (delays->count == 0) return;
    reserve(sum, sum->count + delays->count);
    memcpy(sum->microseconds + sum->count, delays->microseconds,
           delays->count * sizeof *sum->microseconds);
    sum->count += delays->count;
}

static int compare(const void *a, const void *b) {
    uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;
    return (one > other) - (one < other);
}

void sort_delays(struct delays *delays) {
    if (delays->count == 0) return;
    qsort(delays->microseconds, delays->count, sizeof *delays->microseconds, compare);
}

unsigned percentile_us(const struct delays *delays, double percent) {
    if (delays->count == 0) return 0;
    size_t index = (size_t)(percent / 100 * (double)delays->count);
    return delays->microseconds[index < delays->count ? index : delays->count - 1];
}

void print_delays(const struct delays *delays) {
    printf(" least_us=%u p50_us=%u p90_us=%u p99_us=%u p999_us=%u max_us=%u",
           percentile_us(delays, 0), percentile_us(delays, 50), percentile_us(delays, 90),
           percentile_us(delays, 99), percentile_us(delays, 99.9), percentile_us(delays, 100));
}
