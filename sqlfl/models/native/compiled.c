/* Passes over joined rows: scores gathered, losses and slopes measured, sums scattered, tile by tile.

   Plain functions without state, called by ctypes, which gives up Python's lock meanwhile; the
   arrays are the caller's. sqlfl.coordinator.rounds.passes says what they compute, in numpy, and
   sqlfl.coordinator.rounds.chunks calls them. Of each function that is worth it, gcc makes one
   for older processors and others for newer ones, between which the program chooses when it is
   loaded. Sums run in an order that follows from their number and the processor. compiled_losses.c
   measures tiles, compiled_products.c makes such passes over products of groups, compiled_steps.c
   makes proximal steps and curvatures, and compiled_metrics.c judges scores. */

#include "compiled.h"

/* -- gather and scatter --------------------------------------------------------------------------- */

/* The run that a row is in. */
static const int64_t *run_at(const Slot *slot, int64_t row) {
    const int64_t *found = slot->ends;
    for (int64_t left = slot->runs; left > 0;) {
        int64_t half = left / 2;
        int past = found[half] <= slot->before + row;
        found = past ? found + half + 1 : found;
        left = past ? left - half - 1 : half;
    }
    return found;
}

/* Where the run ends that `end` is the end of, of [start, start + n): counted from `start`. */
INLINE int64_t end_within(const Slot *slot, const int64_t *end, int64_t start, int64_t n) {
    int64_t found = *end - slot->before - start;
    return found < n ? found : n;
}

CLONED void gather(double *RESTRICT into, const Slot *slot, int64_t output, int64_t start,
                          int64_t n, int how) {
    const double *RESTRICT values = slot->values + output * slot->width;
    int64_t j;
    if (slot->rows == NULL) {
        values += slot->first + start;
        if (how == ADD)
            for (j = 0; j < n; j++) into[j] += values[j];
        else
            for (j = 0; j < n; j++) into[j] = values[j];
        return;
    }
    const int32_t *RESTRICT rows = slot->rows + start;
    if (slot->ends != NULL) {
        const int64_t *run = run_at(slot, start);
        for (int64_t at = 0, end; at < n; at = end) {
            double value = values[rows[at]];
            end = end_within(slot, run++, start, n);
            if (how == ADD)
                for (j = at; j < end; j++) into[j] += value;
            else if (how == MULTIPLY)
                for (j = at; j < end; j++) into[j] *= value;
            else
                for (j = at; j < end; j++) into[j] = value;
        }
        return;
    }
    if (how == ADD)
        for (j = 0; j < n; j++) into[j] += values[rows[j]];
    else if (how == MULTIPLY)
        for (j = 0; j < n; j++) into[j] *= values[rows[j]];
    else
        for (j = 0; j < n; j++) into[j] = values[rows[j]];
}

/* Of runs, and else by four streams: where a row comes again and again, one sum need not wait for
   the one before. */
CLONED void scatter(const double *RESTRICT values, const Slot *slot, int64_t output,
                           int64_t start, int64_t n) {
    double *RESTRICT sums = slot->sums + output * slot->width;
    int64_t j, quarter = n / 4;
    if (slot->rows == NULL) {
        sums += slot->first + start;
        for (j = 0; j < n; j++) sums[j] += values[j];
        return;
    }
    const int32_t *RESTRICT rows = slot->rows + start;
    if (slot->ends != NULL) {
        const int64_t *run = run_at(slot, start);
        for (int64_t at = 0, end; at < n; at = end) {
            double sum = 0.0;
            end = end_within(slot, run++, start, n);
#pragma omp simd reduction(+ : sum)
            for (j = at; j < end; j++) sum += values[j];
            sums[rows[at]] += sum;
        }
        return;
    }
    for (j = 0; j < quarter; j++) {
        sums[rows[j]] += values[j];
        sums[rows[j + quarter]] += values[j + quarter];
        sums[rows[j + 2 * quarter]] += values[j + 2 * quarter];
        sums[rows[j + 3 * quarter]] += values[j + 3 * quarter];
    }
    for (j = 4 * quarter; j < n; j++) sums[rows[j]] += values[j];
}

