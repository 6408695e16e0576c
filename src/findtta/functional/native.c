/* The steps of an adaptive layer on float32 feature maps of the CPU, without temporary maps.

native.py compiles and calls this file; moments.py, normalize.py, partition.py and soft.py say what the functions of
the same names compute. Maps are dense, (B, C, P) or, with channels last, (B, P, C); tables are (B, C). NaN marks what
is poisoned, so -ffast-math would break this file. Sums have a fixed order: neither the number of threads nor the place
of a sample in its batch changes a bit. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 1024    /* values of a plane that are read twice while the first cache holds them */
#define POSITIONS 64  /* the same of a map with channels last */
#define LANES 32      /* channels of such a map that are summed at once */
#define CHUNK 512     /* channels of a table that are worked on together */
#define PANEL 16      /* columns of a product that are computed at once */
#define ROWS 4        /* rows of a product that share what is loaded; divides PANEL */
#define SMALL 32768.0 /* values that one thread has done before another has started */

#define DIRECTIVE(text) _Pragma(#text)
#define SIMD DIRECTIVE(omp simd)
#define SUM(...) DIRECTIVE(omp simd reduction(+ : __VA_ARGS__))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define POSITIVE(a) ((a) < 0 ? 0 : (a)) /* NaN stays */
#define BLOCKS(count, size) (((count) + (size) - 1) / (size))

/* ------------------------------------------------------------------------------------------------ threads */

/* The entry point of a parallel region in the OpenMP runtime that torch has loaded; NULL: one thread. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);
static Parallel parallel = NULL;

void use_threads(Parallel entry) { parallel = entry; }

/* Works on the units begin .. end - 1. */
typedef void (*Body)(const void *arguments, long begin, long end);

typedef struct {
    Body body;
    const void *arguments;
    long count, step, next;
} Loop;

static void take_turns(void *shared) {
    Loop *loop = shared;
    for (;;) {
        long begin = __atomic_fetch_add(&loop->next, loop->step, __ATOMIC_RELAXED);
        if (begin >= loop->count) return;
        loop->body(loop->arguments, begin, MIN(begin + loop->step, loop->count));
    }
}

/* Work on units 0 .. count - 1, in threads if the work (in values) is worth it. */
static void each(Body body, const void *arguments, long count, double work, int threads) {
    Loop loop = {body, arguments, count, count, 0};
    if (parallel && threads > 1 && count > 1 && work > SMALL) {
        loop.step = BLOCKS(count, 4 * threads);
        parallel(take_turns, &loop, (unsigned)threads, 0);
    } else {
        take_turns(&loop);
    }
}

/* ------------------------------------------------------------------------------- moments and normalisation */

typedef struct {
    const float *x;
    float *y; /* may be x */
    long channels, positions;
    long parts; /* of a sample, where there are fewer samples than threads */
    float *mean, *variance;
    long stride; /* of the statistics: channels, or 0 where all samples share them */
    const float *weight, *bias;
    float eps;
} Map;

/* Put `count` more values to the mean and the sum of squared deviations of `before` values. They are given by a centre,
which is their mean but for rounding, and the sums of their deviations from it and of the squares of these. */
static inline void merge(
    double *mean, double *squares, float centre, float offset, float spread, long before, long count) {
    double more_mean = (double)centre + (double)offset / (double)count;
    double more_squares = MAX((double)spread - (double)offset * (double)offset / (double)count, 0);
    if (!before) { /* the only ones, in small maps */
        *mean = more_mean, *squares = more_squares;
        return;
    }
    double delta = more_mean - *mean, share = (double)count / (double)(before + count);
    *mean += delta * share;
    *squares += more_squares + delta * delta * share * (double)before;
}

/* Sums of the deviations of values from a centre, and of their squares. Four of each, where they are long enough:
an addition waits for the one before it. */
static inline __attribute__((always_inline)) float deviations(const float *x, long count, float centre, float *squares) {
    float a = 0, b = 0, c = 0, d = 0, aa = 0, bb = 0, cc = 0, dd = 0;
    long quarter = count < 4 * LANES ? 0 : count / 4;
    SUM(a, b, c, d, aa, bb, cc, dd) for (long i = 0; i < quarter; i++) {
        float p = x[i] - centre, q = x[i + quarter] - centre;
        float r = x[i + 2 * quarter] - centre, s = x[i + 3 * quarter] - centre;
        a += p, b += q, c += r, d += s;
        if (squares) aa += p * p, bb += q * q, cc += r * r, dd += s * s;
    }
    SUM(a, aa) for (long i = 4 * quarter; i < count; i++) {
        float p = x[i] - centre;
        a += p;
        if (squares) aa += p * p;
    }
    if (squares) *squares = (aa + bb) + (cc + dd);
    return (a + b) + (c + d);
}

