/* Proximal steps of joined rows, and curvatures along directions: see compiled.c. */

#include "compiled.h"

/* -- proximal steps: argmin ℓ(z; y) + ρ/2 (z − v)² -------------------------------------------------- */

/* z of v, from z; as `sqlfl.models.proximal.logistic_proximal`, for the scores u of the wrong class:
   the root of F(u) = σ(u) + ρ(u − a), between a − σ(a)/ρ and a. */
CLONED static void logistic_proximal(double *RESTRICT z, const double *RESTRICT v,
                                     const double *RESTRICT y, double *RESTRICT low,
                                     double *RESTRICT high, double rho, int64_t n) {
    double inverse = 1.0 / rho;
    int64_t j;
    for (j = 0; j < n; j++) {
        double sign = 2.0 * y[j] - 1.0, wrong = -v[j] * sign;
        double e = exponential_down(-fabs(wrong)), large = 1.0 / (1.0 + e);
        double start = -z[j] * sign;
        low[j] = wrong - (wrong >= 0.0 ? large : e * large) * inverse;
        high[j] = wrong;
        z[j] = start > low[j] && start < high[j] ? start : 0.5 * (low[j] + high[j]);
    }
    for (int iteration = 0; iteration < 100; iteration++) {
        int64_t moving = 0, halve = iteration % 3 == 2;
#pragma omp simd reduction(+ : moving)
        for (j = 0; j < n; j++) {
            double u = z[j], a = -v[j] * (2.0 * y[j] - 1.0);
            double e = exponential_down(-fabs(u)), large = 1.0 / (1.0 + e);
            double p = u >= 0.0 ? large : e * large;
            double f = p + rho * (u - a);
            double above = f > 0.0 ? u : high[j], below = f > 0.0 ? low[j] : u;
            double next = u - f / (e * large * large + rho);
            int far = halve && fabs(next - u) > 0.1;
            int poor = next < below || next > above || far;
            next = poor ? 0.5 * (below + above) : next;
            /* a Newton step of 1e-7 leaves an error of about 1e-14 */
            moving += fabs(next - u) > (poor ? 1e-12 : 1e-7) * (1.0 + fabs(next));
            low[j] = below;
            high[j] = above;
            z[j] = next;
        }
        if (!moving) break;
    }
    for (j = 0; j < n; j++) z[j] *= 1.0 - 2.0 * y[j];
}

#define PROXIMAL 256 /* rows of a tile, all of which take as many steps as the slowest */

INLINE void pull_by(Tile *tile, double *RESTRICT dual, const double *RESTRICT shares,
                    const double *RESTRICT z, double rho, int64_t n) {
    double *RESTRICT h = tile->h;
    double value = 0.0, total = 0.0;
#pragma omp simd reduction(+ : value, total)
    for (int64_t j = 0; j < n; j++) {
        double gap = rho * (h[j] - z[j]), share = shares == NULL ? 1.0 : shares[j];
        dual[j] += gap;
        value += share * gap * gap;
        h[j] = share * (dual[j] + gap);
        total += h[j];
    }
    tile->found->value += value;
    tile->total[0] += total;
}

/* h becomes the slopes. */
CLONED static void pull(Tile *tile, double *RESTRICT dual, const double *RESTRICT shares,
                        double *RESTRICT v, double *RESTRICT low, double *RESTRICT high, double rho,
                        int64_t n) {
    double *RESTRICT h = tile->h, *RESTRICT y = tile->y, *RESTRICT z = tile->more + tile->size;
    double inverse = 1.0 / rho;
    int64_t j;
    for (j = 0; j < n; j++) v[j] = h[j] + dual[j] * inverse;
    if (tile->loss == SQUARED) {
        double scale = 1.0 / (1.0 + rho);
        for (j = 0; j < n; j++) z[j] = (y[j] + rho * v[j]) * scale;
    } else {
        /* λ was the slope at the last z: where H stands still, so does z */
        memcpy(z, h, (size_t)n * sizeof(double));
        logistic_proximal(z, v, y, low, high, rho, n);
    }
    if (shares == NULL) pull_by(tile, dual, NULL, z, rho, n);
    else pull_by(tile, dual, shares, z, rho, n);
}

