/* The inner loops of elmo.engine: matrix products with packed weights, and what follows each product.
 *
 * The file is compiled once for each instruction set (see build_kernels.py), and elmo.engine.compiled loads the
 * best variant for the CPU. Every sum has a fixed order that does not depend on the number of rows or their
 * position, so a sentence gets the same bits alone and in any batch. The compiler may not fuse or reorder
 * operations (-ffp-contract=off); fused multiply-adds are explicit.
 *
 * A packed weight is a list of panels. A panel holds PANEL = 4 * VL outputs: for each group of G inputs (1 in
 * float32, 2 in bfloat16, 4 in int8), the weights of its outputs are adjacent. All outputs of a panel are summed
 * together in registers, for up to ROWS rows at a time.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

#if defined(__AVX512F__)
#include <immintrin.h>
#define VL 16
#define ROWS 6
typedef __m512 vf;
#define v_load _mm512_loadu_ps
#define v_store _mm512_storeu_ps
#define v_set _mm512_set1_ps
#define v_add _mm512_add_ps
#define v_sub _mm512_sub_ps
#define v_mul _mm512_mul_ps
#define v_div _mm512_div_ps
#define v_fma _mm512_fmadd_ps
#define v_min _mm512_min_ps
#define v_max _mm512_max_ps
#define v_abs(x) _mm512_abs_ps(x)
/* |x| with the sign of y */
INLINE vf v_copysign(vf x, vf y) {
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(x), _mm512_castps_si512(y), _mm512_set1_epi32((int)0x80000000), 0xd8));
}
INLINE vf v_shift_exponent(vf x) { /* the last bits of x, moved to the exponent, plus 1.0 */
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(x), 23), _mm512_set1_epi32(0x3f800000)));
}
#elif defined(__AVX2__)
#include <immintrin.h>
#define VL 8
#define ROWS 3
typedef __m256 vf;
#define v_load _mm256_loadu_ps
#define v_store _mm256_storeu_ps
#define v_set _mm256_set1_ps
#define v_add _mm256_add_ps
#define v_sub _mm256_sub_ps
#define v_mul _mm256_mul_ps
#define v_div _mm256_div_ps
#define v_fma _mm256_fmadd_ps
#define v_min _mm256_min_ps
#define v_max _mm256_max_ps
#define v_abs(x) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x)
INLINE vf v_copysign(vf x, vf y) {
    vf sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, x), _mm256_and_ps(sign, y));
}
INLINE vf v_shift_exponent(vf x) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(0x3f800000)));
}
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#define VL 4
#define ROWS 6
typedef float32x4_t vf;
#define v_load vld1q_f32
#define v_store vst1q_f32
#define v_set vdupq_n_f32
#define v_add vaddq_f32
#define v_sub vsubq_f32
#define v_mul vmulq_f32
#define v_div vdivq_f32
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_min vminq_f32
#define v_max vmaxq_f32
#define v_abs vabsq_f32
INLINE vf v_copysign(vf x, vf y) { return vbslq_f32(vdupq_n_u32(0x80000000u), y, x); }
INLINE vf v_shift_exponent(vf x) {
    return vreinterpretq_f32_s32(
        vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(x), 23), vdupq_n_s32(0x3f800000)));
}
#else
#error "no vector instructions are known for this target"
#endif

#ifdef __AVX512BF16__
#define HAS_BF16 1
#else
#define HAS_BF16 0
#endif
#ifdef __AVX512VNNI__
#define HAS_INT8 1
#else
#define HAS_INT8 0
#endif
#define PANEL (4 * VL)
#define CHAIN 256       /* inputs that are added in one sum; sums of a row are then added to its total */
#define BLOCK_ROWS 126  /* rows that stay in the cache next to a panel of weights; a multiple of ROWS */
#define FEW_ROWS 12     /* below this, an LSTM multiplies the inputs of many steps at once */

enum type { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

struct weight {
    int64_t type, n_in, n_out, n_panels; /* n_in is rounded up to a multiple of the group */
    const void *data;
    const float *scale;    /* int8: of each output */
    const int32_t *offset; /* int8: of each output, -128 times the sum of its weights */
};

struct rows { /* the inputs of a product, in its type */
    const void *data;
    int64_t stride; /* elements */
    float *scale;   /* int8: of each row */
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
/* Memory for intermediate results, in huge pages if it is large: they are faster to allocate and to read. */
static void *allocate(int64_t n_bytes) {
    int64_t alignment = n_bytes >= 1 << 22 ? 1 << 21 : 64;
    size_t size = (size_t)round_up(n_bytes + 64, alignment);
    void *memory = aligned_alloc((size_t)alignment, size);
#ifdef MADV_HUGEPAGE
    if (memory && alignment > 64) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory;
}
static const int64_t ELEMENT[] = {4, 2, 1};
static int64_t row_stride(int64_t type, int64_t n_in) { return round_up(n_in, 64 / ELEMENT[type]); }

/* --- products of some rows with one panel --------------------------------------------------------------------- */

struct tile { /* sums (row, PANEL) = base (row, PANEL) + product */
    const float *base;
    int64_t base_stride; /* 0 if all rows have the same base */
    float *sums;
    const char *ahead; /* memory to load into the cache meanwhile: the weights of the next panel */
    int64_t step;      /* bytes of it for each input */
};

INLINE void tile_float32(const int n, const float *x, int64_t stride, const float *w, int64_t n_in,
                         const struct tile tile) {
    const float *base = tile.base;
    int64_t base_stride = tile.base_stride;
    for (int64_t first = 0; first < n_in; first += CHAIN) {
        int64_t last = min64(first + CHAIN, n_in);
        vf sum[ROWS][4];
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < 4; c++) sum[r][c] = v_set(0);
        for (int64_t k = first; k < last; k++) {
            __builtin_prefetch(tile.ahead + k * tile.step, 0, 2);
            vf w0 = v_load(w + k * PANEL), w1 = v_load(w + k * PANEL + VL);
            vf w2 = v_load(w + k * PANEL + 2 * VL), w3 = v_load(w + k * PANEL + 3 * VL);
            UNROLL for (int r = 0; r < n; r++) {
                vf a = v_set(x[r * stride + k]);
                sum[r][0] = v_fma(a, w0, sum[r][0]);
                sum[r][1] = v_fma(a, w1, sum[r][1]);
                sum[r][2] = v_fma(a, w2, sum[r][2]);
                sum[r][3] = v_fma(a, w3, sum[r][3]);
            }
        }
        UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < 4; c++)
            v_store(tile.sums + r * PANEL + c * VL, v_add(v_load(base + r * base_stride + c * VL), sum[r][c]));
        base = tile.sums, base_stride = PANEL;
    }
}

#if HAS_BF16
INLINE void tile_bfloat16(const int n, const uint16_t *x, int64_t stride, const uint16_t *w, int64_t n_in,
                          const struct tile tile) {
    vf sum[ROWS][4];
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < 4; c++) sum[r][c] = v_set(0);
    for (int64_t k = 0; k < n_in; k += 2) {
        __builtin_prefetch(tile.ahead + k * tile.step, 0, 2);
        const uint16_t *pairs = w + k * PANEL;
        __m512bh w0 = (__m512bh)_mm512_loadu_si512(pairs), w1 = (__m512bh)_mm512_loadu_si512(pairs + 32);
        __m512bh w2 = (__m512bh)_mm512_loadu_si512(pairs + 64), w3 = (__m512bh)_mm512_loadu_si512(pairs + 96);
        UNROLL for (int r = 0; r < n; r++) {
            int32_t pair;
            memcpy(&pair, x + r * stride + k, 4);
            __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], a, w0);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], a, w1);
            sum[r][2] = _mm512_dpbf16_ps(sum[r][2], a, w2);
            sum[r][3] = _mm512_dpbf16_ps(sum[r][3], a, w3);
        }
    }
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < 4; c++)
        v_store(tile.sums + r * PANEL + c * VL, v_add(v_load(tile.base + r * tile.base_stride + c * VL), sum[r][c]));
}
#endif

#if HAS_INT8
/* In assembly, because gcc 12 copies every sum if it is an argument of _mm512_dpbusd_epi32. */
INLINE void add_quads(__m512i *sum, __m512i x, __m512i w) { __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(x), "v"(w)); }

