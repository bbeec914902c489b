/* Joined rows of a tree that are counted and not written down. sqlfl.coordinator.join.equal_rows and
   sqlfl.coordinator.join.factorised say what is computed, in numpy, and call it; as in compiled.c, the
   arrays are the caller's. */

#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Of the root's rows [first, end), adds 1 to the count of near + far of each joined row: row r has
   bounds[r + 1] − bounds[r] of them, with the places of `far` from start[group[r]] on. */
EXPORT void sqlfl_count_kinds(int64_t first, int64_t end, const int64_t *bounds,
                              const int32_t *near, const int32_t *group,
                              const int64_t *start, const int32_t *far, int64_t *counts)
{
    for (int64_t row = first; row < end; row++) {
        int64_t size = bounds[row + 1] - bounds[row];
        if (size == 0)
            continue; /* its group may be none */
        const int32_t *places = far + start[group[row]];
        int64_t *own = counts + near[row];
        for (int64_t place = 0; place < size; place++)
            own[places[place]]++;
    }
}

/* Adds each of `above` (rows,) to the sum of its group, divided by what the group has `among` it;
   `among` may be NULL. What is 0 may be of no group. */
EXPORT void sqlfl_sum_groups(int64_t rows, const int32_t *group, const double *above,
                             const int64_t *among, double *sums)
{
    for (int64_t row = 0; row < rows; row++) {
        if (above[row] == 0)
            continue;
        int32_t own = group[row];
        sums[own] += among ? above[row] / (double)among[own] : above[row];
    }
}
