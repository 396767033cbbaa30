/* How long things took, and what is printed of that. */

#ifndef DELAYS_H
#define DELAYS_H

#include <stddef.h>
#include <stdint.h>

/* COUNT MICROSECONDS; one that is all zeros has none. */
struct delays {
    size_t count, room;
    uint32_t *microseconds;
};

/* Add one; a negative one counts as none. */
void record_delay(struct delays *delays, long microseconds);

/* Add to SUM all of DELAYS. */
void add_delays(struct delays *sum, const struct delays *delays);

/* Put them in order, which those who ask for percentiles rely on. */
void sort_delays(struct delays *delays);

/* The delay that PERCENT of DELAYS do not exceed; 0 if there are none. */
unsigned percentile_us(const struct delays *delays, double percent);

/* Print of DELAYS, which are in order, the figures that wrk.lua has, from the
   median to the greatest, and the least, as " name=integer". */
void print_delays(const struct delays *delays);

#endif