INLINE void tile_int8(const int n, const uint8_t *x, int64_t stride, const float *row_scale, const int8_t *w,
                      const float *scale, const int32_t *offset, int64_t n_in, const struct tile tile) {
    __m512i sum[ROWS][4];
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < 4; c++) sum[r][c] =
        _mm512_loadu_si512(offset + c * VL);
    for (int64_t k = 0; k < n_in; k += 4) {
        __builtin_prefetch(tile.ahead + k * tile.step, 0, 2);
        const int8_t *quads = w + k * PANEL;
        __m512i w0 = _mm512_loadu_si512(quads), w1 = _mm512_loadu_si512(quads + 64);
        __m512i w2 = _mm512_loadu_si512(quads + 128), w3 = _mm512_loadu_si512(quads + 192);
        UNROLL for (int r = 0; r < n; r++) {
            int32_t quad;
            memcpy(&quad, x + r * stride + k, 4);
            __m512i a = _mm512_set1_epi32(quad);
            add_quads(&sum[r][0], a, w0);
            add_quads(&sum[r][1], a, w1);
            add_quads(&sum[r][2], a, w2);
            add_quads(&sum[r][3], a, w3);
        }
    }
    UNROLL for (int r = 0; r < n; r++) UNROLL for (int c = 0; c < 4; c++) {
        vf factor = v_mul(v_set(row_scale[r]), v_load(scale + c * VL));
        vf base = v_load(tile.base + r * tile.base_stride + c * VL);
        v_store(tile.sums + r * PANEL + c * VL, v_fma(_mm512_cvtepi32_ps(sum[r][c]), factor, base));
    }
}
#endif

/* The rows of a product in groups of up to ROWS. CALL(n) processes n rows from row r on; n is a constant. */
#define FOR_EACH_TILE(CALL)                                                            \
    for (int64_t r = 0; r < m; r += ROWS) {                                            \
        const struct tile tile = {all.base + r * all.base_stride, all.base_stride, all.sums + r * PANEL, \
                                  all.ahead + r / ROWS * n_in * all.step, all.step};   \
        switch (min64(m - r, ROWS)) {                                                  \
        case 1: CALL(1); break;                                                        \
        case 2: CALL(2); break;                                                        \
        case 3: CALL(3); break;                                                        \
        case 4: CALL(ROWS > 3 ? 4 : 1); break;                                         \
        case 5: CALL(ROWS > 3 ? 5 : 1); break;                                         \
        case 6: CALL(ROWS > 3 ? 6 : 1); break;                                         \
        }                                                                              \
    }

static void product_float32(int64_t m, const float *x, int64_t stride, const float *w, int64_t n_in,
                            const struct tile all) {
#define CALL(n) tile_float32(n, x + r * stride, stride, w, n_in, tile)
    FOR_EACH_TILE(CALL)
#undef CALL
}

#if HAS_BF16
static void product_bfloat16(int64_t m, const uint16_t *x, int64_t stride, const uint16_t *w, int64_t n_in,
                             const struct tile all) {
#define CALL(n) tile_bfloat16(n, x + r * stride, stride, w, n_in, tile)
    FOR_EACH_TILE(CALL)
#undef CALL
}
#endif

#if HAS_INT8
static void product_int8(int64_t m, const uint8_t *x, int64_t stride, const float *row_scale, const int8_t *w,
                         const float *scale, const int32_t *offset, int64_t n_in, const struct tile all) {
#define CALL(n) tile_int8(n, x + r * stride, stride, row_scale + r, w, scale, offset, n_in, tile)
    FOR_EACH_TILE(CALL)
#undef CALL
}
#endif

static const char *panel_data(const struct weight *w, int64_t p) {
    return (const char *)w->data + p * PANEL * w->n_in * ELEMENT[w->type];
}

/* sums (m, PANEL) = base + product of m rows with panel p. The weights at next are read afterwards. */
static void multiply(int64_t m, const struct rows *x, const struct weight *w, int64_t p, const float *base,
                     int64_t base_stride, float *sums, const char *next) {
    int64_t n_tiles = (m + ROWS - 1) / ROWS, n_in = w->n_in;
    /* One line per input is requested at most, so few rows leave most of a panel to the hardware. */
    struct tile tile = {base, base_stride, sums, next, min64(64, PANEL * ELEMENT[w->type] / n_tiles + 1)};
    const char *data = panel_data(w, p);
    switch (w->type) {
    case FLOAT32:
        /* A panel of many inputs is larger than the cache: all rows take one part of it, then the next. */
        for (int64_t k = 0; k < n_in; k += 4 * CHAIN) {
            const float *part = (const float *)data + k * PANEL;
            int64_t n = min64(4 * CHAIN, n_in - k);
            tile.ahead = k + n < n_in ? (const char *)(part + n * PANEL) : next;
            product_float32(m, (const float *)x->data + k, x->stride, part, n, tile);
            tile.base = sums, tile.base_stride = PANEL;
        }
        break;
#if HAS_BF16
    case BFLOAT16:
        product_bfloat16(m, x->data, x->stride, (const uint16_t *)data, n_in, tile);
        break;
#endif
#if HAS_INT8
    case INT8:
        product_int8(m, x->data, x->stride, x->scale, (const int8_t *)data, w->scale + p * PANEL,
                     w->offset + p * PANEL, n_in, tile);
        break;
#endif
    }
}

/* The weights that are read after panel p: the next panel, or else the first one. */
static const char *next_panel(const struct weight *w, int64_t p) {
    return panel_data(w, p + 1 < w->n_panels ? p + 1 : 0);
}

static const float ZEROS[PANEL] = {0};

/* Convert m rows (m, n_in) to the type of a product; float32 rows are used where they are. */
static void convert_rows(int64_t type, int64_t m, const float *x, int64_t stride, int64_t n_in, void *buffer,
                         float *scale, struct rows *out) {
    out->data = type == FLOAT32 ? (const void *)x : buffer;
    out->stride = type == FLOAT32 ? stride : row_stride(type, n_in);
    out->scale = scale;
#if HAS_BF16
    if (type == BFLOAT16)
        for (int64_t r = 0; r < m; r++)
            for (int64_t k = 0; k < out->stride; k += 16) {
                __mmask16 mask = n_in - k >= 16 ? 0xffff : n_in > k ? (__mmask16)((1u << (n_in - k)) - 1) : 0;
                _mm256_storeu_si256((void *)((uint16_t *)buffer + r * out->stride + k),
                                    (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + r * stride + k)));
            }
#endif
#if HAS_INT8
    if (type == INT8)
        for (int64_t r = 0; r < m; r++) {
            const float *row = x + r * stride;
            vf largest = v_set(0);
            int64_t k = 0;
            for (; k + 16 <= n_in; k += 16) largest = v_max(largest, v_abs(v_load(row + k)));
            __mmask16 rest = (__mmask16)((1u << (n_in - k)) - 1);
            largest = v_max(largest, v_abs(_mm512_maskz_loadu_ps(rest, row + k)));
            float most = _mm512_reduce_max_ps(largest);
            scale[r] = most > 1e-30f ? most / 127 : 1;
            vf factor = v_set(most > 1e-30f ? 127 / most : 0);
            for (k = 0; k < out->stride; k += 16) {
                __mmask16 mask = n_in - k >= 16 ? 0xffff : n_in > k ? (__mmask16)((1u << (n_in - k)) - 1) : 0;
                __m512i whole = _mm512_cvtps_epi32(v_mul(_mm512_maskz_loadu_ps(mask, row + k), factor));
                _mm_storeu_si128((void *)((uint8_t *)buffer + r * out->stride + k),
                                 _mm512_cvtusepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(128))));
            }
        }
#endif
    (void)m;
}

/* --- functions of one number -------------------------------------------------------------------------------- */

/* x / y; where the products are rounded to few bits, a fast division with an error of 2^-22. */
INLINE vf v_divide(vf x, vf y, const int is_exact) {
#if defined(__AVX512F__)
    if (!is_exact) {
        vf inverse = _mm512_rcp14_ps(y);
        return v_mul(x, v_mul(inverse, _mm512_fnmadd_ps(y, inverse, v_set(2))));
    }
#endif
    (void)is_exact;
    return v_div(x, y);
}

/* tanh |x| = -m / (2 + m) with m = expm1(-2|x|) = 2^n expm1(r) + 2^n - 1, where |r| <= ln(2) / 2 and
 * expm1(r) = r + r^2 S(r). S has degree 4 and a maximum relative error of 1.3e-8, from a least-squares fit on
 * 2,001 Chebyshev nodes, reweighted by the remaining error 3,000 times. The absolute error of tanh is below
 * 1.5e-7, its relative error below 1.9e-7. */
INLINE vf v_tanh_as(vf x, const int is_exact) {
    /* tanh is 1 from 9.02 on; min returns its second argument if one is NaN */
    vf y = v_mul(v_set(-2), v_min(v_set(20), v_abs(x)));
    vf rounder = v_set(3 << 22); /* a float of this size has no fraction bits: adding it rounds */
    vf rounded = v_fma(y, v_set(1.44269504f), rounder);
    vf r = v_fma(v_sub(rounded, rounder), v_set(-0.693147181f), y);
    vf power = v_shift_exponent(rounded);
    vf s = v_fma(v_set(0.001388251f), r, v_set(0.00836658f));
    s = v_fma(s, r, v_set(0.0416672f));
    s = v_fma(s, r, v_set(0.16666543f));
    s = v_fma(s, r, v_set(0.49999997f));
    vf m = v_fma(power, v_fma(v_mul(r, r), s, r), v_sub(power, v_set(1)));
    return v_copysign(v_divide(m, v_add(v_set(2), m), is_exact), x);
}

