/* What the passes over joined rows have in common: see compiled.c. */

#ifndef SQLFL_COMPILED_H
#define SQLFL_COMPILED_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#define SHARED
#else
#define EXPORT __attribute__((visibility("default")))
#define SHARED __attribute__((visibility("hidden"))) /* clones are not, by the compiler's option */
#endif

#if defined(_MSC_VER)
#define INLINE static __forceinline
#define RESTRICT __restrict
#else
#define INLINE static inline __attribute__((always_inline))
#define RESTRICT restrict
#endif

/* Clones are chosen by an indirect function of the C library, which others than glibc have not. */
#if defined(CLONED) /* as whoever compiles it says: sanitizers know one of each function */
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__x86_64__) \
    && defined(__GLIBC__)
#define CLONED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONED
#endif

#define SCORES 16384 /* of a tile, of all outputs */
#define LANES 16     /* tiles are filled up to a multiple of it with rows that change nothing */
#define LINE 8       /* numbers of a line of the cache */
#define FAR -1e9     /* a score whose exponential is next to 0 */

/* Losses; and without slopes, Σ share of the rows whose class has the highest score (of one output:
   class 1, where that is positive), and Σ share ‖h‖². The last two nobody asks for: Poisson and
   logistic, where they are measured of exp(H) in place of H. */
enum { SQUARED, POISSON, LOGISTIC, SOFTMAX, RIGHT, SQUARES, MEANS, ODDS };
enum { FLOAT64, FLOAT32, UINT8, UINT16, INT32 };

/* A slot's rows, one for each joined row or place: `rows`, or where it is NULL those from `first`
   on. `values` and `sums` are (outputs, width); `sums` may be NULL. `ends`, where it is not NULL:
   where runs of equal rows end, which are long, by a numbering in which the first row here has
   `before`. */
typedef struct {
    const int32_t *rows;
    int64_t first, width;
    const double *values;
    double *sums;
    const int64_t *ends;
    int64_t runs, before;
} Slot;

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
    double *room;     /* what is to be freed */
    double *h;        /* (outputs, size): scores, then slopes */
    double *y;        /* (size,): targets */
    double *more;     /* (3, size): room */
    double grown[LANES]; /* (Π (1 + x) − 1) · scale of some x, each lane's own */
    double scale[LANES];
    int64_t since;    /* factors of each lane */
    int64_t bits;     /* of exp(H) or its inverse, and of 1 + either, at most */
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

/* 2 artanh(s)/s − 2, z = s², |s| ≤ 0.2; as FreeBSD's e_log.c */
INLINE double beyond_2_artanh(double z) {
    return z * (6.666666666666735130e-01 + z * (3.999999999940941908e-01
        + z * (2.857142874366239149e-01 + z * (2.222219843214978396e-01
        + z * (1.818357216161805012e-01 + z * (1.531383769920937332e-01
        + z * 1.479819860511658591e-01))))));
}

/* log(1 + f) + k log 2, √½ ≤ 1 + f ≤ √2 */
INLINE double logarithm_near_1(double f, double k) {
    double s = f / (2.0 + f), poly = beyond_2_artanh(s * s);
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

/* k, and y 2ᵏ for y, so that it is within half of x; of positive numbers that are not denormal, as
   is x / y. */
INLINE double matched(double x, double *y) {
    const uint64_t half = (uint64_t)1 << 51;
    uint64_t apart = to_bits(x) - to_bits(*y) + half; /* k in its first 12 bits */
    *y = from_bits(to_bits(*y) + (apart >> 52 << 52));
    return from_bits((apart >> 52 ^ 0x800) | 0x4330000000000000ULL) - (4503599627370496.0 + 2048.0);
}

/* log(1 + x), x ≥ 0 */
INLINE double logarithm_of_grown(double x) {
    double u = 1.0 + x;
    return logarithm(u) + (x - (u - 1.0)) / u;
}

/* -- of compiled.c ---------------------------------------------------------------------------------- */

#define REACH 340.0 /* of scores whose exponentials, and products of two, are numbers */

enum { SET, ADD, MULTIPLY };

SHARED void gather(double *RESTRICT into, const Slot *slot, int64_t output, int64_t start,
                   int64_t n, int how);
SHARED void scatter(const double *RESTRICT values, const Slot *slot, int64_t output, int64_t start,
                    int64_t n);
SHARED void scores_of(double *h, int64_t stride, const Slot *slots, int64_t count,
                      const double *constant, int64_t outputs, int64_t start, int64_t n);
SHARED void targets_of(double *RESTRICT into, const void *targets, int type, int64_t start,
                       int64_t n);
SHARED int make_tile(Tile *tile, int loss, int64_t outputs, Found *found, double *total,
                     int64_t more);
SHARED double furthest(const double *RESTRICT x, int64_t n);
SHARED void exponentials(double *into, const double *x, int64_t n);
SHARED void begin_powers(Tile *tile, double reach);
SHARED void end_powers(Tile *tile);
SHARED int has_powers(const Tile *tile);
SHARED double *aligned(double *room);

/* -- of compiled_losses.c ---------------------------------------------------------------------------- */

SHARED void extent(Tile *tile, int64_t n, const double *RESTRICT shares);
SHARED void give_logarithms(Tile *tile);
SHARED void measure(Tile *tile, int64_t n, double *shares);

#endif
