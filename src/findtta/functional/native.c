/* The steps of an adaptive layer on float32 feature maps of the CPU, without temporary maps.

native.py compiles and calls this file; moments.py, normalize.py, partition.py, soft.py and domains.py say what the
functions of the same names compute. Maps are dense, (B, C, P) or, with channels last, (B, P, C); tables are (B, C). NaN marks what
is poisoned, so -ffast-math would break this file. Sums have a fixed order: neither the number of threads nor the place
of a sample in its batch changes a bit. Tables are allocated and freed by each call, and nothing else is kept, so that
several threads can call at once. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8       /* values of a vector */
#define TILE 64       /* neighbouring columns that are summed at once */
#define BLOCK 1024    /* values of a plane that are read twice while the first cache holds them */
#define ROWS_HELD 64  /* the same of a tile, in rows */
#define CHUNK 512     /* channels of a table that are worked on together */
#define PANEL 16      /* columns of a product that are computed at once */
#define ROWS 4        /* rows of a product that share what is loaded; divides PANEL */
#define SMALL 32768.0 /* values that one thread has done before another has started */

#define DIRECTIVE(text) _Pragma(#text)
#define SIMD DIRECTIVE(omp simd)
#define SUM(...) DIRECTIVE(omp simd reduction(+ : __VA_ARGS__))
#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define POSITIVE(a) ((a) < 0 ? 0 : (a)) /* NaN stays */
#define BLOCKS(count, size) (((count) + (size) - 1) / (size))

typedef float Vector __attribute__((vector_size(sizeof(float) * LANES)));
typedef float Half __attribute__((vector_size(sizeof(float) * LANES / 2)));

INLINE Vector load(const float *x) {
    Vector values;
    memcpy(&values, x, sizeof values);
    return values;
}

INLINE float total_of(const Vector vectors[4]) {
    Vector all = (vectors[0] + vectors[1]) + (vectors[2] + vectors[3]);
    Half halves[2];
    memcpy(halves, &all, sizeof all);
    Half sum = halves[0] + halves[1];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* ------------------------------------------------------------------------------------------------ threads */

/* Entry points of the OpenMP runtime that torch has loaded; NULL: one thread. */
static void (*parallel)(void (*)(void *), void *, unsigned, unsigned) = NULL;
static int (*thread_number)(void) = NULL, (*team_size)(void) = NULL;

void use_threads(void *region, void *number, void *size) {
    parallel = (void (*)(void (*)(void *), void *, unsigned, unsigned))region;
    thread_number = (int (*)(void))number;
    team_size = (int (*)(void))size;
}

/* Works on the units begin .. end - 1. */
typedef void (*Body)(const void *arguments, long begin, long end);

typedef struct {
    Body body;
    const void *arguments;
    long count;
} Loop;

/* As in torch's loops, a thread always has the same part, which its own cache may still hold. */
static void take_part(void *shared) {
    const Loop *loop = shared;
    long number = thread_number(), threads = team_size();
    loop->body(loop->arguments, loop->count * number / threads, loop->count * (number + 1) / threads);
}

/* Work on units 0 .. count - 1, in threads if the work (in values) is worth it. */
static void each(Body body, const void *arguments, long count, double work, long threads) {
    Loop loop = {body, arguments, count};
    if (parallel && threads > 1 && count > 1 && work > SMALL) parallel(take_part, &loop, (unsigned)threads, 0);
    else body(arguments, 0, count);
}

/* ------------------------------------------------------------------------------- moments and normalisation */

typedef struct {
    const float *x;
    float *y; /* may be x */
    long batch, channels, positions, last;
} Map;

typedef struct {
    Map map;
    float *mean, *variance;
    long stride; /* of the statistics: channels, or 0 where all samples share them */
    const float *weight, *bias;
    float eps;
    long parts; /* of a sample, where there are fewer samples than threads */
} Moments;

/* Put the moments of some more values to those of values before: `share` is the part of all that is new, `pull` that
share times the number before. Sums of squared deviations are held instead of variances. */
INLINE void merge(double *mean, double *squares, double more_mean, double more_squares, double share, double pull) {
    double delta = more_mean - *mean;
    *mean += delta * share;
    *squares += more_squares + delta * delta * pull;
}

/* Mean and squared deviations of a block. Deviations are taken from a centre, which is the mean but for rounding. */
INLINE void block_moments(const float *x, long count, double inverse, double *mean, double *squares) {
    Vector sum[4] = {0}, offset[4] = {0}, spread[4] = {0};
    float rest = 0, rest_offset = 0, rest_spread = 0;
    long i = 0, whole = count / LANES * LANES;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int k = 0; k < 4; k++) sum[k] += load(x + i + k * LANES);
    for (; i < whole; i += LANES) sum[0] += load(x + i);
    for (; i < count; i++) rest += x[i];
    float centre = (total_of(sum) + rest) * (float)inverse;
    for (i = 0; i + 4 * LANES <= count; i += 4 * LANES)
        for (int k = 0; k < 4; k++) {
            Vector deviation = load(x + i + k * LANES) - centre;
            offset[k] += deviation;
            spread[k] += deviation * deviation;
        }
    for (; i < whole; i += LANES) {
        Vector deviation = load(x + i) - centre;
        offset[0] += deviation;
        spread[0] += deviation * deviation;
    }
    for (; i < count; i++) {
        float deviation = x[i] - centre;
        rest_offset += deviation;
        rest_spread += deviation * deviation;
    }
    double error = (double)(total_of(offset) + rest_offset);
    *mean = (double)centre + error * inverse;
    *squares = (double)(total_of(spread) + rest_spread) - error * error * inverse;
}