INLINE vf v_tanh(vf x) { return v_tanh_as(x, 1); }

INLINE vf v_half_sigmoid(vf x) { return v_fma(v_tanh(x), v_set(0.5f), v_set(0.5f)); } /* sigmoid(2x) */

/* In relu and clip, the second argument of min and max is the one that may be NaN: it stays NaN. */
INLINE vf v_relu(vf x) { return v_max(v_set(0), x); }

INLINE vf v_clip(vf x, float limit) { return v_max(v_set(-limit), v_min(v_set(limit), x)); }

/* --- linear ------------------------------------------------------------------------------------------------- */

/* Write a panel (m, PANEL) to the columns of y that exist. */
static void store_panel(int64_t m, const float *sums, int64_t p, int64_t n_out, float limit, float *y,
                        int64_t stride) {
    int64_t n = min64(PANEL, n_out - p * PANEL);
    for (int64_t r = 0; r < m; r++) {
        float *target = y + r * stride + p * PANEL;
        const float *row = sums + r * PANEL;
        if (n == PANEL)
            UNROLL for (int c = 0; c < 4; c++) v_store(target + c * VL, v_clip(v_load(row + c * VL), limit));
        else
            for (int64_t k = 0; k < n; k++) target[k] = row[k] > limit ? limit : row[k] < -limit ? -limit : row[k];
    }
}

/* y = clip(x w + bias): x (m, n_in), y (m, n_out), bias (n_panels * PANEL). Returns nonzero if memory is short. */
int elmo_linear(const struct weight *w, const float *bias, int64_t m, const float *x, int64_t x_stride, int64_t n_in,
                float limit, float *y, int64_t y_stride) {
    int64_t size = min64(m, BLOCK_ROWS);
    void *buffer = allocate(size * row_stride(w->type, n_in) * ELEMENT[w->type]);
    float *sums = allocate(size * (PANEL + 1) * 4), *scale = sums + size * PANEL;
    if (!buffer || !sums) return free(buffer), free(sums), 1;
    for (int64_t first = 0; first < m; first += BLOCK_ROWS) {
        int64_t n = min64(BLOCK_ROWS, m - first);
        struct rows rows;
        convert_rows(w->type, n, x + first * x_stride, x_stride, n_in, buffer, scale, &rows);
        for (int64_t p = 0; p < w->n_panels; p++) {
            multiply(n, &rows, w, p, bias + p * PANEL, 0, sums, next_panel(w, p));
            store_panel(n, sums, p, w->n_out, limit, y + first * y_stride, y_stride);
        }
    }
    return free(buffer), free(sums), 0;
}

/* y = g t + (1 - g) x, where a panel holds 2 VL outputs of t before relu and the same 2 VL of g before sigmoid,
 * halved. x and y are (m, width). */
int elmo_highway(const struct weight *w, const float *bias, int64_t m, const float *x, int64_t width, float *y) {
    int64_t size = min64(m, BLOCK_ROWS);
    void *buffer = allocate(size * row_stride(w->type, width) * ELEMENT[w->type]);
    float *sums = allocate(size * (PANEL + 1) * 4), *scale = sums + size * PANEL;
    if (!buffer || !sums) return free(buffer), free(sums), 1;
    for (int64_t first = 0; first < m; first += BLOCK_ROWS) {
        int64_t n = min64(BLOCK_ROWS, m - first);
        struct rows rows;
        convert_rows(w->type, n, x + first * width, width, width, buffer, scale, &rows);
        for (int64_t p = 0; p < w->n_panels; p++) {
            multiply(n, &rows, w, p, bias + p * PANEL, 0, sums, next_panel(w, p));
            int64_t column = p * 2 * VL, n_here = min64(2 * VL, width - column);
            for (int64_t r = 0; r < n; r++) {
                float *row = sums + r * PANEL;
                const float *carried = x + (first + r) * width + column;
                float *target = y + (first + r) * width + column, padded[2 * VL] = {0}, result[2 * VL];
                if (n_here < 2 * VL) memcpy(padded, carried, n_here * 4), carried = padded;
                UNROLL for (int c = 0; c < 2; c++) {
                    vf gate = v_half_sigmoid(v_load(row + (2 + c) * VL)), old = v_load(carried + c * VL);
                    vf transformed = v_relu(v_load(row + c * VL));
                    v_store(result + c * VL, v_fma(gate, v_sub(transformed, old), old));
                }
                memcpy(target, result, n_here * 4);
            }
        }
    }
    return free(buffer), free(sums), 0;
}

/* --- character CNN ------------------------------------------------------------------------------------------ */

struct char_cnn {
    struct weight filters; /* n_in is at least widest * char_width */
    const float *bias;     /* (n_panels * PANEL) */
    const int32_t *widths; /* of each filter, (n_panels * PANEL) */
    const float *characters;
    int64_t char_width, widest, is_relu;
};

/* y (word, filter) = activated maximum over the windows of each word. char_ids is (word, n_chars); windows with a
 * start below n_starts[word] are read. The windows of a word overlap in memory. */
int elmo_char_cnn(const struct char_cnn *cnn, int64_t n_words, int64_t n_chars, const int64_t *char_ids,
                  const int64_t *n_starts, float *y) {
    const struct weight *w = &cnn->filters;
    int64_t cw = cnn->char_width, longest = n_chars + cnn->widest, n_floats = round_up(longest * cw, 64) + 64;
    int64_t size = ELEMENT[w->type], group = 64;
    char *words = allocate(group * n_floats * size);
    float *sums = allocate(n_chars * PANEL * 4 + n_floats * 4), *letters = sums + n_chars * PANEL;
    if (!words || !sums) return free(words), free(sums), 1;
    for (int64_t first = 0; first < n_words; first += group) {
        int64_t n = min64(group, n_words - first);
        for (int64_t word = 0; word < n; word++) {
            memset(letters, 0, n_floats * 4);
            int64_t n_read = min64(n_chars, n_starts[first + word] + cnn->widest - 1);
            for (int64_t k = 0; k < n_read; k++)
                memcpy(letters + k * cw, cnn->characters + char_ids[(first + word) * n_chars + k] * cw, cw * 4);
            struct rows rows;
            if (w->type == FLOAT32)
                memcpy(words + word * n_floats * size, letters, n_floats * 4);
            else
                convert_rows(w->type, 1, letters, n_floats, n_floats, words + word * n_floats * size, NULL, &rows);
        }
        for (int64_t p = 0; p < w->n_panels; p++)
            for (int64_t word = 0; word < n; word++) {
                int64_t m = n_starts[first + word];
                struct rows rows = {words + word * n_floats * size, cw, NULL};
                multiply(m, &rows, w, p, ZEROS, 0, sums, next_panel(w, p));
                for (int64_t start = max64(0, n_chars - cnn->widest + 1); start < m; start++)
                    for (int64_t k = 0; k < PANEL; k++) /* windows that reach beyond the last character */
                        if (cnn->widths[p * PANEL + k] > n_chars - start) sums[start * PANEL + k] = -INFINITY;
                float result[PANEL];
                UNROLL for (int c = 0; c < 4; c++) {
                    vf highest = v_load(sums + c * VL);
                    for (int64_t start = 1; start < m; start++)
                        highest = v_max(v_load(sums + start * PANEL + c * VL), highest);
                    highest = v_add(highest, v_load(cnn->bias + p * PANEL + c * VL));
                    v_store(result + c * VL, cnn->is_relu ? v_relu(highest) : v_tanh(highest));
                }
                memcpy(y + (first + word) * w->n_out + p * PANEL, result,
                       min64(PANEL, w->n_out - p * PANEL) * 4);
            }
    }
    return free(words), free(sums), 0;
}

/* --- LSTM --------------------------------------------------------------------------------------------------- */

struct lstm {
    struct weight inputs, states, projection; /* a panel of gates: i, f, o, j of VL cells; i, f, o are halved */
    const float *bias;                        /* of the gates, (n_panels * PANEL) */
    int64_t n_in, width, n_cells, has_projection;
    float cell_clip, state_clip;
};

struct schedule { /* see elmo.engine.schedule.BatchSchedule */
    int64_t n_steps;
    const int64_t *batch_sizes, *offsets;      /* (n_steps) */
    const int64_t *first_sentence, *last_sentence; /* of each slot */
    const int64_t *changes;                    /* (n_steps + 1): index of the first change before each step */
    const int64_t *change_slot, *change_ended, *change_started;
};

struct states { /* of all sentences */
    const float *start_hidden, *start_cell; /* (sentence, width), (sentence, n_cells) */
    int64_t hidden_stride, cell_stride;     /* of start_hidden and start_cell; 0 if all sentences share one row */
    float *last_hidden, *last_cell;
};

