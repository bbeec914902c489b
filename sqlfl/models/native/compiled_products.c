/* Joined rows that are products of groups, each row of one with each of the other: see compiled.c. */

#include "compiled.h"

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
                          const double *one, const double *other, int how) {
    int64_t at = 0;
    for (int64_t k = 0; k < count; k++) {
        const Line *line = lines + k;
        const double *RESTRICT far = (line->turned ? one : other) + line->place;
        double near = (line->turned ? other : one)[line->one];
        if (how == MULTIPLY)
            for (int64_t j = 0; j < line->size; j++) into[at + j] = near * far[j];
        else
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

static int has_sums(const Side *side) {
    for (int64_t s = 0; s < side->count; s++)
        if (side->slots[s].sums != NULL) return 1;
    return 0;
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
        int summed = has_sums(sides) || has_sums(sides + 1), how = ADD;
        if (into == NULL && has_powers(&tile) && left + right <= rows) {
            double reach = furthest(one, left) + furthest(other, right);
            if (reach <= REACH) {
                how = MULTIPLY;
                exponentials(one, one, left);
                exponentials(other, other, right);
                begin_powers(&tile, reach);
            }
        }
        while ((number = next_lines(&walk, lines, tile.size, &n)) > 0) {
            if (targets != NULL)
                spread_targets(labels == NULL ? tile.y : labels + done, lines, number,
                               y - owner->first, second);
            for (int64_t c = 0; c < outputs; c++)
                spread(into == NULL ? tile.h + c * tile.size : into + c * rows + done, lines,
                       number, one + c * left - sides[0].first,
                       other + c * right - sides[1].first, how);
            done += n;
            if (into != NULL) continue;
            measure(&tile, n, NULL);
            for (int64_t c = 0; c < (summed ? outputs : 0); c++)
                gathered(tile.h + c * tile.size, lines, number,
                         one + (outputs + c) * left - sides[0].first,
                         other + (outputs + c) * right - sides[1].first);
        }
        if (into == NULL) {
            give_logarithms(&tile);
            if (how == MULTIPLY) end_powers(&tile);
            side_sums(sides, outputs, one + outputs * left);
            side_sums(sides + 1, outputs, other + outputs * right);
        }
    }
    if (made) free(tile.room);
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