static void plane_moments(const void *arguments, long begin, long end) {
    const Moments *moments = arguments;
    long positions = moments->map.positions;
    long blocks = BLOCKS(positions, BLOCK), count = BLOCKS(positions, blocks), rest = positions - (blocks - 1) * count;
    double inverse = 1 / (double)count, rest_inverse = 1 / (double)rest, more_mean, more_squares;
    const float *x = moments->map.x + begin * positions;
    for (long plane = begin; plane < end; plane++) {
        double mean, squares;
        block_moments(x, rest, rest_inverse, &mean, &squares);
        x += rest;
        for (long before = rest; before < positions; before += count, x += count) {
            double share = (double)count / (double)(before + count);
            block_moments(x, count, inverse, &more_mean, &more_squares);
            merge(&mean, &squares, more_mean, more_squares, share, share * (double)before);
        }
        moments->mean[plane] = (float)mean;
        moments->variance[plane] = POSITIVE((float)squares) / (float)positions;
    }
}

/* The same for the columns of a tile, `vectors` of them (0: one column). */
INLINE void tile_moments(
    const float *x, long stride, long before, long count, double *mean, double *squares, const int vectors) {
    const int width = vectors ? vectors * LANES : 1;
    float centre[TILE], offset[TILE], spread[TILE];
    double share = (double)count / (double)(before + count), pull = share * (double)before;
    if (vectors) {
        Vector sums[TILE / LANES] = {0}, more[TILE / LANES] = {0};
        for (long row = 0; row < count; row++)
            for (int k = 0; k < vectors; k++) sums[k] += load(x + row * stride + k * LANES);
        for (int k = 0; k < vectors; k++) sums[k] /= (float)count;
        memcpy(centre, sums, sizeof(float) * (size_t)width);
        memset(sums, 0, sizeof sums);
        for (long row = 0; row < count; row++)
            for (int k = 0; k < vectors; k++) {
                Vector deviation = load(x + row * stride + k * LANES) - load(centre + k * LANES);
                sums[k] += deviation;
                more[k] += deviation * deviation;
            }
        memcpy(offset, sums, sizeof(float) * (size_t)width);
        memcpy(spread, more, sizeof(float) * (size_t)width);
    } else {
        centre[0] = offset[0] = spread[0] = 0;
        for (long row = 0; row < count; row++) centre[0] += x[row * stride];
        centre[0] /= (float)count;
        for (long row = 0; row < count; row++) {
            float deviation = x[row * stride] - centre[0];
            offset[0] += deviation;
            spread[0] += deviation * deviation;
        }
    }
    double inverse = 1 / (double)count;
    for (int c = 0; c < width; c++) {
        double error = (double)offset[c] * inverse;
        merge(mean + c, squares + c, (double)centre[c] + error, (double)spread[c] - error * (double)offset[c], share, pull);
    }
}