struct lstm_memory {
    float *hidden, *cell, *output, *sums, *gates, *input_scale, *state_scale, *output_scale;
    char *typed_inputs, *typed_states, *typed_outputs;
};

INLINE void update_cells_as(int64_t m, const float *sums, int64_t p, float clip, float *cell, float *output,
                            int64_t stride, const int is_exact) {
    vf half = v_set(0.5f);
    for (int64_t r = 0; r < m; r++) {
        const float *row = sums + r * PANEL;
        float *c = cell + r * stride + p * VL;
        vf input_gate = v_fma(v_tanh_as(v_load(row), is_exact), half, half);
        vf forget_gate = v_fma(v_tanh_as(v_load(row + VL), is_exact), half, half);
        vf output_gate = v_fma(v_tanh_as(v_load(row + 2 * VL), is_exact), half, half);
        vf update = v_tanh_as(v_load(row + 3 * VL), is_exact);
        vf new_cell = v_clip(v_fma(input_gate, update, v_mul(forget_gate, v_load(c))), clip);
        v_store(c, new_cell);
        v_store(output + r * stride + p * VL, v_mul(v_tanh_as(new_cell, is_exact), output_gate));
    }
}

/* Update the cells of panel p of m rows with the gates in sums; write o tanh(c) to output. */
static void update_cells(int64_t m, const float *sums, int64_t p, float clip, float *cell, float *output,
                         int64_t stride, int is_exact) {
    if (is_exact)
        update_cells_as(m, sums, p, clip, cell, output, stride, 1);
    else
        update_cells_as(m, sums, p, clip, cell, output, stride, 0);
}

static void copy_state(const struct lstm *lstm, const float *hidden, const float *cell, float *to_hidden,
                       float *to_cell) {
    memcpy(to_hidden, hidden, lstm->width * 4);
    memcpy(to_cell, cell, lstm->n_cells * 4);
}

static void run_steps(const struct lstm *lstm, const struct schedule *schedule, const struct states *states,
                      const float *inputs, float *outputs, const struct lstm_memory *memory) {
    int64_t type = lstm->states.type, n_panels = lstm->states.n_panels, n_gates = n_panels * PANEL;
    int64_t cells = n_panels * VL, width = lstm->width, wide = round_up(width, VL);
    float *hidden = memory->hidden, *cell = memory->cell, *output = memory->output, *sums = memory->sums;
    int64_t block_end = 0, block_start = 0;
    for (int64_t slot = 0; slot < schedule->batch_sizes[0]; slot++) {
        int64_t s = schedule->first_sentence[slot];
        copy_state(lstm, states->start_hidden + s * states->hidden_stride, states->start_cell + s * states->cell_stride,
                   hidden + slot * wide, cell + slot * cells);
    }
    for (int64_t step = 0; step < schedule->n_steps; step++) {
        int64_t m = schedule->batch_sizes[step], offset = schedule->offsets[step];
        int64_t next = step + 1 < schedule->n_steps ? schedule->batch_sizes[step + 1] : 0;
        for (int64_t k = schedule->changes[step]; k < schedule->changes[step + 1]; k++) {
            int64_t slot = schedule->change_slot[k], ended = schedule->change_ended[k];
            int64_t started = schedule->change_started[k];
            copy_state(lstm, hidden + slot * wide, cell + slot * cells, states->last_hidden + ended * width,
                       states->last_cell + ended * lstm->n_cells);
            copy_state(lstm, states->start_hidden + started * states->hidden_stride,
                       states->start_cell + started * states->cell_stride, hidden + slot * wide, cell + slot * cells);
        }
        struct rows x = {0}, h, o;
        int is_early = m < FEW_ROWS; /* the inputs of the next steps are multiplied at once; same order of sums */
        if (is_early && offset + m > block_end) {
            int64_t last = step;
            while (last + 1 < schedule->n_steps &&
                   schedule->offsets[last + 1] + schedule->batch_sizes[last + 1] - offset <= BLOCK_ROWS)
                last++;
            block_start = offset, block_end = schedule->offsets[last] + schedule->batch_sizes[last];
            int64_t n = block_end - block_start;
            convert_rows(type, n, inputs + offset * lstm->n_in, lstm->n_in, lstm->n_in, memory->typed_inputs,
                         memory->input_scale, &x);
            for (int64_t p = 0; p < n_panels; p++) {
                multiply(n, &x, &lstm->inputs, p, lstm->bias + p * PANEL, 0, sums, next_panel(&lstm->inputs, p));
                for (int64_t r = 0; r < n; r++)
                    memcpy(memory->gates + r * n_gates + p * PANEL, sums + r * PANEL, PANEL * 4);
            }
        }
        if (!is_early)
            convert_rows(type, m, inputs + offset * lstm->n_in, lstm->n_in, lstm->n_in, memory->typed_inputs,
                         memory->input_scale, &x);
        convert_rows(type, m, hidden, wide, width, memory->typed_states, memory->state_scale, &h);
        for (int64_t p = 0; p < n_panels; p++) {
            const float *base = sums;
            int64_t base_stride = PANEL;
            if (is_early)
                base = memory->gates + (offset - block_start) * n_gates + p * PANEL, base_stride = n_gates;
            else
                multiply(m, &x, &lstm->inputs, p, lstm->bias + p * PANEL, 0, sums, panel_data(&lstm->states, p));
            multiply(m, &h, &lstm->states, p, base, base_stride, sums,
                     is_early ? next_panel(&lstm->states, p) : next_panel(&lstm->inputs, p));
            update_cells(m, sums, p, lstm->cell_clip, cell, output, cells, type == FLOAT32);
        }
        if (lstm->has_projection) {
            convert_rows(type, m, output, cells, lstm->n_cells, memory->typed_outputs, memory->output_scale, &o);
            for (int64_t p = 0; p < lstm->projection.n_panels; p++) {
                multiply(m, &o, &lstm->projection, p, ZEROS, 0, sums, next_panel(&lstm->projection, p));
                store_panel(m, sums, p, width, lstm->state_clip, hidden, wide);
            }
        } else {
            for (int64_t r = 0; r < m; r++) memcpy(hidden + r * wide, output + r * cells, width * 4);
        }
        for (int64_t r = 0; r < m; r++) memcpy(outputs + (offset + r) * width, hidden + r * wide, width * 4);
        for (int64_t slot = next; slot < m; slot++) { /* the slots that end are the last ones */
            int64_t s = schedule->last_sentence[slot];
            copy_state(lstm, hidden + slot * wide, cell + slot * cells, states->last_hidden + s * width,
                       states->last_cell + s * lstm->n_cells);
        }
    }
}

/* Read inputs (row, n_in) in the order of a schedule of at most BLOCK_ROWS slots; write outputs (row, width). */
int elmo_lstm(const struct lstm *lstm, const struct schedule *schedule, const struct states *states,
              const float *inputs, float *outputs) {
    if (!schedule->n_steps) return 0;
    int64_t type = lstm->states.type, n = schedule->batch_sizes[0], cells = lstm->states.n_panels * VL;
    int64_t wide = round_up(lstm->width, VL), size = ELEMENT[type];
    int64_t last = schedule->n_steps - 1;
    int64_t n_rows = min64(BLOCK_ROWS, schedule->offsets[last] + schedule->batch_sizes[last]);
    int64_t sizes[] = {
        n * wide * 4, n * cells * 4, n * cells * 4, BLOCK_ROWS * PANEL * 4,
        n_rows * lstm->states.n_panels * PANEL * 4, 3 * BLOCK_ROWS * 4,
        n_rows * row_stride(type, lstm->n_in) * size, n * row_stride(type, lstm->width) * size,
        n * row_stride(type, cells) * size,
    };
    int64_t total = 0;
    for (int k = 0; k < 9; k++) total += round_up(sizes[k], 64);
    char *all = allocate(total), *parts[9], *at = all;
    if (!all) return 1;
    for (int k = 0; k < 9; k++) parts[k] = at, at += round_up(sizes[k], 64);
    struct lstm_memory memory = {
        .hidden = (float *)parts[0], .cell = (float *)parts[1], .output = (float *)parts[2],
        .sums = (float *)parts[3], .gates = (float *)parts[4], .input_scale = (float *)parts[5],
        .state_scale = (float *)parts[5] + BLOCK_ROWS, .output_scale = (float *)parts[5] + 2 * BLOCK_ROWS,
        .typed_inputs = parts[6], .typed_states = parts[7], .typed_outputs = parts[8],
    };
    memset(memory.hidden, 0, sizes[0]);
    memset(memory.cell, 0, sizes[1]); /* cells that fill the last panel stay zero */
    run_steps(lstm, schedule, states, inputs, outputs, &memory);
    free(all);
    return 0;
}

/* Copy states (layer, row, width) to the half of one direction of outputs[sentence] (layer, time, 2 * width), without
 * boundaries. rows has the row of each token of all sentences; in direction 1, sentences were read from the end. */
