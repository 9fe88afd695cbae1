/* An attacker's own program for the memory proof: it does what docs/verification.md
   says, as fast as it can on one core. `memory_attacker NONCE ROWS` prints the digest
   and the seconds that it took.

   What it does better than the solver's own passes: it fills rows only when the first
   pass needs them, keeps no row of the last pass, fetches the rows of the next pair
   ahead, and hashes and sorts in C. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define WORDS 32768UL
#define PASSES 16
static const uint64_t STEP = 0x9E3779B97F4A7C15ULL, FACTOR = 0xBF58476D1CE4E5B9ULL;

static inline uint64_t mixed(uint64_t word) { return (word ^ (word >> 31)) * FACTOR; }

/* SHA-256 */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};
#define R(x, n) (((x) >> (n)) | ((x) << (32 - (n))))

static void block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 |
               p[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (R(w[i - 15], 7) ^ R(w[i - 15], 18) ^ w[i - 15] >> 3) +
               w[i - 7] + (R(w[i - 2], 17) ^ R(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = v[7] + (R(v[4], 6) ^ R(v[4], 11) ^ R(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t two = (R(v[0], 2) ^ R(v[0], 13) ^ R(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

/* The digest of a key followed by some bytes. */
static void sha256(uint8_t out[32], const uint8_t *key, size_t key_size,
                   const void *rest, size_t rest_size) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    size_t size = key_size + rest_size, padded = (size + 9 + 63) / 64 * 64;
    uint8_t *all = calloc(padded, 1);
    memcpy(all, key, key_size);
    memcpy(all + key_size, rest, rest_size);
    all[size] = 0x80;
    for (int i = 0; i < 8; i++)
        all[padded - 1 - i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += 64)
        block(h, all + at);
    for (int i = 0; i < 32; i++)
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
    free(all);
}

static uint64_t word(const uint8_t key[32], const char *use) {
    uint8_t digest[32];
    uint64_t found;
    sha256(digest, key, 32, use, strlen(use));
    memcpy(&found, digest, 8);
    return found;
}

struct ranked {
    uint64_t key, row;
};

static int by_key(const void *one, const void *other) {
    uint64_t left = ((const struct ranked *)one)->key;
    uint64_t right = ((const struct ranked *)other)->key;
    return (left > right) - (left < right);
}

static uint64_t base;

static void fill(uint64_t *row, uint64_t number) {
    for (uint64_t i = 0; i < WORDS; i++)
        row[i] = mixed((number * WORDS + i) * STEP + base);
}

static inline void mix(uint64_t *restrict one, uint64_t *restrict other, uint64_t count,
                       uint64_t *sums, int keep) {
    uint64_t first = 0, second = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t left = mixed(one[i] + other[i]), right = mixed(other[i] + left);
        if (keep) {
            one[i] = left;
            other[i] = right;
        }
        first += left;
        second += right;
    }
    sums[0] += first;
    sums[1] += second;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    uint8_t nonce[256], key[32];
    size_t size = strlen(words[1]) / 2;
    for (size_t i = 0; i < size; i++)
        sscanf(words[1] + 2 * i, "%2hhx", nonce + i);
    uint64_t rows = strtoull(words[2], NULL, 10), pairs = rows / 2;
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    uint64_t *memory = mmap(NULL, rows * WORDS * 8, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, rows * WORDS * 8, MADV_HUGEPAGE);
    struct ranked *order = malloc(rows * sizeof *order);
    uint64_t *sums = malloc(rows * 8);
    sha256(key, nonce, size, "memory", 6);
    base = word(key, "fill");
    for (int pass = 0; pass < PASSES; pass++) {
        uint64_t start = word(key, "order"), shift = 16UL << pass % 11;
        for (uint64_t row = 0; row < rows; row++)
            order[row] = (struct ranked){mixed(mixed(row * STEP + start)) >> 1, row};
        qsort(order, rows, sizeof *order, by_key);
        for (uint64_t pair = 0; pair < pairs; pair++) {
            uint64_t a = order[pair].row, b = order[pair + pairs].row, found[2] = {0, 0};
            uint64_t *one = memory + a * WORDS, *other = memory + b * WORDS;
            if (pass == 0) {
                fill(one, a);
                fill(other, b);
            }
            if (pair + 1 < pairs)
                for (uint64_t i = 0; i < 512; i += 8) {
                    __builtin_prefetch(memory + order[pair + 1].row * WORDS + i, 1);
                    __builtin_prefetch(memory + order[pair + 1 + pairs].row * WORDS + i, 1);
                }
            if (pass == PASSES - 1) {
                mix(one, other + shift, WORDS - shift, found, 0);
                mix(one + (WORDS - shift), other, shift, found, 0);
            } else {
                mix(one, other + shift, WORDS - shift, found, 1);
                mix(one + (WORDS - shift), other, shift, found, 1);
            }
            sums[a] = found[0];
            sums[b] = found[1];
        }
        uint8_t next[32];
        sha256(next, key, 32, sums, rows * 8);
        memcpy(key, next, 32);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    for (int i = 0; i < 32; i++)
        printf("%02x", key[i]);
    printf(" %.6f\n", (double)(ended.tv_sec - began.tv_sec) +
                          (double)(ended.tv_nsec - began.tv_nsec) / 1e9);
    return 0;
}
