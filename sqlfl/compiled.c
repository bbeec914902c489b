/* Passes over joined rows: scores gathered, losses and slopes measured, sums scattered, tile by tile.

   Plain functions without state, called by ctypes, which gives up Python's lock meanwhile; the
   arrays are the caller's. sqlfl.coordinator.rounds.passes says what they compute, in numpy, and
   sqlfl.coordinator.rounds.compiled_pieces calls them. Of each function that is worth it, gcc makes one
   for older processors and others for newer ones, between which the program chooses when it is
   loaded. Sums run in an order that follows from their number and the processor. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(_MSC_VER)
#define INLINE static __forceinline
#define RESTRICT __restrict
#else
#define INLINE static inline __attribute__((always_inline))
#define RESTRICT restrict
#endif

/* Clones are chosen by an indirect function of the C library, which others than glibc have not. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__x86_64__) \
    && defined(__GLIBC__)
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONED
#endif

#define SCORES 16384 /* of a tile, of all outputs */
#define LANES 16     /* tiles are filled up to a multiple of it with rows that change nothing */
#define FAR -1e9     /* a score whose exponential is next to 0 */

enum { SQUARED, POISSON, LOGISTIC, SOFTMAX };
enum { FLOAT64, FLOAT32, UINT8, UINT16, INT32 };

/* A slot's rows, one for each joined row or place: `rows`, or where it is NULL those from `first`
   on. `values` and `sums` are (outputs, width); `sums` may be NULL. */
typedef struct {
    const int32_t *rows;
    int64_t first, width;
    const double *values;
    double *sums;
} Slot;

/* Slots whose rows lie at the same places, of which [first, end) are asked for. */
typedef struct {
    const Slot *slots;
    int64_t count, first, end;
} Side;

/* The joined rows of two groups of places, each with each: of the first side [first, first + size),
   and of the second [other, other + others). */
typedef struct {
    int64_t first, size, other, others;
} Product;

/* What is found at scores, beside the sums. */
typedef struct {
    double value;    /* Σ share · loss */
    double least;    /* of the scores of rows that count */
    double largest;
    double bend;     /* Σ share · mean eigenvalue of the loss's second derivatives */
    int64_t undefined; /* scores that are no number, of rows that count */
} Found;

typedef struct {
    int32_t loss, outputs;
    int64_t size;     /* rows that there is room for */
    double *h;        /* (outputs, size): scores, then slopes */
    double *y;        /* (size,): targets */
    double *more;     /* (3, size): room */
    double grown[LANES]; /* Π (1 + x) − 1 of some x, each lane's own */
    int64_t since;    /* factors of each lane */
    Found *found;
    double *total;    /* (outputs,): Σ slopes */
} Tile;

/* -- exponentials and logarithms, to about one unit in the last place ---------------------------- */

INLINE double from_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE uint64_t to_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define MAGIC 6755399441055744.0 /* 1.5 · 2⁵²: of a sum with it the last bits are the integer */

/* exp(x) = 2ᵏ (1 + p), x = k log 2 + r, p = exp(r) − 1; `shifted` has k in its last bits. */
INLINE double part_of_exp(double x, double *shifted) {
    *shifted = x * 1.4426950408889634 + MAGIC;
    double k = *shifted - MAGIC;
    double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double r2 = r * r, r4 = r2 * r2;
    /* (exp(r) − 1 − r) / r², |r| ≤ ½ log 2, between Chebyshev's points */
    double a = 0.5000000000000001 + r * 0.16666666666666669;
    double b = 0.04166666666662413 + r * 0.008333333333330062;
    double c = 0.0013888888917213717 + r * 0.00019841269863053618;
    double d = 2.4801521295954376e-05 + r * 2.7557268459997064e-06;
    double e = 2.7620088445409746e-07 + r * 2.510038549551032e-08;
    return r + r2 * ((a + r2 * b) + r4 * ((c + r2 * d) + r4 * e));
}

/* 2ⁿ⁺ᵏ, of the k in the last bits of `shifted` */
INLINE double power_of_2(double shifted, int n) {
    return from_bits((to_bits(shifted) << 52) + ((uint64_t)(1023 + n) << 52));
}