int elmo_collect(int64_t n_layers, int64_t n_rows, int64_t width, const float *states, int64_t direction,
                 int64_t n_sentences, const int64_t *rows, const int64_t *lengths, float *const *outputs) {
    for (int64_t s = 0; s < n_sentences; rows += lengths[s], s++)
        for (int64_t layer = 0; layer < n_layers; layer++)
            for (int64_t t = 1; t < lengths[s] - 1; t++) {
                int64_t row = rows[direction ? lengths[s] - 1 - t : t];
                memcpy(outputs[s] + ((layer * (lengths[s] - 2) + t - 1) * 2 + direction) * width,
                       states + (layer * n_rows + row) * width, width * 4);
            }
    return 0;
}

/* --- LSTM with gradients ------------------------------------------------------------------------------------ */

struct lstm_window { /* n_in, width and n_cells are multiples of VL; "typed" arrays have the type of the products */
    int64_t type, time, batch, n_in, width, n_cells, has_projection;
    float forget_bias, cell_clip, state_clip;
    const float *input_weight, *state_weight, *bias, *projection; /* as in elmo.model.lstm: gates i, f, j, o */
    const float *inputs;         /* (time, batch, n_in) */
    const float *keep;           /* (time, batch): 0 where the state is reset before a token, else 1; or NULL */
    void *factors;               /* typed (time, batch, n_in + width): input and state that each step reads */
    void *outputs;               /* typed (time, batch, n_cells): o * tanh(c) */
    float *gates;                /* (time, batch, panel, i f o j, VL), activated */
    float *free_cells;           /* (time + 1, batch, n_cells): cells before they are clipped; the first ones given */
    float *free_hidden, *hidden; /* (time, batch, width) before clipping, (time + 1, batch, width) after it */
    const float *d_hidden;       /* (time, batch, width): gradients of hidden[1:]; or NULL */
    float *d_state, *d_cells;    /* (batch, width), (batch, n_cells): gradients of the last state, then of the first */
    float *d_bias;               /* (4 * n_cells), i f j o */
    void *d_gates;               /* typed (time, batch, i f j o, n_cells) */
    void *d_free_hidden;         /* typed (time, batch, width) */
};

INLINE void store_typed(int64_t type, void *target, int64_t at, vf x) {
#if HAS_BF16
    if (type == BFLOAT16) {
        _mm256_storeu_si256((void *)((uint16_t *)target + at), (__m256i)_mm512_cvtneps_pbh(x));
        return;
    }
#endif
    (void)type;
    v_store((float *)target + at, x);
}

/* VL numbers that are stride floats apart. */
INLINE vf load_column(const float *x, int64_t stride) {
#if defined(__AVX512F__)
    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_i32gather_ps(_mm512_mullo_epi32(lanes, _mm512_set1_epi32((int)stride)), x, 4);
#endif
    float column[VL];
    UNROLL for (int lane = 0; lane < VL; lane++) column[lane] = x[lane * stride];
    return v_load(column);
}

/* Store VL weights of input k, and in bfloat16 also those of input k + 1, in a packed panel. */
INLINE void store_packed(int64_t type, void *panel, int64_t k, int c, vf x, vf x_next) {
#if HAS_BF16
    if (type == BFLOAT16) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x_next));
        _mm512_storeu_si512((uint16_t *)panel + k * PANEL + c * VL * 2, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        return;
    }
#endif
    (void)type, (void)x_next;
    v_store((float *)panel + k * PANEL + c * VL, x);
}

/* Pack (4 * n_cells, n_in) gates i, f, j, o: a panel holds i, f, o, j of VL cells, the first three halved. */
static void pack_gates(const struct lstm_window *lstm, const float *w, int64_t n_in, char *packed) {
    static const int GATE[] = {0, 1, 3, 2};
    int64_t group = lstm->type == FLOAT32 ? 1 : 2, size = ELEMENT[lstm->type];
    for (int64_t p = 0; p < lstm->n_cells / VL; p++)
        for (int c = 0; c < 4; c++) {
            const float *rows = w + (GATE[c] * lstm->n_cells + p * VL) * n_in;
            vf scale = v_set(c < 3 ? 0.5f : 1);
            for (int64_t k = 0; k < n_in; k += group)
                store_packed(lstm->type, packed + p * n_in * PANEL * size, k, c, v_mul(load_column(rows + k, n_in), scale),
                             v_mul(load_column(rows + k + group - 1, n_in), scale));
        }
}

/* Pack w (n_out, n_in), or its transpose w (n_in, n_out); n_out is a multiple of VL, n_in of 2. */
static void pack_matrix(int64_t type, const float *w, int64_t n_out, int64_t n_in, int is_transposed, char *packed) {
    int64_t group = type == FLOAT32 ? 1 : 2;
    for (int64_t p = 0; p * PANEL < n_out; p++)
        for (int c = 0; c < 4; c++) {
            int64_t first = p * PANEL + c * VL;
            for (int64_t k = 0; k < n_in; k += group) {
                vf x[2] = {v_set(0), v_set(0)};
                for (int64_t i = 0; i < group && first < n_out; i++)
                    x[i] = is_transposed ? v_load(w + (k + i) * n_out + first) : load_column(w + first * n_in + k + i, n_in);
                store_packed(type, packed + p * n_in * PANEL * ELEMENT[type], k, c, x[0], x[1]);
            }
        }
}

static struct weight packed_matrix(int64_t type, int64_t n_out, int64_t n_in, const void *data) {
    return (struct weight){type, n_in, n_out, (n_out + PANEL - 1) / PANEL, data, NULL, NULL};
}

static int64_t packed_size(int64_t type, int64_t n_out, int64_t n_in) {
    return round_up(n_out, PANEL) * n_in * ELEMENT[type];
}

/* Activate the gates in sums (batch, PANEL) of panel p at step t; update the cells. */
INLINE void activate_gates_as(const struct lstm_window *lstm, int64_t t, int64_t p, const float *sums,
                              const int64_t type) {
    const int is_exact = type == FLOAT32;
    vf half = v_set(0.5f);
    int64_t n = lstm->n_cells, batch = lstm->batch;
    float before_limit = t ? lstm->cell_clip : INFINITY; /* the given cells are not clipped */
    for (int64_t r = 0; r < batch; r++) {
        const float *row = sums + r * PANEL;
        float *gates = lstm->gates + (t * batch + r) * 4 * n + p * PANEL;
        vf i = v_fma(v_tanh_as(v_load(row), is_exact), half, half);
        vf f = v_fma(v_tanh_as(v_load(row + VL), is_exact), half, half);
        vf o = v_fma(v_tanh_as(v_load(row + 2 * VL), is_exact), half, half);
        vf j = v_tanh_as(v_load(row + 3 * VL), is_exact);
        vf before = v_clip(v_load(lstm->free_cells + (t * batch + r) * n + p * VL), before_limit);
        if (lstm->keep) before = v_mul(before, v_set(lstm->keep[t * batch + r]));
        vf cell = v_fma(i, j, v_mul(f, before));
        v_store(gates, i), v_store(gates + VL, f), v_store(gates + 2 * VL, o), v_store(gates + 3 * VL, j);
        v_store(lstm->free_cells + ((t + 1) * batch + r) * n + p * VL, cell);
        vf output = v_mul(o, v_tanh_as(v_clip(cell, lstm->cell_clip), is_exact));
        store_typed(type, lstm->outputs, (t * batch + r) * n + p * VL, output);
        if (!lstm->has_projection) v_store(lstm->free_hidden + (t * batch + r) * n + p * VL, output);
    }
}

static void activate_gates(const struct lstm_window *lstm, int64_t t, int64_t p, const float *sums) {
    if (lstm->type == FLOAT32)
        activate_gates_as(lstm, t, p, sums, FLOAT32);
    else
        activate_gates_as(lstm, t, p, sums, BFLOAT16);
}