static void plane_moments(const void *arguments, long begin, long end) {
    const Map *map = arguments;
    const float *x = map->x + begin * map->positions;
    for (long plane = begin; plane < end; plane++) {
        double mean = 0, squares = 0;
        for (long before = 0, count; before < map->positions; before += count, x += count) {
            count = MIN(BLOCK, map->positions - before);
            float centre = deviations(x, count, 0, NULL) / (float)count, spread;
            float offset = deviations(x, count, centre, &spread);
            merge(&mean, &squares, centre, offset, spread, before, count);
        }
        map->mean[plane] = (float)mean;
        map->variance[plane] = (float)squares / (float)map->positions;
    }
}

/* The same for `width` neighbouring channels and `count` positions of a map with channels last. */
static inline __attribute__((always_inline)) void column_moments(
    const float *x, long stride, long before, long count, double *mean, double *squares, const int width) {
    float centre[LANES] = {0}, offset[LANES] = {0}, spread[LANES] = {0};
    for (long p = 0; p < count; p++)
        SIMD for (int c = 0; c < width; c++) centre[c] += x[p * stride + c];
    for (int c = 0; c < width; c++) centre[c] /= (float)count;
    for (long p = 0; p < count; p++)
        SIMD for (int c = 0; c < width; c++) {
            float deviation = x[p * stride + c] - centre[c];
            offset[c] += deviation;
            spread[c] += deviation * deviation;
        }
    for (int c = 0; c < width; c++) merge(mean + c, squares + c, centre[c], offset[c], spread[c], before, count);
}

static void last_moments(const void *arguments, long begin, long end) {
    const Map *map = arguments;
    long channels = map->channels;
    for (long unit = begin; unit < end; unit++) {
        long sample = unit / map->parts, part = unit % map->parts, tiles = BLOCKS(channels, LANES);
        long last = MIN(tiles * (part + 1) / map->parts * LANES, channels);
        for (long first = tiles * part / map->parts * LANES, width; first < last; first += width) {
            double mean[CHUNK], squares[CHUNK];
            width = MIN(CHUNK, last - first);
            for (long before = 0, count; before < map->positions; before += count) {
                count = MIN(POSITIONS, map->positions - before);
                const float *x = map->x + (sample * map->positions + before) * channels + first;
                long c = 0;
                for (; c + LANES <= width; c += LANES)
                    column_moments(x + c, channels, before, count, mean + c, squares + c, LANES);
                for (; c + 16 <= width; c += 16)
                    column_moments(x + c, channels, before, count, mean + c, squares + c, 16);
                for (; c + 8 <= width; c += 8)
                    column_moments(x + c, channels, before, count, mean + c, squares + c, 8);
                for (; c < width; c++) column_moments(x + c, channels, before, count, mean + c, squares + c, 1);
            }
            for (long c = 0; c < width; c++) {
                map->mean[sample * channels + first + c] = (float)mean[c];
                map->variance[sample * channels + first + c] = (float)squares[c] / (float)map->positions;
            }
        }
    }
}

/* All moments of a sample with a NaN or an Inf, or with too large squares, become NaN. */
static void mark_poisoned(const void *arguments, long begin, long end) {
    const Map *map = arguments;
    for (long sample = begin; sample < end; sample++) {
        float *mean = map->mean + sample * map->channels, *variance = map->variance + sample * map->channels;
        float energy = 0;
        SUM(energy) for (long c = 0; c < map->channels; c++) energy += variance[c] + 4 * mean[c] * mean[c];
        for (long c = 0; !isfinite(energy) && c < map->channels; c++) mean[c] = variance[c] = NAN;
    }
}

