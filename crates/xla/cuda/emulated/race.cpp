// The protocol under a thread sanitizer: ranks are threads, each block has one thread, so that every access is seen. With
// release and acquire no access races with another; with ALIGHT_NO_RELEASE the sanitizer must say that they do.
//
//     g++ -std=c++17 -O1 -g -fsanitize=thread -pthread -o race race.cpp && ./race 3 2000
#define ALIGHT_NO_FIBRES
#include "shim.h"

#include <thread>

#define ALIGHT_DELAYS
#include "../allreduce_norm.cu"

constexpr u32 MAX_ROWS = 3, HIDDEN = 8;

struct Rank {
    std::vector<char> workspace;
    float partial[MAX_ROWS * HIDDEN], residual[MAX_ROWS * HIDDEN], normed[MAX_ROWS * HIDDEN], sum[MAX_ROWS * HIDDEN];
};

static const Params* params_of(void* p) { return static_cast<const Params*>(p); }

static void kernel(void* p) { allreduce_norm<F32, F32, 2, false, false>(*params_of(p)); }

// Ranks go through `calls` calls, of one to three rows, each with two blocks at most, one after the other.
int main(int count, char** arguments) {
    const u32 ranks = count > 1 ? atoi(arguments[1]) : 3;
    const u32 calls = count > 2 ? atoi(arguments[2]) : 2000;
    std::vector<Rank> all(ranks);
    std::vector<u64> reports(ranks);
    float weight[HIDDEN];
    for (float& w : weight) w = 1.0f;
    Params params{};
    params.slot = MAX_ROWS * HIDDEN * sizeof(float);
    for (u32 r = 0; r < ranks; r++) {
        all[r].workspace.resize(sizeof(Workspace) + 2 * ranks * params.slot + 16);
        u64 at = reinterpret_cast<u64>(all[r].workspace.data());
        params.workspace[r] = (at + 15) / 16 * 16;
    }
    params.weight = reinterpret_cast<u64>(weight);
    params.report = reinterpret_cast<u64>(reports.data());
    params.limit = 60000000000;
    params.ranks = ranks;
    params.hidden = HIDDEN;
    params.inverse_hidden = 1.0 / HIDDEN;
    params.epsilon = 1e-6f;
    std::vector<u32> wrong(ranks);
    std::vector<std::thread> threads;
    for (u32 r = 0; r < ranks; r++) {
        threads.emplace_back([&, r] {
            Rank& own = all[r];
            Params p = params;
            p.rank = r;
            p.partial = reinterpret_cast<u64>(own.partial);
            p.residual = reinterpret_cast<u64>(own.residual);
            p.normed = reinterpret_cast<u64>(own.normed);
            p.new_residual = reinterpret_cast<u64>(own.sum);
            Block block{};
            for (u32 call = 0; call < calls; call++) {
                p.rows = 1 + call % MAX_ROWS;
                for (u32 i = 0; i < p.rows * HIDDEN; i++) {
                    own.partial[i] = static_cast<float>((call * 31 + r * 7 + i) % 1000);
                    own.residual[i] = 1.0f;
                }
                block.threads = {1, 1};
                block.blocks = {p.rows < 2 ? p.rows : 2, 1};
                block.run = kernel;
                block.argument = &p;
                for (u32 b = 0; b < block.blocks.x; b++) {
                    block.block = {b, 0};
                    run_block(block);
                }
                for (u32 i = 0; i < p.rows * HIDDEN; i++) {
                    float expected = 1.0f;
                    for (u32 q = 0; q < ranks; q++) expected += static_cast<float>((call * 31 + q * 7 + i) % 1000);
                    if (own.sum[i] != expected) wrong[r]++;
                }
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (u32 r = 0; r < ranks; r++) {
        if (wrong[r] || reports[r]) {
            printf("rank %u: %u wrong, report %llx\n", r, wrong[r], reports[r]);
            return 1;
        }
    }
    printf("%u ranks, %u calls\n", ranks, calls);
    return 0;
}