/* Read a window. hidden[0] and free_cells[0] hold the first state. */
int elmo_lstm_forward(const struct lstm_window *lstm) {
    int64_t type = lstm->type, size = ELEMENT[type], batch = lstm->batch, n_in = lstm->n_in, width = lstm->width;
    int64_t n = lstm->n_cells, stride = n_in + width;
    int64_t sizes[] = {packed_size(type, 4 * n, n_in), packed_size(type, 4 * n, width), packed_size(type, width, n)};
    char *packed = allocate(sizes[0] + sizes[1] + sizes[2]);
    float *sums = allocate(batch * PANEL * 4), *bias = allocate(4 * n * 4);
    if (!packed || !sums || !bias) return free(packed), free(sums), free(bias), 1;
    char *packed_states = packed + sizes[0], *packed_projection = packed_states + sizes[1];
    pack_gates(lstm, lstm->input_weight, n_in, packed);
    pack_gates(lstm, lstm->state_weight, width, packed_states);
    if (lstm->has_projection) pack_matrix(type, lstm->projection, width, n, 0, packed_projection);
    struct weight inputs = packed_matrix(type, 4 * n, n_in, packed);
    struct weight states = packed_matrix(type, 4 * n, width, packed_states);
    struct weight projection = packed_matrix(type, width, n, packed_projection);
    for (int64_t k = 0; k < n; k++) {
        float *gates = bias + k / VL * PANEL + k % VL;
        gates[0] = 0.5f * lstm->bias[k], gates[VL] = 0.5f * (lstm->bias[n + k] + lstm->forget_bias);
        gates[2 * VL] = 0.5f * lstm->bias[3 * n + k], gates[3 * VL] = lstm->bias[2 * n + k];
    }
    for (int64_t t = 0; t < lstm->time; t++) {
        for (int64_t r = t * batch; r < (t + 1) * batch; r++) {
            for (int64_t k = 0; k < n_in; k += VL)
                store_typed(type, lstm->factors, r * stride + k, v_load(lstm->inputs + r * n_in + k));
            vf kept = v_set(lstm->keep ? lstm->keep[r] : 1);
            for (int64_t k = 0; k < width; k += VL)
                store_typed(type, lstm->factors, r * stride + n_in + k, v_mul(v_load(lstm->hidden + r * width + k), kept));
        }
        char *factors = (char *)lstm->factors + t * batch * stride * size;
        struct rows x = {factors, stride, NULL}, h = {factors + n_in * size, stride, NULL};
        for (int64_t p = 0; p < states.n_panels; p++) {
            multiply(batch, &x, &inputs, p, bias + p * PANEL, 0, sums, panel_data(&states, p));
            multiply(batch, &h, &states, p, sums, PANEL, sums, next_panel(&inputs, p));
            activate_gates(lstm, t, p, sums);
        }
        float *free_hidden = lstm->free_hidden + t * batch * width;
        if (lstm->has_projection) {
            struct rows outputs = {(char *)lstm->outputs + t * batch * n * size, n, NULL};
            for (int64_t p = 0; p < projection.n_panels; p++) {
                multiply(batch, &outputs, &projection, p, ZEROS, 0, sums, next_panel(&projection, p));
                store_panel(batch, sums, p, width, INFINITY, free_hidden, width);
            }
        }
        for (int64_t k = 0; k < batch * width; k += VL)
            v_store(lstm->hidden + (t + 1) * batch * width + k, v_clip(v_load(free_hidden + k), lstm->state_clip));
    }
    return free(packed), free(sums), free(bias), 0;
}

/* x where the value before clipping was within the limit, otherwise 0. */
INLINE vf clip_backward(vf x, vf value, float limit) {
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v_abs(value), v_set(limit), _CMP_LE_OQ), x);
#elif defined(__AVX2__)
    return _mm256_and_ps(_mm256_cmp_ps(v_abs(value), v_set(limit), _CMP_LE_OQ), x);
#else
    return vreinterpretq_f32_u32(vandq_u32(vcaleq_f32(value, v_set(limit)), vreinterpretq_u32_f32(x)));
#endif
}

/* Gradients of the gates of VL cells of all rows at step t, from those of o * tanh(c), (batch, stride). */
INLINE void gates_backward_as(const struct lstm_window *lstm, int64_t t, int64_t p, const float *d_outputs,
                              int64_t stride, const int64_t type) {
    int64_t n = lstm->n_cells, batch = lstm->batch;
    float before_limit = t ? lstm->cell_clip : INFINITY;
    vf d_bias[4] = {v_set(0), v_set(0), v_set(0), v_set(0)}, one = v_set(1);
    for (int64_t r = 0; r < batch; r++) {
        const float *gates = lstm->gates + (t * batch + r) * 4 * n + p * PANEL;
        vf i = v_load(gates), f = v_load(gates + VL), o = v_load(gates + 2 * VL), j = v_load(gates + 3 * VL);
        vf free_cell = v_load(lstm->free_cells + ((t + 1) * batch + r) * n + p * VL);
        vf before = v_clip(v_load(lstm->free_cells + (t * batch + r) * n + p * VL), before_limit);
        vf keep = v_set(lstm->keep ? lstm->keep[t * batch + r] : 1);
        before = v_mul(before, keep);
        vf tanh_cell = v_tanh_as(v_clip(free_cell, lstm->cell_clip), type == FLOAT32), d_output = v_load(d_outputs + r * stride);
        float *d_cells = lstm->d_cells + r * n + p * VL;
        vf d_tanh = v_mul(d_output, o);
        vf d_cell = v_fma(d_tanh, v_sub(one, v_mul(tanh_cell, tanh_cell)), v_load(d_cells));
        d_cell = clip_backward(d_cell, free_cell, lstm->cell_clip);
        vf gradients[4] = {
            v_mul(v_mul(d_cell, j), v_mul(i, v_sub(one, i))),
            v_mul(v_mul(d_cell, before), v_mul(f, v_sub(one, f))),
            v_mul(v_mul(d_cell, i), v_sub(one, v_mul(j, j))),
            v_mul(v_mul(d_output, tanh_cell), v_mul(o, v_sub(one, o))),
        };
        v_store(d_cells, v_mul(v_mul(d_cell, f), keep));
        UNROLL for (int g = 0; g < 4; g++) {
            store_typed(type, lstm->d_gates, ((t * batch + r) * 4 + g) * n + p * VL, gradients[g]);
            d_bias[g] = v_add(d_bias[g], gradients[g]);
        }
    }
    UNROLL for (int g = 0; g < 4; g++) {
        float *total = lstm->d_bias + g * n + p * VL;
        v_store(total, v_add(v_load(total), d_bias[g]));
    }
}

static void gates_backward(const struct lstm_window *lstm, int64_t t, int64_t p, const float *d_outputs,
                           int64_t stride) {
    if (lstm->type == FLOAT32)
        gates_backward_as(lstm, t, p, d_outputs, stride, FLOAT32);
    else
        gates_backward_as(lstm, t, p, d_outputs, stride, BFLOAT16);
}

/* Compute the gradients of a window, except those that are one product over all steps. d_bias starts with zeros. */
int elmo_lstm_backward(const struct lstm_window *lstm) {
    int64_t type = lstm->type, size = ELEMENT[type], batch = lstm->batch, width = lstm->width, n = lstm->n_cells;
    int64_t sizes[] = {packed_size(type, width, 4 * n), packed_size(type, n, width)};
    char *packed = allocate(sizes[0] + sizes[1]);
    float *sums = allocate(batch * PANEL * 4);
    if (!packed || !sums) return free(packed), free(sums), 1;
    pack_matrix(type, lstm->state_weight, width, 4 * n, 1, packed);
    if (lstm->has_projection) pack_matrix(type, lstm->projection, n, width, 1, packed + sizes[0]);
    struct weight states = packed_matrix(type, width, 4 * n, packed);
    struct weight projection = packed_matrix(type, n, width, packed + sizes[0]);
    for (int64_t t = lstm->time - 1; t >= 0; t--) {
        for (int64_t k = 0; k < batch * width; k += VL) {
            int64_t at = t * batch * width + k;
            vf d_state = v_load(lstm->d_state + k);
            if (lstm->d_hidden) d_state = v_add(d_state, v_load(lstm->d_hidden + at));
            d_state = clip_backward(d_state, v_load(lstm->free_hidden + at), lstm->state_clip);
            v_store(lstm->d_state + k, d_state);
            store_typed(type, lstm->d_free_hidden, at, d_state);
        }
        if (lstm->has_projection) {
            struct rows d_hidden = {(char *)lstm->d_free_hidden + t * batch * width * size, width, NULL};
            for (int64_t p = 0; p < projection.n_panels; p++) {
                multiply(batch, &d_hidden, &projection, p, ZEROS, 0, sums, next_panel(&projection, p));
                for (int64_t c = 0; c < 4 && p * 4 + c < n / VL; c++)
                    gates_backward(lstm, t, p * 4 + c, sums + c * VL, PANEL);
            }
        } else {
            for (int64_t p = 0; p < n / VL; p++) gates_backward(lstm, t, p, lstm->d_state + p * VL, width);
        }
        struct rows d_gates = {(char *)lstm->d_gates + t * batch * 4 * n * size, 4 * n, NULL};
        for (int64_t p = 0; p < states.n_panels; p++) {
            multiply(batch, &d_gates, &states, p, ZEROS, 0, sums, next_panel(&states, p));
            store_panel(batch, sums, p, width, INFINITY, lstm->d_state, width);
        }
        if (lstm->keep)
            for (int64_t r = 0; r < batch; r++)
                for (int64_t k = 0; k < width; k += VL) {
                    float *d_state = lstm->d_state + r * width + k;
                    v_store(d_state, v_mul(v_load(d_state), v_set(lstm->keep[t * batch + r])));
                }
    }
    return free(packed), free(sums), 0;
}

