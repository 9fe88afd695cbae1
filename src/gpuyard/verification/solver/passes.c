/* The passes of the memory proof on a processor; see memory.py for what they are.

   The compiler makes vectors of these loops, so a pass takes about as long as to read
   and write the memory once. */

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

static const uint64_t STEP = 0x9E3779B97F4A7C15ULL;
static const uint64_t FACTOR = 0xBF58476D1CE4E5B9ULL;

static inline uint64_t mixed(uint64_t word) { return (word ^ (word >> 31)) * FACTOR; }

/* Memory in large pages where the system has them; NULL when there is too little. */
uint64_t *take(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

void give_back(uint64_t *memory, size_t bytes) { munmap(memory, bytes); }

void fill(uint64_t *memory, size_t words, uint64_t base) {
    for (size_t place = 0; place < words; place++)
        memory[place] = mixed(place * STEP + base);
}

/* Mix two pieces word by word, and add up what becomes of each. */
static void mix_pieces(uint64_t *restrict one, uint64_t *restrict other, size_t words,
                       uint64_t *one_sum, uint64_t *other_sum) {
    uint64_t first = 0;
    uint64_t second = 0;
    for (size_t place = 0; place < words; place++) {
        uint64_t left = mixed(one[place] + other[place]);
        uint64_t right = mixed(other[place] + left);
        one[place] = left;
        other[place] = right;
        first += left;
        second += right;
    }
    *one_sum += first;
    *other_sum += second;
}

/* Mix row order[i] with row order[i + pairs], whose words are taken `shift` further on;
   `sums` gets the sum of each row. */
void mix_rows(uint64_t *memory, const uint64_t *order, size_t pairs, size_t words,
              size_t shift, uint64_t *sums) {
    for (size_t pair = 0; pair < pairs; pair++) {
        uint64_t *one = memory + order[pair] * words;
        uint64_t *other = memory + order[pair + pairs] * words;
        uint64_t first = 0;
        uint64_t second = 0;
        mix_pieces(one, other + shift, words - shift, &first, &second);
        mix_pieces(one + (words - shift), other, shift, &first, &second);
        sums[order[pair]] = first;
        sums[order[pair + pairs]] = second;
    }
}