/* Moments of the columns of a table, at most CHUNK of them. */
static void column_moments(const float *x, long stride, long rows, long width, double *mean, double *squares) {
    memset(mean, 0, sizeof(double) * (size_t)width);
    memset(squares, 0, sizeof(double) * (size_t)width);
    for (long before = 0, count, c; before < rows; before += count, x += count * stride) {
        count = MIN(ROWS_HELD, rows - before);
        for (c = 0; c + 8 * LANES <= width; c += 8 * LANES)
            tile_moments(x + c, stride, before, count, mean + c, squares + c, 8);
        for (; c + 2 * LANES <= width; c += 2 * LANES)
            tile_moments(x + c, stride, before, count, mean + c, squares + c, 2);
        for (; c + LANES <= width; c += LANES) tile_moments(x + c, stride, before, count, mean + c, squares + c, 1);
        for (; c < width; c++) tile_moments(x + c, stride, before, count, mean + c, squares + c, 0);
    }
}

static void last_moments(const void *arguments, long begin, long end) {
    const Moments *moments = arguments;
    long channels = moments->map.channels, positions = moments->map.positions;
    /* Few channels are read as if several positions were one, with more of them. */
    long together = MAX(1, MIN(TILE / channels, positions)), rows = positions / together, left = positions % together;
    for (long unit = begin; unit < end; unit++) {
        long sample = unit / moments->parts, part = unit % moments->parts, tiles = BLOCKS(channels, TILE);
        long last = MIN(tiles * (part + 1) / moments->parts * TILE, channels);
        for (long first = tiles * part / moments->parts * TILE, width; first < last; first += width) {
            double mean[CHUNK], squares[CHUNK], left_mean[TILE], left_squares[TILE];
            const float *x = moments->map.x + sample * positions * channels + first;
            width = MIN(CHUNK, last - first);
            column_moments(x, together * channels, rows, together * width, mean, squares);
            for (long k = 1; k < together; k++) {
                double share = 1 / (double)(k + 1), pull = share * (double)(k * rows);
                for (long c = 0; c < width; c++)
                    merge(mean + c, squares + c, mean[k * width + c], squares[k * width + c], share, pull);
            }
            if (left) {
                double share = (double)left / (double)positions, pull = share * (double)(positions - left);
                column_moments(x + (positions - left) * channels, channels, left, width, left_mean, left_squares);
                for (long c = 0; c < width; c++)
                    merge(mean + c, squares + c, left_mean[c], left_squares[c], share, pull);
            }
            for (long c = 0; c < width; c++) {
                moments->mean[sample * channels + first + c] = (float)mean[c];
                moments->variance[sample * channels + first + c] = POSITIVE((float)squares[c]) / (float)positions;
            }
        }
    }
}

/* All moments of a sample with a NaN or an Inf, or with too large squares, become NaN. */
static void mark_poisoned(const void *arguments, long begin, long end) {
    const Moments *moments = arguments;
    long channels = moments->map.channels;
    for (long sample = begin; sample < end; sample++) {
        float *mean = moments->mean + sample * channels, *variance = moments->variance + sample * channels;
        float energy = 0;
        SUM(energy) for (long c = 0; c < channels; c++) energy += variance[c] + 4 * mean[c] * mean[c];
        for (long c = 0; !isfinite(energy) && c < channels; c++) mean[c] = variance[c] = NAN;
    }
}