/* Of x ≤ 0; below −708 it is that of −708. */
INLINE double exponential_down(double x) {
    double shifted, p = part_of_exp(x < -708.0 ? -708.0 : x, &shifted);
    double scale = power_of_2(shifted, 0);
    return scale + scale * p;
}

/* 0 below −708 */
INLINE double exponential(double x) {
    double shifted, p = part_of_exp(x, &shifted), scale = power_of_2(shifted, -1);
    double found = 2.0 * (scale + scale * p);
    return x > 709.782712893384 ? HUGE_VAL : x < -708.0 ? 0.0 : found;
}

INLINE double exponential_less_1(double x) {
    double shifted, p = part_of_exp(x, &shifted), scale = power_of_2(shifted, -1);
    double found = 2.0 * (scale * p + (scale - 0.5));
    return x > 709.782712893384 ? HUGE_VAL : x < -708.0 ? -1.0 : found;
}

/* log(1 + f) + k log 2, √½ ≤ 1 + f ≤ √2; as FreeBSD's e_log.c */
INLINE double logarithm_near_1(double f, double k) {
    double s = f / (2.0 + f), z = s * s;
    double poly = z * (6.666666666666735130e-01 + z * (3.999999999940941908e-01
        + z * (2.857142874366239149e-01 + z * (2.222219843214978396e-01
        + z * (1.818357216161805012e-01 + z * (1.531383769920937332e-01
        + z * 1.479819860511658591e-01))))));
    double half = 0.5 * f * f;
    double low = s * (half + poly) + k * 1.90821492927058770002e-10;
    return k * 6.93147180369123816490e-01 - ((half - low) - f);
}

/* Of positive numbers that are not denormal. */
INLINE double logarithm(double x) {
    const uint64_t root = 0x3fe6a09e667f3bcdULL; /* √½ */
    uint64_t moved = to_bits(x) - root + ((uint64_t)1023 << 52);
    uint64_t power = moved >> 52; /* k + 1023 */
    double k = from_bits(power | 0x4330000000000000ULL) - (4503599627370496.0 + 1023.0);
    double f = from_bits(to_bits(x) - (power << 52) + ((uint64_t)1023 << 52)) - 1.0;
    return logarithm_near_1(f, k);
}

/* log(1 + e), 0 ≤ e ≤ 1 */
INLINE double logarithm_of_1_plus(double e) {
    int large = e > 0.41421356237309503;
    double f = large ? 0.5 * (e - 1.0) : e;
    return logarithm_near_1(f, large ? 1.0 : 0.0);
}

/* -- gather and scatter --------------------------------------------------------------------------- */

CLONED static void gather(double *RESTRICT into, const Slot *slot, int64_t output, int64_t start,
                          int64_t n, int more) {
    const double *RESTRICT values = slot->values + output * slot->width;
    int64_t j;
    if (slot->rows == NULL) {
        values += slot->first + start;
        if (more)
            for (j = 0; j < n; j++) into[j] += values[j];
        else
            for (j = 0; j < n; j++) into[j] = values[j];
        return;
    }
    const int32_t *RESTRICT rows = slot->rows + start;
    if (more)
        for (j = 0; j < n; j++) into[j] += values[rows[j]];
    else
        for (j = 0; j < n; j++) into[j] = values[rows[j]];
}

/* Four streams: where a row comes again and again, one sum need not wait for the one before. */
static void scatter(const double *RESTRICT values, const Slot *slot, int64_t output, int64_t start,
                    int64_t n) {
    double *RESTRICT sums = slot->sums + output * slot->width;
    int64_t j, quarter = n / 4;
    if (slot->rows == NULL) {
        sums += slot->first + start;
        for (j = 0; j < n; j++) sums[j] += values[j];
        return;
    }
    const int32_t *RESTRICT rows = slot->rows + start;
    for (j = 0; j < quarter; j++) {
        sums[rows[j]] += values[j];
        sums[rows[j + quarter]] += values[j + quarter];
        sums[rows[j + 2 * quarter]] += values[j + 2 * quarter];
        sums[rows[j + 3 * quarter]] += values[j + 3 * quarter];
    }
    for (j = 4 * quarter; j < n; j++) sums[rows[j]] += values[j];
}