/* --- character CNN and highway with gradients ------------------------------------------------------------------ */

struct cnn_window { /* n_filters and widest * char_width are multiples of VL */
    int64_t n_words, n_chars, n_filters, char_width, widest, is_relu;
    const int64_t *char_ids, *n_starts; /* (word, n_chars), (word): see elmo_char_cnn */
    const int32_t *widths;              /* of each filter */
    const float *characters, *filters, *bias; /* (character, char_width), (filter, widest * char_width), (filter) */
    float *y;                           /* (word, filter): activated maximum */
    uint8_t *best;                      /* (word, filter): start of the best window; the first one of several */
    const float *d_y;
    float *d_filters, *d_bias;
};

/* Read the characters of a word: (n_chars + widest, char_width), zero after the last one. */
static void read_word(const struct cnn_window *cnn, int64_t word, float *letters) {
    int64_t cw = cnn->char_width, n_read = min64(cnn->n_chars, cnn->n_starts[word] + cnn->widest - 1);
    for (int64_t k = 0; k < n_read; k++)
        memcpy(letters + k * cw, cnn->characters + cnn->char_ids[word * cnn->n_chars + k] * cw, cw * 4);
    memset(letters + n_read * cw, 0, (cnn->n_chars + cnn->widest - n_read) * cw * 4);
}

/* Compute y and best of the words first ... last - 1. */
int elmo_cnn_forward(const struct cnn_window *cnn, int64_t first_word, int64_t last_word) {
    int64_t cw = cnn->char_width, n_in = cnn->widest * cw, n_filters = cnn->n_filters;
    int64_t n_panels = (n_filters + PANEL - 1) / PANEL, n_letters = (cnn->n_chars + cnn->widest) * cw, group = 64;
    char *packed = allocate(packed_size(FLOAT32, n_filters, n_in));
    float *letters = allocate(group * n_letters * 4), *sums = allocate(cnn->n_chars * PANEL * 4);
    if (!packed || !letters || !sums) return free(packed), free(letters), free(sums), 1;
    pack_matrix(FLOAT32, cnn->filters, n_filters, n_in, 0, packed);
    struct weight filters = packed_matrix(FLOAT32, n_filters, n_in, packed);
    for (int64_t first = first_word; first < last_word; first += group) {
        int64_t n = min64(group, last_word - first);
        for (int64_t k = 0; k < n; k++) read_word(cnn, first + k, letters + k * n_letters);
        for (int64_t p = 0; p < n_panels; p++)
            for (int64_t word = first; word < first + n; word++) {
                int64_t m = cnn->n_starts[word], n_here = min64(PANEL, n_filters - p * PANEL);
                struct rows rows = {letters + (word - first) * n_letters, cw, NULL};
                multiply(m, &rows, &filters, p, ZEROS, 0, sums, next_panel(&filters, p));
                for (int64_t start = max64(0, cnn->n_chars - cnn->widest + 1); start < m; start++)
                    for (int64_t k = 0; k < n_here; k++) /* windows that reach beyond the last character */
                        if (cnn->widths[p * PANEL + k] > cnn->n_chars - start) sums[start * PANEL + k] = -INFINITY;
                float highest[PANEL];
                int32_t best[PANEL] = {0};
                memcpy(highest, sums, sizeof highest);
                for (int32_t start = 1; start < m; start++) {
                    const float *row = sums + start * PANEL;
                    for (int k = 0; k < PANEL; k++) {
                        int is_higher = row[k] > highest[k];
                        highest[k] = is_higher ? row[k] : highest[k];
                        best[k] = is_higher ? start : best[k];
                    }
                }
                for (int64_t k = 0; k < n_here; k += VL) {
                    vf x = v_add(v_load(highest + k), v_load(cnn->bias + p * PANEL + k));
                    v_store(cnn->y + word * n_filters + p * PANEL + k, cnn->is_relu ? v_relu(x) : v_tanh(x));
                }
                for (int64_t k = 0; k < n_here; k++) cnn->best[word * n_filters + p * PANEL + k] = (uint8_t)best[k];
            }
    }
    return free(packed), free(letters), free(sums), 0;
}

/* Add the gradients of the filters first ... last - 1. Only the best window of a word has a gradient. */
int elmo_cnn_backward(const struct cnn_window *cnn, int64_t first_filter, int64_t last_filter, float *d_characters) {
    int64_t cw = cnn->char_width, n_in = cnn->widest * cw, n_letters = (cnn->n_chars + cnn->widest) * cw;
    float *letters = allocate(2 * n_letters * 4), *d_letters = letters + n_letters;
    if (!letters) return 1;
    for (int64_t word = 0; word < cnn->n_words; word++) {
        read_word(cnn, word, letters);
        memset(d_letters, 0, n_letters * 4);
        for (int64_t f = first_filter; f < last_filter; f++) {
            float y = cnn->y[word * cnn->n_filters + f], d_y = cnn->d_y[word * cnn->n_filters + f];
            float gradient = cnn->is_relu ? (y > 0 ? d_y : 0) : d_y * (1 - y * y);
            if (gradient == 0) continue;
            cnn->d_bias[f] += gradient;
            int64_t at = cnn->best[word * cnn->n_filters + f] * cw;
            const float *filter = cnn->filters + f * n_in;
            float *d_filter = cnn->d_filters + f * n_in;
            vf factor = v_set(gradient);
            for (int64_t k = 0; k < n_in; k += VL) {
                v_store(d_filter + k, v_fma(factor, v_load(letters + at + k), v_load(d_filter + k)));
                v_store(d_letters + at + k, v_fma(factor, v_load(filter + k), v_load(d_letters + at + k)));
            }
        }
        int64_t n_read = min64(cnn->n_chars, cnn->n_starts[word] + cnn->widest - 1);
        for (int64_t k = 0; k < n_read; k++) {
            float *target = d_characters + cnn->char_ids[word * cnn->n_chars + k] * cw;
            for (int64_t c = 0; c < cw; c++) target[c] += d_letters[k * cw + c];
        }
    }
    return free(letters), 0;
}

INLINE vf load_typed(int64_t type, const void *source, int64_t at) {
#if HAS_BF16
    if (type == BFLOAT16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)((const uint16_t *)source + at))), 16));
#endif
    (void)type;
    return v_load((const float *)source + at);
}

struct highway { /* width is a multiple of VL */
    int64_t type, n_words, width;
    const void *products; /* typed (word, 2 * width): of the gate, then of the transform, without biases */
    const float *bias;    /* (2 * width), in the same order */
    const float *x, *d_y; /* (word, width) */
    float *gate, *transformed, *y, *d_x; /* (word, width); d_x without the part that the products give */
    void *d_products;     /* typed (word, 2 * width) */
    float *d_bias;        /* (2 * width) */
};

int elmo_highway_forward(const struct highway *highway, int64_t first, int64_t last) {
    int64_t width = highway->width;
    for (int64_t r = first; r < last; r++)
        for (int64_t k = 0; k < width; k += VL) {
            vf g = v_add(load_typed(highway->type, highway->products, r * 2 * width + k), v_load(highway->bias + k));
            vf t = v_add(load_typed(highway->type, highway->products, (r * 2 + 1) * width + k),
                         v_load(highway->bias + width + k));
            vf x = v_load(highway->x + r * width + k);
            g = v_half_sigmoid(v_mul(g, v_set(0.5f))), t = v_relu(t);
            v_store(highway->gate + r * width + k, g), v_store(highway->transformed + r * width + k, t);
            v_store(highway->y + r * width + k, v_fma(g, v_sub(t, x), x));
        }
    return 0;
}

/* Columns first ... last - 1 of all words; d_bias starts with zeros. */
int elmo_highway_backward(const struct highway *highway, int64_t first, int64_t last) {
    int64_t width = highway->width, block = 16 * VL;
    vf one = v_set(1);
    for (int64_t column = first; column < last; column += block)
        for (int64_t r = 0; r < highway->n_words; r++)
            for (int64_t k = column; k < min64(column + block, last); k += VL) {
                int64_t at = r * width + k;
                vf g = v_load(highway->gate + at), t = v_load(highway->transformed + at);
                vf x = v_load(highway->x + at), d_y = v_load(highway->d_y + at);
                vf d_t = v_mul(d_y, g), d_g = v_mul(v_mul(d_y, v_sub(t, x)), v_mul(g, v_sub(one, g)));
                v_store(highway->d_x + at, v_sub(d_y, d_t));
                /* relu passes no gradient where its output is zero */
                float passed[VL], values[VL];
                v_store(passed, d_t), v_store(values, t);
                UNROLL for (int lane = 0; lane < VL; lane++) passed[lane] = values[lane] > 0 ? passed[lane] : 0;
                d_t = v_load(passed);
                store_typed(highway->type, highway->d_products, r * 2 * width + k, d_g);
                store_typed(highway->type, highway->d_products, (r * 2 + 1) * width + k, d_t);
                v_store(highway->d_bias + k, v_add(v_load(highway->d_bias + k), d_g));
                v_store(highway->d_bias + width + k, v_add(v_load(highway->d_bias + width + k), d_t));
            }
    return 0;
}