static void compute_moments(Map map, float *mean, float *variance, long threads) {
    Moments moments = {.map = map, .mean = mean, .variance = variance, .parts = 1};
    double table = (double)map.batch * (double)map.channels, work = 2 * table * (double)map.positions;
    if (map.last && map.batch < threads) moments.parts = MIN(threads, BLOCKS(map.channels, TILE));
    if (map.last) each(last_moments, &moments, map.batch * moments.parts, work, threads);
    else each(plane_moments, &moments, map.batch * map.channels, work, threads);
    each(mark_poisoned, &moments, map.batch, table, threads);
}

/* Factor and summand of a map, for `width` channels of a sample. */
INLINE void coefficients(const Moments *moments, long sample, long first, long width, float *scale, float *shift) {
    const float *mean = moments->mean + sample * moments->stride + first, *weight = moments->weight, *bias = moments->bias;
    const float *variance = moments->variance + sample * moments->stride + first;
    for (long c = 0; c < width; c++) scale[c] = 1 / sqrtf(variance[c] + moments->eps);
    for (long c = 0; weight && c < width; c++) scale[c] *= weight[first + c];
    for (long c = 0; c < width; c++) shift[c] = (bias ? bias[first + c] : 0) - mean[c] * scale[c];
}

static void plane_normalize(const void *arguments, long begin, long end) {
    const Moments *moments = arguments;
    long channels = moments->map.channels, positions = moments->map.positions;
    for (long plane = begin, width; plane < end; plane += width) {
        float scale[CHUNK], shift[CHUNK];
        long first = plane % channels;
        width = MIN(MIN(CHUNK, channels - first), end - plane);
        coefficients(moments, plane / channels, first, width, scale, shift);
        for (long c = 0; c < width; c++) {
            const float *x = moments->map.x + (plane + c) * positions;
            float *y = moments->map.y + (plane + c) * positions;
            SIMD for (long p = 0; p < positions; p++) y[p] = x[p] * scale[c] + shift[c];
        }
    }
}

static void last_normalize(const void *arguments, long begin, long end) {
    const Moments *moments = arguments;
    long channels = moments->map.channels, positions = moments->map.positions;
    for (long unit = begin; unit < end; unit++) {
        long sample = unit / moments->parts, part = unit % moments->parts, last = positions * (part + 1) / moments->parts;
        for (long first = 0, width; first < channels; first += width) {
            float scale[CHUNK], shift[CHUNK];
            width = MIN(CHUNK, channels - first);
            coefficients(moments, sample, first, width, scale, shift);
            /* A few channels are repeated, because a long loop is quicker than many short ones. */
            long together = width == channels ? MAX(1, CHUNK / 2 / width) : 1;
            for (long i = width; i < together * width; i++) scale[i] = scale[i - width], shift[i] = shift[i - width];
            for (long p = positions * part / moments->parts; p < last; p += together) {
                const float *x = moments->map.x + (sample * positions + p) * channels + first;
                float *y = moments->map.y + (sample * positions + p) * channels + first;
                long values = MIN(together, last - p) * width;
                SIMD for (long i = 0; i < values; i++) y[i] = x[i] * scale[i] + shift[i];
            }
        }
    }
}

static void apply(Moments moments, long threads) {
    Map map = moments.map;
    double work = (double)map.batch * (double)map.channels * (double)map.positions;
    moments.parts = map.last && map.batch < threads ? MIN(threads, map.positions) : 1;
    if (map.last) each(last_normalize, &moments, map.batch * moments.parts, work, threads);
    else each(plane_normalize, &moments, map.batch * map.channels, work, threads);
}

typedef struct {
    Map map;
    float *mean, *variance;
    long threads;
} InstanceMoments;

void instance_moments(const InstanceMoments *call) {
    compute_moments(call->map, call->mean, call->variance, call->threads);
}

typedef struct {
    Map map;
    float *mean, *variance;
    long per_sample;
    const float *weight, *bias;
    float eps;
    long threads;
} Normalize;