/* H of [start, start + n): into (outputs, stride) */
static void scores_of(double *h, int64_t stride, const Slot *slots, int64_t count,
                      const double *constant, int64_t outputs, int64_t start, int64_t n) {
    for (int64_t c = 0; c < outputs; c++) {
        double *line = h + c * stride;
        for (int64_t s = 0; s < count; s++) gather(line, slots + s, c, start, n, s > 0);
        if (!count)
            for (int64_t j = 0; j < n; j++) line[j] = constant[c];
        else if (constant[c] != 0.0)
            for (int64_t j = 0; j < n; j++) line[j] += constant[c];
    }
}

CLONED static void targets_of(double *RESTRICT into, const void *targets, int type, int64_t start,
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

/* -- losses of a tile: h becomes the slopes -------------------------------------------------------- */

CLONED static void extent(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double least = tile->found->least, largest = tile->found->largest;
    int64_t undefined = 0, j;
    for (int64_t c = 0; c < tile->outputs; c++) {
        const double *RESTRICT h = tile->h + c * tile->size;
        if (shares == NULL) {
#pragma omp simd reduction(min : least) reduction(max : largest) reduction(+ : undefined)
            for (j = 0; j < n; j++) {
                least = h[j] < least ? h[j] : least;
                largest = h[j] > largest ? h[j] : largest;
                undefined += h[j] != h[j];
            }
        } else {
#pragma omp simd reduction(min : least) reduction(max : largest) reduction(+ : undefined)
            for (j = 0; j < n; j++) {
                double low = shares[j] > 0.0 ? h[j] : HUGE_VAL;
                double high = shares[j] > 0.0 ? h[j] : -HUGE_VAL;
                least = low < least ? low : least;
                largest = high > largest ? high : largest;
                undefined += low != low;
            }
        }
    }
    tile->found->least = least;
    tile->found->largest = largest;
    tile->found->undefined += undefined;
}

static void give_logarithms(Tile *tile) {
    double value = 0.0;
    for (int l = 0; l < LANES; l++) {
        value += log1p(tile->grown[l]);
        tile->grown[l] = 0.0;
    }
    tile->found->value += value;
    tile->since = 0;
}

/* value += Σ log(1 + x), x ≥ 0: the logarithm of a product, whose last digits are kept as those of
   Π (1 + x) − 1. */
CLONED static void grow(Tile *tile, const double *RESTRICT x, int64_t n, int64_t bits) {
    double grown[LANES];
    if ((tile->since + n / LANES) * bits > 900) give_logarithms(tile);
    memcpy(grown, tile->grown, sizeof grown);
    for (int64_t j = 0; j < n; j += LANES)
        for (int l = 0; l < LANES; l++) grown[l] += x[j + l] * (1.0 + grown[l]);
    memcpy(tile->grown, grown, sizeof grown);
    tile->since += n / LANES;
}

CLONED static void logistic(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double *RESTRICT h = tile->h, *RESTRICT y = tile->y, *RESTRICT small = tile->more;
    double value = 0.0, bend = 0.0, total = 0.0;
    int64_t j;
    if (shares == NULL) {
#pragma omp simd reduction(+ : value, bend, total)
        for (j = 0; j < n; j++) {
            double sign = 1.0 - 2.0 * y[j];
            double wrong = h[j] * sign; /* the score of the wrong class */
            double e = exponential_down(-fabs(wrong));
            double large = 1.0 / (1.0 + e);
            double g = sign * (wrong >= 0.0 ? large : e * large);
            small[j] = e;
            value += wrong > 0.0 ? wrong : 0.0;
            bend += e * large * large;
            total += g;
            h[j] = g;
        }
        grow(tile, small, n, 1);
    } else {
#pragma omp simd reduction(+ : value, bend, total)
        for (j = 0; j < n; j++) {
            double sign = 1.0 - 2.0 * y[j];
            double wrong = (shares[j] > 0.0 ? h[j] : 0.0) * sign;
            double e = exponential_down(-fabs(wrong));
            double large = 1.0 / (1.0 + e);
            double g = shares[j] * sign * (wrong >= 0.0 ? large : e * large);
            value += shares[j] * ((wrong > 0.0 ? wrong : 0.0) + logarithm_of_1_plus(e));
            bend += shares[j] * (e * large * large);
            total += g;
            h[j] = g;
        }
    }
    tile->found->value += value;
    tile->found->bend += bend;
    tile->total[0] += total;
}

CLONED static void squared(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double *RESTRICT h = tile->h, *RESTRICT y = tile->y;
    double value = 0.0, bend = 0.0, total = 0.0;
    int64_t j;
    if (shares == NULL) {
#pragma omp simd reduction(+ : value, total)
        for (j = 0; j < n; j++) {
            double g = h[j] - y[j];
            value += g * g;
            total += g;
            h[j] = g;
        }
    } else {
#pragma omp simd reduction(+ : value, total, bend)
        for (j = 0; j < n; j++) {
            double residual = (shares[j] > 0.0 ? h[j] : 0.0) - y[j];
            double g = shares[j] * residual;
            value += g * residual;
            bend += shares[j];
            total += g;
            h[j] = g;
        }
    }
    tile->found->value += 0.5 * value;
    tile->found->bend += shares == NULL ? (double)n : bend;
    tile->total[0] += total;
}

/* y (exp(u) − 1 − u), u = h − log y; exp(h) where y is 0 */
CLONED static void poisson(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double *RESTRICT h = tile->h, *RESTRICT y = tile->y;
    double value = 0.0, bend = 0.0, total = 0.0;
    int64_t j;
#pragma omp simd reduction(+ : value, total, bend)
    for (j = 0; j < n; j++) {
        double share = shares == NULL ? 1.0 : shares[j];
        double score = share > 0.0 ? h[j] : 0.0;
        int some = y[j] > 0.0;
        double count = some ? y[j] : 1.0;
        double u = score - logarithm(count);
        double grown = exponential_less_1(u);
        double mean = exponential(score);
        double g = share * (mean - y[j]);
        value += share * (some ? count * (grown - u) : grown + 1.0);
        bend += share * mean;
        total += g;
        h[j] = g;
    }
    tile->found->value += value;
    tile->found->bend += bend;
    tile->total[0] += total;
}

CLONED static void softmax(Tile *tile, int64_t n, const double *RESTRICT shares) {
    int64_t outputs = tile->outputs, size = tile->size, j, c;
    double *RESTRICT y = tile->y, *RESTRICT top = tile->more;
    double *RESTRICT sum = tile->more + size, *RESTRICT square = tile->more + 2 * size;
    double value = 0.0, bend = 0.0;
    int64_t bits = 1;
    while (((int64_t)1 << bits) < outputs) bits++;
    if (shares != NULL)
        for (c = 0; c < outputs; c++) {
            double *RESTRICT h = tile->h + c * size;
            for (j = 0; j < n; j++) h[j] = shares[j] > 0.0 ? h[j] : 0.0;
        }
    for (j = 0; j < n; j++) {
        top[j] = tile->h[j];
        sum[j] = square[j] = 0.0;
    }
    for (c = 1; c < outputs; c++) {
        double *RESTRICT h = tile->h + c * size;
        for (j = 0; j < n; j++) top[j] = h[j] > top[j] ? h[j] : top[j];
    }
    for (j = 0; j < n; j++)
        value += (shares == NULL ? 1.0 : shares[j]) * (top[j] - tile->h[(int64_t)y[j] * size + j]);
    for (c = 0; c < outputs; c++) {
        double *RESTRICT h = tile->h + c * size;
        for (j = 0; j < n; j++) {
            double e = exponential_down(h[j] - top[j]);
            sum[j] += e;
            square[j] += e * e;
            h[j] = e;
        }
    }
    double others = 1.0 / (double)(outputs > 1 ? outputs - 1 : 1);
    if (shares == NULL) {
#pragma omp simd reduction(+ : bend)
        for (j = 0; j < n; j++) {
            double inverse = 1.0 / sum[j];
            bend += (1.0 - square[j] * inverse * inverse) * others;
            top[j] = sum[j] - 1.0;
            sum[j] = inverse;
        }
        grow(tile, top, n, bits);
    } else {
#pragma omp simd reduction(+ : bend, value)
        for (j = 0; j < n; j++) {
            double inverse = 1.0 / sum[j];
            bend += shares[j] * (1.0 - square[j] * inverse * inverse) * others;
            value += shares[j] * logarithm(sum[j]);
            sum[j] = inverse;
        }
    }
    for (c = 0; c < outputs; c++) {
        double *RESTRICT h = tile->h + c * size;
        for (j = 0; j < n; j++) h[j] *= sum[j];
    }
    for (j = 0; j < n; j++) tile->h[(int64_t)y[j] * size + j] -= 1.0;
    for (c = 0; c < outputs; c++) {
        double *RESTRICT h = tile->h + c * size;
        double total = 0.0;
        if (shares != NULL)
            for (j = 0; j < n; j++) h[j] *= shares[j];
#pragma omp simd reduction(+ : total)
        for (j = 0; j < n; j++) total += h[j];
        tile->total[c] += total;
    }
    tile->found->value += value;
    tile->found->bend += bend;
}

/* Slopes of the first n rows in place of their scores; `shares` may be written beyond them. */
static void measure(Tile *tile, int64_t n, double *shares) {
    int64_t whole = (n + LANES - 1) / LANES * LANES, outputs = tile->outputs;
    extent(tile, n, shares);
    for (int64_t j = n; j < whole; j++) {
        for (int64_t c = 0; c < outputs; c++)
            tile->h[c * tile->size + j] = outputs == 1 || c > 0 ? FAR : 0.0;
        tile->y[j] = 0.0;
        if (tile->loss == SQUARED) tile->h[j] = 0.0;
        if (shares != NULL) shares[j] = 0.0;
    }
    if (tile->loss == SQUARED) squared(tile, whole, shares);
    else if (tile->loss == POISSON) poisson(tile, whole, shares);
    else if (tile->loss == LOGISTIC) logistic(tile, whole, shares);
    else softmax(tile, whole, shares);
    if (tile->loss == SQUARED && shares == NULL) tile->found->bend -= (double)(whole - n);
}

/* `more` numbers beside; 0 where there is no memory. */
static int make_tile(Tile *tile, int loss, int64_t outputs, Found *found, double *total,
                     int64_t more) {
    int64_t size = SCORES / outputs / LANES * LANES;
    size = size < LANES ? LANES : size > 1024 ? 1024 : size;
    memset(tile, 0, sizeof *tile);
    tile->loss = loss;
    tile->outputs = (int32_t)outputs;
    tile->size = size;
    tile->found = found;
    tile->total = total;
    tile->h = malloc((size_t)((outputs + 4) * size + more) * sizeof(double));
    if (tile->h == NULL) return 0;
    tile->y = tile->h + outputs * size;
    tile->more = tile->y + size;
    return 1;
}

/* What the functions below take: another number, where that changes. */
EXPORT int32_t sqlfl_form(void) { return 1; }

/* -- joined rows, each with the row of every slot -------------------------------------------------- */

/* Adds to the sums of slots that have some, to `found` and to `total` (outputs,). `shares` may be
   NULL. Returns 0, or 1 where there is no memory. */
EXPORT int32_t sqlfl_look(int32_t loss, int64_t outputs, int64_t count, const Slot *slots,
                          int64_t n, const double *constant, const void *targets, int32_t type,
                          const double *shares, Found *found, double *total) {
    Tile tile;
    if (!make_tile(&tile, loss, outputs, found, total, 1024)) return 1;
    double *own = tile.more + 3 * tile.size;
    for (int64_t start = 0; start < n; start += tile.size) {
        int64_t size = n - start < tile.size ? n - start : tile.size;
        scores_of(tile.h, tile.size, slots, count, constant, outputs, start, size);
        targets_of(tile.y, targets, type, start, size);
        if (shares != NULL) memcpy(own, shares + start, (size_t)size * sizeof(double));
        measure(&tile, size, shares == NULL ? NULL : own);
        for (int64_t s = 0; s < count; s++)
            if (slots[s].sums != NULL)
                for (int64_t c = 0; c < outputs; c++)
                    scatter(tile.h + c * tile.size, slots + s, c, start, size);
    }
    give_logarithms(&tile);
    free(tile.h);
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

/* -- products of groups ---------------------------------------------------------------------------- */

/* A row of a product: one place of one side, and [place, place + size) of the other, which is the
   longer. */
typedef struct {
    int64_t one, place, size;
    int32_t turned; /* the second side has the one place */
} Line;

typedef struct {
    const Side *sides;
    const Product *products;
    int64_t count, at, line, offset; /* where it goes on: product, its line, places of that line */
} Walk;

/* Lines of up to `size` joined rows, up to 1024 of them; how many there are, 0 at the end. */
static int64_t next_lines(Walk *walk, Line *lines, int64_t size, int64_t *rows) {
    int64_t found = 0, taken = 0;
    while (walk->at < walk->count && found < 1024 && taken < size) {
        const Product *own = walk->products + walk->at;
        int turned = own->size > own->others;
        int64_t length = turned ? own->size : own->others;
        int64_t height = turned ? own->others : own->size;
        if (walk->line >= height || length == 0) {
            walk->at++;
            walk->line = walk->offset = 0;
            continue;
        }
        int64_t left = length - walk->offset, room = size - taken;
        Line *line = lines + found++;
        line->turned = turned;
        line->one = (turned ? own->other : own->first) + walk->line;
        line->place = (turned ? own->first : own->other) + walk->offset;
        line->size = left < room ? left : room;
        taken += line->size;
        walk->offset += line->size;
        if (walk->offset == length) {
            walk->offset = 0;
            walk->line++;
        }
    }
    *rows = taken;
    return found;
}

CLONED static void spread(double *RESTRICT into, const Line *lines, int64_t count,
                          const double *one, const double *other) {
    int64_t at = 0;
    for (int64_t k = 0; k < count; k++) {
        const Line *line = lines + k;
        const double *RESTRICT far = (line->turned ? one : other) + line->place;
        double near = (line->turned ? other : one)[line->one];
        for (int64_t j = 0; j < line->size; j++) into[at + j] = near + far[j];
        at += line->size;
    }
}

CLONED static void gathered(const double *RESTRICT values, const Line *lines, int64_t count,
                            double *one, double *other) {
    int64_t at = 0;
    for (int64_t k = 0; k < count; k++) {
        const Line *line = lines + k;
        double *RESTRICT far = (line->turned ? one : other) + line->place;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < line->size; j++) {
            far[j] += values[at + j];
            sum += values[at + j];
        }
        (line->turned ? other : one)[line->one] += sum;
        at += line->size;
    }
}

/* Targets of the lines, which belong to places of the first side, or of the second. */
CLONED static void spread_targets(double *RESTRICT into, const Line *lines, int64_t count,
                                  const double *targets, int second) {
    int64_t at = 0;
    for (int64_t k = 0; k < count; k++) {
        const Line *line = lines + k;
        if (line->turned == second) { /* what is beyond the targets is not read */
            double near = targets[line->one];
            for (int64_t j = 0; j < line->size; j++) into[at + j] = near;
        } else {
            const double *RESTRICT far = targets + line->place;
            for (int64_t j = 0; j < line->size; j++) into[at + j] = far[j];
        }
        at += line->size;
    }
}

/* Scores of the places of a side: (outputs, end − first), room for their sums behind; NULL where
   there is no memory. */
static double *side_scores(const Side *side, int64_t outputs, const double *constant) {
    int64_t n = side->end - side->first;
    double *found = malloc((size_t)(2 * outputs * n + 1) * sizeof(double));
    if (found == NULL) return NULL;
    for (int64_t start = 0; start < n; start += 1024) {
        int64_t size = n - start < 1024 ? n - start : 1024;
        scores_of(found + start, n, side->slots, side->count, constant, outputs,
                  side->first + start, size);
    }
    memset(found + outputs * n, 0, (size_t)(outputs * n) * sizeof(double));
    return found;
}

static void side_sums(const Side *side, int64_t outputs, const double *sums) {
    int64_t n = side->end - side->first;
    for (int64_t s = 0; s < side->count; s++) {
        if (side->slots[s].sums == NULL) continue;
        for (int64_t c = 0; c < outputs; c++)
            for (int64_t start = 0; start < n; start += 1024)
                scatter(sums + c * n + start, side->slots + s, c, side->first + start,
                        n - start < 1024 ? n - start : 1024);
    }
}

/* As `sqlfl_look` and `sqlfl_scores`, of `count` products of places of two sides. Targets are of
   the places of one of them. Where `into` (outputs, rows) is not NULL, scores are written there and
   nothing is measured; where `labels` (rows,) is not, targets are. */
EXPORT int32_t sqlfl_look_at_products(int32_t loss, int64_t outputs, const Side *sides,
                                      const Product *products, int64_t count,
                                      const double *constant, const void *targets, int32_t type,
                                      int32_t second, Found *found, double *total, double *into,
                                      double *labels, int64_t rows) {
    Tile tile;
    Line lines[1024];
    Walk walk = {sides, products, count, 0, 0, 0};
    const Side *owner = sides + second;
    int64_t number, n, done = 0, places = owner->end - owner->first;
    double *none = calloc((size_t)outputs, sizeof(double));
    double *one = side_scores(sides, outputs, constant);
    double *other = none == NULL ? NULL : side_scores(sides + 1, outputs, none);
    int made = make_tile(&tile, loss, outputs, found, total, targets == NULL ? 0 : places);
    int failed = one == NULL || other == NULL || !made;
    if (!failed) {
        int64_t left = sides[0].end - sides[0].first, right = sides[1].end - sides[1].first;
        double *y = tile.more + 3 * tile.size;
        if (targets != NULL) targets_of(y, targets, type, owner->first, places);
        while ((number = next_lines(&walk, lines, tile.size, &n)) > 0) {
            if (targets != NULL)
                spread_targets(labels == NULL ? tile.y : labels + done, lines, number,
                               y - owner->first, second);
            for (int64_t c = 0; c < outputs; c++)
                spread(into == NULL ? tile.h + c * tile.size : into + c * rows + done, lines,
                       number, one + c * left - sides[0].first,
                       other + c * right - sides[1].first);
            done += n;
            if (into != NULL) continue;
            measure(&tile, n, NULL);
            for (int64_t c = 0; c < outputs; c++)
                gathered(tile.h + c * tile.size, lines, number,
                         one + (outputs + c) * left - sides[0].first,
                         other + (outputs + c) * right - sides[1].first);
        }
        if (into == NULL) {
            give_logarithms(&tile);
            side_sums(sides, outputs, one + outputs * left);
            side_sums(sides + 1, outputs, other + outputs * right);
        }
    }
    if (made) free(tile.h);
    free(one);
    free(other);
    free(none);
    return failed;
}

/* The sums of slots += those of `values` (outputs, rows) of such products. */
EXPORT int32_t sqlfl_add_products(int64_t outputs, const Side *sides, const Product *products,
                                  int64_t count, const double *values, int64_t rows) {
    Line lines[1024];
    Walk walk = {sides, products, count, 0, 0, 0};
    int64_t left = sides[0].end - sides[0].first, right = sides[1].end - sides[1].first;
    int64_t number, n, done = 0;
    double *one = calloc((size_t)(outputs * left + 1), sizeof(double));
    double *other = calloc((size_t)(outputs * right + 1), sizeof(double));
    int failed = one == NULL || other == NULL;
    if (!failed) {
        while ((number = next_lines(&walk, lines, 1024, &n)) > 0) {
            for (int64_t c = 0; c < outputs; c++)
                gathered(values + c * rows + done, lines, number, one + c * left - sides[0].first,
                         other + c * right - sides[1].first);
            done += n;
        }
        side_sums(sides, outputs, one);
        side_sums(sides + 1, outputs, other);
    }
    free(one);
    free(other);
    return failed;
}

/* -- metrics of two classes ------------------------------------------------------------------------ */

/* Of log-odds, as probabilities from 2.2e-308 up, and up to 1 − 2⁻⁵³, have them. */
#define LOWEST -708.3964185322641
#define HIGHEST 36.7368005696771

/* What scores of class 1 say of rows. */
typedef struct {
    double right;      /* Σ w of the rows whose class is the more probable one */
    double surprise;   /* Σ −w log of the probability of a row's class */
    double weight;     /* Σ w */
    double least, largest; /* scores, within these bounds */
    int64_t undefined; /* scores that are no number */
} Verdict;

CLONED static void judge(Verdict *verdict, const double *RESTRICT h, const double *RESTRICT y,
                         const double *RESTRICT w, int64_t n) {
    double right = 0.0, surprise = 0.0, weight = 0.0;
    double least = verdict->least, largest = verdict->largest;
    int64_t undefined = 0;
#pragma omp simd reduction(+ : right, surprise, weight, undefined) reduction(min : least) \
    reduction(max : largest)
    for (int64_t j = 0; j < n; j++) {
        double own = w == NULL ? 1.0 : w[j];
        double wrong = h[j] * (1.0 - 2.0 * y[j]);
        double e = exponential_down(-fabs(wrong));
        double bounded = wrong > -LOWEST ? -LOWEST : wrong > 0.0 ? wrong : 0.0;
        double hit = (h[j] > 0.0 ? 1.0 : 0.0) == y[j] ? own : 0.0;
        double kept = h[j] < LOWEST ? LOWEST : h[j] > HIGHEST ? HIGHEST : h[j];
        right += hit;
        surprise += own * (bounded + logarithm_of_1_plus(e));
        weight += own;
        undefined += h[j] != h[j];
        least = kept < least ? kept : least;
        largest = kept > largest ? kept : largest;
    }
    verdict->right += right;
    verdict->surprise += surprise;
    verdict->weight += weight;
    verdict->least = least;
    verdict->largest = largest;
    verdict->undefined += undefined;
}

/* Adds n rows to the verdict; `w` may be NULL. */
EXPORT void sqlfl_judge(int64_t n, const double *h, const void *targets, int32_t type,
                        const double *w, Verdict *verdict) {
    double y[1024];
    for (int64_t start = 0; start < n; start += 1024) {
        int64_t size = n - start < 1024 ? n - start : 1024;
        targets_of(y, targets, type, start, size);
        judge(verdict, h + start, y, w == NULL ? NULL : w + start, size);
    }
}

CLONED static void bins_of(int64_t *RESTRICT bins, const double *RESTRICT h,
                           const double *RESTRICT y, double scale, int64_t first, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        double kept = h[j] < LOWEST ? LOWEST : h[j] > HIGHEST ? HIGHEST : h[j];
        double u = kept / (1.0 + fabs(kept));
        bins[j] = 2 * ((int64_t)floor(u * scale) - first) + (y[j] > 0.0);
    }
}

/* As `sqlfl.models.area` counts log-odds in bins: of 1 / scale, from `first` on. */
EXPORT void sqlfl_count(int64_t n, const double *h, const void *targets, int32_t type,
                        const double *w, double scale, int64_t first, double *counts) {
    double y[1024];
    int64_t bins[1024];
    for (int64_t start = 0; start < n; start += 1024) {
        int64_t size = n - start < 1024 ? n - start : 1024;
        targets_of(y, targets, type, start, size);
        bins_of(bins, h + start, y, scale, first, size);
        for (int64_t j = 0; j < size; j++) counts[bins[j]] += w == NULL ? 1.0 : w[start + j];
    }
}