void instance_moments(
    const float *x, long batch, long channels, long positions, int last, float *mean, float *variance, int threads) {
    Map map = {.x = x, .channels = channels, .positions = positions, .parts = 1, .mean = mean, .variance = variance};
    double values = (double)batch * (double)channels;
    if (last && batch < threads) map.parts = MIN(threads, BLOCKS(channels, LANES));
    if (last) each(last_moments, &map, batch * map.parts, 2 * values * (double)positions, threads);
    else each(plane_moments, &map, batch * channels, 2 * values * (double)positions, threads);
    each(mark_poisoned, &map, batch, values, threads);
}

static void plane_normalize(const void *arguments, long begin, long end) {
    const Map *map = arguments;
    for (long plane = begin; plane < end; plane++) {
        long c = plane % map->channels, i = plane / map->channels * map->stride + c;
        const float *x = map->x + plane * map->positions;
        float *y = map->y + plane * map->positions;
        float scale = 1 / sqrtf(map->variance[i] + map->eps);
        if (map->weight) scale *= map->weight[c];
        float shift = (map->bias ? map->bias[c] : 0) - map->mean[i] * scale;
        SIMD for (long p = 0; p < map->positions; p++) y[p] = x[p] * scale + shift;
    }
}

static void last_normalize(const void *arguments, long begin, long end) {
    const Map *map = arguments;
    long channels = map->channels;
    for (long unit = begin; unit < end; unit++) {
        long sample = unit / map->parts, part = unit % map->parts, last = map->positions * (part + 1) / map->parts;
        const float *mean = map->mean + sample * map->stride, *variance = map->variance + sample * map->stride;
        for (long first = 0, width; first < channels; first += width) {
            float scale[CHUNK], shift[CHUNK];
            width = MIN(CHUNK, channels - first);
            for (long c = 0; c < width; c++) {
                scale[c] = 1 / sqrtf(variance[first + c] + map->eps);
                if (map->weight) scale[c] *= map->weight[first + c];
                shift[c] = (map->bias ? map->bias[first + c] : 0) - mean[first + c] * scale[c];
            }
            /* A few channels are repeated, because a long loop is quicker than many short ones. */
            long together = width == channels ? MAX(1, CHUNK / 2 / width) : 1;
            for (long i = width; i < together * width; i++) scale[i] = scale[i - width], shift[i] = shift[i - width];
            for (long p = map->positions * part / map->parts; p < last; p += together) {
                const float *x = map->x + (sample * map->positions + p) * channels + first;
                float *y = map->y + (sample * map->positions + p) * channels + first;
                long values = MIN(together, last - p) * width;
                SIMD for (long i = 0; i < values; i++) y[i] = x[i] * scale[i] + shift[i];
            }
        }
    }
}

void normalize(
    const float *x, float *y, long batch, long channels, long positions, int last, const float *mean,
    const float *variance, int per_sample, const float *weight, const float *bias, float eps, int threads) {
    Map map = {x, y, channels, positions, 1, (float *)mean, (float *)variance, per_sample ? channels : 0,
               weight, bias, eps};
    double values = (double)batch * (double)channels * (double)positions;
    if (last && batch < threads) map.parts = MIN(threads, positions);
    if (last) each(last_normalize, &map, batch * map.parts, values, threads);
    else each(plane_normalize, &map, batch * channels, values, threads);
}

/* --------------------------------------------------------------------------------------- first neighbours */

typedef struct {
    long batch, columns;
    float *packed; /* panels of PANEL samples, (columns, PANEL) each; the last is padded with zeros */
    long *neighbours;
} Packed;

static size_t packed_size(long batch, long columns) { return (size_t)(BLOCKS(batch, PANEL) * PANEL * columns); }

static inline float *packed_value(const Packed *table, long sample, long column) {
    return table->packed + (sample / PANEL * table->columns + column) * PANEL + sample % PANEL;
}

/* Inner products of ROWS samples with a panel of samples. All have one order of summation, so that they are symmetric
to the bit and equal for equal samples. */
static inline void inner_products(const Packed *table, long first, long panel, float sums[ROWS][PANEL]) {
    const float *rows = packed_value(table, first, 0), *others = packed_value(table, panel * PANEL, 0);
    memset(sums, 0, sizeof(float) * ROWS * PANEL);
    for (long c = 0; c < table->columns; c++, rows += PANEL, others += PANEL)
        for (int r = 0; r < ROWS; r++)
            SIMD for (int l = 0; l < PANEL; l++) sums[r][l] += rows[r] * others[l];
}