/* H of [start, start + n): into (outputs, stride) */
void scores_of(double *h, int64_t stride, const Slot *slots, int64_t count,
                      const double *constant, int64_t outputs, int64_t start, int64_t n) {
    for (int64_t c = 0; c < outputs; c++) {
        double *line = h + c * stride;
        for (int64_t s = 0; s < count; s++) gather(line, slots + s, c, start, n, s > 0 ? ADD : SET);
        if (!count)
            for (int64_t j = 0; j < n; j++) line[j] = constant[c];
        else if (constant[c] != 0.0)
            for (int64_t j = 0; j < n; j++) line[j] += constant[c];
    }
}

/* exp(H) of [start, start + n), of slots that have exp(h) */
static void product_of(double *h, const Slot *slots, int64_t count, double factor, int64_t start,
                       int64_t n) {
    for (int64_t s = 0; s < count; s++) gather(h, slots + s, 0, start, n, s > 0 ? MULTIPLY : SET);
    if (factor != 1.0)
        for (int64_t j = 0; j < n; j++) h[j] *= factor;
}

CLONED void targets_of(double *RESTRICT into, const void *targets, int type, int64_t start,
                              int64_t n) {
    int64_t j;
    if (type == FLOAT64) {
        memcpy(into, (const double *)targets + start, (size_t)n * sizeof(double));
    } else if (type == FLOAT32) {
        const float *RESTRICT y = (const float *)targets + start;
        for (j = 0; j < n; j++) into[j] = y[j];
    } else if (type == UINT8) {
        const uint8_t *RESTRICT y = (const uint8_t *)targets + start;
        for (j = 0; j < n; j++) into[j] = y[j];
    } else if (type == UINT16) {
        const uint16_t *RESTRICT y = (const uint16_t *)targets + start;
        for (j = 0; j < n; j++) into[j] = y[j];
    } else {
        const int32_t *RESTRICT y = (const int32_t *)targets + start;
        for (j = 0; j < n; j++) into[j] = y[j];
    }
}

/* -- tiles --------------------------------------------------------------------------------------- */

/* From the next line of the cache on, which vectors are then within. */
double *aligned(double *room) {
    uintptr_t size = LINE * sizeof(double);
    return (double *)(((uintptr_t)room + size - 1) / size * size);
}

/* `more` numbers beside; 0 where there is no memory. */
int make_tile(Tile *tile, int loss, int64_t outputs, Found *found, double *total,
                     int64_t more) {
    int64_t size = SCORES / outputs / LANES * LANES;
    size = size < LANES ? LANES : size > 1024 ? 1024 : size;
    memset(tile, 0, sizeof *tile);
    for (int l = 0; l < LANES; l++) tile->scale[l] = 1.0;
    tile->loss = loss;
    tile->outputs = (int32_t)outputs;
    tile->size = size;
    tile->found = found;
    tile->total = total;
    tile->room = malloc((size_t)((outputs + 4) * size + more + LINE) * sizeof(double));
    if (tile->room == NULL) return 0;
    tile->h = aligned(tile->room);
    tile->y = tile->h + outputs * size;
    tile->more = tile->y + size;
    return 1;
}

/* -- exponentials of scores as products of those of the slots' rows -------------------------------- */

/* max |x|; beyond all numbers where one is none */
CLONED double furthest(const double *RESTRICT x, int64_t n) {
    double found = 0.0;
    int64_t undefined = 0;
#pragma omp simd reduction(max : found) reduction(+ : undefined)
    for (int64_t j = 0; j < n; j++) {
        double size = fabs(x[j]);
        found = size > found ? size : found;
        undefined += x[j] != x[j];
    }
    return undefined ? HUGE_VAL : found;
}

CLONED void exponentials(double *into, const double *x, int64_t n) {
    for (int64_t j = 0; j < n; j++) into[j] = exponential(x[j]);
}

/* From here on scores up to `reach` come as their exponentials; until `end_powers`. */
void begin_powers(Tile *tile, double reach) {
    tile->loss = tile->loss == POISSON ? MEANS : ODDS;
    tile->bits = 2 + (int64_t)(reach * 1.4426950408889634);
    tile->found->least = exp(tile->found->least);
    tile->found->largest = exp(tile->found->largest);
}

