/* What scores of two classes are judged by: see compiled.c. */

#include "compiled.h"

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

INLINE void judge_by(Verdict *verdict, const double *RESTRICT h, const double *RESTRICT y,
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

CLONED static void judge(Verdict *verdict, const double *RESTRICT h, const double *RESTRICT y,
                         const double *RESTRICT w, int64_t n) {
    if (w == NULL) judge_by(verdict, h, y, NULL, n);
    else judge_by(verdict, h, y, w, n);
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

/* As `sqlfl.models.metrics` counts log-odds in bins: of 1 / scale, from `first` on. */
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