static void find_neighbours(const void *arguments, long begin, long end) {
    const Packed *table = arguments;
    float sums[ROWS][PANEL];
    for (long first = begin * ROWS; first < end * ROWS; first += ROWS) {
        long rows = MIN(ROWS, table->batch - first), *neighbours = table->neighbours + first;
        float best[ROWS];
        for (long r = 0; r < rows; r++) best[r] = -INFINITY, neighbours[r] = first + r;
        for (long other = 0; other < table->batch; other += PANEL) {
            inner_products(table, first, other / PANEL, sums);
            for (long r = 0; r < rows; r++)
                for (long l = 0; l < MIN(PANEL, table->batch - other); l++)
                    if (sums[r][l] > best[r] && other + l != first + r) /* never for NaN */
                        best[r] = sums[r][l], neighbours[r] = other + l;
        }
    }
}

int partition(const float *features, long batch, long channels, float norm_floor, long *labels, int threads) {
    float *scratch = calloc(packed_size(batch, channels), sizeof(float));
    long *neighbours = malloc((size_t)batch * sizeof(long));
    Packed table = {batch, channels, scratch, neighbours};
    int enough_memory = scratch && neighbours;
    for (long i = 0; enough_memory && i < batch; i++) {
        const float *row = features + i * channels;
        float norm = 0;
        SUM(norm) for (long c = 0; c < channels; c++) norm += row[c] * row[c];
        norm = sqrtf(norm);
        if (norm < norm_floor) norm = norm_floor; /* NaN stays */
        for (long c = 0; c < channels; c++) *packed_value(&table, i, c) = row[c] / norm;
    }
    if (enough_memory)
        each(find_neighbours, &table, BLOCKS(batch, ROWS), (double)batch * (double)batch * (double)channels / 8, threads);
    for (long i = 0; enough_memory && i < batch; i++) {
        long last = i, next = neighbours[i];
        /* The walk ends in two that point at each other, or in one that points at itself. */
        for (long step = 0; step < batch && neighbours[next] != last; step++) last = next, next = neighbours[last];
        labels[i] = MIN(last, next);
    }
    free(scratch);
    free(neighbours);
    return enough_memory;
}

/* ------------------------------------------------------------------------------------------------- groups */

static inline float known(float value) { return isnan(value) ? 0 : value; }

typedef struct {
    const float *mean, *variance;
    long batch, channels;
    const long *labels;
    float *sizes, *mean_sums, *variance_sums; /* of groups, in the rows of their labels */
    float *group_mean, *group_variance;       /* of each sample's group */
} Groups;

static void average_groups(const void *arguments, long begin, long end) {
    const Groups *groups = arguments;
    long channels = groups->channels, first = begin * CHUNK, last = MIN(end * CHUNK, channels);
    for (long i = 0; i < groups->batch; i++) {
        const float *mean = groups->mean + i * channels;
        float *sum = groups->mean_sums + groups->labels[i] * channels;
        SIMD for (long c = first; c < last; c++) sum[c] += known(mean[c]);
    }
    for (long i = 0; i < groups->batch; i++) {
        long label = groups->labels[i];
        const float *mean = groups->mean + i * channels, *variance = groups->variance + i * channels;
        const float *total = groups->mean_sums + label * channels;
        float *group_mean = groups->group_mean + i * channels, *sum = groups->variance_sums + label * channels;
        SIMD for (long c = first; c < last; c++) {
            group_mean[c] = total[c] / groups->sizes[label];
            float deviation = known(mean[c]) - group_mean[c];
            sum[c] += known(variance[c]) + deviation * deviation;
        }
    }
    for (long i = 0; i < groups->batch; i++) {
        long label = groups->labels[i];
        const float *total = groups->variance_sums + label * channels;
        float *group_variance = groups->group_variance + i * channels;
        SIMD for (long c = first; c < last; c++) group_variance[c] = total[c] / groups->sizes[label];
    }
}

