/* Losses of a tile of joined rows, whose scores become their slopes: see compiled.c. */

#include "compiled.h"

CLONED void extent(Tile *tile, int64_t n, const double *RESTRICT shares) {
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

CLONED void give_logarithms(Tile *tile) {
    double value = 0.0;
#pragma omp simd reduction(+ : value)
    for (int l = 0; l < LANES; l++) {
        value += logarithm_of_grown(tile->grown[l] / tile->scale[l]);
        tile->grown[l] = 0.0;
        tile->scale[l] = 1.0;
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

/* As `grow`, of the odds x = q, or where y is 1 x = 1 / q, the scale being Π q of these. */
CLONED static void grow_by_odds(Tile *tile, const double *RESTRICT q, const double *RESTRICT y,
                                int64_t n) {
    int64_t most = 900 / tile->bits * LANES; /* rows between logarithms */
    for (int64_t first = 0; first < n; first += most) {
        double grown[LANES], scale[LANES];
        int64_t end = n - first < most ? n : first + most;
        if ((tile->since + (end - first) / LANES) * tile->bits > 900) give_logarithms(tile);
        memcpy(grown, tile->grown, sizeof grown);
        memcpy(scale, tile->scale, sizeof scale);
        for (int64_t j = first; j < end; j += LANES)
            for (int l = 0; l < LANES; l++) {
                double against = y[j + l] > 0.0 ? 1.0 : q[j + l];
                double own = y[j + l] > 0.0 ? q[j + l] : 1.0;
                grown[l] = grown[l] * own + against * (scale[l] + grown[l]);
                scale[l] *= own;
            }
        memcpy(tile->grown, grown, sizeof grown);
        memcpy(tile->scale, scale, sizeof scale);
        tile->since += (end - first) / LANES;
    }
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

/* As `logistic` and `extent`, of q = exp(H), which is 0 beyond the last row; one reciprocal does
   for two. */
CLONED static void odds(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double *RESTRICT q = tile->h, *RESTRICT y = tile->y;
    double value = 0.0, bend = 0.0, total = 0.0;
    double least = tile->found->least, largest = tile->found->largest;
    int64_t j, half = n / 2;
    if (shares == NULL) {
        double *RESTRICT r = q + half, *RESTRICT z = y + half;
        grow_by_odds(tile, q, y, n);
#pragma omp simd reduction(+ : bend, total) reduction(min : least) reduction(max : largest)
        for (j = 0; j < half; j++) {
            double low = q[j] < r[j] ? q[j] : r[j], high = q[j] > r[j] ? q[j] : r[j];
            low = r[j] > 0.0 ? low : q[j] > 0.0 ? q[j] : HUGE_VAL;
            least = low < least ? low : least;
            largest = high > largest ? high : largest;
            double a = 1.0 + q[j], b = 1.0 + r[j], both = 1.0 / (a * b);
            double not_q = both * b, not_r = both * a, p = q[j] * not_q, o = r[j] * not_r;
            double g = y[j] > 0.0 ? -not_q : p, f = z[j] > 0.0 ? -not_r : o;
            bend += p * not_q + o * not_r;
            total += g + f;
            q[j] = g;
            r[j] = f;
        }
    } else {
#pragma omp simd reduction(+ : value, bend, total) reduction(min : least) reduction(max : largest)
        for (j = 0; j < n; j++) {
            double low = shares[j] > 0.0 ? q[j] : HUGE_VAL, high = shares[j] > 0.0 ? q[j] : 0.0;
            least = low < least ? low : least;
            largest = high > largest ? high : largest;
            double own = y[j] > 0.0 ? q[j] : 1.0, against = y[j] > 0.0 ? 1.0 : q[j];
            double sum = 1.0 + q[j], near = sum, k = matched(own, &near);
            /* log(own / sum) = k log 2 + 2 artanh(above / below) */
            double above = k == 0.0 ? -against : own - near, below = own + near;
            double both = 1.0 / (sum * below), inverse = both * below, s = above * both * sum;
            double wrong = against * inverse, g = y[j] > 0.0 ? -wrong : wrong;
            double log = s * (2.0 + beyond_2_artanh(s * s)) + k * 6.93147180559945309417e-01;
            value -= shares[j] * log;
            bend += shares[j] * (wrong * own * inverse);
            g *= shares[j];
            total += g;
            q[j] = g;
        }
    }
    tile->found->least = least;
    tile->found->largest = largest;
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
INLINE void poisson_of(Tile *tile, int64_t n, const double *RESTRICT shares) {
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

/* Loops with and without shares: those that are left out under a mask would be asked for at NULL,
   which is slow. */
CLONED static void poisson(Tile *tile, int64_t n, const double *RESTRICT shares) {
    if (shares == NULL) poisson_of(tile, n, NULL);
    else poisson_of(tile, n, shares);
}

/* As `poisson` and `extent`, of μ = exp(H), which is 0 beyond the last row: μ − y − y log(μ / y),
   with log(μ / y) = k log 2 + 2 artanh s. Where k is 0 the terms of the first order are left out,
   which are opposite. */
INLINE void means_of(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double *RESTRICT h = tile->h, *RESTRICT y = tile->y;
    double value = 0.0, bend = 0.0, total = 0.0;
    double least = tile->found->least, largest = tile->found->largest;
    int64_t j;
#pragma omp simd reduction(+ : value, total, bend) reduction(min : least) reduction(max : largest)
    for (j = 0; j < n; j++) {
        double share = shares == NULL ? 1.0 : shares[j], mean = h[j];
        double from = mean > 0.0 ? mean : 1.0;
        double count = y[j] > 0.0 ? y[j] : 1.0, near = count, k = matched(from, &near);
        double s = (from - near) / (from + near), more = beyond_2_artanh(s * s), gap = mean - count;
        double far = gap - count * (s * (2.0 + more) + k * 6.93147180559945309417e-01);
        double loss = k == 0.0 ? s * (gap - count * more) : far;
        double low = share > 0.0 && mean > 0.0 ? mean : HUGE_VAL, high = share > 0.0 ? mean : 0.0;
        least = low < least ? low : least;
        largest = high > largest ? high : largest;
        double g = share * (mean - y[j]);
        value += share * (y[j] > 0.0 ? loss : mean);
        bend += share * mean;
        total += g;
        h[j] = g;
    }
    tile->found->least = least;
    tile->found->largest = largest;
    tile->found->value += value;
    tile->found->bend += bend;
    tile->total[0] += total;
}

CLONED static void means(Tile *tile, int64_t n, const double *RESTRICT shares) {
    if (shares == NULL) means_of(tile, n, NULL);
    else means_of(tile, n, shares);
}

/* Σ share x */
CLONED static double sum_of(const double *RESTRICT x, int64_t n, const double *RESTRICT shares) {
    double sum = 0.0;
    if (shares == NULL) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) sum += x[j];
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) sum += shares[j] * x[j];
    }
    return sum;
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
        sum[j] = 0.0;
    }
    for (c = 1; c < outputs; c++) {
        double *RESTRICT h = tile->h + c * size;
        for (j = 0; j < n; j++) top[j] = h[j] > top[j] ? h[j] : top[j];
    }
    for (j = 0; j < n; j++) square[j] = top[j] - tile->h[(int64_t)y[j] * size + j];
    value += sum_of(square, n, shares);
    memset(square, 0, (size_t)n * sizeof(double));
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

CLONED static void right(Tile *tile, int64_t n, const double *RESTRICT shares) {
    double *RESTRICT h = tile->h, *RESTRICT y = tile->y;
    double *RESTRICT top = tile->more, *RESTRICT best = tile->more + tile->size;
    int64_t j;
    if (tile->outputs == 1) {
        for (j = 0; j < n; j++) best[j] = h[j] > 0.0 ? y[j] : 1.0 - y[j];
    } else {
        memcpy(top, h, (size_t)n * sizeof(double));
        memset(best, 0, (size_t)n * sizeof(double));
        for (int64_t c = 1; c < tile->outputs; c++) {
            double code = (double)c;
            h = tile->h + c * tile->size;
            for (j = 0; j < n; j++) {
                best[j] = h[j] > top[j] ? code : best[j];
                top[j] = h[j] > top[j] ? h[j] : top[j];
            }
        }
        for (j = 0; j < n; j++) best[j] = best[j] == y[j] ? 1.0 : 0.0;
    }
    tile->found->value += sum_of(best, n, shares);
}

CLONED static void squares(Tile *tile, int64_t n, const double *RESTRICT shares) {
    for (int64_t c = 0; c < tile->outputs; c++) {
        double *RESTRICT h = tile->h + c * tile->size;
        for (int64_t j = 0; j < n; j++) h[j] *= h[j];
        tile->found->value += sum_of(h, n, shares);
    }
}

/* Slopes of the first n rows in place of their scores; `shares` may be written beyond them. */
void measure(Tile *tile, int64_t n, double *shares) {
    int64_t whole = (n + LANES - 1) / LANES * LANES, outputs = tile->outputs;
    if (tile->loss == RIGHT || tile->loss == SQUARES) {
        (tile->loss == RIGHT ? right : squares)(tile, n, shares);
        return;
    }
    if (!tile->bits) extent(tile, n, shares);
    for (int64_t j = n; j < whole; j++) {
        for (int64_t c = 0; c < outputs; c++)
            tile->h[c * tile->size + j] = outputs == 1 || c > 0 ? FAR : 0.0;
        tile->y[j] = 0.0;
        if (tile->loss == SQUARED || tile->bits) tile->h[j] = 0.0; /* of exp(H), that of FAR */
        if (shares != NULL) shares[j] = 0.0;
    }
    if (tile->loss == SQUARED) squared(tile, whole, shares);
    else if (tile->loss == POISSON) poisson(tile, whole, shares);
    else if (tile->loss == LOGISTIC) logistic(tile, whole, shares);
    else if (tile->loss == MEANS) means(tile, whole, shares);
    else if (tile->loss == ODDS) odds(tile, whole, shares);
    else softmax(tile, whole, shares);
    if (tile->loss == SQUARED && shares == NULL) tile->found->bend -= (double)(whole - n);
}