void end_powers(Tile *tile) {
    tile->found->least = log(tile->found->least);
    tile->found->largest = log(tile->found->largest);
}

int has_powers(const Tile *tile) {
    return tile->loss == POISSON || tile->loss == LOGISTIC;
}

/* Slots with exp(h) for h, which the caller frees: where that is less work than exp(H) of n joined
   rows, and cannot leave the numbers that there are. Else NULL. */
static Slot *powers_of(Tile *tile, const Slot *slots, int64_t count, int64_t n, double constant) {
    double reach = fabs(constant);
    int64_t rows = 0;
    if (count == 0 || !has_powers(tile)) return NULL;
    for (int64_t s = 0; s < count; s++) rows += slots[s].rows == NULL ? n : slots[s].width;
    if (rows > n) return NULL;
    Slot *found = malloc((size_t)count * sizeof(Slot) + (size_t)rows * sizeof(double));
    if (found == NULL) return NULL;
    double *room = (double *)(found + count);
    for (int64_t s = 0; s < count; s++) {
        Slot *own = found + s;
        *own = slots[s];
        if (own->rows == NULL) {
            own->values += own->first;
            own->first = 0;
            own->width = n;
        }
        reach += furthest(own->values, own->width);
        exponentials(room, own->values, own->width);
        own->values = room;
        room += own->width;
    }
    if (reach <= REACH) {
        begin_powers(tile, reach);
        return found;
    }
    free(found);
    return NULL;
}

/* What the functions below take: another number, where that changes. */
EXPORT int32_t sqlfl_form(void) { return 3; }

/* -- joined rows, each with the row of every slot -------------------------------------------------- */

/* Adds to the sums of slots that have some, to `found` and to `total` (outputs,). `shares` may be
   NULL. Returns 0, or 1 where there is no memory. */
EXPORT int32_t sqlfl_look(int32_t loss, int64_t outputs, int64_t count, const Slot *slots,
                          int64_t n, const double *constant, const void *targets, int32_t type,
                          const double *shares, Found *found, double *total) {
    Tile tile;
    if (!make_tile(&tile, loss, outputs, found, total, 1024)) return 1;
    double *own = tile.more + 3 * tile.size, factor = exp(constant[0]);
    Slot *powers = powers_of(&tile, slots, count, n, constant[0]);
    for (int64_t start = 0; start < n; start += tile.size) {
        int64_t size = n - start < tile.size ? n - start : tile.size;
        if (powers == NULL)
            scores_of(tile.h, tile.size, slots, count, constant, outputs, start, size);
        else
            product_of(tile.h, powers, count, factor, start, size);
        targets_of(tile.y, targets, type, start, size);
        if (shares != NULL) memcpy(own, shares + start, (size_t)size * sizeof(double));
        measure(&tile, size, shares == NULL ? NULL : own);
        for (int64_t s = 0; s < count; s++)
            if (slots[s].sums != NULL)
                for (int64_t c = 0; c < outputs; c++)
                    scatter(tile.h + c * tile.size, slots + s, c, start, size);
    }
    give_logarithms(&tile);
    if (powers != NULL) end_powers(&tile);
    free(powers);
    free(tile.room);
    return 0;
}

/* H of n joined rows: into (outputs, n) */
EXPORT void sqlfl_scores(int64_t outputs, int64_t count, const Slot *slots, int64_t n,
                         const double *constant, double *into) {
    for (int64_t start = 0; start < n; start += 1024) {
        int64_t size = n - start < 1024 ? n - start : 1024;
        scores_of(into + start, n, slots, count, constant, outputs, start, size);
    }
}

/* The slot's sums += those of `values` (outputs, n) */
EXPORT void sqlfl_add(int64_t outputs, const Slot *slot, int64_t n, const double *values) {
    for (int64_t c = 0; c < outputs; c++)
        for (int64_t start = 0; start < n; start += 1024)
            scatter(values + c * n + start, slot, c, start, n - start < 1024 ? n - start : 1024);
}