int group_moments(
    const float *mean, const float *variance, long batch, long channels, const long *labels, float *group_mean,
    float *group_variance, int threads) {
    for (long i = 0; i < batch; i++)
        if (labels[i] < 0 || labels[i] >= batch) return 0;
    float *rows = calloc((size_t)(batch * (2 * channels + 1)), sizeof(float));
    if (!rows) return 0;
    Groups groups = {mean, variance, batch, channels, labels, rows, rows + batch, rows + batch * (channels + 1),
                     group_mean, group_variance};
    for (long i = 0; i < batch; i++) groups.sizes[labels[i]] += 1;
    each(average_groups, &groups, BLOCKS(channels, CHUNK), (double)batch * (double)channels, threads);
    free(rows);
    return 1;
}

/* ----------------------------------------------------------------------------------------- the layer of FIND */

static inline float blend(float test, float source, float alpha) {
    return alpha < 0.5f ? test + alpha * (source - test) : source - (source - test) * (1 - alpha);
}

/* All of it; labels and, unless `moments` is NULL, means and variances of the samples, (2, B, C), are returned, too. */
int find(
    const float *x, float *y, long batch, long channels, long positions, int last, const float *source_mean,
    const float *source_variance, const float *weight, const float *bias, float eps, float alpha, float norm_floor,
    float *moments, long *labels, int threads) {
    long size = batch * channels;
    float *tables = malloc((size_t)(4 * size) * sizeof(float)), *group_mean = tables, *group_variance = tables + size;
    if (!tables) return 0;
    float *mean = moments ? moments : tables + 2 * size, *variance = mean + size;
    instance_moments(x, batch, channels, positions, last, mean, variance, threads);
    int done = partition(mean, batch, channels, norm_floor, labels, threads) &&
               group_moments(mean, variance, batch, channels, labels, group_mean, group_variance, threads);
    for (long i = 0; done && i < size; i += channels)
        SIMD for (long c = 0; c < channels; c++) {
            group_mean[i + c] = blend(group_mean[i + c], source_mean[c], alpha);
            group_variance[i + c] = blend(group_variance[i + c], source_variance[c], alpha);
        }
    if (done)
        normalize(x, y, batch, channels, positions, last, group_mean, group_variance, 1, weight, bias, eps, threads);
    free(tables);
    return done;
}

/* ------------------------------------------------------------------------------------ the layer of find-soft */

/* The settings of SoftNorm and the constants of soft.py, in the order in which SoftNorm passes them. */
typedef struct {
    float temperature, alpha, sharpness, guard;
    float least_similarity, no_drift, least_drift, late_trust, allowed_share, chance_share, guard_sharpness;
} SoftOptions;

typedef struct {
    const SoftOptions *options;
    float eps;
    const float *mean, *variance, *source_mean, *source_variance;
    long batch, channels, width; /* of a row of a table: two values per channel, and padding */
    Packed drift;                /* shift and stretch - 1 of each sample, in units of the source */
    float *table;                /* first and second moment of each sample, in the same units, 0 for NaN */
    float *near;                 /* mean and variance of its neighbourhood */
    float *weights;              /* of its neighbours */
    float *energy, *trust, *pattern, *drifts;
    float *new_mean; /* to normalise with, and behind it the new variance; where the table has been */
} Soft;

static void in_source_units(const void *arguments, long begin, long end) {
    const Soft *soft = arguments;
    long channels = soft->channels;
    float eps = soft->eps;
    for (long i = begin; i < end; i++) {
        float *row = soft->table + i * soft->width, *packed = packed_value(&soft->drift, i, 0), energy = 0;
        SUM(energy) for (long c = 0; c < channels; c++) {
            float scale = 1 / sqrtf(soft->source_variance[c] + eps);
            float shift = (soft->mean[i * channels + c] - soft->source_mean[c]) * scale;
            float stretch = sqrtf(soft->variance[i * channels + c] + eps) * scale;
            packed[c * PANEL] = shift;
            packed[(channels + c) * PANEL] = stretch - 1;
            row[c] = known(shift);
            row[channels + c] = known(stretch * stretch + shift * shift);
            energy += shift * shift + (stretch - 1) * (stretch - 1);
        }
        soft->energy[i] = energy + soft->options->no_drift;
    }
}