void normalize(const Normalize *call) {
    Moments moments = {call->map, call->mean, call->variance, call->per_sample ? call->map.channels : 0,
                       call->weight, call->bias, call->eps, 1};
    apply(moments, call->threads);
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

static int first_neighbours(const float *features, long batch, long channels, float norm_floor, long *labels, long threads) {
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

typedef struct {
    const float *features;
    long batch, channels, threads;
    long *labels;
    float norm_floor;
} Partition;

int partition(const Partition *call) {
    return first_neighbours(call->features, call->batch, call->channels, call->norm_floor, call->labels, call->threads);
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

static int average(
    const float *mean, const float *variance, long batch, long channels, const long *labels, float *group_mean,
    float *group_variance, long threads) {
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

typedef struct {
    const float *mean, *variance;
    long batch, channels, threads;
    const long *labels;
    float *group_mean, *group_variance;
} GroupMoments;

int group_moments(const GroupMoments *call) {
    return average(call->mean, call->variance, call->batch, call->channels, call->labels, call->group_mean,
                   call->group_variance, call->threads);
}

/* ----------------------------------------------------------------------------------------- the layer of FIND */

static inline float blend(float test, float source, float alpha) {
    return alpha < 0.5f ? test + alpha * (source - test) : source - (source - test) * (1 - alpha);
}

/* A layer that is computed as a whole; unless `moments` is NULL, means and variances of the samples, (2, B, C), are
returned, too. */
typedef struct {
    Map map;
    const float *source_mean, *source_variance, *weight, *bias;
    float *moments;
    long threads;
    float eps;
} Layer;

typedef struct {
    Layer layer;
    long *labels;
    float alpha, norm_floor;
} Find;

int find(const Find *call) {
    const Layer *layer = &call->layer;
    Map map = layer->map;
    long size = map.batch * map.channels, threads = layer->threads;
    float *tables = malloc((size_t)(4 * size) * sizeof(float)), *group_mean = tables, *group_variance = tables + size;
    if (!tables) return 0;
    float *mean = layer->moments ? layer->moments : tables + 2 * size, *variance = mean + size;
    compute_moments(map, mean, variance, threads);
    int done = first_neighbours(mean, map.batch, map.channels, call->norm_floor, call->labels, threads) &&
               average(mean, variance, map.batch, map.channels, call->labels, group_mean, group_variance, threads);
    for (long i = 0; done && i < size; i += map.channels)
        SIMD for (long c = 0; c < map.channels; c++) {
            group_mean[i + c] = blend(group_mean[i + c], layer->source_mean[c], call->alpha);
            group_variance[i + c] = blend(group_variance[i + c], layer->source_variance[c], call->alpha);
        }
    Moments new = {map, group_mean, group_variance, map.channels, layer->weight, layer->bias, layer->eps, 1};
    if (done) apply(new, threads);
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

/* `depth` is 0 in the first layers, 1 in the middle of the model, where common shares are added up, and 2 after it, where
the share is held against their mean. `total` is the drift summed over the layers before, which with this one are
`layers`, and is added to, as are the shares. */
typedef struct {
    Layer layer;
    float *drifts, *total, *share_sum;
    long depth, layers, shares;
    float log_threshold;
    SoftOptions options;
} FindSoft;

int find_soft(const FindSoft *call) {
    const Layer *layer = &call->layer;
    const SoftOptions *options = &call->options;
    Map map = layer->map;
    long batch = map.batch, channels = map.channels, threads = layer->threads, size = batch * channels;
    long width = BLOCKS(2 * channels, PANEL) * PANEL, padded = BLOCKS(batch, PANEL) * PANEL;
    long needed = 2 * batch * width + padded * (2 * channels + padded + 2) + channels + 2 * size;
    float *table = calloc((size_t)needed, sizeof(float)), *near = table + batch * width;
    if (!table) return 0;
    float *packed = near + batch * width, *weights = packed + padded * 2 * channels;
    float *energy = weights + padded * padded, *trust = energy + padded, *pattern = trust + padded;
    float *mean = layer->moments ? layer->moments : pattern + channels, *drifts = call->drifts, *total = call->total;
    Packed drift = {batch, 2 * channels, packed, NULL};
    Soft soft = {options, layer->eps, mean, mean + size, layer->source_mean, layer->source_variance, batch, channels,
                 width, drift, table, near, weights, energy, trust, pattern, drifts, table};
    compute_moments(map, mean, mean + size, threads);
    each(in_source_units, &soft, batch, 4.0 * (double)size, threads);
    each(soft_neighbourhoods, &soft, BLOCKS(batch, ROWS), (double)batch * (double)size / 2, threads);
    float guard = 1, concentration = 0, layers = (float)call->layers;
    for (long i = 0; i < batch; i++) total[i] += drifts[i];
    if (call->depth) {
        float share = common_share(&soft, total, layers, &concentration);
        if (call->depth == 1) *call->share_sum += share;
        else guard = options->late_trust * class_guard(options, share, *call->share_sum / (float)call->shares, concentration);
    }
    for (long i = 0; i < batch; i++) {
        float above = options->sharpness * (total[i] / layers - call->log_threshold);
        trust[i] = (1 - options->alpha) / (1 + expf(-above)) * (1 - options->guard * (1 - guard));
    }
    each(soft_statistics, &soft, batch, (double)size, threads);
    Moments new = {map, table, table + size, channels, layer->weight, layer->bias, layer->eps, 1};
    apply(new, threads);
    free(table);
    return 1;
}

/* --------------------------------------------------------------------------------- the layer of find-domains */

/* Tables are of all domains (K) or of all samples: `members` and `weights` are (B, K), `sums` (K, 2 C + 1), the last
column being numbers of samples. `total` is the drift summed over the layers before, which with this one are `layers`,
and is added to. */
typedef struct {
    Layer layer;
    const float *members, *weights, *chance, *recalled, *known;
    float *total;
    const float *kept, *sums;
    float *new_sums, *drifts;
    long domains, layers;
    float log_threshold, alpha, sharpness, least_drift, nothing;
} FindDomains;

typedef struct {
    const FindDomains *call;
    const float *mean, *variance;
    float *new_mean, *new_variance;
    const long *place; /* of the domain of each sample; -1 if it has none */
    const long *first; /* sample of the same domain, which is computed for all of them */
} Remembering;

static void remember(const void *arguments, long begin, long end) {
    const Remembering *all = arguments;
    const FindDomains *call = all->call;
    const Layer *layer = &call->layer;
    long channels = layer->map.channels, width = 2 * channels + 1, start = begin * CHUNK, stop = MIN(end * CHUNK, channels);
    for (long k = 0; k < call->domains; k++) {
        const float *old = call->sums + k * width;
        float *sum = call->new_sums + k * width, kept = call->kept[k];
        SIMD for (long c = start; c < stop; c++) {
            sum[c] = kept * old[c];
            sum[channels + c] = kept * old[channels + c];
        }
    }
    for (long i = 0; i < layer->map.batch; i++) {
        if (all->place[i] < 0) continue;
        const float *mean = all->mean + i * channels, *variance = all->variance + i * channels;
        float *sum = call->new_sums + all->place[i] * width;
        SIMD for (long c = start; c < stop; c++) {
            float unit = layer->source_variance[c] + layer->eps;
            float shift = (mean[c] - layer->source_mean[c]) / sqrtf(unit);
            sum[c] += known(shift);
            sum[channels + c] += known((variance[c] + layer->eps) / unit + shift * shift);
        }
    }
}

/* Statistics of the domains near to each sample, and how far to trust them. */
static void recall(const void *arguments, long begin, long end) {
    const Remembering *all = arguments;
    const FindDomains *call = all->call;
    const Layer *layer = &call->layer;
    long channels = layer->map.channels, width = 2 * channels + 1;
    for (long i = begin; i < end; i++) {
        if (all->first[i] != i) continue;
        const float *weights = call->weights + i * call->domains;
        float *shift = all->new_mean + i * channels, *spread = all->new_variance + i * channels, present = 0, total = 0;
        for (long c = 0; c < channels; c++) shift[c] = spread[c] = 0;
        for (long k = 0; k < call->domains; k++) {
            const float *sum = call->new_sums + k * width;
            float weight = weights[k] / MAX(sum[width - 1], call->nothing);
            if (weight == 0) continue;
            present += weight * sum[width - 1];
            SIMD for (long c = 0; c < channels; c++) {
                shift[c] += weight * sum[c];
                spread[c] += weight * sum[channels + c];
            }
        }
        float scale = 1 / MAX(present, call->nothing);
        for (long c = 0; c < channels; c++) {
            float least = layer->eps / (layer->source_variance[c] + layer->eps);
            shift[c] *= scale;
            spread[c] = MAX(spread[c] * scale - shift[c] * shift[c], least);
            total += spread[c] - logf(spread[c]) + shift[c] * shift[c];
        }
        float divergence = (total / (float)channels - 1) / (2 + 2 * call->chance[i]), layers = (float)call->layers;
        float drift = call->drifts[i] = logf(MAX(divergence, call->least_drift));
        float own = call->total[i] + drift - layers * call->log_threshold;
        float evidence = (own + call->known[i] * call->recalled[i]) / (layers + call->known[i]);
        float trust = (1 - call->alpha) / (1 + expf(-call->sharpness * evidence)) / (1 + call->chance[i]);
        SIMD for (long c = 0; c < channels; c++) {
            float unit = layer->source_variance[c] + layer->eps;
            shift[c] = layer->source_mean[c] + trust * shift[c] * sqrtf(unit);
            spread[c] = layer->source_variance[c] + trust * (spread[c] - 1) * unit;
        }
    }
}

int find_domains(const FindDomains *call) {
    const Layer *layer = &call->layer;
    Map map = layer->map;
    long batch = map.batch, channels = map.channels, domains = call->domains, size = batch * channels, threads = layer->threads;
    float *tables = malloc((size_t)(4 * size) * sizeof(float));
    long *place = malloc((size_t)(2 * batch + domains + 1) * sizeof(long)), *first = place + batch, *seen = first + batch;
    int done = tables && place;
    if (done) {
        float *mean = layer->moments ? layer->moments : tables + 2 * size, *numbers = call->new_sums + 2 * channels;
        Remembering all = {call, mean, mean + size, tables, tables + size, place, first};
        compute_moments(map, mean, mean + size, threads);
        for (long k = 0; k <= domains; k++) seen[k] = -1;
        for (long k = 0; k < domains; k++)
            numbers[k * (2 * channels + 1)] = call->kept[k] * call->sums[k * (2 * channels + 1) + 2 * channels];
        for (long i = 0; i < batch; i++) {
            place[i] = -1;
            for (long k = 0; k < domains; k++)
                if (call->members[i * domains + k] != 0) place[i] = k;
            long *one = seen + (place[i] < 0 ? domains : place[i]);
            first[i] = *one = *one < 0 ? i : *one;
            if (place[i] >= 0 && isfinite(mean[i * channels])) numbers[place[i] * (2 * channels + 1)] += 1;
        }
        each(remember, &all, BLOCKS(channels, CHUNK), 4.0 * (double)size, threads);
        each(recall, &all, batch, (double)domains * (double)size, threads);
        for (long i = 0; i < batch; i++) {
            if (first[i] != i) {
                memcpy(tables + i * channels, tables + first[i] * channels, (size_t)channels * sizeof(float));
                memcpy(tables + size + i * channels, tables + size + first[i] * channels, (size_t)channels * sizeof(float));
                call->drifts[i] = call->drifts[first[i]];
            }
            call->total[i] += call->drifts[i];
        }
        Moments new = {map, tables, tables + size, channels, layer->weight, layer->bias, layer->eps, 1};
        apply(new, threads);
    }
    free(tables);
    free(place);
    return done;
}