/* The z-step of ADMM and λ += ρ (H − z) of n joined rows, λ being `dual` (n,): their slopes are
   those of λ + ρ (H − z), and found->value is Σ share (ρ (H − z))². Of squared and logistic losses.
   Else as `sqlfl_look`. */
EXPORT int32_t sqlfl_proximal(int32_t loss, int64_t count, const Slot *slots, int64_t n,
                              const double *constant, const void *targets, int32_t type,
                              const double *shares, double rho, double *dual, Found *found,
                              double *total) {
    Tile tile;
    if (!make_tile(&tile, loss, 1, found, total, 3 * 1024)) return 1;
    double *v = tile.more + 3 * tile.size, *low = v + 1024, *high = low + 1024;
    for (int64_t start = 0; start < n; start += PROXIMAL) {
        int64_t m = n - start < PROXIMAL ? n - start : PROXIMAL;
        double *own = shares == NULL ? NULL : tile.more;
        if (own != NULL) memcpy(own, shares + start, (size_t)m * sizeof(double));
        scores_of(tile.h, tile.size, slots, count, constant, 1, start, m);
        targets_of(tile.y, targets, type, start, m);
        extent(&tile, m, own);
        pull(&tile, dual + start, own, v, low, high, rho, m);
        for (int64_t s = 0; s < count; s++)
            if (slots[s].sums != NULL) scatter(tile.h, slots + s, 0, start, m);
    }
    free(tile.room);
    return 0;
}

/* -- curvatures ----------------------------------------------------------------------------------- */

#define WAYS 64 /* rows of a tile, where there are many directions; a multiple of LANES */

/* (rows, n) of directions or probabilities, and of each its product with the weights w. */
CLONED static void weigh(double *RESTRICT into, const double *RESTRICT line,
                         const double *RESTRICT w, int64_t n) {
    for (int64_t j = 0; j < n; j++) into[j] = line[j] * w[j];
}

CLONED static double inner(const double *RESTRICT a, const double *RESTRICT b, int64_t n) {
    double sum = 0.0, second = 0.0, third = 0.0, fourth = 0.0;
    int64_t quarter = n / 4;
    const double *RESTRICT more = a + quarter, *RESTRICT with = b + quarter;
#pragma omp simd reduction(+ : sum, second, third, fourth)
    for (int64_t j = 0; j < quarter; j++) {
        sum += a[j] * b[j];
        second += more[j] * with[j];
        third += more[j + quarter] * with[j + quarter];
        fourth += more[j + 2 * quarter] * with[j + 2 * quarter];
    }
    for (int64_t j = 4 * quarter; j < n; j++) sum += a[j] * b[j];
    return (sum + second) + (third + fourth);
}

/* What the rows' second derivatives are, of one output: in place of h. */
CLONED static void bends(int loss, double *RESTRICT h, const double *RESTRICT shares, int64_t n) {
    int64_t j;
    if (shares != NULL && loss != SQUARED)
        for (j = 0; j < n; j++) h[j] = shares[j] > 0.0 ? h[j] : 0.0;
    if (loss == SQUARED) {
        for (j = 0; j < n; j++) h[j] = 1.0;
    } else if (loss == POISSON) {
        for (j = 0; j < n; j++) h[j] = exponential(h[j]);
    } else {
        for (j = 0; j < n; j++) {
            double e = exponential_down(-fabs(h[j])), large = 1.0 / (1.0 + e);
            h[j] = e * large * large;
        }
    }
    if (shares != NULL)
        for (j = 0; j < n; j++) h[j] *= shares[j];
}

/* Probabilities in place of h (outputs, stride). */
CLONED static void chances(double *h, int64_t outputs, int64_t stride,
                           const double *RESTRICT shares, double *RESTRICT top,
                           double *RESTRICT sum, int64_t n) {
    int64_t j, c;
    for (j = 0; j < n; j++) {
        top[j] = h[j];
        sum[j] = 0.0;
    }
    for (c = 1; c < outputs; c++) {
        const double *RESTRICT own = h + c * stride;
        for (j = 0; j < n; j++) top[j] = own[j] > top[j] ? own[j] : top[j];
    }
    for (c = 0; c < outputs; c++) {
        double *RESTRICT own = h + c * stride;
        for (j = 0; j < n; j++) own[j] -= top[j];
        if (shares != NULL)
            for (j = 0; j < n; j++) own[j] = shares[j] > 0.0 ? own[j] : 0.0;
        for (j = 0; j < n; j++) {
            own[j] = exponential_down(own[j]);
            sum[j] += own[j];
        }
    }
    for (c = 0; c < outputs; c++) {
        double *RESTRICT own = h + c * stride;
        for (j = 0; j < n; j++) own[j] /= sum[j];
    }
}