/* exp of a number that is not above 0; libm's would not be vectorised. */
static inline float exponential(float x) {
    float bounded = x < -87 ? -87 : x;
    float power = bounded * 1.44269504f + 12582912.0f; /* adding 3 * 2^22 rounds to a whole number */
    power -= 12582912.0f;
    float rest = bounded - power * 0.693359375f + power * 2.12194440e-4f; /* log 2 in two parts */
    float series = 1 + rest / 7;
    for (int term = 6; term >= 1; term--) series = 1 + rest * (1.0f / (float)term) * series;
    int bits = ((int)power + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87 ? 0 : series * scale;
}

/* A softmax over similarities; a sample counts for itself as much as its nearest neighbour does. */
static void weigh(const Soft *soft, long i, float *weights) {
    long batch = soft->batch;
    float energy = soft->energy[i], nearest = soft->options->least_similarity, total = 0;
    float sharpness = 2 / soft->options->temperature;
    SIMD for (long j = 0; j < batch; j++) {
        float similarity = weights[j] / (energy + soft->energy[j]);
        weights[j] = isnan(similarity) ? -INFINITY : similarity;
    }
    weights[i] = nearest;
    DIRECTIVE(omp simd reduction(max : nearest)) for (long j = 0; j < batch; j++) nearest = MAX(nearest, weights[j]);
    weights[i] = nearest;
    SUM(total) for (long j = 0; j < batch; j++) {
        weights[j] = exponential((weights[j] - nearest) * sharpness);
        total += weights[j];
    }
    SIMD for (long j = 0; j < batch; j++) weights[j] /= total;
}

/* Logarithm of the divergence of a neighbourhood from the source; its second moments become variances. */
static float log_drift(const Soft *soft, float *near, float own_share) {
    long channels = soft->channels;
    float eps = soft->eps, total = 0;
    for (long c = 0; c < channels; c++) {
        float least = eps / (soft->source_variance[c] + eps), spread = near[channels + c] - near[c] * near[c];
        spread = near[channels + c] = MAX(spread, least);
        total += spread - logf(spread) + near[c] * near[c];
    }
    float divergence = (total / (float)channels - 1) / (2 + 2 * own_share);
    return logf(MAX(divergence, soft->options->least_drift));
}

static void soft_neighbourhoods(const void *arguments, long begin, long end) {
    const Soft *soft = arguments;
    long batch = soft->batch;
    float sums[ROWS][PANEL];
    for (long first = begin * ROWS; first < end * ROWS; first += ROWS) {
        long rows = MIN(ROWS, batch - first), stride = BLOCKS(batch, PANEL) * PANEL;
        float *weights = soft->weights + first * stride;
        for (long other = 0; other < batch; other += PANEL) {
            inner_products(&soft->drift, first, other / PANEL, sums);
            for (long r = 0; r < ROWS; r++) memcpy(weights + r * stride + other, sums[r], sizeof sums[r]);
        }
        for (long r = 0; r < rows; r++) weigh(soft, first + r, weights + r * stride);
        for (long c = 0; c < soft->width; c += PANEL) {
            memset(sums, 0, sizeof sums);
            for (long j = 0; j < batch; j++)
                for (int r = 0; r < ROWS; r++)
                    SIMD for (int l = 0; l < PANEL; l++)
                        sums[r][l] += weights[r * stride + j] * soft->table[j * soft->width + c + l];
            for (long r = 0; r < rows; r++)
                memcpy(soft->near + (first + r) * soft->width + c, sums[r], sizeof sums[r]);
        }
        for (long r = 0; r < rows; r++) {
            float *near = soft->near + (first + r) * soft->width;
            soft->drifts[first + r] = log_drift(soft, near, weights[r * stride + first + r]);
        }
    }
}

/* How far the shifts of the samples point the same way, above all those of little drift. */
static float common_share(const Soft *soft, const float *total, float layers, float *concentration) {
    long batch = soft->batch, channels = soft->channels;
    float *weights = soft->trust, *pattern = soft->pattern, least = INFINITY;
    double weight_sum = 0, energies = 0, own = 0, squares = 0, together = 0;
    for (long i = 0; i < batch; i++) {
        weights[i] = isfinite(*packed_value(&soft->drift, i, 0)) ? total[i] / layers : INFINITY;
        least = MIN(least, weights[i]);
    }
    for (long i = 0; i < batch; i++) weight_sum += (double)(weights[i] = expf(-2 * (weights[i] - least)));
    for (long c = 0; c < channels; c++) pattern[c] = 0;
    for (long i = 0; i < batch; i++) {
        const float *shift = soft->table + i * soft->width;
        float centre = 0, energy = 0, weight = (float)((double)weights[i] / weight_sum);
        SUM(centre) for (long c = 0; c < channels; c++) centre += shift[c];
        centre /= (float)channels;
        SUM(energy) for (long c = 0; c < channels; c++) {
            energy += (shift[c] - centre) * (shift[c] - centre);
            pattern[c] += weight * (shift[c] - centre);
        }
        energies += (double)(weight * energy);
        own += (double)weight * (double)weight * (double)energy;
        squares += (double)weight * (double)weight;
    }
    for (long c = 0; c < channels; c++) together += (double)pattern[c] * (double)pattern[c];
    *concentration = (float)squares;
    return (float)((together - own) / (MAX(1 - squares, 0.05) * MAX(energies, (double)soft->options->no_drift)));
}

static float class_guard(const SoftOptions *options, float share, float earlier, float concentration) {
    float allowed = options->allowed_share * POSITIVE(earlier) * POSITIVE(earlier) + options->chance_share * concentration;
    return 1 / (1 + powf(POSITIVE(share) / allowed, options->guard_sharpness));
}

static void soft_statistics(const void *arguments, long begin, long end) {
    const Soft *soft = arguments;
    long channels = soft->channels;
    for (long i = begin; i < end; i++) {
        const float *near = soft->near + i * soft->width;
        float *mean = soft->new_mean + i * channels, *variance = mean + soft->batch * channels;
        float trust = soft->trust[i];
        SIMD for (long c = 0; c < channels; c++) {
            float unit = soft->source_variance[c] + soft->eps;
            mean[c] = soft->source_mean[c] + trust * near[c] * sqrtf(unit);
            variance[c] = soft->source_variance[c] + trust * (near[channels + c] - 1) * unit;
        }
    }
}

/* All of it. `depth` is 0 in the first layers, 1 in the middle of the model, where the common share is returned, and 2
after it, where the share is held against its mean over the middle, `earlier`. `total` is the drift summed over the
layers before, which with this one are `layers`; NULL in the first. */
int find_soft(
    const float *x, float *y, long batch, long channels, long positions, int last, const float *source_mean,
    const float *source_variance, const float *weight, const float *bias, float eps, const SoftOptions *options,
    int depth, int layers, float log_threshold, const float *total, const float *earlier, float *moments, float *drifts,
    float *new_total, float *share, int threads) {
    long size = batch * channels, width = BLOCKS(2 * channels, PANEL) * PANEL, padded = BLOCKS(batch, PANEL) * PANEL;
    long needed = 2 * batch * width + padded * (2 * channels + padded + 2) + channels + 2 * size;
    float *table = calloc((size_t)needed, sizeof(float)), *near = table + batch * width;
    if (!table) return 0;
    float *packed = near + batch * width, *weights = packed + padded * 2 * channels;
    float *energy = weights + padded * padded, *trust = energy + padded, *pattern = trust + padded;
    if (!moments) moments = pattern + channels;
    Packed drift = {batch, 2 * channels, packed, NULL};
    Soft soft = {options, eps, moments, moments + size, source_mean, source_variance, batch, channels, width,
                 drift, table, near, weights, energy, trust, pattern, drifts, table};
    instance_moments(x, batch, channels, positions, last, moments, moments + size, threads);
    each(in_source_units, &soft, batch, 4.0 * (double)size, threads);
    each(soft_neighbourhoods, &soft, BLOCKS(batch, ROWS), (double)batch * (double)size / 2, threads);
    float guard = 1, concentration = 0;
    for (long i = 0; i < batch; i++) new_total[i] = total ? total[i] + drifts[i] : drifts[i];
    if (depth) *share = common_share(&soft, new_total, (float)layers, &concentration);
    if (depth == 2) guard = options->late_trust * class_guard(options, *share, *earlier, concentration);
    for (long i = 0; i < batch; i++) {
        float above = options->sharpness * (new_total[i] / (float)layers - log_threshold);
        trust[i] = (1 - options->alpha) / (1 + expf(-above)) * (1 - options->guard * (1 - guard));
    }
    each(soft_statistics, &soft, batch, (double)size, threads);
    normalize(x, y, batch, channels, positions, last, table, table + size, 1, weight, bias, eps, threads);
    free(table);
    return 1;
}