/* --- softmax with gradients ------------------------------------------------------------------------------------ */

struct softmax { /* width and n_words are multiples of VL */
    int64_t type, n_tokens, n_words, width, n_hits;
    const float *states, *rows, *bias; /* (token, width), (word, width), (word) */
    const float *extra;                /* (token): one more logit of each token; or NULL */
    const int64_t *hit_token, *hit_word; /* (n_hits): pairs to leave out, by rising token */
    void *odds;                        /* typed (token, word): exp(logit - highest) */
    float *sums, *highest;             /* (token): sum of odds, including that of extra */
    float *d_bias;                     /* (word): sum of probabilities over tokens, to be added to */
};

/* x, or 0 where value is below the limit. */
INLINE vf zero_below(vf x, vf value, float limit) {
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(value, v_set(limit), _CMP_NLT_UQ), x);
#elif defined(__AVX2__)
    return _mm256_and_ps(_mm256_cmp_ps(value, v_set(limit), _CMP_NLT_UQ), x);
#else
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(value, v_set(limit))));
#endif
}

/* exp(x) for x <= 0; zero below -87, where the result would lose digits. */
INLINE vf v_exp(vf free) {
    vf x = v_max(v_set(-87), free);
    vf rounder = v_set(3 << 22), rounded = v_fma(x, v_set(1.44269504f), rounder);
    vf r = v_fma(v_sub(rounded, rounder), v_set(-0.693147181f), x);
    vf s = v_fma(v_set(0.001388251f), r, v_set(0.00836658f));
    s = v_fma(s, r, v_set(0.0416672f));
    s = v_fma(s, r, v_set(0.16666543f));
    s = v_fma(s, r, v_set(0.49999997f));
    vf power = v_shift_exponent(rounded);
    return zero_below(v_fma(power, v_fma(v_mul(r, r), s, r), power), free, -87);
}

/* Compute the odds of all words for all tokens. */
int elmo_softmax(const struct softmax *softmax) {
    int64_t type = softmax->type, width = softmax->width, n_words = softmax->n_words, stride = round_up(n_words, PANEL);
    int64_t block = (1 << 18) / max64(stride, 1) / ROWS * ROWS; /* logits of a block stay in the cache */
    block = block < 2 * ROWS ? 2 * ROWS : block > BLOCK_ROWS ? BLOCK_ROWS : block;
    char *packed = allocate(packed_size(type, n_words, width)), *typed = allocate(block * row_stride(type, width) * 4);
    float *logits = allocate(block * stride * 4), *sums = allocate(block * PANEL * 4), *bias = allocate(stride * 4);
    int is_short = !packed || !typed || !logits || !sums || !bias;
    if (!is_short) {
        pack_matrix(type, softmax->rows, n_words, width, 0, packed);
        memcpy(bias, softmax->bias, n_words * 4);
        memset(bias + n_words, 0, (stride - n_words) * 4);
    }
    struct weight weight = packed_matrix(type, n_words, width, packed);
    for (int64_t first = 0, hit = 0; first < softmax->n_tokens && !is_short; first += block) {
        int64_t m = min64(block, softmax->n_tokens - first);
        struct rows rows;
        convert_rows(type, m, softmax->states + first * width, width, width, typed, NULL, &rows);
        for (int64_t p = 0; p < weight.n_panels; p++) {
            multiply(m, &rows, &weight, p, bias + p * PANEL, 0, sums, next_panel(&weight, p));
            for (int64_t r = 0; r < m; r++) memcpy(logits + r * stride + p * PANEL, sums + r * PANEL, PANEL * 4);
        }
        for (; hit < softmax->n_hits && softmax->hit_token[hit] < first + m; hit++)
            logits[(softmax->hit_token[hit] - first) * stride + softmax->hit_word[hit]] = -INFINITY;
        for (int64_t r = 0; r < m; r++) {
            const float *row = logits + r * stride;
            vf highest = v_load(row), sum = v_set(0);
            for (int64_t k = VL; k < n_words; k += VL) highest = v_max(v_load(row + k), highest);
            float lanes[VL], most = softmax->extra ? softmax->extra[first + r] : -INFINITY, total = 0;
            v_store(lanes, highest);
            for (int lane = 0; lane < VL; lane++) most = lanes[lane] > most ? lanes[lane] : most;
            if (!(most > -INFINITY)) most = 0; /* nothing but hits */
            for (int64_t k = 0; k < n_words; k += VL) {
                vf odds = v_exp(v_sub(v_load(row + k), v_set(most)));
                sum = v_add(sum, odds);
                v_store((float *)row + k, odds);
                store_typed(type, softmax->odds, (first + r) * n_words + k, odds);
            }
            v_store(lanes, sum);
            for (int lane = 0; lane < VL; lane++) total += lanes[lane];
            if (softmax->extra) total += expf(softmax->extra[first + r] - most);
            softmax->sums[first + r] = total, softmax->highest[first + r] = most;
            vf inverse = v_set(1 / total);
            for (int64_t k = 0; k < n_words && softmax->d_bias; k += VL)
                v_store(softmax->d_bias + k, v_fma(v_load(row + k), inverse, v_load(softmax->d_bias + k)));
        }
    }
    return free(packed), free(typed), free(logits), free(sums), free(bias), is_short;
}

/* --- optimizers ------------------------------------------------------------------------------------------------ */

/* The parts begin ... end - 1 of a weight: numbers if rows is NULL, otherwise rows of the given width. */
struct range {
    const int64_t *rows;
    int64_t width, begin, end;
};

static double sum_squares(const float *x, int64_t n) {
    double total = 0;
    for (int64_t k = 0; k < n; k += 1024) { /* short sums in float32 */
        float sum[VL] = {0};
        int64_t last = min64(k + 1024, n), i = k;
        for (; i + VL <= last; i += VL)
            for (int lane = 0; lane < VL; lane++) sum[lane] += x[i + lane] * x[i + lane];
        for (; i < last; i++) sum[0] += x[i] * x[i];
        for (int lane = 0; lane < VL; lane++) total += sum[lane];
    }
    return total;
}

double elmo_sum_squares(const float *x, const struct range *range) {
    if (!range->rows) return sum_squares(x + range->begin, range->end - range->begin);
    double total = 0;
    for (int64_t r = range->begin; r < range->end; r++)
        total += sum_squares(x + range->rows[r] * range->width, range->width);
    return total;
}

struct update {
    int64_t is_adagrad; /* otherwise AdamW */
    float rate, scale;  /* scale: factor of the gradients */
    float beta1, beta2, epsilon, decay, correction1, correction2; /* corrections: 1 - beta1^t, sqrt(1 - beta2^t) */
};

static void adagrad(const struct update *u, int64_t n, float *restrict w, float *restrict g, float *restrict sums) {
    for (int64_t k = 0; k < n; k++) {
        float gradient = g[k] * u->scale;
        sums[k] += gradient * gradient;
        w[k] -= u->rate * gradient / (sqrtf(sums[k]) + u->epsilon);
        g[k] = 0;
    }
}

static void adamw(const struct update *u, int64_t n, float *restrict w, float *restrict g, float *restrict mean,
                  float *restrict square) {
    float shrink = 1 - u->rate * u->decay, rate = u->rate / u->correction1, inverse = 1 / u->correction2;
    for (int64_t k = 0; k < n; k++) {
        float gradient = g[k] * u->scale;
        mean[k] += (1 - u->beta1) * (gradient - mean[k]);
        square[k] = u->beta2 * square[k] + (1 - u->beta2) * gradient * gradient;
        w[k] = w[k] * shrink - rate * mean[k] / (sqrtf(square[k]) * inverse + u->epsilon);
        g[k] = 0;
    }
}

/* Update a weight with its gradient, which is then set to zero. second is used by AdamW only. */
int elmo_update(const struct update *update, const struct range *range, float *w, float *g, float *first,
                float *second) {
    int64_t n = range->rows ? range->width : range->end - range->begin;
    for (int64_t r = range->begin; r < (range->rows ? range->end : range->begin + 1); r++) {
        int64_t at = range->rows ? range->rows[r] * n : range->begin;
        if (update->is_adagrad)
            adagrad(update, n, w + at, g + at, first + at);
        else
            adamw(update, n, w + at, g + at, first + at, second + at);
    }
    return 0;
}

/* --- about this file ---------------------------------------------------------------------------------------- */

int64_t elmo_version(void) { return 1; } /* VERSION in compiled.py */
int64_t elmo_vector_length(void) { return VL; }
int64_t elmo_max_slots(void) { return BLOCK_ROWS; }
int64_t elmo_types(void) { return 1 | (HAS_BF16 ? 2 : 0) | (HAS_INT8 ? 4 : 0); }
