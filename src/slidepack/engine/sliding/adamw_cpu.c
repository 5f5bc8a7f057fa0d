/* One AdamW step over a flat range on the CPU, in one pass: the operations and their order are those
   of kernels/adamw.py, each rounded to fp32 by itself (no contraction), so both give the same bits. */

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { FP32 = 0, BF16 = 1 };

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float from_bf16(uint16_t half) { return from_bits((uint32_t)half << 16); }

/* Nearest, ties to even; a NaN stays one. */
static inline uint16_t to_bf16(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? 0x7FC0u : (uint16_t)rounded;
}

typedef struct {
    float clip, step_size, root_correction, decay;
    float one_minus_beta1, beta2, one_minus_beta2, eps;
} Scalars;

#define STEP(GRAD, M_LOAD, V_LOAD, M_STORE, V_STORE, P_LOAD, P_STORE)                              \
    for (int64_t i = first; i < last; i++) {                                                       \
        float g = (GRAD) * s.clip;                                                                 \
        float m = (M_LOAD), v = (V_LOAD);                                                          \
        m = m + (g - m) * s.one_minus_beta1;                                                       \
        v = v * s.beta2 + g * g * s.one_minus_beta2;                                               \
        float p = (P_LOAD) * decay - s.step_size * (m / (sqrtf(v) / s.root_correction + s.eps));   \
        M_STORE;                                                                                   \
        V_STORE;                                                                                   \
        P_STORE;                                                                                   \
    }

#define JOINED from_bits(((uint32_t)high[i] << 16) + (uint32_t)(int32_t)low[i])
#define SPLIT_STORE                                                                                \
    {                                                                                              \
        int32_t bits = (int32_t)to_bits(p);                                                        \
        int32_t rounded = (int32_t)((uint32_t)bits + 0x8000u) >> 16;                               \
        high[i] = (uint16_t)rounded;                                                               \
        low[i] = (int16_t)((uint32_t)bits - ((uint32_t)rounded << 16));                            \
    }

static void run(int64_t first, int64_t last, float decay, Scalars s, const void *grad, int grad_type,
                void *master, int16_t *low, void *m_state, void *v_state, int moment_type) {
    const uint16_t *g16 = grad;
    const float *g32 = grad;
    uint16_t *high = master;
    float *p32 = master;
    float *m32 = m_state, *v32 = v_state;
    uint16_t *m16 = m_state, *v16 = v_state;
    if (low != 0) {
        if (moment_type == FP32) {
            if (grad_type == BF16)
                STEP(from_bf16(g16[i]), m32[i], v32[i], m32[i] = m, v32[i] = v, JOINED, SPLIT_STORE)
            else
                STEP(g32[i], m32[i], v32[i], m32[i] = m, v32[i] = v, JOINED, SPLIT_STORE)
        } else if (grad_type == BF16)
            STEP(from_bf16(g16[i]), from_bf16(m16[i]), from_bf16(v16[i]), m16[i] = to_bf16(m),
                 v16[i] = to_bf16(v), JOINED, SPLIT_STORE)
        else
            STEP(g32[i], from_bf16(m16[i]), from_bf16(v16[i]), m16[i] = to_bf16(m),
                 v16[i] = to_bf16(v), JOINED, SPLIT_STORE)
    } else if (moment_type == FP32) {
        if (grad_type == BF16)
            STEP(from_bf16(g16[i]), m32[i], v32[i], m32[i] = m, v32[i] = v, p32[i], p32[i] = p)
        else
            STEP(g32[i], m32[i], v32[i], m32[i] = m, v32[i] = v, p32[i], p32[i] = p)
    } else if (grad_type == BF16)
        STEP(from_bf16(g16[i]), from_bf16(m16[i]), from_bf16(v16[i]), m16[i] = to_bf16(m),
             v16[i] = to_bf16(v), p32[i], p32[i] = p)
    else
        STEP(g32[i], from_bf16(m16[i]), from_bf16(v16[i]), m16[i] = to_bf16(m), v16[i] = to_bf16(v),
             p32[i], p32[i] = p)
}

/* Elements from `decayed` on have no weight decay. */
void slidepack_adamw(int64_t elements, int64_t decayed, const Scalars *scalars, const void *grad,
                     int grad_type, void *master, int16_t *low, void *m_state, void *v_state,
                     int moment_type, int threads) {
    const int64_t block = 1 << 16;
    const int64_t blocks = (elements + block - 1) / block;
    const Scalars s = *scalars;
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * block, last = first + block < elements ? first + block : elements;
        int64_t middle = decayed < first ? first : (decayed > last ? last : decayed);
        run(first, middle, s.decay, s, grad, grad_type, master, low, m_state, v_state, moment_type);
        run(middle, last, 1.0f, s, grad, grad_type, master, low, m_state, v_state, moment_type);
    }
}