/* Σ_j share_j D_jᵀ ∂²ℓ/∂H_j² D_j, D of all directions, slot after slot, and of a constant for each
   output; added to the lower half of `found` (directions + outputs, the same). `along`: slots whose
   values are `numbers` directions each: (their number · outputs, width). Returns 0, or 1 where there
   is no memory. */
EXPORT int32_t sqlfl_curvatures(int32_t loss, int64_t outputs, int64_t count, const Slot *slots,
                                int64_t others, const Slot *along, const int64_t *numbers,
                                int64_t n, const double *constant, const double *shares,
                                double *found) {
    int64_t ways = 0, s, c, a, b, size = 1024;
    for (s = 0; s < others; s++) ways += numbers[s];
    int64_t all = ways + outputs, lines = (ways + 2) * outputs + all + 5;
    while (size > WAYS && size * lines > 2 * SCORES) size /= 2;
    double *room = malloc((size_t)(size * lines + LINE) * sizeof(double));
    if (room == NULL) return 1;
    double *h = aligned(room), *more = h + outputs * size, *mean = more + outputs * size;
    double *pulled = mean + all * size, *top = pulled + size, *sum = top + size;
    double *unit = sum + size, *d = unit + 2 * size; /* (ways, outputs, size) */
    for (int64_t start = 0; start < n; start += size) {
        int64_t m = n - start < size ? n - start : size, way = 0;
        const double *own = shares == NULL ? NULL : shares + start;
        scores_of(h, size, slots, count, constant, outputs, start, m);
        for (s = 0; s < others; s++)
            for (a = 0; a < numbers[s]; a++, way++)
                for (c = 0; c < outputs; c++)
                    gather(d + (way * outputs + c) * size, along + s, a * outputs + c, start, m,
                           SET);
        if (loss != SOFTMAX) {
            bends(loss, h, own, m);
            for (a = 0; a < ways; a++) {
                weigh(pulled, d + a * size, h, m);
                for (b = 0; b <= a; b++) found[a * all + b] += inner(pulled, d + b * size, m);
                found[ways * all + a] += inner(h, d + a * size, m);
            }
            for (int64_t j = 0; j < m; j++) unit[j] = 1.0;
            found[ways * all + ways] += inner(h, unit, m);
            continue;
        }
        /* Σ_c p_c x_c x_cᵀ − (Σ_c p_c x_c)(Σ_c p_c x_c)ᵀ, x_c what the directions do to output c */
        chances(h, outputs, size, own, top, sum, m);
        if (own != NULL) memcpy(unit, own, (size_t)m * sizeof(double));
        else
            for (int64_t j = 0; j < m; j++) unit[j] = 1.0;
        for (c = 0; c < outputs; c++) {
            weigh(more + c * size, h + c * size, unit, m);
            memcpy(mean + (ways + c) * size, h + c * size, (size_t)m * sizeof(double));
            found[(ways + c) * all + ways + c] += inner(unit, h + c * size, m);
        }
        for (a = 0; a < ways; a++) {
            double *into = mean + a * size;
            memset(into, 0, (size_t)m * sizeof(double));
            for (c = 0; c < outputs; c++) {
                const double *line = d + (a * outputs + c) * size, *p = h + c * size;
                for (int64_t j = 0; j < m; j++) into[j] += p[j] * line[j];
                weigh(pulled, line, more + c * size, m);
                for (b = 0; b <= a; b++)
                    found[a * all + b] += inner(pulled, d + (b * outputs + c) * size, m);
                found[(ways + c) * all + a] += inner(line, more + c * size, m);
            }
        }
        for (a = 0; a < all; a++) {
            weigh(pulled, mean + a * size, unit, m);
            for (b = 0; b <= a; b++) found[a * all + b] -= inner(pulled, mean + b * size, m);
        }
    }
    free(room);
    return 0;
}
