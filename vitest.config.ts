import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/global-setup.ts'],
    // Threads would share a process, and faults here end, freeze and block processes.
    pool: 'forks',
    // Much of it waits for leases and timers: as many files at once as there are cores, however few.
    maxWorkers: '100%',
    // Rows of the fault campaign, which mostly wait; more of them would starve each other's processes.
    maxConcurrency: 3,
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
